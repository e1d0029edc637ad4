"""One agent's steps in a buffer: which tier each is in, whose it is, and what may go.

Owns the ages and the rewards. Steps are numbered from 0. The latest are whole (leaves.Recent), then
come chunks (planes.PlaneStore), and of the rest there is the reward. Knows no threshold: who frees
for lack of memory (the buffer) says so by `give_up`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.buffer import codec, spans
from dsec.buffer.arena import Arena
from dsec.buffer.leaves import Leaf, Recent, Tree, given_back
from dsec.buffer.planes import Chunk, PlaneStore, Steps, stack_axes, stack_axis
from dsec.buffer.spans import Span

SEGMENT_BYTES = 200  # what Python takes to remember where an episode began


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps from `first` on belong to this episode and rollout, up to the next segment."""

    first: int
    episode: int
    rollout: int


@dataclass(eq=False, slots=True)
class Claim:
    """What a hold keeps of each agent: the label that it is about, and the steps found for it."""

    agent: str | None
    episode: int | None
    rollout: int | None
    steps: dict[str, list[Span]] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)

    def covers(self, agent: str, episode: int, rollout: int) -> bool:
        """Whether steps with these labels are meant."""
        return (
            self.agent in (None, agent)
            and self.episode in (None, episode)
            and self.rollout in (None, rollout)
        )

    def found(self, lane: Lane, held: list[Span]) -> None:
        """Take what a lane has of it: only what is there still."""
        met, there = lane.matching(self), lane.wanted(held)
        self.steps[lane.agent] = spans.both(spans.union((a, b + 1) for a, b in met), there)
        self.latest[lane.agent] = met[-1][1] - 1 if met else -1

    def goes_on(self, agent: str, step: int, episode: int, rollout: int) -> None:
        """Take the step that comes in now, if it is meant, or if its observation is what a step
        that is meant led to."""
        covered = self.covers(agent, episode, rollout)
        if covered or self.latest.get(agent, -2) == step - 1:
            mine = self.steps.get(agent, [])
            self.steps[agent] = spans.union([*mine, (step, step + 1)])
        if covered:
            self.latest[agent] = step


@dataclass(frozen=True, slots=True)
class Tiers:
    """How long steps stay in which tier, and how chunks are made.

    Attributes:
        length: steps of which the reward is kept.
        full, compressed: age from which on a step is no longer whole, no longer there.
        key_every: steps from one key to the next; None for what fits the tier.
    """

    length: int
    full: int
    compressed: int
    key_every: int | None

    def chunk(self, leaf: Leaf, lossless: bool) -> int:
        """Planes in a chunk of this leaf."""
        if self.key_every is not None:
            return self.key_every
        most = 64 if leaf.floating and not lossless else 32
        return max(4, min(most, (self.compressed - self.full) // 8))


class Lane:
    """One agent's steps.

    Attributes:
        steps: how many were pushed.
        episode: the number of the one that goes on, from 0.
        stores: the compressed tier, one for each leaf; empty until something gets old.
    """

    def __init__(
        self, agent: str, trees: tuple[Tree, Tree], tiers: Tiers, reward_dtype: np.dtype[Any]
    ) -> None:
        self.agent, self.tiers = agent, tiers
        self.obs, self.action = trees
        self.steps = self.episode = 0
        self.rewards: NDArray[Any] = np.zeros(tiers.length, reward_dtype)
        self.dones: NDArray[np.bool_] = np.zeros(tiers.length, np.bool_)
        self._leaves = [*self.obs.leaves, *self.action.leaves]
        self._recent = [Recent(leaf, tiers.full + 1) for leaf in self._leaves]
        self.stores: list[PlaneStore] = []
        self.segments: deque[Segment] = deque()
        self._floor = 0  # given up below, whatever the tiers say
        self._dropped: list[Span] = []
        self._returns = np.zeros(tiers.length, np.float64)
        self._settled = 0  # the returns of all steps below it are there, and won't change
        self._counted = 0  # those below it are there, and will where an episode goes on
        self._base = self._base_bytes()

    # ------------------------------------------------------------------ what is there

    @property
    def oldest(self) -> int:
        """The oldest step of which the reward is there."""
        return max(0, self.steps - self.tiers.length)

    @property
    def horizon(self) -> int:
        """Steps before it are not wanted by age."""
        return max(self._floor, self.steps - self.tiers.compressed, 0)

    def wanted(self, held: list[Span]) -> list[Span]:
        """The steps whose observations are to be kept; those of `held` whatever their age."""
        by_age = spans.without([(self.horizon, self.steps)], self._dropped)
        return spans.union([*by_age, *held])

    def sampled(self, held: list[Span]) -> list[Span]:
        """The steps that a batch may be drawn from: their observations are there, and those after
        them, which the newest step of an episode that goes on has not."""
        able = [
            (first, end if self.dones[(end - 1) % self.tiers.length] else end - 1)
            for first, end in self.wanted(held)
        ]
        return [each for each in able if each[0] < each[1]]

    def matching(self, claim: Claim) -> list[Span]:
        """The steps that bear the labels of a claim."""
        ends = [*(each.first for each in self.segments), self.steps][1:]
        return spans.union(
            (segment.first, end)
            for segment, end in zip(self.segments, ends, strict=True)
            if claim.covers(self.agent, segment.episode, segment.rollout)
        )

    # ------------------------------------------------------------------ coming in

    def checked(self, obs: Any, action: Any) -> list[Any]:
        """The leaves of a step, ready for `take`.

        Raises:
            LocalError: they don't fit those of the steps before.
        """
        parts = [*self.obs.parts(obs), *self.action.parts(action)]
        return [recent.checked(part) for recent, part in zip(self._recent, parts, strict=True)]

    def due(self) -> Iterator[PlaneStore]:
        """The stores that need a chunk coded before the next step can be taken."""
        for store in self.stores:
            while store.full:
                yield store

    def take(self, parts: list[Any], reward: float, done: bool, rollout: int, arena: Arena) -> None:
        """Take a step in; all that is due must have been done."""
        step, tiers = self.steps, self.tiers
        leaving = step - tiers.full - 1
        if leaving >= 0:
            if not self.stores:
                self._open_stores(leaving, arena)
            for store, recent in zip(self.stores, self._recent, strict=True):
                store.take(recent.host(leaving))
        for recent, part in zip(self._recent, parts, strict=True):
            recent.put(step, part)
        place = step % tiers.length
        self.rewards[place], self.dones[place] = reward, done
        last = self.segments[-1] if self.segments else None
        if last is None or last.episode != self.episode or last.rollout != rollout:
            self.segments.append(Segment(step, self.episode, rollout))
        self.steps += 1
        self.episode += done
        while len(self.segments) > 1 and self.segments[1].first <= self.oldest:
            self.segments.popleft()

    def _open_stores(self, step: int, arena: Arena) -> None:
        for i, (leaf, recent) in enumerate(zip(self._leaves, self._recent, strict=True)):
            action = i >= len(self.obs.leaves)
            axis = None if action else stack_axis(recent.host(step), recent.host(step + 1))
            self.stores.append(
                PlaneStore(leaf, arena, axis, self._count(i), self.tiers.length, action)
            )
        self._base = self._base_bytes()

    # ------------------------------------------------------------------ going out

    def age(self, held: list[Span]) -> None:
        """Free the chunks that nothing needs any more, now that there is one step more."""
        horizon, wanted = self.horizon, None
        for store in self.stores:
            while store.chunks and store.chunks[0].last < horizon:
                chunk = store.chunks.popleft()
                wanted = self.wanted(held) if wanted is None else wanted
                self._let_go(store, chunk, wanted)

    def sweep(self, held: list[Span]) -> None:
        """The same of all chunks, now that something else is wanted."""
        wanted = self.wanted(held)
        self._dropped = [each for each in self._dropped if each[1] > self.horizon]
        for store in self.stores:
            chunks, parked = list(store.chunks), store.parked
            store.chunks.clear()
            store.parked = []
            for chunk in [*parked, *chunks]:
                if chunk.last >= self.horizon and spans.touches(wanted, chunk.first, chunk.last):
                    store.chunks.append(chunk)
                else:
                    self._let_go(store, chunk, wanted)

    def _let_go(self, store: PlaneStore, chunk: Chunk, wanted: list[Span]) -> None:
        if spans.touches(wanted, chunk.first, chunk.last):
            store.parked.append(chunk)
        else:
            store.free(chunk)

    def drop(self, gone: list[Span]) -> None:
        """Nobody wants the observations of these steps any more."""
        self._dropped = spans.union([*self._dropped, *gone])

    def oldest_chunk(self, held: list[Span]) -> Chunk | None:
        """The chunk that would go first for lack of memory; None if all is held, or none there."""
        fronts = (
            next((c for c in store.chunks if not spans.touches(held, c.first, c.last)), None)
            for store in self.stores
        )
        return min((c for c in fronts if c is not None), key=lambda c: c.last, default=None)

    def give_up(self, chunk: Chunk, held: list[Span]) -> None:
        """Keep no observation up to the last that needs this chunk, but for what is held."""
        self._floor = max(self._floor, chunk.last + 1)
        self.age(held)

    # ------------------------------------------------------------------ reading

    def read(self, steps: Steps) -> list[Any]:
        """The leaves of steps, observations and then actions, each a batch (n, ...)."""
        whole = steps >= self.steps - self.tiers.full - 1
        found = []
        for i, (leaf, recent) in enumerate(zip(self._leaves, self._recent, strict=True)):
            if whole.all():
                out = given_back(np.empty((len(steps), *leaf.shape), leaf.dtype), leaf)
                recent.fill(out, np.arange(len(steps)), steps)
            elif not whole.any():
                out = given_back(self.stores[i].read(steps), leaf)
            else:
                # Where it was whole something is read as well, and written over.
                out = given_back(
                    self.stores[i].read(np.where(whole, steps[~whole][0], steps)), leaf
                )
                recent.fill(out, np.flatnonzero(whole), steps[whole])
            found.append(out)
        return found

    def latest(self, ring: NDArray[Any]) -> NDArray[Any]:
        """A ring of one value for each step, oldest first; a copy."""
        return ring[np.arange(self.oldest, self.steps) % self.tiers.length]

    def returns(self, decay: float, steps: Steps | None = None) -> NDArray[np.float64]:
        """The discounted return of these steps, of all whose reward is there by default: G = r +
        decay * G', and r where an episode ends; what comes after the newest step counts as 0.

        A step changes the returns of its own episode only, so that is what is counted again.
        """
        if self._counted < self.steps:
            first = max(self._settled, self.oldest)
            places = np.arange(first, self.steps) % self.tiers.length
            rewards = self.rewards[places].astype(np.float64)[::-1].tolist()
            dones = self.dones[places][::-1]
            pairs = zip(rewards, dones.tolist(), strict=True)
            found = list(accumulate(pairs, _discounted(decay), initial=0.0))[1:]
            self._returns[places] = found[::-1]
            if dones.any():
                self._settled = self.steps - int(dones.argmax())
            self._counted = self.steps
        if steps is None:
            return self.latest(self._returns)
        return self._returns[steps % self.tiers.length]

    def keep_rewards_as(self, dtype: np.dtype[Any]) -> None:
        """Convert the rewards, and with them the returns."""
        self.rewards = self.rewards.astype(dtype)
        self._settled = self._counted = 0

    # ------------------------------------------------------------------ figures

    @property
    def index_bytes(self) -> int:
        """Rewards, flags, returns and where episodes begin."""
        each = self.rewards.nbytes + self.dones.nbytes + self._returns.nbytes
        return each + max(len(self.segments), 1) * SEGMENT_BYTES

    @property
    def fixed_bytes(self) -> int:
        """What it takes beside the arena."""
        return self._base + self.index_bytes

    def _base_bytes(self) -> int:
        """The same without the index. Until it is known whether observations are stacks of frames,
        as if they were the one that takes most."""
        return self.full_bytes + sum(
            max(
                PlaneStore.fixed_bytes(leaf, axis, self._count(i), self.tiers.length)
                for axis in self._axes(i)
            )
            for i, leaf in enumerate(self._leaves)
        )

    def _axes(self, i: int) -> list[int | None]:
        if self.stores:
            return [self.stores[i].axis]
        return [None] if i >= len(self.obs.leaves) else [None, *stack_axes(self._leaves[i].shape)]

    @property
    def full_bytes(self) -> int:
        """Observations and actions that are whole."""
        return sum(recent.nbytes for recent in self._recent)

    def worst_bytes(self) -> int:
        """What the compressed tier takes of the arena if nothing can be compressed."""
        return sum(self._chunks(i) * self._bound(leaf, i) for i, leaf in enumerate(self._leaves))

    def expected_bytes(self) -> int:
        """What it is expected to take: 5 % for whole numbers, 30 % for floats."""
        return sum(
            self._chunks(i) * self._bound(leaf, i) * (30 if leaf.floating else 5) // 100
            for i, leaf in enumerate(self._leaves)
        )

    def largest_chunk(self) -> int:
        """Bytes of the largest chunk that there can be."""
        return max(self._bound(leaf, i) for i, leaf in enumerate(self._leaves))

    def _chunks(self, i: int) -> int:
        return -(-self.tiers.compressed // self._count(i)) + 1

    def _count(self, i: int) -> int:
        return self.tiers.chunk(self._leaves[i], i >= len(self.obs.leaves))

    def _bound(self, leaf: Leaf, i: int) -> int:
        return codec.chunk_bound(self._count(i), leaf.nbytes)


def _discounted(decay: float) -> Callable[[float, tuple[float, bool]], float]:
    """One step of the return, backwards: of what comes after, and (reward, whether it ends)."""

    def step(after: float, now: tuple[float, bool]) -> float:
        reward, done = now
        return reward if done else reward + decay * after

    return step

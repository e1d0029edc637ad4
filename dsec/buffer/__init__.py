"""dsec.buffer: trajectories in a fraction of their memory, `TrajectoryBuffer`.

Owns what users call. Steps come in whole, are compressed when they get older, and leave their
reward behind in the end (lane.py); who has to go for lack of memory is room.py's. Nothing here
starts a process or a thread; a buffer belongs to the thread that uses it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.buffer import batches, spans
from dsec.buffer.checks import float_dtype, whole_number
from dsec.buffer.figures import MIB, Batch, Footprint, Hold, Usage, mib
from dsec.buffer.lane import Claim, Lane, Tiers
from dsec.buffer.leaves import Tree
from dsec.buffer.planes import Quantization
from dsec.buffer.room import Room
from dsec.errors import BufferTooLarge, LocalError

__all__ = ["Batch", "Footprint", "Hold", "TrajectoryBuffer", "Usage"]

_STEP_BYTES = 8 + 8 + 1  # of a step's reward, its return and its end


class TrajectoryBuffer:
    """Steps of one agent, or of several, by age: whole, compressed, and then the reward only.

    Integer observations come back bit for bit, whatever their age. Floats are exact while they are
    whole; compressed, an element is off by at most 1/510 of the range that it had in its chunk and
    by the last place of its dtype (`set_quantization_config` for other ways). Frames that
    observations share, as those of a frame stack do, are stored once.

    Args:
        max_length: steps of each agent of which the reward is kept.
        reward_decay: discount of `returns` for each step, 0..1. What is freed first for lack of
            memory is what this weighs least: the oldest.
        gc_threshold_mb: MiB that the buffer never exceeds, bookkeeping included; batches that were
            handed out are the caller's.
        burst_memory_prealloc_mb: MiB for compressed observations that are taken when the first step
            comes in, and kept; never more than the buffer is expected to need.
        full_steps: age from which on an observation is compressed.
        compressed_steps: age from which on only its reward is there; None for max_length.
        key_every: steps from one key frame to the next. Left out: up to 32, and 64 for floats.
        seed: of what `sample_batch` draws.

    Raises:
        LocalError: a value is outside its range.
        BufferTooLarge: the rewards alone take more than the threshold.
    """

    def __init__(
        self,
        max_length: int = 1000,
        reward_decay: float = 0.99,
        gc_threshold_mb: float = 2048,
        burst_memory_prealloc_mb: float = 512,
        *,
        full_steps: int = 10,
        compressed_steps: int | None = 100,
        key_every: int | None = None,
        seed: int | None = None,
    ) -> None:
        whole_number(max_length, "max_length", 1)
        whole_number(full_steps, "full_steps", 1)
        compressed = max_length if compressed_steps is None else compressed_steps
        whole_number(compressed, "compressed_steps", 1)
        if key_every is not None:
            whole_number(key_every, "key_every", 2)
        if not 0 <= reward_decay <= 1:
            raise LocalError(f"reward_decay is a discount from 0 to 1, not {reward_decay}")
        if not 0 < gc_threshold_mb < math.inf:
            raise LocalError(
                f"gc_threshold_mb must be more than 0 and finite, not {gc_threshold_mb}"
            )
        if not 0 <= burst_memory_prealloc_mb <= gc_threshold_mb:
            raise LocalError(
                f"burst_memory_prealloc_mb ({burst_memory_prealloc_mb}) is part of what "
                f"gc_threshold_mb ({gc_threshold_mb}) limits, so from 0 to that"
            )
        full = min(full_steps, max_length)
        self._tiers = Tiers(max_length, full, max(full, min(compressed, max_length)), key_every)
        self._decay = float(reward_decay)
        threshold = int(gc_threshold_mb * MIB)
        self._room = Room(self._tiers, threshold, int(burst_memory_prealloc_mb * MIB))
        self._reward_dtype: np.dtype[Any] = np.dtype(np.float64)
        self._how = Quantization()
        self._random = np.random.default_rng(seed)
        self._lanes = self._room.lanes
        self._trees: tuple[Tree, Tree] | None = None
        if max_length * _STEP_BYTES > threshold:
            raise BufferTooLarge(
                f"{max_length:,} rewards and returns take {mib(max_length * _STEP_BYTES)}, and "
                f"gc_threshold_mb is {mib(threshold)}"
            )

    # ------------------------------------------------------------------ coming in

    def push(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        done: Any,
        *,
        agent: str = "",
        rollout: int = 0,
    ) -> None:
        """Take in one step.

        Args:
            obs: what the action was chosen on: an array, a tensor, or a dict or tuple of them, of
                the same structure, shapes and dtypes each time. Copied.
            action: likewise; a number will do.
            reward: a finite number.
            done: whether the episode ends with this step. The next step is of the next episode.
            agent: whose step it is; each agent has its own ages and episodes.
            rollout: a label of the caller's, for `hold` and `drop`.

        Raises:
            LocalError: a value doesn't fit the first ones; the buffer is as it was.
            BufferTooLarge: what one agent takes at least is more than the threshold, or what it may
                take is more than the machine has free. Nothing was allocated.
            BufferFull: the step doesn't fit without freeing what is held; the buffer is as it was.
        """
        value, ends = float(reward), bool(done)
        if not math.isfinite(value):
            raise LocalError(f"the reward is {value}; returns can't be computed with that")
        lane = self._lanes.get(agent)
        new = lane is None
        if lane is None:
            lane = self._new_lane(agent, obs, action)
        parts = lane.checked(obs, action)
        room = self._room
        if new:
            room.admit(lane)
            self._trees = lane.obs, lane.action
        assert room.arena is not None, "a lane is there"
        room.make(lane, self._how)
        episode = lane.episode
        for claim in room.claims:
            claim.goes_on(agent, lane.steps, episode, rollout)
        lane.take(parts, value, ends, rollout, room.arena)
        room.count(lane)
        lane.age(room.held(lane))

    def _new_lane(self, agent: str, obs: Any, action: Any) -> Lane:
        trees = self._trees or (Tree(obs, "obs"), Tree(action, "action"))
        return Lane(agent, trees, self._tiers, self._reward_dtype)

    # ------------------------------------------------------------------ going out

    def sample_batch(self, batch_size: int = 32, *, agent: str | None = None) -> Batch:
        """Draw transitions, each with the same probability and independently of the others.

        Only steps whose observation is there can be drawn, and of an episode that goes on not the
        newest, whose successor nobody knows. The reward-only ones are in `rewards` and `returns`.

        Args:
            batch_size: how many.
            agent: of this agent only. Left out: of all.

        Raises:
            LocalError: there is no such agent, or nothing to draw from yet.
        """
        whole_number(batch_size, "batch_size", 1)
        lanes = [self._lane(agent)] if agent is not None else list(self._lanes.values())
        ranges = [lane.sampled(self._room.held(lane)) for lane in lanes]
        of, steps = batches.draw(self._random, ranges, batch_size)
        assert self._trees is not None, "something was drawn"
        return batches.batch(lanes, self._trees, self._decay, of, steps)

    @property
    def rewards(self) -> NDArray[Any]:
        """The rewards that are there, (n,) of the reward dtype, oldest first; agent after agent in
        the order of their first steps."""
        return self._joined([lane.latest(lane.rewards) for lane in self._lanes.values()])

    @property
    def returns(self) -> NDArray[np.float64]:
        """The return from each of these steps on, float64 (n,): G = r + reward_decay * G', and r
        where an episode ends; after the newest step comes 0."""
        return self._joined([lane.returns(self._decay) for lane in self._lanes.values()])

    def _joined(self, arrays: list[NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate(arrays) if arrays else np.zeros(0, self._reward_dtype)

    def __len__(self) -> int:
        """Steps whose reward is there, of all agents."""
        return sum(lane.steps - lane.oldest for lane in self._lanes.values())

    # ------------------------------------------------------------------ what may go, and what not

    def hold(
        self, *, agent: str | None = None, episode: int | None = None, rollout: int | None = None
    ) -> Hold:
        """Keep the observations of these steps, whatever their age and however little memory there
        is, until `release`: those that are there now, and those that are pushed from now on.

        Args:
            agent, episode, rollout: whose; what is left out can be any. An agent's episodes are
                numbered from 0.
        """
        claim = Claim(agent, episode, rollout)
        for lane in self._lanes.values():
            claim.found(lane, self._room.held(lane))
        self._room.claims.append(claim)

        def release() -> None:
            if claim in self._room.claims:
                self._room.claims.remove(claim)
                for lane in self._lanes.values():
                    lane.sweep(self._room.held(lane))

        return Hold(release)

    def drop(
        self, *, agent: str | None = None, episode: int | None = None, rollout: int | None = None
    ) -> None:
        """Free the observations of these steps now, but for what is held; rewards stay."""
        claim = Claim(agent, episode, rollout)
        for lane in self._lanes.values():
            held = self._room.held(lane)
            lane.drop(spans.without(lane.matching(claim), held))
            lane.sweep(held)

    # ------------------------------------------------------------------ settings and figures

    def set_quantization_config(
        self, obs_dtype: Any = None, obs_quantize: bool = False, reward_dtype: Any = None
    ) -> None:
        """How floats are kept from now on; what is compressed already stays as it is.

        Args:
            obs_dtype: float16, float32 or float64, of numpy or torch: what compressed floats are
                rounded to, if it is narrower than their own. None: exactly as they are.
            obs_quantize: a byte for each instead, as a buffer does that nobody has told.
            reward_dtype: what rewards are kept in; those that are there are converted. None: as it
                is (float64 at first).

        Raises:
            LocalError: no such dtype, or obs_dtype beside obs_quantize.
        """
        dtype = None if obs_dtype is None else float_dtype(obs_dtype, "obs_dtype")
        rewards = None if reward_dtype is None else float_dtype(reward_dtype, "reward_dtype")
        self._how = Quantization(bool(obs_quantize), dtype)
        if rewards is not None:
            self._reward_dtype = rewards
            for lane in self._lanes.values():
                lane.keep_rewards_as(rewards)
                self._room.count(lane)

    def footprint(self, obs: Any, action: Any) -> Footprint:
        """What a buffer of such steps, of one agent, will take; nothing is allocated for it.

        Raises:
            LocalError: something in them is no array of numbers.
        """
        trees = Tree(obs, "obs"), Tree(action, "action")
        return self._room.planned(Lane("", trees, self._tiers, self._reward_dtype))

    def usage(self) -> Usage:
        """What it takes now."""
        lanes = self._lanes.values()
        arena, fixed = self._room.arena, self._room.fixed
        full, index = (
            sum(lane.full_bytes for lane in lanes),
            sum(lane.index_bytes for lane in lanes),
        )
        compressed = 0 if arena is None else arena.committed
        observed = sum(spans.count(lane.wanted(self._room.held(lane))) for lane in lanes)
        return Usage(
            total=fixed + compressed,
            full=full,
            waiting=fixed - full - index,
            compressed=compressed,
            index=index,
            stored=0 if arena is None else arena.stored,
            steps=len(self),
            observed=observed,
            plain=0 if self._trees is None else observed * self._trees[0].nbytes,
        )

    def _lane(self, agent: str) -> Lane:
        if agent not in self._lanes:
            raise LocalError(f"there is no agent {agent!r} here: {sorted(self._lanes)}")
        return self._lanes[agent]

"""Agents whose every byte is known in advance.

Owns `ScriptedAgent`, which publishes env, policy and reward records into real segments exactly as
runners do, and keeps what a recording of them must say. Knows nothing of journals and tables.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces

from dsec.ipc import segment
from dsec.ipc.frames import (
    AnyFrame,
    Role,
    SegmentRef,
    Wire,
)
from dsec.ipc.layout import (
    FLAG_INFRA,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    EnvRecord,
    Layout,
    RewardRecord,
    encode_spaces,
    ring_bytes,
)
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import (
    FLAG_END,
    KIND_ACTION,
    KIND_END,
    KIND_OBS,
    KIND_REWARD,
    Outbox,
    Peer,
)
from dsec.ipc.spaces import is_variable
from dsec.recording import Transitions
from tests.ipc.strategies import same, samples

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 90.0  # a limit for what hangs, less than that of a test; busy machines are no fault
POOL = 64
FrameT = TypeVar("FrameT", bound=AnyFrame)


@dataclass
class Truth:
    """What was published, by sequence number; transition q leads to observation q + 1."""

    obs: list[list[Any]] = field(default_factory=list)
    infos: list[list[dict[str, Any]]] = field(default_factory=list)
    flags: list[list[int]] = field(default_factory=list)
    finals: list[dict[int, Any]] = field(default_factory=list)
    env_rewards: list[list[float]] = field(default_factory=list)
    actions: list[list[Any]] = field(default_factory=list)
    rewards: list[list[float]] = field(default_factory=list)


class ScriptedAgent:
    """One agent of n environments with random but reproducible content.

    What is published at `seq` is made once, whoever publishes it when; so one can stop at any
    place, in any role, and know what a recording must hold.
    """

    def __init__(
        self,
        name: str,
        obs_space: Space[Any],
        action_space: Space[Any],
        n: int = 1,
        *,
        group: str = "",
        seed: int = 0,
        slots: int = 64,
        end_chance: float = 0.1,
        info_chance: float = 0.1,
        pools: tuple[list[Any], list[Any]] | None = None,
        losses: frozenset[int] = frozenset(),
    ) -> None:
        self.losses = losses  # transitions that say that the environments were lost
        self.name, self.group, self.n = name, group, n
        self.obs_space, self.action_space = obs_space, action_space
        self.truth = Truth()
        self.published = {Role.ENV: -1, Role.POLICY: -1, Role.REWARD: -1}  # last seq of each
        self._chances = end_chance, info_chance
        self._noise = np.random.default_rng(seed)
        # What actions and observations are drawn from.
        self._pools = pools or (samples(action_space, POOL, seed), samples(obs_space, POOL, seed))
        self.record = EnvRecord(obs_space, n)
        self.encode_extras = self.record.encode_extras
        self.actions = Layout(action_space, n, "action")
        self.rewards = RewardRecord(n)
        self.segments = {
            Role(role): segment.create(f"{name}-{role}", role, nbytes, epoch=1)
            for role, nbytes in ring_bytes(obs_space, action_space, n, slots).items()
        }
        self.outboxes = {
            role: Outbox(part.fd, part.size, role)
            for role, part in self.segments.items()
            if role != Role.RECORDER
        }
        self.spills = {role: Spill(outbox) for role, outbox in self.outboxes.items()}
        own = self.segments[Role.RECORDER]
        self.reader = Peer(own.fd, own.size, Role.RECORDER)
        for outbox in self.outboxes.values():
            outbox.add_reader(self.reader)
        self._make(-1)

    def wire(self) -> tuple[Wire, list[int]]:
        """The frame for the recorder, and the descriptors to send and close."""
        refs, fds = [], []
        for role, part in self.segments.items():
            refs.append(SegmentRef(role, part.size, part.epoch, len(fds)))
            fds.append(part.fd if role == Role.RECORDER else segment.readonly(part.fd))
        described = encode_spaces(self.obs_space, self.action_space)
        wire = Wire(self.name, described, tuple(refs), self.n, config_group=self.group)
        return wire, fds

    def wire_copy(self) -> tuple[Wire, list[int]]:
        """The same for a reader in this process, which closes all of the descriptors."""
        wire, fds = self.wire()
        own = self.segments[Role.RECORDER].fd
        return wire, [os.dup(fd) if fd == own else fd for fd in fds]

    def _sample(self, space: Space[Any]) -> Any:
        pool = self._pools[space is self.obs_space]
        return pool[int(self._noise.integers(len(pool)))]

    def _make(self, seq: int) -> None:
        """Make transition `seq` with the observation after it; -1 makes the first observation."""
        truth, noise, n = self.truth, self._noise, self.n
        end_chance, info_chance = self._chances
        flags = [0] * n
        if seq >= 0:
            ends = noise.random(n) < end_chance
            kinds = noise.integers(1, 4, n)
            flags = [int(kind) if end else 0 for end, kind in zip(ends, kinds, strict=True)]
            truth.actions.append([self._sample(self.action_space) for _ in range(n)])
            truth.rewards.append(noise.normal(size=n).tolist())
        truth.flags.append(flags)
        truth.env_rewards.append(noise.normal(size=n).tolist() if seq >= 0 else [0.0] * n)
        truth.finals.append({i: self._sample(self.obs_space) for i in range(n) if flags[i]})
        truth.obs.append([self._sample(self.obs_space) for _ in range(n)])
        if seq in self.losses:
            truth.flags[-1] = [FLAG_INFRA | FLAG_TRUNCATED] * n
            truth.env_rewards[-1] = [0.0] * n
            truth.finals[-1] = dict(enumerate(truth.obs[seq]))
        told = noise.random(n) < info_chance
        truth.infos.append([{"seq": seq, "x": np.float32(0.5)} if tell else {} for tell in told])

    def publish_obs(self, seq: int, flags: int = 0, timeout_s: float = PATIENCE_S) -> None:
        while len(self.truth.obs) <= seq:
            self._make(len(self.truth.obs) - 1)
        truth, outbox = self.truth, self.outboxes[Role.ENV]
        extras = self.encode_extras(truth.finals[seq], truth.infos[seq])
        fixed = self.record.fixed_bytes
        at = outbox.claim(fixed, timeout_s)
        views = self.record.views(outbox.buffer, at)
        views.reward[:] = truth.env_rewards[seq]
        views.flags[:] = truth.flags[seq]
        for i, obs in enumerate(truth.obs[seq]):
            self.record.layout.write(views.obs, i, obs)
        rest = self.record.layout.pack(views.obs) + extras
        self.spills[Role.ENV].commit(seq, KIND_OBS, flags, fixed, rest, timeout_s)
        self.published[Role.ENV] = seq

    def publish_action(self, seq: int, timeout_s: float = PATIENCE_S) -> None:
        while len(self.truth.obs) <= seq + 1:
            self._make(len(self.truth.obs) - 1)
        outbox = self.outboxes[Role.POLICY]
        at = outbox.claim(self.actions.nbytes, timeout_s)
        views = self.actions.views(outbox.buffer, at)
        for i, action in enumerate(self.truth.actions[seq]):
            self.actions.write(views, i, action)
        rest = self.actions.pack(views)
        spill = self.spills[Role.POLICY]
        spill.commit(seq, KIND_ACTION, 0, self.actions.nbytes, rest, timeout_s)
        self.published[Role.POLICY] = seq

    def publish_reward(self, seq: int, timeout_s: float = PATIENCE_S) -> None:
        outbox = self.outboxes[Role.REWARD]
        at = outbox.claim(self.rewards.fixed_bytes, timeout_s)
        self.rewards.views(outbox.buffer, at)[:] = self.truth.rewards[seq]
        outbox.commit(seq, KIND_REWARD, 0, self.rewards.fixed_bytes)
        self.published[Role.REWARD] = seq

    def publish(self, first: int, end: int, *, last: bool = False) -> None:
        """Publish transitions first ... end - 1 in all three roles, and the ends if `last`."""
        if first == 0:
            self.publish_obs(0, FLAG_END if last and end == 0 else 0)
        for seq in range(first, end):
            self.publish_action(seq)
            self.publish_obs(seq + 1, FLAG_END if last and seq == end - 1 else 0)
            self.publish_reward(seq)
        if last:
            for role in (Role.POLICY, Role.REWARD):
                self.outboxes[role].claim(0, PATIENCE_S)
                self.outboxes[role].commit(end, KIND_END, FLAG_END, 0)

    def close(self) -> None:
        for outbox in self.outboxes.values():
            outbox.close()
        self.reader.close()
        for part in self.segments.values():
            part.close()

    # ------------------------------------------------------------------ what a recording must say

    def returns(self, count: int) -> list[float]:
        """Returns of the episodes that end in the first `count` transitions, in order."""
        running = [0.0] * self.n
        found = []
        for seq in range(count):
            for i in range(self.n):
                running[i] += self.truth.rewards[seq][i]
                if self.truth.flags[seq + 1][i]:
                    found.append(running[i])
                    running[i] = 0.0
        return found

    def rows(self, count: int, stop: str) -> dict[str, Any]:
        """The first `count` transitions as plain lists; `stop` is the end of what goes on then."""
        truth = self.truth
        episode, step = [0] * self.n, [0] * self.n
        table: dict[str, Any] = {
            name: [] for name in ("episode", "step", "end", "terminated", "truncated")
        }
        finals, infos = {}, {}
        for seq in range(count):
            flags = truth.flags[seq + 1]
            table["episode"].append(list(episode))
            table["step"].append(list(step))
            table["terminated"].append([bool(flag & FLAG_TERMINATED) for flag in flags])
            table["truncated"].append([bool(flag & FLAG_TRUNCATED) for flag in flags])
            ends = []
            for i, flag in enumerate(flags):
                end = ("", "terminated", "truncated", "terminated")[flag]
                if flag:
                    episode[i], step[i] = episode[i] + 1, 0
                    finals[seq, i] = truth.finals[seq + 1][i]
                else:
                    step[i] += 1
                    if seq == count - 1:
                        end = stop
                        finals[seq, i] = truth.obs[seq + 1][i]
                ends.append(end)
                if truth.infos[seq + 1][i]:
                    infos[seq, i] = truth.infos[seq + 1][i]
            table["end"].append(ends)
        return {
            **table,
            "obs": truth.obs[:count],
            "action": truth.actions[:count],
            "reward": truth.rewards[:count],
            "env_reward": truth.env_rewards[1 : count + 1],
            "final_obs": finals,
            "infos": infos,
            "reset_infos": {i: info for i, info in enumerate(truth.infos[0]) if info and count},
        }


def leaves(space: Space[Any], value: Any) -> list[Any]:
    """The arrays in a value of a space."""
    if isinstance(space, spaces.Dict):
        return [x for key, sub in space.spaces.items() for x in leaves(sub, value[key])]
    if isinstance(space, spaces.Tuple):
        return [x for i, sub in enumerate(space.spaces) for x in leaves(sub, value[i])]
    if is_variable(space):
        return [value]
    return [np.asarray(value)]


def assert_recorded(found: Transitions, agent: ScriptedAgent, count: int, stop: str) -> None:
    """Compare all that was read with all that was published, bit by bit.

    Args:
        count: transitions that must be there.
        stop: what must have ended the episodes that were under way.
    """
    expected = agent.rows(count, stop)
    assert found.seq.tolist() == list(range(count))
    for name in ("episode", "step", "terminated", "truncated", "end"):
        assert getattr(found, name).tolist() == expected[name], name
    for name in ("reward", "env_reward"):
        wanted = np.array(expected[name], np.float64).reshape(count, agent.n)
        assert same(getattr(found, name), wanted), name
    for name, space in (("obs", agent.obs_space), ("action", agent.action_space)):
        arrays = leaves(space, getattr(found, name))
        for t, values in enumerate(expected[name]):
            for i, value in enumerate(values):
                for array, leaf in zip(arrays, leaves(space, value), strict=True):
                    found_here = array[t, i] if array.dtype == object else array[t, i, ...]
                    assert same(found_here, leaf), (name, t, i)
    assert found.final_obs.keys() == expected["final_obs"].keys()
    for key, value in expected["final_obs"].items():
        pairs = zip(
            leaves(agent.obs_space, found.final_obs[key]),
            leaves(agent.obs_space, value),
            strict=True,
        )
        for a, b in pairs:
            assert same(a.astype(b.dtype) if isinstance(b, np.ndarray) else a, b), key
    assert same(found.infos, expected["infos"])
    assert same(found.reset_infos, expected["reset_infos"])

"""TrajectoryBuffer against a plain list, whatever is done to it, however little memory it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsec.buffer import Hold, TrajectoryBuffer
from dsec.errors import BufferFull, LocalError

LENGTH, FULL, COMPRESSED, DECAY = 300, 4, 120, 0.9
Step = tuple[dict[str, np.ndarray], int, float, bool, int, int]  # and the episode, the rollout


class Plain:
    """What a buffer stands for: every step, and the steps that are held."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Step]] = {"a": [], "b": []}
        self.holds: list[tuple[Hold, dict[str, set[int]], dict[str, Any]]] = []
        self.gone: dict[str, set[int]] = {"a": set(), "b": set()}

    def episode(self, agent: str) -> int:
        return sum(step[3] for step in self.steps[agent])

    def held(self, agent: str) -> set[int]:
        return set().union(*(steps[agent] for _, steps, _ in self.holds))

    def matching(self, agent: str, label: dict[str, Any]) -> set[int]:
        return {
            t
            for t, step in enumerate(self.steps[agent])
            if label.get("agent") in (None, agent)
            and label.get("episode") in (None, step[4])
            and label.get("rollout") in (None, step[5])
        }


class BufferMachine(RuleBasedStateMachine):
    """Pushes, holds, drops and draws; the buffer may forget, but never say a wrong thing."""

    @initialize(stacked=st.booleans(), noisy=st.booleans(), seed=st.integers(0, 99))
    def begin(self, stacked: bool, noisy: bool, seed: int) -> None:
        self.stacked, self.noisy = stacked, noisy
        self.rng = np.random.default_rng(seed)
        self.frames = {
            agent: self.rng.integers(0, 256, (4, 12, 16)).astype(np.uint8) for agent in "ab"
        }
        self.plain = Plain()
        self.threshold = 0.52 if noisy else 2.0
        self.buffer = TrajectoryBuffer(
            LENGTH,
            DECAY,
            self.threshold,
            0,
            full_steps=FULL,
            compressed_steps=COMPRESSED,
            key_every=7,
            seed=seed,
        )

    def observation(self, agent: str) -> dict[str, np.ndarray]:
        frame = self.frames[agent][-1].copy()
        if self.noisy:
            frame[:] = self.rng.integers(0, 256, frame.shape)
        else:
            frame[tuple(self.rng.integers(0, (12, 16)))] ^= 255
        self.frames[agent] = np.concatenate([self.frames[agent][1:], frame[None]])
        image = np.moveaxis(self.frames[agent], 0, -1) if self.stacked else frame
        return {"image": image, "state": self.rng.standard_normal(3).astype(np.float32)}

    @rule(
        agent=st.sampled_from("aab"),
        count=st.integers(1, 50),
        end=st.booleans(),
        rollout=st.integers(0, 1),
    )
    def push(self, agent: str, count: int, end: bool, rollout: int) -> None:
        steps = self.plain.steps[agent]
        for i in range(count):
            obs, done = self.observation(agent), end and i == count - 1
            step: Step = (obs, i % 5, float(i), done, self.plain.episode(agent), rollout)
            there = len(self.buffer)
            try:
                self.buffer.push(*step[:4], agent=agent, rollout=rollout)
            except BufferFull:
                assert self.plain.holds, "only a hold can be in the way"
                assert len(self.buffer) == there
                return
            number = len(steps)
            steps.append(step)
            for _, held, label in self.plain.holds:
                if number in self.plain.matching(agent, label):
                    held[agent].add(number)

    @rule(label=st.sampled_from([{}, {"agent": "a"}, {"rollout": 1}, {"episode": 0}]))
    def hold(self, label: dict[str, Any]) -> None:
        if len(self.plain.holds) == 2:
            return
        there = {agent: self.there(agent) for agent in "ab"}
        hold = self.buffer.hold(**label)
        found = {agent: self.plain.matching(agent, label) & there[agent] for agent in "ab"}
        self.plain.holds.append((hold, found, label))

    @rule()
    def release(self) -> None:
        if self.plain.holds:
            hold, _, _ = self.plain.holds.pop(0)
            hold.release()
            hold.release()

    @rule(label=st.sampled_from([{"rollout": 0}, {"agent": "b"}, {"episode": 1}]))
    def drop(self, label: dict[str, Any]) -> None:
        self.buffer.drop(**label)
        for agent in "ab":
            gone = self.plain.matching(agent, label)
            self.plain.gone[agent] |= gone - self.plain.held(agent)

    def there(self, agent: str) -> set[int]:
        """The steps whose observations the buffer says it has."""
        lane = self.buffer._lanes.get(agent)
        if lane is None:
            return set()
        return {t for a, b in lane.wanted(self.buffer._room.held(lane)) for t in range(a, b)}

    @invariant()
    def the_threshold_is_kept(self) -> None:
        room = self.buffer._room
        assert self.buffer.usage().total == room.taken <= self.threshold * 2**20
        assert room.fixed == sum(lane.fixed_bytes for lane in room.lanes.values())

    @invariant()
    def rewards_and_returns_are_those_of_the_list(self) -> None:
        rewards, returns = [], []
        for agent in self.buffer._lanes:
            after, found = 0.0, []
            for step in self.plain.steps[agent][::-1]:
                after = step[2] + (0.0 if step[3] else DECAY * after)
                found.append(after)
            rewards += [step[2] for step in self.plain.steps[agent]][-LENGTH:]
            returns += found[::-1][-LENGTH:]
        assert self.buffer.rewards.tolist() == rewards
        assert self.buffer.returns.tolist() == returns

    @invariant()
    def what_is_held_is_there(self) -> None:
        for agent in self.buffer._lanes:
            assert self.plain.held(agent) <= self.there(agent)

    @invariant()
    def what_is_there_is_recent_or_held_and_right(self) -> None:
        for agent, lane in self.buffer._lanes.items():
            steps, there = self.plain.steps[agent], self.there(agent)
            recent = set(range(len(steps) - COMPRESSED, len(steps))) - self.plain.gone[agent]
            extended = {t + 1 for t in self.plain.held(agent)} | self.plain.held(agent)
            assert there <= recent | extended
            picked = np.array(sorted(there), np.int64)
            if not len(picked):
                continue
            columns = dict(zip(["image", "state", "action"], lane.read(picked), strict=True))
            for row, t in enumerate(picked):
                obs, action = steps[t][:2]
                assert np.array_equal(columns["image"][row], obs["image"])
                assert np.abs(columns["state"][row] - obs["state"]).max() < 8 / 510
                assert columns["action"][row] == action

    @rule(size=st.integers(1, 40))
    def sample(self, size: int) -> None:
        try:
            batch = self.buffer.sample_batch(size)
        except LocalError:
            return
        for i in range(size):
            steps, t = self.plain.steps[batch.agent[i]], int(batch.step[i])
            after = steps[t if steps[t][3] else t + 1]
            assert np.array_equal(batch.obs["image"][i], steps[t][0]["image"])
            assert np.array_equal(batch.next_obs["image"][i], after[0]["image"])
            assert (batch.action[i], batch.reward[i], batch.done[i]) == steps[t][1:4]


BufferMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=14, deadline=None)
TestModel = pytest.mark.slow(BufferMachine.TestCase)

"""The recorder's join: complete transitions only, each once, in order, with the right sums."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import CorruptRingError, LocalError, RingTimeout
from dsec.ipc._ring import lib
from dsec.ipc.frames import Role
from dsec.ipc.join import Batch, Join, iter_records
from dsec.ipc.ring import (
    FLAG_END,
    KIND_ACTION,
    KIND_END,
    KIND_OBS,
    KIND_REWARD,
    Outbox,
    stride,
)
from tests.ipc.rings import STARTS, Wires, put

E, P, R, J = Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER
RINGS = (E, P, R)


@dataclass
class Agent:
    """The three writers of one agent with n environments, driven by hand, and its recorder.

    An env record holds the environment's rewards, then the flags, then 8 bytes of observation.
    """

    n: int
    wires: Wires
    writers: dict[Role, Outbox] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writers = {role: self.wires.writer(role, J) for role in RINGS}

    def join(self, first_seq: int = 0) -> Join:
        mine = self.wires.outbox(J)
        env, policy, reward = (self.wires.reader(mine, role) for role in RINGS)
        return Join(
            env,
            policy,
            reward,
            num_envs=self.n,
            reward_off_env=0,
            flags_off_env=8 * self.n,
            first_seq=first_seq,
        )

    def obs(self, seq: int, *, flags: bytes = b"", end: bool = False, extra: int = 0) -> None:
        flags = flags or bytes(self.n)
        env_rewards = struct.pack(f"<{self.n}d", *(0.5 * seq + i for i in range(self.n)))
        payload = env_rewards + flags + seq.to_bytes(8, "little") + bytes(extra)
        put(self.writers[E], seq, payload, kind=KIND_OBS, flags=FLAG_END * end)

    def action(self, seq: int) -> None:
        put(self.writers[P], seq, seq.to_bytes(8, "little"), kind=KIND_ACTION)

    def reward(self, seq: int, values: tuple[float, ...]) -> None:
        put(self.writers[R], seq, struct.pack(f"<{self.n}d", *values), kind=KIND_REWARD)

    def end(self, role: Role, seq: int) -> None:
        put(self.writers[role], seq, b"", kind=KIND_END, flags=FLAG_END)

    def transition(self, seq: int, flags: bytes = b"") -> None:
        self.action(seq)
        self.obs(seq + 1, flags=flags)
        self.reward(seq, tuple(float(seq + i) for i in range(self.n)))


@pytest.fixture(params=STARTS, ids=["0", "2^32", "2^63", "2^64"])
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    with Wires(start=request.param) as wires:
        yield Agent(1, wires)


def seqs(view: memoryview) -> list[int]:
    return [record.seq for record in iter_records(view)]


def test_a_batch_is_what_is_complete(agent: Agent) -> None:
    join = agent.join()
    assert join.take(10**6) is None
    agent.obs(0)
    assert join.take(10**6) is None
    agent.action(0)
    agent.obs(1)
    agent.action(1)
    assert join.take(10**6) is None, "no reward yet"
    agent.reward(0, (3.0,))
    batch = join.take(10**6)
    assert batch is not None
    assert (batch.first_seq, batch.count, batch.steps) == (0, 1, 1)
    assert (seqs(batch.env), seqs(batch.policy), seqs(batch.reward)) == ([0, 1], [0], [0])
    with pytest.raises(LocalError):
        join.take(10**6)
    join.release()
    with pytest.raises(LocalError):
        join.release()
    assert join.take(10**6) is None
    agent.reward(1, (4.0,))
    assert join.take(10**6) is None, "no observation yet"
    agent.obs(2, flags=b"\1")
    batch = join.take(10**6)
    assert batch is not None
    assert (batch.first_seq, batch.count, batch.episodes) == (1, 1, 1)
    assert (seqs(batch.env), seqs(batch.policy), seqs(batch.reward)) == ([2], [1], [1])
    assert (batch.returns, batch.return_sum, batch.env_return_sum) == ((7.0,), 7.0, 1.5)
    assert join.next_seq == 2


def test_nothing_goes_back_before_release(agent: Agent) -> None:
    join = agent.join()
    agent.obs(0, extra=1990)
    agent.action(0)
    agent.reward(0, (0.0,))
    agent.obs(1, extra=1990)
    batch = join.take(1)
    assert batch is not None
    before = bytes(batch.env)
    with pytest.raises(RingTimeout):
        agent.writers[E].claim(1, 0.0)
    assert bytes(batch.env) == before
    join.release()
    agent.writers[E].claim(1, 0.0)


def test_max_bytes_bounds_a_batch_but_never_to_nothing(agent: Agent) -> None:
    join = agent.join()
    agent.obs(0)
    for seq in range(20):
        agent.transition(seq)
    each = 3 * stride(8)
    first = join.take(0)
    assert first is not None
    assert first.count == 1
    join.release()
    batch = join.take(5 * each)
    assert batch is not None
    assert batch.count == 5
    assert len(batch.env) + len(batch.policy) + len(batch.reward) == 5 * each
    join.release()
    rest = join.take(10**9)
    assert rest is not None
    assert rest.count == 14


def test_the_end_needs_all_three_ends(agent: Agent) -> None:
    join = agent.join()
    agent.obs(0)
    agent.action(0)
    agent.obs(1, end=True, flags=b"\2")
    agent.end(P, 1)
    assert join.take(10**6) is None
    assert not join.ended
    agent.reward(0, (1.0,))
    batch = join.take(10**6)
    assert batch is not None
    assert (batch.count, batch.returns) == (1, (1.0,))
    assert not join.ended
    join.release()
    assert join.take(10**6) is None
    assert not join.ended, "the reward's end is missing"
    agent.end(R, 1)
    assert join.take(10**6) is None
    assert join.ended
    assert [len(view) for view in join.remainder()] == [0, 0, 0]


def test_a_stream_may_end_at_observation_0(agent: Agent) -> None:
    join = agent.join()
    agent.obs(0, end=True)
    batch = join.take(10**6)
    assert batch is not None
    assert (batch.count, seqs(batch.env), len(batch.policy)) == (0, [0], 0)
    join.release()
    agent.end(P, 0)
    agent.end(R, 0)
    assert join.take(10**6) is None
    assert join.ended


def test_the_remainder_is_what_can_never_be_joined(agent: Agent) -> None:
    join = agent.join()
    agent.obs(0)
    agent.transition(0)
    agent.action(1)
    agent.obs(2)
    assert join.take(10**6) is not None
    join.release()
    assert join.take(10**6) is None
    env, policy, reward = join.remainder()
    assert (seqs(env), seqs(policy), len(reward)) == ([2], [1], 0)


def test_a_restarted_recorder_resumes_by_sequence_number(agent: Agent) -> None:
    """It died after the env's cursor was advanced and before the others were."""
    join = agent.join()
    agent.obs(0)
    for seq in range(4):
        agent.transition(seq)
    batch = join.take(10**6)
    assert batch is not None
    assert batch.count == 4
    join.c.reader[0].read = join.c.end[0]

    lib.dsec_release(join.c.reader[0])
    again = agent.join(first_seq=4)
    assert again.take(10**6) is None
    agent.transition(4)
    batch = again.take(10**6)
    assert batch is not None
    assert (batch.first_seq, batch.count) == (4, 1)
    assert (seqs(batch.env), seqs(batch.policy), seqs(batch.reward)) == ([5], [4], [4])


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("seq", [0, 1, 4, 2**63])
@pytest.mark.parametrize(("role", "name"), [(E, "env"), (P, "policy"), (R, "reward")])
def test_a_gap_or_a_repetition_names_the_ring(role: Role, name: str, seq: int) -> None:
    with Wires() as wires:
        agent = Agent(1, wires)
        join = agent.join()
        agent.obs(0)
        agent.transition(0)
        agent.transition(1)
        good = 3 if role is E else 2
        for other in RINGS:
            n = seq if other is role else 3 if other is E else 2
            payload = bytes(24)
            put(agent.writers[other], n, payload, kind={E: 1, P: 2, R: 3}[other])
        batch = join.take(10**6)
        assert batch is not None
        assert batch.count == 2, "what is good comes first"
        join.release()
        with pytest.raises(
            CorruptRingError, match=f"{name} segment: .* sequence number {seq} instead of {good}"
        ):
            join.take(10**6)


@pytest.mark.guarantee("G9")
def test_wrong_kinds_short_records_and_old_epochs_are_refused() -> None:
    cases = {
        "has kind 3": lambda a: put(a.writers[P], 0, bytes(8), kind=KIND_REWARD),
        "has kind 4": lambda a: a.end(P, 0),
    }
    for text, bad in cases.items():
        with Wires() as wires:
            agent = Agent(2, wires)
            join = agent.join()
            agent.obs(0)
            agent.obs(1)
            bad(agent)
            agent.reward(0, (1.0, 2.0))
            with pytest.raises(CorruptRingError, match=text):
                join.take(10**6)
    with Wires() as wires:
        agent = Agent(2, wires)
        join = agent.join()
        agent.obs(0)
        agent.obs(1)
        agent.action(0)
        put(agent.writers[R], 0, bytes(15), kind=KIND_REWARD)
        with pytest.raises(CorruptRingError, match=r"reward segment: .* has 15 bytes; 16 make one"):
            join.take(10**6)
    with Wires() as wires:
        agent = Agent(1, wires)
        join = agent.join()
        agent.writers[E] = wires.writer(E, J, epoch=3)
        agent.obs(0)
        agent.transition(0)
        assert join.take(10**6) is not None
        join.release()
        agent.writers[E] = wires.writer(E, J, epoch=2)
        agent.transition(1)
        with pytest.raises(CorruptRingError, match="epoch 2 after 3"):
            join.take(10**6)


def test_iter_records_refuses_what_is_torn(agent: Agent) -> None:
    join = agent.join()
    agent.obs(0)
    agent.transition(0)
    batch = join.take(10**6)
    assert batch is not None
    raw = bytes(batch.env)
    assert [record.seq for record in iter_records(raw)] == [0, 1]
    for cut in (1, 31, 63, 65, 127):
        with pytest.raises(CorruptRingError):
            list(iter_records(raw[:cut]))
    with pytest.raises(CorruptRingError):
        list(iter_records(bytes(128)))


# ---------------------------------------------------------------- any interleaving


@dataclass
class Totals:
    """What the recorder adds up from batches."""

    env: list[int] = field(default_factory=list)
    policy: list[int] = field(default_factory=list)
    reward: list[int] = field(default_factory=list)
    steps: int = 0
    returns: list[float] = field(default_factory=list)
    return_sum: float = 0.0

    def add(self, batch: Batch) -> None:
        assert batch.first_seq == len(self.policy)
        self.env += seqs(batch.env)
        self.policy += seqs(batch.policy)
        self.reward += seqs(batch.reward)
        self.steps += batch.steps
        self.returns += batch.returns
        self.return_sum += batch.return_sum
        assert batch.episodes == len(batch.returns)


def expected_returns(rewards: list[list[float]], flags: list[bytes], n: int) -> list[float]:
    running, done = [0.0] * n, []
    for values, ends in zip(rewards, flags, strict=True):
        for i in range(n):
            running[i] += values[i]
            if ends[i]:
                done.append(running[i])
                running[i] = 0.0
    return done


@pytest.mark.guarantee("G2")
@given(
    n=st.integers(1, 3),
    start=st.sampled_from(STARTS),
    count=st.integers(0, 60),
    seed=st.integers(0, 2**32),
    max_bytes=st.sampled_from([0, 500, 2000, 10**6]),
)
def test_every_transition_once_in_order_for_any_interleaving(
    n: int, start: int, count: int, seed: int, max_bytes: int
) -> None:
    rng = random.Random(seed)
    rewards = [[float(rng.randrange(-4, 5)) for _ in range(n)] for _ in range(count)]
    flags = [bytes(rng.choice([0, 0, 1, 2, 3]) for _ in range(n)) for _ in range(count)]
    with Wires(8192, start=start) as wires:
        agent = Agent(n, wires)
        join, totals, sent = agent.join(), Totals(), {E: 0, P: 0, R: 0}

        def publish(role: Role) -> None:
            seq = sent[role]
            if role is E:
                agent.obs(seq, flags=flags[seq - 1] if seq else b"", end=seq == count)
            elif seq == count:
                agent.end(role, seq)
            elif role is P:
                agent.action(seq)
            else:
                agent.reward(seq, tuple(rewards[seq]))
            sent[role] += 1

        while not join.ended:
            can = [role for role in RINGS if sent[role] <= count]
            # Nobody is more than a few records ahead, as the rings would see to it.
            can = [role for role in can if sent[role] < min(sent.values()) + 10]
            if can and rng.random() < 0.8:
                publish(rng.choice(can))
            elif (batch := join.take(max_bytes)) is not None:
                totals.add(batch)
                join.release()
        assert totals.env == list(range(count + 1))
        assert totals.policy == totals.reward == list(range(count))
        assert totals.steps == count * n
        assert totals.returns == expected_returns(rewards, flags, n)
        assert totals.return_sum == sum(totals.returns)

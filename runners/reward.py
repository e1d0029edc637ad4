"""The reward runner: one reward for each transition, from three rings' worth of facts.

Reward n needs observation n+1 (which carries the environment's own reward and flags of transition
n), observation n and action n. A reward object that only passes the environment's numbers on says
so, and they are copied without building anything for it. Unless the policy learns nobody waits
for rewards, and they are made in batches, so that this process sleeps most of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.errors import PeerError, RingInterrupted, RingTimeout
from dsec.ipc import recall
from dsec.ipc.frames import Go, Phase, Role
from dsec.ipc.layout import FLAG_ASIDE, RewardRecord
from dsec.ipc.recall import distance
from dsec.ipc.ring import (
    FLAG_BOUNDARY,
    FLAG_END,
    FLAG_REQUEST,
    KIND_ACTION,
    KIND_OBS,
    KIND_REWARD,
    stride,
)
from dsec.runners.chaos import with_faults
from dsec.runners.construct import finish_actor
from dsec.runners.cuts import Cuts
from dsec.runners.failure import UserCodeError, shown
from dsec.runners.guard import Guard, Retained
from dsec.runners.heir_actor import (
    Answered,
    Heritage,
    begin,
    next_seq,
    pass_by,
    protect,
)
from dsec.runners.keeping import StateKeeping
from dsec.runners.loop import LOOK_EVERY, RING_SLICE_S, Session, live, serve_to_end
from dsec.runners.requests import decode
from dsec.runners.states import put_actor
from dsec.runners.transitions import (
    GRAIN_BITS,
    HEAD_BYTES,
    ActionStream,
    Grid,
    ObsStream,
    peers_fault,
)
from dsec.runners.wiring import Wiring

BATCH_RECORDS = 32
BATCH_WAIT_S = 0.005
LAST_WAIT_S = 0.02  # for the last record of an env that is being killed


def run(session: Session) -> None:
    """Wait to be wired or to take over, construct, serve to the end."""
    wiring, reward, heritage, go = begin(session, "reward", "compute")
    worker = RewardWorker(session, wiring, reward, heritage)
    if go is None:
        live(session, wiring, worker)
    else:
        serve_to_end(session, wiring, worker, go)


class RewardWorker:
    """Serves one agent's reward, until the env's stream ends."""

    learns = False

    def __init__(self, session: Session, wiring: Wiring, reward: Any, heritage: Heritage) -> None:
        n = wiring.num_envs
        self._session = session
        self._reward = reward
        chaos = session.start.chaos
        self._faulty = with_faults(reward.compute, chaos, Phase.REWARD, wiring.outbox)
        self._passes_on = bool(getattr(reward, "passthrough", False)) and not chaos
        self._n = n
        self._outbox = wiring.outbox
        self._env = ObsStream(
            wiring.reader(Role.ENV), wiring.peers[Role.ENV], wiring.observation_space, n
        )
        self._actions = ActionStream(
            wiring.reader(Role.POLICY), wiring.peers[Role.POLICY], wiring.action_space, n
        )
        self._record = RewardRecord(n)
        views = self._record.views(wiring.outbox.buffer, HEAD_BYTES)
        self._rows: NDArray[np.float64] = Grid(wiring.outbox, views).tree
        self._obs_before: Any = None
        self._heritage = heritage
        self._answered = Answered(wiring.outbox, heritage)
        self._guard: Guard | None = None
        self._cuts: Cuts | None = None
        self._at_wish: Cuts | None = None  # a caller's; with a pool the same
        self._state: StateKeeping | None = None
        # The first observation of which no reward is due: there is none before it, or it is given.
        self._first = self._expected = self._seq = heritage.first

    def serve(self, go: Go) -> int:
        """Answer transitions until the last; return the sequence number after it."""
        session, reader, heritage = self._session, self._env.reader, self._heritage
        if heritage.ended:
            return heritage.seq + 1
        at_once = go.policy_learns
        self._protect()
        if not at_once:
            self._outbox.spin = 0  # polling would take the processor from those who are waited for
        take = self._pass_on if self._passes_on else self._compute
        ended = False
        try:
            while not ended:
                if not self._next():
                    break
                if not at_once and not reader.flags & FLAG_END:
                    self._let_more_come()
                before = self._seq
                ended = take()
                if self._passes_on:
                    reader.release()
                    self._actions.reader.release()
                elif self._guard is None:
                    reader.release_prior()  # a successor needs the observation before its first
                    self._actions.reader.release()
                elif self._seq > self._answered.until:
                    self._guard.look(self._seq)
                if session.attention or self._seq % LOOK_EVERY < self._seq - before:
                    session.look()
        finally:
            session.seq = self._seq
        session.write_end(self._outbox, self._seq)
        return self._seq

    def _protect(self) -> None:
        """Begin where the heritage says; from here on the object's state is kept, if it can be."""
        heritage, env, actions = self._heritage, self._env, self._actions
        pass_by(env.reader, heritage.first)
        pass_by(actions.reader, heritage.first)
        self._expected = self._seq = next_seq(env.reader, heritage.first)
        keeping = state = heritage.keeping
        if keeping is None:
            keeping, state = protect(self._session, self._reward)
        if keeping is not None:
            self._guard = self._guarded(keeping)
        self._state = state
        if self._session.start.atoms:
            self._cuts = self._at_wish = Cuts(self._session, state, self._guard, self._window)

    def _guarded(self, keeping: StateKeeping) -> Guard:
        env, actions, heritage = self._env, self._actions, self._heritage
        retained = [
            Retained(env.reader, env.fixed_bytes, current=True),
            Retained(actions.reader, actions.layout.nbytes),
        ]
        nbytes = self._record.fixed_bytes
        guard = Guard(self._session, keeping, self._outbox, nbytes, retained)
        if heritage.snapshot is not None:
            guard.inherit(heritage.snapshot, heritage.seq + 1)
        return guard

    def _window(self) -> tuple[bytes]:
        """The latest rewards, as far as the ring holds them, which is all that there ever was."""
        outbox, wanted = self._outbox, self._session.start.reward_window
        start, tail, _ = recall.positions(outbox)
        step = stride(self._record.fixed_bytes)
        held = min(wanted, distance(start, tail) // step, outbox.capacity // step)
        rows, grains = self._rows, step >> GRAIN_BITS
        begin = ((tail - held * step) >> GRAIN_BITS) % len(rows)
        end = begin + held * grains
        if end <= len(rows):
            return (rows[begin:end:grains].tobytes(),)
        over = begin + -(-(len(rows) - begin) // grains) * grains - len(rows)  # behind the wrap
        last = rows[over : end - len(rows) : grains]
        return (rows[begin::grains].tobytes() + last.tobytes(),)

    def close(self) -> dict[str, float]:
        """Close the reward object."""
        if self._at_wish is not None:
            self._at_wish.close()
        return finish_actor(self._reward)

    def _next(self) -> bool:
        """Wait for the next observation; False if the env is gone and all it published is done."""
        session, reader = self._session, self._env.reader
        while True:
            try:
                reader.next(LAST_WAIT_S if session.fenced else RING_SLICE_S, Phase.IDLE)
                return True
            except RingTimeout:
                if session.fenced:
                    return False
                session.look()
            except RingInterrupted:
                session.look()

    def _let_more_come(self) -> None:
        """Sleep until a batch is there, or a little."""
        try:
            self._env.reader.wait(BATCH_RECORDS, BATCH_WAIT_S)
        except RingInterrupted:
            self._session.look()

    def _pass_on(self) -> bool:
        """Copy the environment's rewards from the current record and those that follow it.

        Stops where none is there, after a batch, or after the last record; returns whether that
        was it.
        """
        session, outbox, env, actions = self._session, self._outbox, self._env, self._actions
        reader, action_reader = env.reader, actions.reader
        claim, commit, next_obs, next_action = (
            outbox.claim,
            outbox.commit,
            reader.try_next,
            action_reader.try_next,
        )
        rows, env_rows = self._rows, env.grid.reward
        nbytes, obs_bytes, action_bytes = (
            self._record.fixed_bytes,
            env.fixed_bytes,
            actions.layout.nbytes,
        )
        first, cuts = self._expected, self._cuts
        seq, asked = first, False
        while True:
            if reader.seq != seq or reader.kind != KIND_OBS or reader.nbytes < obs_bytes:
                env.check(seq)
            flags = reader.flags
            if seq > self._first:
                last = seq - 1
                if not next_action():
                    raise _no_action(last)
                if (
                    action_reader.seq != last
                    or action_reader.kind != KIND_ACTION
                    or action_reader.nbytes != action_bytes
                ):
                    actions.check(last)
                    asked = bool(action_reader.flags & FLAG_REQUEST)
                try:
                    row = claim(nbytes, RING_SLICE_S) >> GRAIN_BITS
                except (RingTimeout, RingInterrupted):
                    row = session.claim(outbox, nbytes) >> GRAIN_BITS
                rows[row] = env_rows[reader.offset >> GRAIN_BITS]
                # The boundary before action n lies after reward n-1, whose record leads to obs n.
                commit(last, KIND_REWARD, flags & FLAG_BOUNDARY, nbytes)
                if cuts is not None and flags & (FLAG_BOUNDARY | FLAG_END):
                    cuts.take(seq)
                if asked:
                    asked = False
                    self._do_as_asked(last)
            self._seq = seq
            seq += 1
            self._expected = seq
            if flags & FLAG_END:
                return True
            if seq - first >= BATCH_RECORDS or not next_obs():
                return False

    def _compute(self) -> bool:
        """Have the user's object compute one reward; return whether the record is the last."""
        session, env, reader, seq = self._session, self._env, self._env.reader, self._expected
        row = env.check(seq)
        flags = reader.flags
        if seq > self._first:
            last = seq - 1
            if not self._actions.reader.try_next():
                raise _no_action(last)
            if env.grid.flags[row].all() and self._no_step(row):
                self._put(last, flags, np.zeros(self._n))
                if self._actions.reader.flags & FLAG_REQUEST:
                    self._do_as_asked(last)
                return self._taken(seq, row)
            action = self._actions.action(last)
            transition = env.transition(row, self._obs_before, action, None)
            self._outbox.enter(Phase.REWARD, last)
            session.phase = Phase.REWARD
            compute = self._faulty if last > self._answered.until else self._reward.compute
            rewards = as_rewards(compute(transition), self._n)
            if transition.infra.any():
                rewards = np.where(transition.infra, 0.0, rewards)
            session.phase = Phase.IDLE
            self._outbox.enter(Phase.IDLE, last)
            self._put(last, flags, rewards)
            boundary = last > self._answered.until and flags & (FLAG_BOUNDARY | FLAG_END)
            if boundary and self._cuts is not None:
                self._cuts.take(seq)
        return self._taken(seq, row)

    def _do_as_asked(self, n: int) -> None:
        """Some of what a caller asks for concerns all of an agent's state (states.py)."""
        asked = decode(self._actions.request())
        if asked.get("do") == "restore":
            self._outbox.enter(Phase.REPLAY, n)
            put_actor(self._reward, asked, self._session)
            self._outbox.enter(Phase.IDLE, n)
        elif asked.get("do") == "objectives" and asked["changes"] is not None:
            self._outbox.enter(Phase.REWARD, n)
            self._reward.update_objectives(asked["changes"])
            self._outbox.enter(Phase.IDLE, n)
        elif asked.get("do") in ("snapshot", "objectives") and n > self._answered.until:
            if self._at_wish is None:
                self._at_wish = Cuts(self._session, self._state, self._guard, self._window)
            self._at_wish.take(n + 1)

    def _no_step(self, row: int) -> bool:
        """Whether nobody made a step: a caller has asked for something else."""
        return bool((self._env.grid.flags[row] & FLAG_ASIDE).all())

    def _taken(self, seq: int, row: int) -> bool:
        """Go on to the next record; whether there is none."""
        ended = bool(self._env.reader.flags & FLAG_END)
        if not ended:
            self._obs_before = self._env.obs(row)
        self._seq = seq
        self._expected = seq + 1
        return ended

    def _put(self, n: int, flags: int, rewards: NDArray[np.float64]) -> None:
        """Publish reward n, or compare it with what is published."""
        outbox, nbytes = self._outbox, self._record.fixed_bytes
        if n > self._answered.until:
            self._rows[self._session.claim(outbox, nbytes) >> GRAIN_BITS] = rewards
            outbox.commit(n, KIND_REWARD, flags & FLAG_BOUNDARY, nbytes)
            return
        held = self._answered.take(n)
        if self._record.views(outbox.buffer, held.offset).tobytes() != rewards.tobytes():
            self._answered.differed(self._session, f"reward {n}")


def _no_action(seq: int) -> PeerError:
    """The observation after action `seq` is there, so that must be, too."""
    return peers_fault(Role.POLICY, f"observation {seq + 1} is there and action {seq} isn't")


def as_rewards(value: Any, n: int) -> NDArray[np.float64]:
    """What `compute` returned, as float64 (n,), exactly.

    Raises:
        UserCodeError: another shape, no numbers, or numbers that float64 can't hold.
    """
    if type(value) is np.ndarray and value.dtype == np.float64 and value.shape == (n,):
        return value
    try:
        array = np.asarray(value)
    except Exception as error:  # ragged lists, tensors of a GPU: whatever conversion raises
        raise UserCodeError(f"compute() returned {shown(value)}: {error}") from None
    if array.dtype.kind not in "biuf" or array.size != n or array.shape not in ((n,), ()):
        raise UserCodeError(
            f"compute() must return float64 ({n},), and returned {array.dtype} {array.shape}"
        )
    exact: NDArray[np.float64] = array.astype(np.float64).reshape(n)
    if not np.array_equal(exact.astype(array.dtype).reshape(array.shape), array, equal_nan=True):
        raise UserCodeError(f"compute() returned {array.dtype} that float64 can't hold exactly")
    return exact

"""The policy runner: one batched `act` for each observation, and `learn` where the policy has it.

A learning policy gets transition n, with the reward that the reward runner computed for it, before
it acts on observation n+1, so that what it learns doesn't depend on anybody's speed. Any other
policy doesn't read rewards at all, and its loop builds nothing but the observation.
"""

from __future__ import annotations

from typing import Any

from dsec.errors import LayoutError, RingInterrupted, RingTimeout
from dsec.ipc import overflow
from dsec.ipc.frames import Go, Phase, Role
from dsec.ipc.layout import Layout
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import FLAG_BOUNDARY, FLAG_END, FLAG_OVERFLOW, KIND_ACTION, KIND_OBS
from dsec.ipc.turn import FLAGS_SHIFT, ROW_BITS, ROW_MASK, Turn
from dsec.runners.chaos import with_faults
from dsec.runners.construct import finish_actor
from dsec.runners.cuts import Cuts
from dsec.runners.failure import UserCodeError
from dsec.runners.guard import Guard, Retained
from dsec.runners.heir_actor import Answered, Heritage, begin, pass_by, protect
from dsec.runners.keeping import StateKeeping
from dsec.runners.loop import LOOK_EVERY, RING_SLICE_S, Session, live, serve_to_end
from dsec.runners.replay_env import same_bytes
from dsec.runners.transitions import GRAIN_BITS, HEAD_BYTES, Grid, ObsStream, RewardStream
from dsec.runners.wiring import Wiring

_ACT = int(Phase.ACT)


def run(session: Session) -> None:
    """Wait to be wired or to take over, construct, serve to the end."""
    wiring, policy, heritage, go = begin(session, "policy", "act")
    worker = PolicyWorker(session, wiring, policy, heritage)
    if go is None:
        live(session, wiring, worker)
    else:
        serve_to_end(session, wiring, worker, go)


class PolicyWorker:
    """Serves one agent's policy, until the env's stream ends."""

    def __init__(self, session: Session, wiring: Wiring, policy: Any, heritage: Heritage) -> None:
        self._session = session
        self._wiring = wiring
        self._policy = policy
        self._outbox = wiring.outbox
        self._zero_copy = bool(getattr(policy, "zero_copy", False))
        self.learns = callable(getattr(policy, "learn", None))
        n = wiring.num_envs
        self._env = ObsStream(
            wiring.reader(Role.ENV), wiring.peers[Role.ENV], wiring.observation_space, n
        )
        self._layout = Layout(wiring.action_space, n, "action", indices=True)
        self._actions = Grid(wiring.outbox, self._layout.views(wiring.outbox.buffer, HEAD_BYTES))
        self._spill = Spill(wiring.outbox)
        self._variable = bool(self._layout.variable or self._env.grid.record.layout.variable)
        self._act = with_faults(policy.act, session.start.chaos, Phase.ACT, wiring.outbox)
        self._heritage = heritage
        self._answered = Answered(wiring.outbox, heritage)
        self._guard: Guard | None = None
        self._cuts: Cuts | None = None
        self._rewards: RewardStream | None = None
        if self.learns:
            rewards, peer = wiring.reader(Role.REWARD), wiring.peers[Role.REWARD]
            self._rewards = RewardStream(rewards, peer, n)
        self._seq = 0

    def serve(self, go: Go) -> int:
        """Answer observations until the last; return its sequence number."""
        del go  # whether the policy learns is known here best
        session, heritage = self._session, self._heritage
        if heritage.ended:
            return heritage.seq + 1
        session.phase = Phase.ACT
        self._seq = heritage.first
        self._protect()
        # The more environments step between two observations, the longer the wait, and polling
        # through it takes the processor from other agents' environments: with 32 it was a quarter
        # of all time, to save one wake-up.
        self._outbox.spin //= self._wiring.num_envs
        try:
            if self._rewards is not None:
                self._serve_learning(self._rewards)
            elif self._variable:
                self._serve_variable()
            else:
                self._serve()
        except LayoutError as error:
            n = self._wiring.num_envs
            raise UserCodeError(
                f"{error}. act() must return one action for each environment: here its first axis"
                f" is {n}, and all of it is in the action space"
            ) from None
        finally:
            session.seq = self._seq
        if self._cuts is not None:
            self._cuts.take(self._seq, self._rollout())
        session.write_end(self._outbox, self._seq)
        return self._seq

    def _rollout(self) -> int:
        """How many rollouts the policy has finished, where it counts them."""
        count = getattr(self._policy, "rollout", 0)
        return count if type(count) is int and count >= 0 else 0

    def _protect(self) -> None:
        """Begin where the heritage says; from here on the policy's state is kept, if it can be."""
        session, heritage, env = self._session, self._heritage, self._env
        pass_by(env.reader, heritage.first)
        keeping = state = heritage.keeping
        if keeping is None:
            self._outbox.enter(Phase.IDLE, self._seq)
            keeping, state = protect(session, self._policy)
        if keeping is not None:
            self._guard = self._guarded(keeping)
        if session.start.atoms:
            self._cuts = Cuts(session, state, self._guard)

    def _guarded(self, keeping: StateKeeping) -> Guard:
        env, heritage = self._env, self._heritage
        retained = [Retained(env.reader, env.fixed_bytes, current=True)]
        if self._rewards is not None:
            retained.append(Retained(self._rewards.reader, self._rewards.nbytes))
        nbytes = self._layout.nbytes
        guard = Guard(self._session, keeping, self._outbox, nbytes, retained)
        if heritage.snapshot is not None:
            guard.inherit(heritage.snapshot, heritage.seq)
        return guard

    def _look(self, n: int, flags: int) -> int:
        """What is not done for each observation; n is at hand. Returns when to come again."""
        session = self._session
        if session.attention or n % LOOK_EVERY == 0:
            session.look()
        mark = n + LOOK_EVERY - n % LOOK_EVERY
        if n <= self._answered.until:
            return mark
        if self._cuts is not None and flags & FLAG_BOUNDARY and not flags & FLAG_END:
            self._cuts.take(n, self._rollout())
        elif self._guard is not None:
            self._guard.look(n)
        return mark if self._guard is None else min(mark, self._guard.mark_after(n))

    def close(self) -> dict[str, float]:
        """Close the policy."""
        if self._cuts is not None:
            self._cuts.close()
        return finish_actor(self._policy)

    def _serve(self) -> None:
        """The loop of a policy that doesn't learn."""
        session = self._session
        pick_obs, pick_action = self._env.grid.obs.pick, self._actions.pick
        copy = None if self._zero_copy else self._env.copy
        act, write = self._act, self._layout.write_batch
        turn = Turn(
            self._env.reader,
            kind=KIND_ACTION,
            nbytes=self._layout.nbytes,
            due_kind=KIND_OBS,
            due_bytes=self._env.fixed_bytes,
            exact=False,
            ahead=1,
            phase=_ACT,
            timeout_s=RING_SLICE_S,
        )
        turn.keep = self._guard is not None
        take = turn.take
        unlike = FLAG_OVERFLOW | (FLAG_BOUNDARY if self._cuts is not None else 0)
        self._repeat()
        n = self._seq
        try:
            row, at, flags = self._wait(n)
            mark = self._look(n, flags)
            while not flags & FLAG_END:
                obs = pick_obs(at)
                write(pick_action(row), act(obs if copy is None else copy(obs)))
                try:
                    got = take(n, flags & FLAG_BOUNDARY)
                    n += 1
                    row, at = got & ROW_MASK, got >> ROW_BITS & ROW_MASK
                    flags = got >> FLAGS_SHIFT
                    if got < 0:
                        self._env.check(n)
                except (RingTimeout, RingInterrupted):
                    n += 1
                    row, at, flags = self._wait(n)
                if n == mark or flags & unlike or session.attention:
                    mark = self._look(n, flags)
        finally:
            self._seq = n

    def _repeat(self) -> None:
        """Act again on what a predecessor has answered since its snapshot."""
        reader, act = self._env.reader, self._policy.act
        n = self._seq
        try:
            while n <= self._answered.until:
                self._session.next(reader, Phase.ACT)
                row = self._env.check(n)
                self._put(n, reader.flags, act(self._env.obs(row)))
                n += 1
        finally:
            self._seq = n

    def _wait(self, n: int) -> tuple[int, int, int]:
        """Make room for action n, wait for observation n: where they lie, and its flags."""
        reader = self._env.reader
        row = self._session.claim(self._outbox, self._layout.nbytes) >> GRAIN_BITS
        if self._guard is not None:
            self._guard.relieve(n)
        self._session.next(reader, Phase.ACT)
        return row, self._env.check(n), reader.flags

    def _serve_variable(self) -> None:
        """The same where observations or actions have no fixed size: nothing is zero-copy."""
        session, reader, guard = self._session, self._env.reader, self._guard
        look_at_all = guard is not None or self._cuts is not None
        n = self._seq
        try:
            while True:
                session.next(reader, Phase.ACT)
                row = self._env.check(n)
                flags = reader.flags
                if flags & FLAG_END:
                    return
                if look_at_all or session.attention or not n % LOOK_EVERY:
                    self._look(n, flags)
                act = self._act if n > self._answered.until else self._policy.act
                self._put(n, flags, act(self._env.obs(row)))
                if guard is None:
                    reader.release()
                n += 1
        finally:
            self._seq = n

    def _put(self, n: int, flags: int, chosen: Any) -> Any:
        """Publish action n, or compare it with what is published; return a copy of it."""
        layout, nbytes = self._layout, self._layout.nbytes
        if n <= self._answered.until:
            return self._compare(n, chosen)
        views = self._actions.pick(self._session.claim(self._outbox, nbytes) >> GRAIN_BITS)
        layout.write_batch(views, chosen)
        copied = layout.copy(views) if self.learns else None
        rest = layout.pack(views)
        self._session.commit(self._spill, n, KIND_ACTION, flags & FLAG_BOUNDARY, nbytes, rest)
        return copied

    def _compare(self, n: int, chosen: Any) -> Any:
        """Compare with action n, which counts: return a copy of it."""
        layout, outbox = self._layout, self._outbox
        made = layout.views(bytearray(max(1, layout.nbytes)))
        layout.write_batch(made, chosen)
        held = self._answered.take(n)
        there = layout.views(outbox.buffer, held.offset)
        rest = overflow.tail(outbox, held.flags, held.offset, held.nbytes, layout.nbytes)
        layout.unpack(there, rest)
        if not same_bytes(made, there) or layout.pack(made) != rest:
            self._answered.differed(self._session, f"action {n}")
        return layout.copy(there)

    def _serve_learning(self, rewards: RewardStream) -> None:
        """The loop of a policy that learns: transition n-1, then action n."""
        session, outbox, env = self._session, self._outbox, self._env
        reader, guard = env.reader, self._guard
        learn = self._policy.learn
        served = with_faults(learn, session.start.chaos, Phase.LEARN, outbox)
        zero_copy = self._zero_copy and not self._variable
        look_at_all = guard is not None or self._cuts is not None
        obs_before: Any = None
        action_before: Any = None
        n = first = self._seq
        pass_by(rewards.reader, first)
        try:
            while True:
                session.next(reader, Phase.IDLE)
                row = env.check(n)
                if n > first:
                    self._next_reward(rewards, n - 1)
                    reward = rewards.take(n - 1)
                    if guard is None:
                        rewards.reader.release()
                    transition = env.transition(row, obs_before, action_before, reward)
                    session.phase = Phase.LEARN
                    (served if n > self._answered.until else learn)(transition)
                    session.phase = Phase.ACT
                flags = reader.flags
                if flags & FLAG_END:
                    return
                if look_at_all or session.attention or not n % LOOK_EVERY:
                    self._look(n, flags)
                outbox.enter(_ACT, n)
                # Both are copies, and not the same one: a policy may normalise in place.
                obs_before = env.obs(row)
                act = self._act if n > self._answered.until else self._policy.act
                chosen = act(env.grid.obs.pick(row) if zero_copy else env.obs(row))
                action_before = self._put(n, flags, chosen)
                if guard is None:
                    reader.release()
                n += 1
        finally:
            # What learn raises belongs to the transition before the observation at hand.
            self._seq = n - 1 if session.phase is Phase.LEARN else n

    def _next_reward(self, rewards: RewardStream, seq: int) -> None:
        """Wait for reward `seq`. One before it was for a transition that a predecessor had under
        way, and that nobody can learn from any more."""
        while True:
            self._session.next(rewards.reader, Phase.LEARN)
            if rewards.reader.seq >= seq:
                return

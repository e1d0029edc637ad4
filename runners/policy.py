"""The policy runner: one batched `act` for each observation, and `learn` where the policy has it.

A learning policy gets transition n, with the reward that the reward runner computed for it, before
it acts on observation n+1, so that what it learns doesn't depend on anybody's speed. Any other
policy doesn't read rewards at all, and its loop builds nothing but the observation.
"""

from __future__ import annotations

from typing import Any

from dsec.errors import LayoutError, RingInterrupted, RingTimeout
from dsec.ipc.frames import Go, Phase, Role, Wire
from dsec.ipc.layout import Layout
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import FLAG_BOUNDARY, FLAG_END, KIND_ACTION, KIND_OBS
from dsec.ipc.turn import FLAGS_SHIFT, ROW_BITS, ROW_MASK, Turn
from dsec.runners.construct import finish_actor, make_actor
from dsec.runners.failure import UserCodeError
from dsec.runners.loop import LOOK_EVERY, RING_SLICE_S, Session, live
from dsec.runners.transitions import GRAIN_BITS, HEAD_BYTES, Grid, ObsStream, RewardStream
from dsec.runners.wiring import Wiring

_ACT = int(Phase.ACT)


def run(session: Session) -> None:
    """Wait to be wired, construct, serve to the end."""
    frame, fds = session.expect(Wire)
    wiring = session.connect(frame, fds)
    policy = make_actor(session, wiring, "policy", "act")
    live(session, wiring, PolicyWorker(session, wiring, policy))


class PolicyWorker:
    """Serves one agent's policy, until the env's stream ends."""

    def __init__(self, session: Session, wiring: Wiring, policy: Any) -> None:
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
        self._seq = 0

    def serve(self, go: Go) -> int:
        """Answer observations until the last; return its sequence number."""
        del go  # whether the policy learns is known here best
        session = self._session
        session.phase = Phase.ACT
        # The more environments step between two observations, the longer the wait, and polling
        # through it takes the processor from other agents' environments: with 32 it was a quarter
        # of all time, to save one wake-up.
        self._outbox.spin //= self._wiring.num_envs
        try:
            if self.learns:
                self._serve_learning()
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
        session.write_end(self._outbox, self._seq)
        return self._seq

    def close(self) -> dict[str, float]:
        """Close the policy."""
        return finish_actor(self._policy)

    def _serve(self) -> None:
        """The loop of a policy that doesn't learn."""
        session = self._session
        pick_obs, pick_action = self._env.grid.obs.pick, self._actions.pick
        copy = None if self._zero_copy else self._env.copy
        act, write = self._policy.act, self._layout.write_batch
        take = Turn(
            self._env.reader,
            kind=KIND_ACTION,
            nbytes=self._layout.nbytes,
            due_kind=KIND_OBS,
            due_bytes=self._env.fixed_bytes,
            exact=False,
            ahead=1,
            phase=_ACT,
            timeout_s=RING_SLICE_S,
        ).take
        n = 0
        try:
            row, at, flags = self._wait(0)
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
                if session.attention or not n % LOOK_EVERY:
                    session.look()
        finally:
            self._seq = n

    def _wait(self, n: int) -> tuple[int, int, int]:
        """Make room for action n, wait for observation n: where they lie, and its flags."""
        reader = self._env.reader
        row = self._session.claim(self._outbox, self._layout.nbytes) >> GRAIN_BITS
        self._session.next(reader, Phase.ACT)
        return row, self._env.check(n), reader.flags

    def _serve_variable(self) -> None:
        """The same where observations or actions have no fixed size: nothing is zero-copy."""
        session, reader = self._session, self._env.reader
        n = 0
        try:
            while True:
                session.next(reader, Phase.ACT)
                row = self._env.check(n)
                flags = reader.flags
                if flags & FLAG_END:
                    return
                self._put(n, flags, self._policy.act(self._env.obs(row)))
                reader.release()
                n += 1
                if session.attention or not n % LOOK_EVERY:
                    session.look()
        finally:
            self._seq = n

    def _put(self, n: int, flags: int, chosen: Any) -> Any:
        """Publish action n; return a copy of it."""
        layout, nbytes = self._layout, self._layout.nbytes
        views = self._actions.pick(self._session.claim(self._outbox, nbytes) >> GRAIN_BITS)
        layout.write_batch(views, chosen)
        copied = layout.copy(views) if self.learns else None
        rest = layout.pack(views)
        self._session.commit(self._spill, n, KIND_ACTION, flags & FLAG_BOUNDARY, nbytes, rest)
        return copied

    def _serve_learning(self) -> None:
        """The loop of a policy that learns: transition n-1, then action n."""
        session, outbox, env = self._session, self._outbox, self._env
        reader = env.reader
        peer = self._wiring.peers[Role.REWARD]
        rewards = RewardStream(self._wiring.reader(Role.REWARD), peer, self._wiring.num_envs)
        act, learn = self._policy.act, self._policy.learn
        zero_copy = self._zero_copy and not self._variable
        obs_before: Any = None
        action_before: Any = None
        n = 0
        try:
            while True:
                session.next(reader, Phase.IDLE)
                row = env.check(n)
                if n > 0:
                    session.next(rewards.reader, Phase.LEARN)
                    reward = rewards.take(n - 1)
                    rewards.reader.release()
                    transition = env.transition(row, obs_before, action_before, reward)
                    session.phase = Phase.LEARN
                    learn(transition)
                    session.phase = Phase.ACT
                flags = reader.flags
                if flags & FLAG_END:
                    return
                outbox.enter(_ACT, n)
                # Both are copies, and not the same one: a policy may normalise in place.
                obs_before = env.obs(row)
                chosen = act(env.grid.obs.pick(row) if zero_copy else env.obs(row))
                action_before = self._put(n, flags, chosen)
                reader.release()
                n += 1
                if session.attention or not n % LOOK_EVERY:
                    session.look()
        finally:
            # What learn raises belongs to the transition before the observation at hand.
            self._seq = n - 1 if session.phase is Phase.LEARN else n

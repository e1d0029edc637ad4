"""The env runner whose policy is a caller: a program that steps the environments itself.

It differs from env.py in what the caller expects of an environment of its own: nothing is reset
before it says so, an end is followed by what it has chosen (its autoreset mode), beside actions
there are requests (requests.py), and what user code raises is raised there. Failover is the same:
actions and requests since the last snapshot are in the ring, and a successor does them again.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from dsec.errors import PeerError, RingInterrupted, RingTimeout
from dsec.failover.codecs.pending import Examination
from dsec.ipc import overflow, recall
from dsec.ipc.frames import Go, Phase, Role
from dsec.ipc.layout import FLAG_ASIDE, FLAG_INFRA, FLAG_TRUNCATED
from dsec.ipc.ring import FLAG_END, FLAG_REQUEST, KIND_OBS
from dsec.ipc.turn import ROW_BITS, ROW_MASK
from dsec.runners import env, env_life, requests, seeds
from dsec.runners.chaos import with_faults
from dsec.runners.heir_env import Standing
from dsec.runners.loop import Session
from dsec.runners.protect import examination
from dsec.runners.returned import NotCarried, as_reward, no_step
from dsec.runners.stage import LATER, NEXT_STEP, Stage
from dsec.runners.transitions import GRAIN_BITS
from dsec.runners.wiring import Wiring

EXAMINE_WAIT_S = 5.0
"""How long the first step may wait until it is known how to keep its state. What takes
longer, for an environment that hangs on some actions is given its time, goes on beside the steps,
and they are protected from then on."""
_ASKED = -1  # in place of the row of an action: the current record is a request


def run(session: Session) -> None:
    """Construct, wait to be wired or to take over, serve to the end."""
    env_life.run(session, CallerWorker)


class CallerWorker(env.EnvWorker):
    """Serves one agent's environments to a caller."""

    def __init__(self, session: Session, wiring: Wiring, stage: Stage, standing: Standing) -> None:
        super().__init__(session, wiring, stage, standing)
        self._peer = wiring.peers[Role.POLICY]
        self._requests = requests.Requests(stage, self._fill)
        self._protected = self._examining = False
        self._examination: Examination | None = None
        self._before: tuple[int, Any] = (-1, None)  # the outbox's tail, and the record before it

    def serve(self, go: Go) -> int:
        """Publish observations until the caller closes; return the last one's sequence number."""
        del go
        session = self._session
        try:
            if not self._begin() & FLAG_END:
                one = len(self._stage.envs) == 1
                fixed = not (self._variable or self._actions.layout.variable)
                (self._serve_one if one and fixed else self._serve_many)()
        finally:
            session.seq = self._seq
        return self._seq

    # ------------------------------------------------------------ the beginning

    def _begin(self) -> int:
        standing = self._standing
        self._session.phase = Phase.STEP
        if standing.ended:
            return FLAG_END
        published = 0
        if standing.seq < 0:
            published = self._publish_nothing()
        else:
            self._pass_by(standing)
            if standing.lost is not None and standing.seq > 0:
                published = self._publish_loss(standing.seq, standing.lost)
            elif standing.keeping is not None:
                self._protect(standing)
                self._protected = True
        self._look_protected()
        self._next_mark = self._mark_after(self._seq)
        return published

    def _publish_nothing(self) -> int:
        """Record 0: there are environments, and nobody has reset them yet."""
        fixed = self._record.fixed_bytes
        at = self._session.claim(self._outbox, fixed)
        self._outbox.buffer[at : at + fixed] = bytes(fixed)
        row = at >> GRAIN_BITS
        self._grid.flags[row] = FLAG_ASIDE
        views, layout = self._grid.obs.pick(row), self._record.layout
        if self._variable:  # where no zeros can stand for a value
            space = deepcopy(layout.space)
            space.seed(0)
            for i in range(layout.n):
                layout.write(views, i, space.sample())
        return self._publish(0, self._variable, views)

    def _look_protected(self) -> None:
        """From its first reset on an environment's state is kept, as soon as it is known how. The
        caller waits for that, but not for long."""
        standing, wait_s = self._standing, 0.0
        if self._protected or any(seed is not None for seed in self._stage.first_seeds):
            return
        if not self._examining:
            self._examining, wait_s = True, EXAMINE_WAIT_S
            if standing.keeping is None and standing.trusted:
                self._examination = examination(self._session, self._stage)
        examined = None
        if self._examination is not None:
            self._outbox.enter(Phase.IDLE, self._seq)
            examined = self._examination.result(wait_s)
            if examined is None:
                return
        self._protected = True
        self._protect(standing, examined)

    def close(self) -> dict[str, float]:
        """Close all environments."""
        if self._examination is not None:
            self._examination.close()
        return super().close()

    def _publish_loss(self, n: int, lost: dict[str, Any]) -> int:
        """Answer what came after observation n: the environments were lost (G4).

        Who asked for all of them to be reset gets that, of new environments, and is told.
        """
        session, stage = self._session, self._stage
        seeds.reseed_globals(f"{session.start.seed}/{session.start.epoch}", "env")
        row, at = self._wait(n)
        views, flags = self._grid.obs.pick(row), self._grid.flags[row]
        rewards = self._grid.reward[row]
        asked = self._asked() if at == _ASKED else {}
        if asked.get("do") == "close" or (asked.get("do") == "reset" and all(asked["mask"])):
            self._requests.answer(n, asked, views, rewards, flags)
            flags |= FLAG_INFRA
        else:
            self._keep_last_as_final()
            self._end_all(n, views)
            rewards[...] = 0.0
            flags[...] = FLAG_TRUNCATED | FLAG_INFRA
        for info in stage.infos:
            told = info.get("dsec", {})  # a reset's may be the environment's own, and no dict
            ours = told if isinstance(told, dict) else {"own": told}
            info["dsec"] = {**ours, "infra_failure": lost}
        self._seq = n + 1
        session.draining = session.draining or self._requests.closing
        self._miss(n + 1)
        published = self._publish(n + 1, irregular=True, obs=views)
        self._actions.reader.release()
        return published

    def _end_all(self, n: int, views: Any) -> None:
        """What follows the end of every episode, by the autoreset mode."""
        stage, mode = self._stage, self._session.start.caller
        for i in range(len(stage.envs)):
            if mode in LATER:
                self._fill(views, i)
                stage.over[i] = mode == NEXT_STEP
                continue
            stage.begin(i, n, views)
            stage.infos[i] = {"dsec": {"reset_info": stage.infos[i]}}

    # ------------------------------------------------------------ one record after the other

    def _serve_one(self) -> None:
        """The loop for one environment of fixed spaces; `_serve_many` says the same for others."""
        session, stage, reader = self._session, self._stage, self._actions.reader
        write, read = self._record.layout.write, self._actions.layout.read
        obs_rows, action_rows = self._grid.obs.single, self._actions.grid.single
        reward_rows, flags_rows = self._grid.reward[:, 0], self._grid.flags[:, 0]
        chaos, over, settle = session.start.chaos, stage.over, stage.settle
        step = with_faults(stage.envs[0].step, chaos, Phase.STEP, self._outbox)
        n, next_mark = self._seq, self._next_mark
        turn = self._turn()
        take = turn.take
        try:
            row, at = self._wait(n)
            while True:
                irregular = True
                if at == _ASKED or over[0]:
                    self._aside(n, row, at, self._grid.obs.pick(row))
                else:
                    try:
                        result = step(read(action_rows, at))
                        try:
                            obs, reward, terminated, truncated, info = result
                        except (TypeError, ValueError):
                            raise no_step(result) from None
                        if terminated or truncated or info:
                            obs, flags_rows[row] = settle(0, n, obs, terminated, truncated, info)
                        else:
                            flags_rows[row] = 0
                            irregular = False
                        reward_rows[row] = reward if type(reward) is float else as_reward(reward)
                        write(obs_rows, row, obs)
                    except Exception as error:
                        self._raised(row, error)
                        irregular = True
                seq = n + 1
                if irregular or seq == next_mark or session.attention:
                    published = self._answer(seq, irregular, None)
                    next_mark, n = self._next_mark, seq
                    turn.keep = self._guard is not None
                    if not turn.keep:
                        reader.release()
                    if published & FLAG_END:
                        return
                    row, at = self._wait(n)
                    continue
                try:
                    got = take(seq)
                    n = seq
                    row, at = got & ROW_MASK, got >> ROW_BITS & ROW_MASK
                    if got < 0:
                        row, at = self._room(), self._due(n)
                except (RingTimeout, RingInterrupted):
                    n = seq
                    row, at = self._wait(n)
        finally:
            self._seq = n

    def _serve_many(self) -> None:
        """The loop for a vector of environments, and for spaces without a fixed size."""
        session, reader = self._session, self._actions.reader
        step = with_faults(self._requests.step, session.start.chaos, Phase.STEP, self._outbox)
        read, grid = self._actions.read, self._grid
        n = self._seq
        try:
            while True:
                row, at = self._wait(n)
                views = grid.obs.pick(row)
                if at == _ASKED:
                    self._aside(n, row, at, views)
                    irregular = True
                else:
                    irregular = step(
                        n, read, self._actions.views(n), views, grid.reward[row], grid.flags[row],
                    )  # fmt: skip
                published = self._answer(n + 1, irregular or self._variable, views)
                n += 1
                if self._guard is None:
                    reader.release()
                if published & FLAG_END:
                    return
        finally:
            self._seq = n

    def _answer(self, seq: int, irregular: bool, views: Any) -> int:
        session = self._session
        if self._requests.closing:
            session.draining = session.attention = True
        try:
            published = self._publish(seq, irregular, views)
        except NotCarried as error:
            self._not_carried(views, error)
            published = self._publish(seq, True, views)
        self._seq = seq
        if not self._protected:
            self._look_protected()
            pending = self._examining and not self._protected
            self._next_mark = seq + 1 if pending else self._mark_after(seq)
        return published

    def _aside(self, n: int, row: int, at: int, views: Any) -> None:
        """A request, or a reset in the place of a step: write the record that answers it."""
        grid = self._grid
        rewards, flags = grid.reward[row], grid.flags[row]
        if at == _ASKED:
            self._requests.answer(n, self._asked(), views, rewards, flags)
        else:
            self._requests.step(n, self._actions.read, None, views, rewards, flags)

    def _raised(self, row: int, error: Exception) -> None:
        grid = self._grid
        self._stage.at = 0
        self._requests.raised(error, grid.obs.pick(row), grid.reward[row], grid.flags[row])

    def _not_carried(self, views: Any, error: NotCarried) -> None:
        """The environments have done what was asked; what they told of it can't leave here."""
        row = self._room()  # that of the record which lies there, not yet published
        self._stage.at = len(self._stage.envs)
        told = TypeError(f"it can't be carried to the calling process: {error}")
        self._requests.raised(told, views, self._grid.reward[row], self._grid.flags[row])

    def _room(self) -> int:
        return self._session.claim(self._outbox, self._record.fixed_bytes) >> GRAIN_BITS

    def _wait(self, n: int) -> tuple[int, int]:
        """Make room for observation n + 1, wait for what comes after n; where they lie."""
        row = self._room()
        self._session.next(self._actions.reader, Phase.STEP)
        return row, self._due(n)

    def _due(self, n: int) -> int:
        """Check the current record: the row of action n, or _ASKED."""
        reader = self._actions.reader
        row = self._actions.check(n)
        return _ASKED if reader.flags & FLAG_REQUEST else row

    def _asked(self) -> dict[str, Any]:
        reader = self._actions.reader
        fixed = self._actions.layout.nbytes
        tail = overflow.tail(self._peer, reader.flags, reader.offset, reader.nbytes, fixed)
        return requests.decode(tail)

    def _fill(self, views: Any, i: int) -> None:
        """The observation of environment i in the record before this one."""
        outbox, grid = self._outbox, self._grid
        if self._before[0] != outbox.tail:
            last = recall.last_record(outbox)
            if last is None or last.kind != KIND_OBS:
                raise PeerError("the env outbox has no last observation")
            before = grid.obs.pick(last.offset >> GRAIN_BITS)
            if self._variable:
                fixed = self._record.fixed_bytes
                tail = overflow.tail(outbox, last.flags, last.offset, last.nbytes, fixed)
                self._record.layout.unpack(before, bytes(tail))
            self._before = outbox.tail, before
        copy_row(views, self._before[1], i)


def copy_row(to: Any, source: Any, i: int) -> None:
    """Let environment i of one tree of views be what it is in another of the same space."""
    if isinstance(to, dict):
        for key in to:
            copy_row(to[key], source[key], i)
    elif isinstance(to, tuple):
        for mine, theirs in zip(to, source, strict=True):
            copy_row(mine, theirs, i)
    else:
        to[i] = source[i]

"""The env runner: steps the environments of one agent and publishes what they return.

One record for each step of the whole vector. Where an episode ends, the environment is reset in
the same step: the record holds the first observation of the new episode, and the terminal one
rides in its extras. This file writes only what environments returned, exactly, or fails.

With one environment the loop below is most of what dsec costs; it keeps everything in locals and
leaves the unusual (an end, an info, a type it has to convert) to the stage (stage.py). A worker
begins at the beginning, from an atom (origin.py), or as the heir of a dead one (heir_env.py); what
comes before, and after, is in env_life.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dsec.errors import AtomForeign, LayoutError, RingInterrupted, RingTimeout
from dsec.failover.codecs import Examined
from dsec.failover.keep import Snapshot
from dsec.ipc import overflow, recall
from dsec.ipc.frames import Go, Kept, Phase, Protection, Role
from dsec.ipc.layout import FLAG_INFRA, FLAG_TRUNCATED
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import FLAG_BOUNDARY, FLAG_END, KIND_ACTION, KIND_OBS
from dsec.ipc.turn import ROW_BITS, ROW_MASK, Turn
from dsec.runners.chaos import with_faults, with_resets
from dsec.runners.clone import ForkKeeping
from dsec.runners.cuts import Cuts
from dsec.runners.episode import EpisodeKeeping
from dsec.runners.guard import Guard, Retained
from dsec.runners.heir_env import Standing
from dsec.runners.keeping import Keeping
from dsec.runners.loop import LOOK_EVERY, RING_SLICE_S, Session, SteppedAside
from dsec.runners.origin import first_seq, observation_of
from dsec.runners.protect import go_on
from dsec.runners.recycle import Recycling, why_not_anew
from dsec.runners.returned import as_reward, blamed, no_step
from dsec.runners.stage import Stage
from dsec.runners.transitions import GRAIN_BITS, ActionStream, EnvGrid
from dsec.runners.wiring import Wiring

_STEP = int(Phase.STEP)
_NEVER = 1 << 62


class EnvWorker:
    """Serves one agent's environments, from the first reset to the quota or the drain."""

    learns = False

    def __init__(self, session: Session, wiring: Wiring, stage: Stage, standing: Standing) -> None:
        start = session.start
        n = start.num_envs
        self._session = session
        self._wiring = wiring
        self._outbox = wiring.outbox
        self._stage = stage
        stage.enter = with_resets(wiring.outbox.enter, start.chaos)
        self._grid = EnvGrid(wiring.outbox, wiring.observation_space, n)
        self._record = self._grid.record
        self._actions = ActionStream(
            wiring.reader(Role.POLICY), wiring.peers[Role.POLICY], wiring.action_space, n
        )
        self._spill = Spill(wiring.outbox)
        self._variable = bool(self._record.layout.variable)
        self._episodes_max = start.episodes or _NEVER
        self._lost = standing.missed  # each stands where a step of the quota was to be
        self._last = -(-start.steps // n) + self._lost if start.steps else _NEVER
        self._noted = -1 if start.episodes else _NEVER  # episodes, as the outbox has them
        if standing.seq >= 0:  # what a dead one noted of a record that it didn't publish is void
            wiring.outbox.note(standing.seq, stage.episodes, standing.missed)
        self._interval = start.snapshot_interval or _NEVER
        self._next_mark = 0
        self._standing = standing
        self._seq = max(0, standing.seq)
        self._guard: Guard | None = None
        self._recycling: Recycling | None = None
        self._anew = False  # it has been tried whether another process can begin its episodes
        self._cuts: Cuts | None = None

    def serve(self, go: Go) -> int:
        """Publish observations until the stream ends; return the last one's sequence number."""
        del go  # who learns is the reward runner's business
        try:
            if not self._begin() & FLAG_END:
                one = len(self._stage.envs) == 1
                if one and not (self._variable or self._actions.layout.variable):
                    self._serve_one()
                else:
                    self._serve_many()
        finally:
            self._session.seq = self._seq
        return self._seq

    def try_out(self) -> None:
        """Find out how the environments' state would be kept, and tell; nothing is published."""
        session, stage = self._session, self._stage
        session.phase = Phase.RESET
        row = session.claim(self._outbox, self._record.fixed_bytes) >> GRAIN_BITS
        stage.start_all(0, session.start.seed, self._grid.obs.pick(row))
        keeping, _ = go_on(session, stage, None, trusted=True)
        if keeping is not None:
            keeping.close()

    def close(self) -> dict[str, float]:
        """Close all environments."""
        for keeps in (self._guard, self._cuts):
            if keeps is not None:
                keeps.close()
        self._stage.close()
        return {}

    def _begin(self) -> int:
        """Publish what comes before the first step that is served; return the last flags."""
        standing, start = self._standing, self._session.start
        self._session.phase = Phase.STEP
        if standing.ended:
            return FLAG_END
        if standing.seq >= 0:
            self._pass_by(standing)
        published = 0
        if standing.origin:
            published = self._publish_again(standing.origin)
        elif standing.seq < 0:
            published = self._publish_first()
        elif standing.lost is not None:
            published = self._publish_loss(standing.seq, standing.lost)
        self._protect(standing)
        if self._cuts is not None and self._seq and not self._seq % self._interval:
            self._cuts.take(self._seq, self._stage.episodes)  # which a dead one perhaps didn't
        asked = start.failover.recycle_every or start.limits.get("memory_mb", 0)
        if asked and not start.caller and start.failover.standby != "none":
            self._recycling = Recycling(start, self._seq)
        self._next_mark = self._mark_after(self._seq)
        return published

    def _protect(self, standing: Standing, examined: Examined | None = None) -> None:
        """From here on the environments' state is kept, if it can be: they have all been reset."""
        session, outbox = self._session, self._outbox
        outbox.enter(Phase.IDLE, self._seq)
        keeping, state = go_on(
            session, self._stage, standing.keeping, trusted=standing.trusted, examined=examined
        )
        if keeping is not None:
            self._guard = self._guarded(keeping, standing.snapshot)
        if session.start.atoms:
            self._cuts = Cuts(session, state, self._guard, lambda: (observation_of(outbox),))

    def _guarded(self, keeping: Keeping, snapshot: Snapshot | None) -> Guard:
        instead = None
        if isinstance(keeping, EpisodeKeeping):
            keeping.serve(self._wiring)
            instead = partial(ForkKeeping, self._session)
        actions = Retained(self._actions.reader, self._actions.layout.nbytes)
        fixed = self._record.fixed_bytes
        guard = Guard(self._session, keeping, self._outbox, fixed, (actions,))
        guard.instead = instead
        if snapshot is not None:
            guard.inherit(snapshot, self._seq)
        else:
            guard.keep(self._seq, self._stage.episodes)
        return guard

    def _publish_first(self) -> int:
        """Reset everything, each with its own seed, and publish observation 0."""
        session, stage = self._session, self._stage
        row = session.claim(self._outbox, self._record.fixed_bytes) >> GRAIN_BITS
        views = self._grid.obs.pick(row)
        stage.start_all(0, session.start.seed, views)
        self._grid.reward[row] = 0.0
        self._grid.flags[row] = 0
        return self._publish(0, irregular=self._variable or any(stage.infos), obs=views)

    def _publish_again(self, payload: bytes) -> int:
        """Publish the observation that an atom begins with. What led to it is told already: its
        infos and terminal observations stay behind."""
        record, outbox = self._record, self._outbox
        self._seq = n = first_seq(self._session)
        at = self._session.claim(outbox, record.fixed_bytes)
        if len(payload) < record.fixed_bytes:
            raise AtomForeign(
                f"an observation of {len(payload)} bytes where {record.fixed_bytes} are due"
            )
        outbox.buffer[at : at + record.fixed_bytes] = payload[: record.fixed_bytes]
        views = self._grid.obs.pick(at >> GRAIN_BITS)
        record.open_tail(views, payload[record.fixed_bytes :])
        return self._publish(n, irregular=self._variable, obs=views)

    def _pass_by(self, standing: Standing) -> None:
        """Step over the actions that led to what is published; give back what no replay needs."""
        reader = self._actions.reader
        reader.pass_by(standing.seq)
        if standing.snapshot is None:
            reader.release()

    def _publish_loss(self, n: int, lost: dict[str, Any]) -> int:
        """Answer action n with the record that says that its outcome is unknown (G4).

        The last observation published is the terminal one, for all environments were in the
        process that died; then follow first observations of fresh episodes.
        """
        session, stage, record = self._session, self._stage, self._record
        row = session.claim(self._outbox, record.fixed_bytes) >> GRAIN_BITS
        self._keep_last_as_final()
        views = self._grid.obs.pick(row)
        fresh = f"{session.start.seed}/{session.start.epoch}"
        if first := first_seq(session):  # incarnations are counted anew where a run goes on
            fresh += f"/{first}"
        stage.start_all(n + 1, fresh, views)
        for i, reset_info in enumerate(stage.infos):
            told = {"infra_failure": lost, **({"reset_info": reset_info} if reset_info else {})}
            stage.infos[i] = {"dsec": told}
        self._grid.reward[row] = 0.0
        self._grid.flags[row] = FLAG_TRUNCATED | FLAG_INFRA
        session.next(self._actions.reader, Phase.IDLE)
        self._actions.check(n)
        self._seq = n + 1
        self._miss(n + 1)
        published = self._publish(n + 1, irregular=True, obs=views)
        self._actions.reader.release()
        return published

    def _miss(self, n: int) -> None:
        """Record n is about to say that a step is lost; one more is to be made for it."""
        self._lost += 1
        self._last += 1
        self._outbox.note(n, self._stage.episodes, self._lost)

    def _keep_last_as_final(self) -> None:
        """Let the last observation published be the terminal one of every environment."""
        outbox, layout = self._outbox, self._record.layout
        last = recall.last_record(outbox)
        assert last is not None, "an heir that lost something has a last record"
        views = self._grid.obs.pick(last.offset >> GRAIN_BITS)
        if self._variable:
            fixed = self._record.fixed_bytes
            layout.unpack(views, overflow.tail(outbox, last.flags, last.offset, last.nbytes, fixed))
        for i in range(layout.n):
            self._stage.keep_final(i, layout.read(views, i))

    def _serve_one(self) -> None:
        """The loop for one environment; `_serve_many` says the same for several."""
        session, reader = self._session, self._actions.reader
        write, read = self._record.layout.write, self._actions.layout.read
        obs_rows, action_rows = self._grid.obs.single, self._actions.grid.single
        reward_rows, flags_rows = self._grid.reward[:, 0], self._grid.flags[:, 0]
        envs, chaos = self._stage.envs, session.start.chaos
        step = with_faults(envs[0].step, chaos, Phase.STEP, self._outbox)
        settle = self._stage.settle
        n, next_mark = self._seq, self._next_mark
        turn = self._turn()
        take = turn.take
        try:
            row, at = self._wait(n)
            while True:
                result = step(read(action_rows, at))
                try:
                    obs, reward, terminated, truncated, info = result
                except (TypeError, ValueError):
                    raise no_step(result) from None
                if terminated or truncated or info:
                    obs, flags_rows[row] = settle(0, n, obs, terminated, truncated, info)
                    irregular = True
                else:
                    flags_rows[row] = 0
                    irregular = False
                reward_rows[row] = reward if type(reward) is float else as_reward(reward)
                write(obs_rows, row, obs)
                seq = n + 1
                if irregular or seq == next_mark or session.attention:
                    published = self._publish(seq, irregular, None)
                    next_mark = self._next_mark
                    n = seq
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
                        self._actions.check(n)
                except (RingTimeout, RingInterrupted):
                    n = seq
                    row, at = self._wait(n)
        except LayoutError as error:
            raise blamed(0, error) from None
        finally:
            self._seq = n

    def _turn(self) -> Turn:
        """Publish an observation and wait for the action that answers it, in one call."""
        turn = Turn(
            self._actions.reader,
            kind=KIND_OBS,
            nbytes=self._record.fixed_bytes,
            due_kind=KIND_ACTION,
            due_bytes=self._actions.layout.nbytes,
            exact=True,
            ahead=0,
            phase=_STEP,
            timeout_s=RING_SLICE_S,
        )
        turn.keep = self._guard is not None  # which gives back at its snapshots
        return turn

    def _wait(self, n: int) -> tuple[int, int]:
        """Make room for observation n + 1, wait for action n; say where they lie."""
        row = self._session.claim(self._outbox, self._record.fixed_bytes) >> GRAIN_BITS
        self._session.next(self._actions.reader, Phase.STEP)
        return row, self._actions.check(n)

    def _serve_many(self) -> None:
        """The loop for a vector of environments, and for spaces without a fixed size."""
        session, outbox, reader = self._session, self._outbox, self._actions.reader
        fixed = self._record.fixed_bytes
        step = with_faults(self._stage.step, session.start.chaos, Phase.STEP, outbox)
        read, views_of_action = self._actions.read, self._actions.views
        unlike = self._variable or bool(self._actions.layout.variable)
        n = self._seq
        try:
            while True:
                row = session.claim(outbox, fixed) >> GRAIN_BITS
                views = self._grid.obs.pick(row)
                session.next(reader, Phase.STEP)
                actions = views_of_action(n)
                irregular = step(
                    n, read, actions, views, self._grid.reward[row], self._grid.flags[row]
                )
                published = 0
                if irregular or unlike or n + 1 == self._next_mark or session.attention:
                    published = self._publish(n + 1, irregular or self._variable, views)
                else:
                    outbox.commit(n + 1, KIND_OBS, 0, fixed)
                n += 1
                if self._guard is None:
                    reader.release()
                if published & FLAG_END:
                    return
        finally:
            self._seq = n

    def _publish(self, n: int, irregular: bool, obs: Any) -> int:
        """Commit observation n, whose fixed part is written, with the rest; return the flags.

        Args:
            irregular: it has more than its fixed part.
            obs: its tree of views; needed where it has variable leaves.
        """
        session = self._session
        if session.attention or n % LOOK_EVERY == 0:
            session.look()
        flags = FLAG_BOUNDARY if n and n % self._interval == 0 else 0
        if n == self._last or session.draining or self._stage.episodes >= self._episodes_max:
            flags |= FLAG_END
        if self._noted < self._stage.episodes:
            self._noted = self._stage.episodes
            self._outbox.note(n, self._noted, self._lost)
        tail = self._stage.encode_tail(obs) if irregular else b""
        session.commit(self._spill, n, KIND_OBS, flags, self._record.fixed_bytes, tail)
        if self._cuts is not None and flags & (FLAG_BOUNDARY | FLAG_END):
            self._cuts.take(n, self._stage.episodes)
        elif self._guard is not None and not flags & FLAG_END:
            self._guard.look(n, self._stage.episodes)
        if self._recycling is not None and n >= self._recycling.mark and not flags & FLAG_END:
            self._perhaps_step_aside(self._recycling, n)
        self._next_mark = self._mark_after(n)
        return flags

    def _perhaps_step_aside(self, recycling: Recycling, n: int) -> None:
        """Leave for a successor, if it is time and there is an exact way.

        Raises:
            SteppedAside: the state after record n is kept.
        """
        why, stage, guard = recycling.why(n), self._stage, self._guard
        if not why or self._session.draining or guard is None:
            return
        keeping: Keeping | None = None
        if guard.level not in ("state", "replay"):
            if stage.began is None or not self._anew:
                self._anew = True
                if refused := why_not_anew(stage):
                    self._recycling = None
                    note = f"not recycled although {why}: {refused}"
                    self._session.channel.send(Kept(0, Protection(guard.level, notes=(note,))))
                return
            keeping = EpisodeKeeping(self._session, stage)
            keeping.serve(self._wiring)
        begins = stage.began is not None and stage.began.record == n
        waits = keeping is not None or (guard.level == "replay" and not recycling.urgent)
        if waits and not begins:
            return
        if guard.hand_over(n, stage.episodes, keeping):
            raise SteppedAside(n, why)

    def _mark_after(self, n: int) -> int:
        """The next observation after n that is not like all others."""
        ahead = (LOOK_EVERY - n % LOOK_EVERY, self._interval - n % self._interval)
        mark = min(self._last, n + min(ahead))
        if self._recycling is not None and self._guard is not None:
            mark = min(mark, max(n + 1, self._recycling.mark))
        return mark if self._guard is None else min(mark, self._guard.mark_after(n))

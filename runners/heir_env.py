"""What an env runner does when it takes over from a dead one, until it may publish.

If the dead one kept its state, the environments are restored from its last snapshot and replay what
came after it; if that comes out as it was published, nothing has been lost. Otherwise the record
after its last one says that the environments were lost (env.py publishes it, G4), and fresh
episodes begin. Until its predecessor is fenced this file writes to no ring.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dsec.errors import CorruptRingError, DsecError, SnapshotError
from dsec.failover import keep
from dsec.failover.codecs import ambient
from dsec.failover.keep import Snapshot
from dsec.ipc import crash, recall, segment
from dsec.ipc.frames import Kept, Phase, Protection, Role, TakenOver, Takeover
from dsec.ipc.layout import Layout
from dsec.ipc.recall import Held
from dsec.ipc.ring import FLAG_END, Peer
from dsec.runners import episode
from dsec.runners.clone import Promoted
from dsec.runners.episode import EpisodeKeeping
from dsec.runners.failure import describe
from dsec.runners.keeping import Keeping
from dsec.runners.loop import Session
from dsec.runners.origin import restore_stage
from dsec.runners.protect import bind
from dsec.runners.replay_env import Replay
from dsec.runners.stage import Stage
from dsec.runners.wiring import Attachment, Wiring
from dsec.runners.words import action_words

NOTHING_KEPT = "nothing of the environment's state was kept"
NOT_AGAIN = "the step was not to be tried again"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker begins.

    Attributes:
        seq: the last observation published; -1 before the first.
        ended: it was the stream's last.
        lost: why the environments' state is lost, to be said in the record that follows (G4);
            None where it is what it was after observation `seq`.
        snapshot: what there is already, of the state that is retained.
        keeping: takes the next ones; None where that is to be chosen.
        trusted: it may be chosen: no codec has been found wrong.
        missed: records so far that say of a step that it was lost.
        origin: the observation to begin with, where the agent goes on from an atom and has
            published none.
    """

    seq: int = -1
    ended: bool = False
    lost: dict[str, Any] | None = None
    snapshot: Snapshot | None = None
    keeping: Keeping | None = None
    trusted: bool = True
    missed: int = 0
    origin: bytes = b""


def begin(session: Session, stage: Stage) -> Standing:
    """Where the first worker of its line stands, or one whose predecessors published nothing."""
    if session.start.origin is None:
        return Standing()
    observation, keeping = restore_stage(session, stage)
    return Standing(keeping=keeping, origin=observation)


def take_over(
    session: Session,
    stage: Stage,
    frame: Takeover,
    fds: list[int],
    clone: Promoted | None = None,
) -> tuple[Wiring, Standing]:
    """Restore and replay, say TakenOver, wait until the dead one is fenced, catch up with it.

    Args:
        clone: of this process, if it is one of the dead one, and stands where that stood; else it
            restores.

    Raises:
        PeerError: a segment is not what it should be.
        RunnerExit: the kernel's end of the channel is closed.
    """
    kept = segment.duplicate(fds[frame.kept]) if 0 <= frame.kept < len(fds) else -1
    attachment = session.attach(frame, fds, stage.known_spaces)
    heir = Heir(session, stage, attachment, frame, kept, clone)
    session.take(over=False)
    stage.enter = crash.enter  # the outbox is somebody else's yet
    answer = heir.answer()
    session.take(over=True)
    session.channel.send(answer)
    wiring, kept = session.resume(heir.attachment, policy_learns=frame.policy_learns)
    stage.enter = wiring.outbox.enter  # mine by now, so that a step which hangs is seen there
    stage.enter(int(Phase.REPLAY), max(0, answer.seq))
    standing = heir.catch_up(kept)
    stage.enter(int(Phase.IDLE), session.seq)
    return wiring, begin(session, stage) if standing.seq < 0 else standing


class Heir:
    """One attempt after the other to bring the environments to where the dead one's were.

    Args:
        kept: descriptor of what the dead one kept, -1 if there is none; closed by `catch_up`.
        clone: as in `take_over`.
    """

    def __init__(
        self,
        session: Session,
        stage: Stage,
        attachment: Attachment,
        frame: Takeover,
        kept: int,
        clone: Promoted | None,
    ) -> None:
        self.attachment = attachment
        self._session = session
        self._stage = stage
        self._frame = frame
        self._kept = kept
        self._clone = clone
        self._own = attachment.look()
        self._snapshot: Snapshot | None = None
        self._why = NOT_AGAIN if frame.truncate else NOTHING_KEPT
        self._keeping: Keeping | None = None
        self._replay: Replay | None = None
        self._redone = 0  # of the steps that are no longer in the rings
        self._restored_s = 0.0
        self._wrong = False

    def answer(self) -> TakenOver:
        """Restore and replay what can be by now."""
        last = recall.last_record(self._own)
        needed = last is not None and not last.flags & FLAG_END
        began = time.perf_counter()
        if needed:
            self._try()
        ended = time.perf_counter()
        restored = min(max(self._restored_s, began), ended)
        return TakenOver(
            exact=not needed or not self._why,
            level="none" if self._keeping is None else self._keeping.level,
            seq=last.seq if last else -1,
            replayed=self._redone + (self._replay.replayed if self._replay else 0),
            restore_ms=round((restored - began) * 1e3, 3),
            replay_ms=round((ended - restored) * 1e3, 3),
            why=self._why if needed else "",
            action_last=self._action_words(last.seq) if last else "",
        )

    def catch_up(self, kept: int) -> Standing:
        """After the fence: the dead one may have published and kept more before it was killed."""
        if kept >= 0:
            self._forget_kept()
            self._kept = kept
        last = recall.last_record(self._own)
        standing = Standing(last.seq if last else -1, ended=bool(last and last.flags & FLAG_END))
        if last is not None and not standing.ended:
            standing = self._stand(last.seq)
            counted = recall.tally(self._own, last.seq)
            standing = replace(standing, missed=counted.lost)
            if standing.lost is not None and self._session.start.episodes:
                self._stage.episodes = counted.episodes
        if self._clone is not None and standing.keeping is not self._clone.keeping:
            self._clone.keeping.close()  # what sleeps on is of no use any more
        self._own.close()
        self._forget_kept()
        self._session.seq = max(0, standing.seq)
        return standing

    def _stand(self, seq: int) -> Standing:
        if self._replay is not None and not self._why:
            self._guarded(self._advance)
        if self._why and not self._wrong:
            self._try()
        if not self._why:
            return Standing(seq, snapshot=self._snapshot, keeping=self._keeping)
        if self._replay is not None or self._clone is not None:
            self._stage.rebuild()
        if self._wrong:
            unprotected = Protection("none", notes=(f"not restored exactly: {self._why}",))
            self._session.channel.send(Kept(0, unprotected))
        lost = {"cause": self._frame.cause, "why": self._why}
        return Standing(seq, lost=lost, trusted=not self._wrong)

    def _try(self) -> None:
        """Restore the newest snapshot, if it is another than the last time, and replay."""
        if self._frame.truncate:
            return
        if self._clone is not None:
            if self._snapshot is None:
                self._snapshot, self._why = self._clone.snapshot, ""
                self._guarded(self._restore)
            return
        if self._kept < 0:
            return
        try:
            snapshot = keep.newest(self._kept)
        except SnapshotError as error:
            self._why = str(error)
            return
        if snapshot is None:
            self._why = "no whole snapshot was kept"
        elif self._snapshot is None or snapshot.seq != self._snapshot.seq:
            self._snapshot, self._why = snapshot, ""
            self._guarded(self._restore)

    def _restore(self) -> None:
        snapshot, stage = self._snapshot, self._stage
        assert snapshot is not None, "found before this is called"
        where = snapshot.seq, snapshot.own, snapshot.first
        self._replay = Replay(stage, self.attachment, self._own, *where)
        if self._clone is not None:
            self._keeping = self._clone.keeping
        elif snapshot.codec == episode.CODEC:
            self._keeping = EpisodeKeeping(self._session, stage)
            self._replay.trail = episode.begin_again(stage, self.attachment, snapshot)
            self._redone = self._replay.trail.steps
            stage.episodes = snapshot.counted
        else:
            self._keeping, restore = bind(self._session, stage, snapshot.codec)
            *states, around = snapshot.parts
            restore(states)
            self._session.ambient.restore(ambient.decoded(around))
            stage.episodes = snapshot.counted
        stage.restored()
        self._restored_s = time.perf_counter()
        self._advance()

    def _advance(self) -> None:
        replay, keeping = self._replay, self._keeping
        assert replay is not None, "restored"
        replay.advance()
        if replay.trail is not None and isinstance(keeping, EpisodeKeeping):
            keeping.inherit(replay.trail, replay.position, replay.action)

    def _guarded(self, do: Callable[[], None]) -> None:
        """Whatever is raised in restored environments says that they are not what they were; but
        for what a ring does not hold any more: a later snapshot may do without it."""
        try:
            do()
        except CorruptRingError as error:
            self._why = str(error)
        except Exception as error:
            self._wrong = True
            info = describe(error)
            raised = f"the restored environment raised {info.type}: {info.message}"
            self._why = info.message if isinstance(error, DsecError) else raised

    def _forget_kept(self) -> None:
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1

    def _action_words(self, n: int) -> str:
        """The action that the dead one had before it, if it had one."""
        policy = self.attachment.peers[Role.POLICY]
        replay = self._replay
        cursor = recall.positions(self._own).cursors[policy.role]
        held = _find(policy, replay.action if replay and replay.seq == n else cursor, n)
        if held is None:
            return ""
        if replay is not None:
            actions = replay.actions
        else:
            actions = Layout(self.attachment.action_space, self.attachment.num_envs, "action")
        return action_words(actions, policy.buffer[held.offset : held.offset + held.nbytes])


def _find(policy: Peer, position: int, n: int) -> Held | None:
    """Action n, if it is published; `position` is its own or an earlier one's."""
    _, tail, _ = recall.positions(policy)
    try:
        return next(
            (held for held in recall.records(policy, position, tail) if held.seq == n), None
        )
    except CorruptRingError:
        return None

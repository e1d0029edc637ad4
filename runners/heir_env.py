"""What an env runner does when it takes over from a dead one, until it may publish.

Where nothing of the dead one's state was kept, its environments are lost: the record after its
last one says so (env.py publishes it, G4), and fresh episodes begin. This file writes to no ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsec.ipc import recall
from dsec.ipc.frames import TakenOver, Takeover
from dsec.ipc.recall import Held
from dsec.ipc.ring import FLAG_END
from dsec.runners.loop import Session
from dsec.runners.stage import Stage
from dsec.runners.wiring import Wiring

NOTHING_KEPT = "nothing of the environment's state was kept"
TRUNCATED = "the step was not to be tried again"


def take_over(
    session: Session, stage: Stage, frame: Takeover, fds: Sequence[int]
) -> tuple[Wiring, tuple[int, bool, dict[str, Any] | None]]:
    """Find where the dead one stopped, say TakenOver, and wait until it is fenced.

    Returns:
        The wiring, open for writing, and where to begin: the last observation published (-1 before
        the first), whether it was the stream's last, and what to say of what was lost, if it was.

    Raises:
        PeerError: a segment is not what it should be.
        RunnerExit: the kernel's end of the channel is closed.
    """
    attachment = session.attach(frame, fds)
    own = attachment.look()
    last = recall.last_record(own)
    session.channel.send(_answer(frame, last))
    wiring = session.resume(attachment, policy_learns=frame.policy_learns)
    # Until it was fenced the dead one may have published more.
    last = recall.last_record(wiring.outbox)
    own.close()
    session.seq = last.seq if last else 0
    if last is None or last.flags & FLAG_END:
        return wiring, (last.seq if last else -1, last is not None, None)
    lost = {"cause": frame.cause, "why": TRUNCATED if frame.truncate else NOTHING_KEPT}
    return wiring, (last.seq, False, lost)


def _answer(frame: Takeover, last: Held | None) -> TakenOver:
    """Before its first record nothing was lost, and after its last one nothing is needed."""
    exact = last is None or bool(last.flags & FLAG_END)
    why = "" if exact else TRUNCATED if frame.truncate else NOTHING_KEPT
    return TakenOver(
        exact=exact,
        level="none",
        seq=last.seq if last else -1,
        replayed=0,
        restore_ms=0.0,
        replay_ms=0.0,
        why=why,
    )

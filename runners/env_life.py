"""An env runner from its Start to its end: construct, be wired or take over, serve.

Owns the order of these, and that a clone which wakes up goes on here with the environments that it
was forked with. How environments are stepped and published is their worker's affair (env.py,
caller.py).
"""

from __future__ import annotations

from dsec.ipc.frames import Constructed, Go, Phase, Takeover, Wire
from dsec.ipc.layout import encode_spaces, ring_bytes
from dsec.runners.clone import ClonedError, Promoted, await_takeover
from dsec.runners.env import EnvWorker
from dsec.runners.heir_env import Standing, begin, take_over
from dsec.runners.loop import DrainedEarly, Session, live, serve_to_end
from dsec.runners.rehearse import rehearse
from dsec.runners.stage import Stage
from dsec.runners.wiring import Wiring

ROOM_FOR_CLONES = {"fork": 4, "auto": 2}
"""How many times longer rings are where snapshots may be dear: between two of them nothing that a
replay needs is given back."""


def run(session: Session, worker: type[EnvWorker] | None = None) -> None:
    """Construct, wait to be wired or to take over, serve to the end.

    `worker`: of another kind than the usual one.
    """
    session.phase, session.where = Phase.CONSTRUCT, "env"
    start = session.start
    stage = Stage(session)
    spaces = stage.observation_space, stage.action_space
    room = ROOM_FOR_CLONES.get(start.failover.standby, 1)
    session.channel.send(
        Constructed(
            spaces=encode_spaces(*spaces),
            ring_bytes=ring_bytes(*spaces, start.num_envs, start.ring_slots * room),
        )
    )
    if start.epoch > 0:
        rehearse(session, stage, serve)
    try:
        frame, fds = session.expect_wiring()
    except DrainedEarly:
        session.phase = Phase.CLOSE
        stage.close()
        raise
    clone: Promoted | None = None
    while True:
        try:
            _live(session, stage, frame, fds, clone, worker or EnvWorker)
            return
        except ClonedError as cloned:
            # Here goes on what was forked: the state of the stage is kept, everything else is not.
            where = cloned.snapshot
            stage.detach()
        frame, fds, clone = await_takeover(session, where)


def _live(
    session: Session,
    stage: Stage,
    frame: Wire | Takeover,
    fds: list[int],
    clone: Promoted | None,
    make: type[EnvWorker],
) -> None:
    if isinstance(frame, Takeover):
        session.phase = Phase.REPLAY
        wiring, standing = take_over(session, stage, frame, fds, clone)
        worker = make(session, wiring, stage, standing)
        serve_to_end(session, wiring, worker, Go(frame.policy_learns))
    else:
        wiring = session.connect(frame, fds)
        worker = make(session, wiring, stage, begin(session, stage))
        if session.start.dry:
            worker.try_out()
        live(session, wiring, worker)


def serve(session: Session, wiring: Wiring, stage: Stage, standing: Standing) -> None:
    """The worker's part alone."""
    EnvWorker(session, wiring, stage, standing).serve(Go())

"""What a spare env runner does while it waits: it takes over from nobody, so that all it will need
is loaded, set up and in memory of its own when it takes over in earnest.

The first restore in a process takes several times as long as the next one: modules, caches, code
that the interpreter has yet to adapt, and pages that it shares with its zygote until it writes to
them. So a predecessor that never was publishes a few steps of an environment of ours, keeps its
state, and the spare takes over from it, with the code of heir_env.py. Rule: no code of the user's
runs here, and nothing is said to the kernel.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import msgspec

from dsec.failover.codecs import codec_named, find_codec
from dsec.failover.codecs.ambient import Ambient
from dsec.failover.keep import Keeper, Snapshot
from dsec.ipc import frames, segment
from dsec.ipc.frames import EnvSettings, Harm, Phase, Role, TakenOver, Takeover, Wire
from dsec.ipc.layout import decode_spaces, encode_spaces, ring_bytes
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import KIND_ACTION, KIND_OBS, Outbox
from dsec.runners.failure import describe
from dsec.runners.heir_env import Heir, Standing
from dsec.runners.loop import Session
from dsec.runners.protect import SPARED
from dsec.runners.stage import Stage
from dsec.runners.transitions import GRAIN_BITS, ActionStream, EnvGrid
from dsec.runners.wiring import Attachment, Wiring, connect

Serve = Callable[[Session, Wiring, Stage, Standing], None]
"""Serves the stream, from where it stands to its end."""

IDLE_MS: Final = 5
"""Who has heard nothing for so long is a spare: a successor is told at once to take over."""
ROUNDS: Final = 4  # the interpreter adapts code that has run a few times
_STEPS: Final = 24  # CartPole falls after eight to ten in the same direction
_SLOTS: Final = 32
_CODEC: Final = "attributes"


class _Nothing:
    """Has no attributes: its state is that of the process's generators."""


class _Deaf(Session):
    """Leaves on the channel what is there: it is for the spare, when it has rehearsed."""

    def look(self) -> None:
        """See nothing."""


def rehearse(session: Session, stage: Stage, serve: Serve) -> None:
    """Get ready to take over soon, unless the kernel has something to say already.

    Whatever goes wrong is left to the takeover itself, which has somebody to tell.
    """
    poll = select.poll()
    poll.register(session.channel.fileno(), select.POLLIN)
    if session.start.failover.standby not in SPARED or poll.poll(IDLE_MS):
        return
    globals_now = codec_named(_CODEC, _Nothing())
    kept = globals_now.capture()
    try:
        described = encode_spaces(stage.observation_space, stage.action_space)
        stage.known_spaces = (described, *decode_spaces(described))
        find_codec(stage.envs[0], seed=0, check=False)
        for _ in take_over_from_nobody(session, serve):
            if poll.poll(0):
                break
    except Exception as error:
        said = describe(error)
        sys.stderr.write(f"dsec: no takeover was rehearsed: {said.type}: {said.message}\n")
    finally:
        globals_now.restore(kept)
    gc.collect()
    gc.freeze()


def take_over_from_nobody(session: Session, serve: Serve) -> Iterator[TakenOver]:
    """Take over from somebody who never was, a few times; give what would be answered."""
    world = EnvSettings(id="CartPole-v1")
    start = msgspec.structs.replace(session.start, env=world, num_envs=1, chaos=Harm(), steps=0)
    double = _Deaf(session.channel, start, session.lifeline)
    double.draining = True  # its stream ends with the first record that it publishes
    stage = Stage(double)
    try:
        for _ in range(ROUNDS):
            yield _round(double, stage, serve)
    finally:
        stage.close()


def _round(session: Session, stage: Stage, serve: Serve) -> TakenOver:
    spaces = stage.observation_space, stage.action_space
    sizes, encoded = ring_bytes(*spaces, 1, _SLOTS), encode_spaces(*spaces)
    with ExitStack() as stack:
        segments = []
        for role in (Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER):
            segments.append(
                segment.create(
                    "dsec:rehearsal", role, sizes.get(role, 0), epoch=session.start.epoch
                )
            )
            stack.callback(segments[-1].close)

        def wired(role: Role) -> tuple[Wire, list[int]]:
            refs, fds = segment.hand_out(segments, role, session.start.epoch)
            return Wire("rehearsal", encoded, refs), fds

        keeper = Keeper("rehearsal")
        stack.callback(keeper.close)
        policy = connect(Role.POLICY, *wired(Role.POLICY))
        stack.callback(policy.close)
        env = connect(Role.ENV, *wired(Role.ENV))
        try:
            _live(stage, keeper, env, policy)
        finally:
            env.close()
        wire, fds = wired(Role.ENV)
        frame = frames.decode(frames.encode(Takeover(wire, cause="rehearsal")))
        assert isinstance(frame, Takeover), "what was encoded as one"
        attachment = Attachment(Role.ENV, frame.wire, fds)
        heir = Heir(session, stage, attachment, frame, os.dup(keeper.fd), None)
        answer = heir.answer()
        wiring = attachment.open()
        stack.callback(wiring.close)
        stack.callback(stage.detach)
        wiring.follow(policy_learns=False)
        serve(session, wiring, stage, heir.catch_up(-1))
        return answer


def _live(stage: Stage, keeper: Keeper, env: Wiring, policy: Wiring) -> None:
    """A few steps, as the predecessor would have done and kept them; the last action is pending."""
    outbox, acts = env.outbox, policy.outbox
    grid = EnvGrid(outbox, stage.observation_space, 1)
    fixed, spill = grid.record.fixed_bytes, Spill(outbox)
    actions = ActionStream(env.reader(Role.POLICY), env.peers[Role.POLICY], stage.action_space, 1)
    row = outbox.claim(fixed, 0.0) >> GRAIN_BITS
    stage.reset_all(0, (0,), grid.obs.pick(row))
    grid.reward[row], grid.flags[row] = 0.0, 0
    outbox.commit(0, KIND_OBS, 0, fixed)
    state = codec_named(_CODEC, stage.envs[0]).capture()
    around = Ambient(Role.ENV, {}).capture()
    keeper.put(Snapshot(0, outbox.tail, acts.tail, 0, stage.episodes, 1, _CODEC, (state, around)))
    for n in range(_STEPS):
        _act(acts, n, actions.layout.nbytes)
        row = outbox.claim(fixed, 0.0) >> GRAIN_BITS
        actions.reader.next(0.0, Phase.IDLE)
        views = grid.obs.pick(row)
        rewards, flags = grid.reward[row], grid.flags[row]
        irregular = stage.step(n, actions.read, actions.views(n), views, rewards, flags)
        tail = stage.encode_tail(views) if irregular else b""
        spill.commit(n + 1, KIND_OBS, 0, fixed, tail, 0.0)
    _act(acts, _STEPS, actions.layout.nbytes)


def _act(acts: Outbox, n: int, nbytes: int) -> None:
    at = acts.claim(nbytes, 0.0)
    acts.buffer[at : at + nbytes] = bytes(nbytes)
    acts.commit(n, KIND_ACTION, 0, nbytes)

"""Beginning from an atom: a role's part of it, put into what has just been constructed.

Whoever continues an agent whose rings are gone begins here, whatever its role: after it was
constructed, before it is ready, and nothing is done to the restored object in between. This file
knows the atom and the codecs; what a runner does with its first sequence number is its own affair.
Only the part of the own role is given to a codec. An agent that was forked from another one gets
random streams of its own in the same moment.

The env's part has the observation that stood before the first action, as it lay in the ring: the
policy, whose ring is empty, too, must see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsec.errors import AtomError, DsecError, SnapshotError
from dsec.failover.codecs import object_codec_named, seeded_anew
from dsec.ipc import overflow, recall
from dsec.ipc.frames import Origin, Phase
from dsec.ipc.ring import FLAG_OVERFLOW, Outbox
from dsec.runners import seeds
from dsec.runners.keeping import Keeping, StateKeeping
from dsec.runners.loop import Session
from dsec.runners.protect import bind
from dsec.runners.stage import Stage
from dsec.sml.atom import Faith

if TYPE_CHECKING:
    from dsec.sml.atom import Atom, Snapshot


def observation_of(outbox: Outbox) -> bytes:
    """The payload of the last record in an env's own ring, whole: what an atom keeps of it.

    Raises:
        CorruptRingError: the ring holds no last record, or the end of it is not there.
    """
    held = recall.last_record(outbox)
    if held is None:
        return b""
    fixed = held.nbytes - (overflow.DESCRIPTOR.size if held.flags & FLAG_OVERFLOW else 0)
    rest = overflow.tail(outbox, held.flags, held.offset, held.nbytes, fixed)
    return bytes(outbox.buffer[held.offset : held.offset + fixed]) + rest


def first_seq(session: Session) -> int:
    """The first action that is this agent's to take, the first observation that it publishes."""
    origin = session.start.origin
    return 0 if origin is None else origin.seq


def restore_stage(session: Session, stage: Stage) -> tuple[bytes, Keeping | None]:
    """Put an agent's environments into the state of the atom that it goes on from.

    Returns:
        The observation to begin with, and what keeps the state from here on, if anything is to.

    Raises:
        SnapshotError: it can't be done; says why. The environments are of no use then.
    """
    with _blamed(session, "environment") as origin:
        atom = _read(origin)
        found = sorted(atom.env, key=lambda part: part.index)
        if len(found) != len(stage.envs) or not atom.observation:
            raise SnapshotError(
                f"it has {len(found)} environments and {len(atom.observation)} bytes of their"
                f" observation; the agent has {len(stage.envs)} environments"
            )
        keeping, restore = bind(session, stage, _codec(found))
        restore([_state(session, part, number) for number, part in enumerate(found)])
        stage.episodes = atom.manifest.episode
        stage.restored()
        _restore_ambient(session, atom)
    return atom.observation, None if session.start.failover.standby == "none" else keeping


def restore_actor(session: Session, actor: Any, kind: str) -> StateKeeping | None:
    """Put a policy or a reward into its state in the atom that the agent goes on from.

    Args:
        kind: `policy` or `reward`.

    Returns:
        What keeps the state from here on, if anything is to.

    Raises:
        SnapshotError: it can't be done; says why. The object is of no use then.
    """
    with _blamed(session, kind) as origin:
        atom = _read(origin)
        if getattr(actor, "passthrough", False):
            _restore_ambient(session, atom)
            return None
        window = atom.rewards
        part = atom.policy if kind == "policy" else None if window is None else window.state
        if part is None:
            raise SnapshotError(f"it holds nothing of the {kind}")
        codec = object_codec_named(_codec([part]), actor, globals_too=False)
        codec.restore(_state(session, part))
        _restore_ambient(session, atom)
    if session.start.failover.standby == "none":
        return None
    capture: Callable[[], bytes] = codec.capture
    return StateKeeping(session, lambda: (capture(),), codec.name, faith=Faith(part.faith))


@contextmanager
def _blamed(session: Session, what: str) -> Iterator[Origin]:
    """Whatever is raised while a state is restored is told with the atom's name; nothing in the
    configuration is to blame."""
    origin = session.start.origin
    assert origin is not None, "asked for where there is one"
    session.phase, session.where = Phase.REPLAY, ""
    try:
        yield origin
    except Exception as error:
        said = str(error) if isinstance(error, DsecError) else f"{type(error).__name__}: {error}"
        raise SnapshotError(
            f"the {what} of {session.start.agent} can't go on from {origin.path}: {said}"
        ) from error


def _read(origin: Origin) -> Atom:
    """The atom, proven.

    Raises:
        AtomError: its file is no whole atom of this sequence number.
        MachineError: it can't be read.
    """
    from dsec.sml import codec, spill  # which only those who go on from an atom need

    atom = codec.decode(spill.load(Path(origin.path)).body)
    if atom.manifest.seq != origin.seq:
        raise AtomError(f"it is of sequence number {atom.manifest.seq}, not {origin.seq}")
    return atom


def _state(session: Session, part: Snapshot, number: int = 0) -> bytes:
    """What a codec restores: the state as it was, or with streams of its own for one that was
    forked."""
    start = session.start
    if start.origin is None or not start.origin.fork:
        return part.data
    seed = seeds.derive(start.seed, session.role.name.lower(), "fork", number, bits=128)
    return seeded_anew(_codec([part]), part.data, seed)


def _restore_ambient(session: Session, atom: Atom) -> None:
    """Last of all, what is the process's own. An atom of earlier versions has none: there it is in
    the codecs' bytes."""
    start, state = session.start, atom.random
    if start.origin is not None and start.origin.fork:
        role = session.role.name.lower()

        def number(kind: str, bits: int) -> int:
            return seeds.derive(start.seed, role, "fork", kind, bits=bits)

        state = session.ambient.anew(state, number)
    session.ambient.restore(state)


def _codec(parts: Sequence[Snapshot]) -> str:
    """The one codec that took all of these. A version behind its name is the bytes' own affair."""
    names = {part.codec.partition("/")[0] for part in parts}
    if len(names) != 1:
        raise SnapshotError(f"its parts were taken by {', '.join(sorted(names))}")
    return names.pop()

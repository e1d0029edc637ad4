"""From what a dead process left to the cause of its death, in one sentence and the facts. Pure.

Who was there collects the evidence; what it means is decided here, so that each kind of end is
told the same way wherever it is told. This file asks no system and reads no segment.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dsec.failover.detect import Word
from dsec.ipc.frames import Crashing, ErrorInfo, Failed, ImportFailed, Phase, Retired, Role
from dsec.ipc.segment import CrashRecord
from dsec.ipc.syscalls import name_of
from dsec.report import EXIT_FAILED, RECYCLED, Death, signal_name
from dsec.spec import ImageSpec

PEERS_FAULTS = ("dsec.errors.PeerError", "dsec.errors.CorruptRingError")
"""Types of our own exceptions about what another process wrote; user code has no part in them."""

# As faults.py of the rings and transitions.py of the runners begin them.
_RING = re.compile(r"\b(env|policy|reward) segment\b|\bring of the (env|policy|reward) runner\b")


class Verdict(NamedTuple):
    """What whoever killed a process knows better than its exit status: see `Death.kind`."""

    kind: str
    cause: str
    phase: Phase = Phase.IDLE


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is of a dead process.

    Attributes:
        signum, code: its wait status: the signal, 0 if none; the exit code, -1 if a signal.
        phase: what it was in as far as its supervisor knew.
        verdict: why we killed it, if we did.
        wired_at: since when it had its outbox; what is older there, an earlier incarnation wrote.
        word, crash: what the outbox says, if there is one.
        said: the last control frame of each kind that it sent.
    """

    agent: str
    role: Role
    epoch: int
    pid: int
    signum: int
    code: int
    phase: Phase
    verdict: Verdict | None = None
    wired_at: float = 0.0
    word: Word | None = None
    crash: CrashRecord | None = None
    said: Mapping[type, Any] = field(default_factory=dict)
    rss_peak_bytes: int = 0
    memory_limit_bytes: int = 0
    stderr_tail: str = ""


def diagnose(found: Evidence) -> Death:
    """The death that the evidence tells of.

    A verdict of ours counts most, for the wait status then only says that we killed it; then what
    the process said of itself; then the status.
    """
    phase, seq, address, error, at = found.phase, -1, "", None, 0.0
    sender = 0
    if found.word is not None and found.word.since >= found.wired_at:
        phase, seq = (found.word.phase or phase), found.word.seq
    written = found.crash is not None and found.crash.time_ns / 1e9 >= found.wired_at
    if found.crash is not None and written:
        phase, seq = (found.crash.phase or phase), found.crash.seq
        at = found.crash.time_ns / 1e9
        # A signal that was sent carries no address.
        address = f"{found.crash.address:#x}" if found.crash.code > 0 else ""
        sender = found.crash.sender
    failed, broken = found.said.get(Failed), found.said.get(ImportFailed)
    crashing = found.said.get(Crashing)
    if crashing is not None and not written:  # it had no outbox yet to write that in
        sender, seq = crashing.sender, max(seq, crashing.seq)
    # One that crashes may be killed before it is through with its stacks: its own word counts.
    signum = crashing.signal if crashing is not None else found.signum
    kind = "signal" if signum else "exit"
    cause = how_it_ended(signum, found.code, in_phase(phase))
    if crashing is not None and crashing.call >= 0:
        denied = name_of(crashing.call)
        cause += f": its isolation denies the system call {denied} (isolation.profile)"
    if sender:
        cause += f", sent by {f'process {sender}' if sender > 0 else 'another process'}"
    if found.verdict is not None:
        kind, cause, late = found.verdict
        phase = late or phase
    elif failed is not None:
        kind, error, seq = "exception", failed.error, failed.seq
        phase = Phase(failed.phase) if failed.phase in set(Phase) else phase
        cause = f"raised {error.type} {in_phase(phase)}: {error.message}".removesuffix(": ")
        writer = writer_of(error.message) if error.type in PEERS_FAULTS else None
        if writer is not None:
            whose = f"the {writer.name.lower()} runner wrote what it may not"
            cause = f"could not go on: {whose}: {error.message}"
    elif (retired := found.said.get(Retired)) is not None and not signum and found.code <= 0:
        kind, cause, seq = RECYCLED, f"recycled: {retired.why}", retired.seq
    elif broken is not None:
        kind, error = "import", broken.error
        cause = f"import of {broken.module}: {error.message}"
    elif not signum and found.code == EXIT_FAILED:
        cause += ", and could not say why: something closed its control channel, or called os._exit"
    return Death(
        agent=found.agent,
        role=found.role,
        epoch=found.epoch,
        pid=found.pid,
        cause=cause,
        kind=kind,
        signal=signum,
        exit_code=found.code,
        phase=phase,
        seq_last=seq,
        rss_peak_bytes=found.rss_peak_bytes,
        memory_limit_bytes=found.memory_limit_bytes,
        fault_address=address,
        stderr_tail=found.stderr_tail,
        error=error,
        at=at,
        sent=found.verdict is None and bool(sender),
    )


def writer_of(message: str) -> Role | None:
    """Whose ring a message about malformed bytes is about: that role wrote them, and whoever tells
    of it only read them. None if it doesn't say."""
    found = _RING.search(message)
    return Role[(found[1] or found[2]).upper()] if found else None


def how_it_ended(signum: int, code: int, where: str) -> str:
    """An end that nobody here wanted: `killed by SIGSEGV in step`, `left with exit code 3 ...`."""
    if not signum:
        return f"left with exit code {code} {where}"
    return f"killed by {signal_name(signum)} {where}"


def in_phase(phase: Phase) -> str:
    """`in step`, or `while idle`."""
    return f"in {phase.name.lower()}" if phase != Phase.IDLE else "while idle"


def hung(phase: Phase, elapsed_s: float, limit_s: float) -> Verdict:
    """The verdict on who was longer in `phase` than it may be."""
    spent = f"for {elapsed_s:.1f} s (deadline {limit_s:g} s)"
    return Verdict("hang", f"hung {in_phase(phase)} {spent}, killed", phase)


def blameless(death: Death) -> Death:
    """The death of a server, which nobody watches but us: SIGKILL comes from outside, from whoever
    is short of memory perhaps, and says nothing against what the server imports."""
    killed = death.kind == "signal" and death.signal == signal.SIGKILL
    return replace(death, kind="spawn") if killed else death


def of_image(image: ImageSpec, death: Death, was_up: bool) -> tuple[Death, str, ErrorInfo | None]:
    """The death of a zygote as that of an image that nobody can have any more: its cause, whose
    fault that is (the machine's, or the configuration's), and the error if it is the run's, too."""
    cause = f"image {image.name}: {death.cause}"
    machines = image.own or death.machines_fault
    kind, whose = ("spawn", "machine") if machines else ("import", "config")
    error = death.error or ErrorInfo(death.signal_name or death.kind, cause)
    return replace(death, cause=cause, kind=kind), whose, None if was_up else error


def blames_the_config(death: Death, group: Iterable[Death | None]) -> bool:
    """Whether a death is the configuration's fault, which no retry mends: what is named doesn't
    exist, or all agents of the dead one's group raise in their constructors.

    Args:
        death: of an agent of the group.
        group: the first death of each of its agents, None for one that lives.
    """
    if death.error is None or death.kind == "import":
        return False  # what an image means for the run is judged where images are
    return death.error.lookup or all(each is not None and _in_building(each) for each in group)


def _in_building(death: Death) -> bool:
    return death.kind == "exception" and death.phase in (Phase.IMPORT, Phase.CONSTRUCT)

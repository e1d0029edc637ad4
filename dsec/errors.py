"""Every error that dsec raises, and nothing else.

Two faults, two families: `LocalError` means that our caller misused us, `PeerError` that another
process (a runner, a zygote, a file that one of them wrote) broke the protocol. `ConfigError` and
`MachineError` are what a person at a terminal sees; both say what is wrong, where, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


class DsecError(Exception):
    """The base of all errors raised by dsec on purpose."""


class LocalError(DsecError):
    """Our caller misused an interface: wrong order, closed object, value outside its range."""


class PeerError(DsecError):
    """Another process broke the protocol: bad bytes, wrong frame, a segment that changed."""


class CorruptRingError(PeerError):
    """A record or an index in somebody's ring fails validation; that writer can't be trusted."""


class FrameError(PeerError):
    """Bytes on a control channel are no frame of the vocabulary, or come at the wrong moment."""


class ChannelClosed(PeerError):
    """The other end of a control channel is gone."""


class ChannelTimeout(DsecError, TimeoutError):
    """A bounded wait on a control channel ended with nothing to show. The channel is as it was."""


class ChannelOverflow(PeerError):
    """The other end of a control channel doesn't read; what waits for it reached its bound."""


class RingTimeout(DsecError):
    """A bounded wait on a ring ended with nothing to show. The ring is as it was."""


class RingInterrupted(DsecError):
    """A signal cut a wait on a ring short; the caller looks at its control channel and goes on."""


class RecordTooLarge(LocalError):
    """A record doesn't fit the ring. The message names the size, the ring and the setting."""


class LayoutError(DsecError):
    """A space can't be laid out in shared memory, or a value doesn't fit its space."""


class ValueCodecError(LayoutError):
    """A value (of an info dict, say) has no place in the structured codec; its path is named."""


class InvalidAction(LocalError, ValueError):
    """An action doesn't fit the action space. Nothing was sent: the environment is as it was."""


class SandboxFailed(DsecError):
    """The environment behind a sandbox is gone for good. The message says why; `report` has the
    whole cause (traceback or stderr) and what to do."""

    def __init__(self, message: str, report: str = "") -> None:
        super().__init__(message)
        self.report = report


class SandboxTimeout(DsecError, TimeoutError):
    """The environment behind a sandbox has not answered in time. It may still do so."""


class EnvironmentLost(DsecError):
    """The environment's process died, its state could not be restored, and what was asked of it
    has no answer. There is a new environment in its place, which has to be reset."""


class ToolUnresolved(DsecError):
    """The process of a tool died in a call whose effects may have happened: it has no result, and
    was not done again. The tool is as it was before the call."""


class ToolLost(DsecError):
    """The process of a tool died, and its state could not be kept; `reset` makes it anew."""


class RemoteError(DsecError):
    """Code of the environment raised, in its own process, an exception of a type that is not known
    here. The message begins with its name; the traceback is in the notes."""


class SnapshotError(DsecError):
    """A state can't be captured, or bytes are not the state of this object; the message names the
    attribute. Raised before anything is changed, wherever that can be known before."""


class BufferTooLarge(LocalError, MemoryError):
    """A trajectory buffer would take more memory than its threshold or the machine has. Raised
    before any of it is allocated; the message has the figures."""


class BufferFull(DsecError):
    """A step can't be taken in: all that could be freed for it is held. The buffer is as it was."""


class JournalError(DsecError):
    """A journal or a recording can't be written or read."""


class RecordingAbsent(JournalError):
    """A run directory holds no recording, or isn't there. The message says which and why."""


class RecordingUnfinished(JournalError):
    """A recording has no end: its run goes on, or its kernel was killed."""


class RecordingUntrue(JournalError):
    """What a recording holds does not fit the hash chain that was computed when it was made."""


class AgentsDiffer(JournalError):
    """Two recordings are not of the same agents. The message names those that only one has."""


class SpacesDiffer(JournalError):
    """An agent has other spaces, or another number of environments, in the other recording."""


class LengthsDiffer(JournalError):
    """Two recordings say the same as far as both go, and one goes further."""


# The interpreter, the C library, its loader, C++, OpenBLAS and Python's threads.
_NO_MEMORY = (
    "MemoryError",
    "Cannot allocate memory",
    "failed to map segment from shared object",
    "std::bad_alloc",
    "Memory allocation still failed",
    "can't start new thread",
)


def lacks_memory(text: str) -> bool:
    """Whether the words of an error, wherever it comes from, say that there was no memory."""
    return any(sign in text for sign in _NO_MEMORY)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing wrong with a configuration.

    Attributes:
        path: where in the document, as `agents[0].env.id`; empty for the document as a whole.
        message: what is wrong and, where one can tell, what to write instead.
        file: the file as the user named it, or `--set` for a command-line override.
        line: 1-based line, 0 if there is none (an override, a missing file).
        column: 1-based column, 0 if there is none.
        detail: a longer text shown once below the line, for example a traceback of user code.
    """

    path: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    detail: str = ""

    def __str__(self) -> str:
        where = self.file
        if self.line:
            where += f":{self.line}:{self.column}"
        parts = [part for part in (where, self.path, self.message) if part]
        return ": ".join(parts)


class ConfigError(DsecError):
    """The configuration is wrong. Exit code 2."""

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        assert diagnostics, "a ConfigError names at least one thing"
        self.diagnostics = diagnostics
        super().__init__("\n".join(str(d) for d in diagnostics))


class MachineError(DsecError):
    """The machine can't do what was asked. Exit code 3.

    Args:
        problem: what can't be done, with the number needed and the number there is.
        remedy: the command or the setting that mends it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}. {remedy}" if remedy else problem)


class RunDirBusy(MachineError):
    """The run directory is in use by a living run, or holds an earlier one."""


class RunDirAbsent(MachineError):
    """What was named as a run directory is none."""


class RunDamaged(MachineError):
    """A file that a run is to go on from isn't what was written. Nothing was changed."""


class AgentUnknown(MachineError):
    """A run has no agent of this name."""


class NothingToFork(MachineError):
    """An agent has no atom that another one could begin from, or has nothing left to do there."""


class AtomError(PeerError):
    """Bytes that should be an Agent State Atom are none that this version can use."""


class AtomTruncated(AtomError):
    """An atom's bytes end before the atom does."""


class AtomCorrupt(AtomError):
    """An atom was an atom once; some of its bits are no longer what was written."""


class AtomTooOld(AtomError):
    """An atom of a version that is no longer read. The message names both versions."""


class AtomTooNew(AtomError):
    """An atom of a later version: to leave out what isn't known would be to lose state."""


class AtomForeign(AtomError):
    """These bytes never were an atom."""


class AtomAbsent(LocalError):
    """There is no atom of this id: it was freed, or never put."""


class AtomExists(LocalError):
    """An id names one atom for ever; there is one of this id already."""


class AtomTooLarge(LocalError):
    """An atom would not even fit the empty pool. The message names both sizes."""


class PoolError(PeerError):
    """A segment of this name is no pool that this version can use. Nothing in it was changed."""


class PoolForeign(PoolError):
    """A segment that never was a pool."""


class PoolUnfinished(PoolError):
    """A segment whose maker died, or is still at work, before it was a pool."""


class PoolTruncated(PoolError):
    """A segment has not the size that it was made with."""


class PoolCorrupt(PoolError):
    """A pool's header is not what was written."""


class PoolTooOld(PoolError):
    """A pool of a layout that is no longer read. The message names both versions."""


class PoolTooNew(PoolError):
    """A pool of a later layout. The message names both versions."""


class PoolBusy(DsecError):
    """The writer reused a place under every try of a reader. Another try may do."""


class PoolFull(MachineError):
    """A pool has no room for this atom. The message names what it needs and what there is."""


class PoolExists(MachineError):
    """There is a segment of this name already."""


class PoolAbsent(MachineError):
    """There is no segment of this name."""


class PoolOwned(MachineError):
    """A living process owns this segment and is the only one that may write it."""


class RemotePoolError(PeerError):
    """Another host's pool, or the way to it, is not what it should be. The base of what follows."""


class PeerGone(RemotePoolError):
    """A peer's process or machine is gone, or the link to it is down; the connection is over."""


class AccessDenied(RemotePoolError):
    """A peer's memory was asked for with a wrong key, out of bounds, or for what isn't allowed."""


class WrongToken(RemotePoolError):
    """A peer does not know the token (pool.token_file) that this host has. Nothing was told it."""


class VersionMismatch(RemotePoolError):
    """A peer speaks another protocol version, or another transport. The message names both."""


class SizesDiffer(RemotePoolError):
    """A pool and its replica, or a pool and its region, have not the same size; names both."""


class StaleLease(RemotePoolError):
    """A lease has run out, by the own clock: what was read under it may be somebody else's now, and
    what was to be written under it must not be."""


class AtomTorn(RemotePoolError):
    """An atom was read in the middle of being written, under every try; or a slot holds half a
    write, and its writer is gone."""


class AtomRecycled(RemotePoolError, PoolBusy):
    """The place of an atom was freed and used for others under every try of a reader far away."""


class FencedOut(RemotePoolError):
    """Another host has taken over: it has a later epoch. Whoever gets this stops."""


class RdmaError(MachineError):
    """One-sided access to the memory of other hosts is impossible here; the subclass says why."""


class DeviceAbsent(RdmaError):
    """There is no such RDMA device, or none at all."""


class PortAbsent(RdmaError):
    """The RDMA device has no such port."""


class PortDown(RdmaError):
    """The port of the RDMA device carries nothing; its message names its state."""


class GidAbsent(RdmaError):
    """The port has no such address, or none that other hosts could reach it by."""


class EngineDied(DsecError):
    """The kernel beside this program is gone, and all that it ran with it.

    Attributes:
        exit_code: of the kernel, 128 + n where signal n ended its supervisor; None if nobody could
            tell, as its guardian was killed, too.
        signal: the signal that ended it, 0 if none did.
        stderr_tail: the last that it wrote to its standard error.
    """

    def __init__(self, message: str, exit_code: int | None, stderr_tail: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = exit_code - 128 if exit_code is not None and 128 < exit_code < 200 else 0
        self.stderr_tail = stderr_tail


class EngineRefused(DsecError):
    """The kernel beside this program didn't do what it was asked.

    Attributes:
        code: a number of docs/ENGINE.md, table "Errors".
        what, where, remedy: what is wrong, in which parameter, file or agent, and what to do.
        report: the whole of it, where it is longer (a traceback, the end of a runner's stderr).
    """

    def __init__(
        self, code: int, what: str, where: str = "", remedy: str = "", report: str = ""
    ) -> None:
        super().__init__(". ".join(filter(None, (f"{where}: {what}" if where else what, remedy))))
        self.code, self.what, self.where = code, what, where
        self.remedy, self.report = remedy, report

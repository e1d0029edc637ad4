"""Environments that attack: each makes one attempt on what is not theirs, and lets come what comes.

Loaded only in children of a run. Before its attempt each leaves `<evidence>/<attempt>.made`, and
`.done` if the attempt succeeded, so that a test sees that it was made and that it failed. The
folder `evidence` is the one that the configuration allows them to write to.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dsec.runners.wiring as wiring
from dsec.ipc import proc, syscalls
from dsec.ipc.frames import Clone, encode
from tests.crash.faulty import Walk

_libc = ctypes.CDLL(None, use_errno=True)
_peers: list[int] = []
CONTROL_CHANNEL = "socket:"


def _keep_descriptors() -> None:
    """Keep what comes with Wire for oneself, as hostile code in a constructor can."""

    class Peer(wiring.Peer):
        def __init__(self, fd: int, *rest: Any) -> None:
            _peers.append(os.dup(fd))
            super().__init__(fd, *rest)

    wiring.Peer = Peer  # type: ignore[misc]


def _succeeded(what: str) -> None:
    raise AssertionError(f"this must not be possible: {what}")


def _victim(evidence: Path) -> int:
    """The env runner of another agent, which says who it is."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError, ValueError):
            return int((evidence / "victim").read_text())
    raise AssertionError("no victim came")


def read_memory(evidence: Path) -> None:
    with Path(f"/proc/{_victim(evidence)}/mem").open("rb") as memory:
        memory.read(1)


def read_map(evidence: Path) -> None:
    """The victim's segment, through what it has mapped."""
    maps = Path(f"/proc/{_victim(evidence)}/map_files")
    os.open(maps / next(maps.iterdir()), os.O_RDONLY)


def take_segment(evidence: Path) -> None:
    """The supervisor holds everybody's segments."""
    for fd in range(3, 200):
        with contextlib.suppress(FileNotFoundError):
            os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_RDONLY)
            return


def trace(evidence: Path) -> None:
    syscalls.call("ptrace", ctypes.c_long(16), ctypes.c_long(_victim(evidence)), None, None)


def take_descriptor(evidence: Path) -> None:
    pidfd = os.pidfd_open(_victim(evidence))
    syscalls.call("pidfd_getfd", ctypes.c_int(pidfd), ctypes.c_int(3), ctypes.c_uint(0))


def reopen_segment(evidence: Path) -> None:
    """What came for reading, opened for writing."""
    assert _peers, "no descriptor came"
    os.open(f"/proc/self/fd/{_peers[0]}", os.O_RDWR)


def hold_lifeline(evidence: Path) -> None:
    """Whoever holds its write end keeps everybody alive after the supervisor's death."""
    for fd in _descriptors():
        if _leads_to(fd).startswith("pipe:"):
            os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
            return
    raise AssertionError("no lifeline was found")


def signal_supervisor(evidence: Path) -> None:
    os.kill(os.getppid(), signal.SIGTERM)


def signal_victim(evidence: Path) -> None:
    signal.pidfd_send_signal(os.pidfd_open(_victim(evidence)), signal.SIGKILL)


def signal_by_file(evidence: Path) -> None:
    """A pipe whose every change would kill somebody else. Nothing says no; nothing must come."""
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, _victim(evidence))
    fcntl.fcntl(reading, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writing, b"x")
    raise PermissionError(1, "whether it came, the victim tells")


def forge_frame(evidence: Path) -> None:
    """Another agent's runner as one's own clone: it would be killed when that one isn't needed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forged = encode(Clone(_victim(evidence), 5))
    for fd in set(_descriptors()) - {ours.fileno(), theirs.fileno()}:
        if _leads_to(fd).startswith("socket:"):
            channel = socket.socket(fileno=os.dup(fd))
            socket.send_fds(channel, [forged], [theirs.fileno()])
    signal.pause()  # it is killed for that


def connect_engine(evidence: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(evidence / "engine.sock"))


def use_network(evidence: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.connect(("127.0.0.1", int((evidence / "port").read_text())))


def fill_disk(evidence: Path) -> None:
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))


def write_outside(evidence: Path) -> None:
    (evidence.parent / "outside").write_text("x")


def read_outside(evidence: Path) -> None:
    (evidence.parent / "config.yaml").read_text()


def fork_bomb(evidence: Path) -> None:
    mine = os.getpid()
    for _ in range(2000):
        if os.fork() == 0:
            proc.prctl(proc.PR_SET_PDEATHSIG, signal.SIGKILL)
            while os.getppid() == mine:
                signal.sigtimedwait([signal.SIGUSR1], 0.2)
            os._exit(0)


def new_namespace(evidence: Path) -> None:
    if _libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "unshare")


def mount(evidence: Path) -> None:
    _libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)


def change_mode(evidence: Path) -> None:
    evidence.chmod(0o700)


ATTEMPTS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        read_memory, read_map, take_segment, trace, take_descriptor, reopen_segment, hold_lifeline,
        signal_supervisor, signal_victim, signal_by_file, forge_frame, connect_engine, use_network,
        fill_disk, write_outside, read_outside, fork_bomb, new_namespace, mount, change_mode,
    )
}  # fmt: skip


class Attacker(Walk):
    """A walk that makes its attempt at the 20th step."""

    AT = 20

    def __init__(self, attempt: str, evidence: str) -> None:
        super().__init__()
        self.attempt, self.evidence, self.made = attempt, Path(evidence), 0
        if attempt == "reopen_segment":
            _keep_descriptors()

    def step(self, action: Any) -> Any:
        self.made += 1
        if self.made == self.AT:
            _write(self.evidence / f"{self.attempt}.made", str(os.getpid()))
            ATTEMPTS[self.attempt](self.evidence)
            (self.evidence / f"{self.attempt}.done").touch()
            _succeeded(self.attempt)
        return super().step(action)


class Victim(Walk):
    """Says who it is, and walks; what it sees of the environment of its process it tells, too."""

    def __init__(self, evidence: str) -> None:
        super().__init__()
        self.evidence, self.waited = Path(evidence), False
        Path(evidence, "environ").write_bytes(Path("/proc/self/environ").read_bytes())
        Path(evidence, "environ.now").write_text("\n".join(os.environ))
        names = [f"{fd} {_leads_to(fd)}" for fd in _descriptors()]
        Path(evidence, "descriptors").write_text("\n".join(names))
        Path(evidence, "status").write_text(Path("/proc/self/status").read_text())
        _write(Path(evidence, "victim"), str(os.getpid()))

    def step(self, action: Any) -> Any:
        """Its first step lasts until all attempts were made, and those who made them are gone."""
        for attempt in () if self.waited else ATTEMPTS:
            made = self.evidence / f"{attempt}.made"
            while not made.exists() or Path("/proc", made.read_text()).exists():
                signal.sigtimedwait([signal.SIGUSR1], 0.02)
        self.waited = True
        return super().step(action)


def _write(path: Path, text: str) -> None:
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


def _descriptors() -> list[int]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            fcntl.fcntl(int(path.name), fcntl.F_GETFD)
            found.append(int(path.name))
    return sorted(found)


def _leads_to(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())

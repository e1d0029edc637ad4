"""A kernel that is asked for things instead of being given one run: `dsec-kernel serve`.

Owns its process: guardian and supervisor as in a run, the doors through which programs come
(its own stdin and stdout, a pair of descriptors, or a Unix socket), the folder of its temporary
files, signals, and the end. What is said is connection.py's and what is done desk.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

from dsec import signals
from dsec.engine import desk, stop
from dsec.engine.connection import Connection
from dsec.engine.rpc import Code, Problem
from dsec.engine.run import guard
from dsec.engine.wire import Wire, peer_uid
from dsec.errors import MachineError
from dsec.ipc import proc
from dsec.sml.orphans import sweep

END_MAX_S = 15.0  # what processes may take to be gone once they are killed
_BACKLOG = 64


class Door(Protocol):
    """Where programs come in."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that only the supervisor keeps."""

    def open(self, house: House) -> None:
        """Let them in."""

    def close(self) -> None:
        """Let nobody in any more."""


class Pair:
    """One program, at two descriptors that are taken over; `caller`, if any, a pidfd of it."""

    def __init__(self, source: int, sink: int, caller: int = -1) -> None:
        self.fds = tuple({source, sink})
        self._source, self._sink, self._caller = source, sink, caller
        self._house: House | None = None

    def open(self, house: House) -> None:
        """The one program is there."""
        self._house = house
        if self._caller >= 0:
            asyncio.get_running_loop().add_reader(self._caller, self._gone)
        house.enter(Wire(self._source, self._sink), only=True)

    def _gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._caller)
        if self._house is not None:
            self._house.leave(0)

    def close(self) -> None:
        """It was let in once."""


def standard_streams() -> Pair:
    """This process's own stdin and stdout, which nothing else may use from now on: what prints,
    prints to stderr."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Pair(source, sink)


class Listener:
    """Any number of programs of this user, at a Unix socket.

    Args:
        path: of the socket, which is made, with mode 0600. One that nobody listens at any more, as
            a kernel leaves it that was killed, is replaced.

    Raises:
        MachineError: it can't be made there, or somebody listens there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._house: House | None = None
        try:
            # Of two that find the same old socket, one must be first.
            with _locked(self.path.parent):
                self._sock = _bind(self.path)
            self._inode = self.path.stat().st_ino
        except OSError as error:
            reason = error.strerror or str(error)
            raise MachineError(
                f"no socket can be made at {self.path}: {reason}",
                "Name another path, of less than 108 bytes, in a folder that you may write to",
            ) from None
        self.fds = (self._sock.fileno(),)

    def open(self, house: House) -> None:
        """Listen."""
        self._house = house
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._arrived)

    def _arrived(self) -> None:
        assert self._house is not None, "opened"
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return  # it has left again, or there is no descriptor for it
        uid = peer_uid(sock)
        fd = sock.detach()
        found = self._house.enter(Wire(fd, fd), only=False)
        if uid != os.geteuid():
            what = f"this kernel is user {os.geteuid()}'s, and you are user {uid}"
            found.complain(Problem(Code.PEER, what, remedy="Start one of your own"))

    def close(self) -> None:
        """Listen no more, and remove the socket if it is still ours."""
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        with contextlib.suppress(OSError), _locked(self.path.parent):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        self._sock.close()


@contextlib.contextmanager
def _locked(folder: Path) -> Any:
    import fcntl

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _bind(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise MachineError(f"{path} is there, and no socket", "Name another path, or remove it")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
                living = True
            except ConnectionRefusedError:
                living = False
            except OSError:  # its queue is full, or it is not for us to know
                living = True
        if living:
            raise MachineError(f"somebody listens at {path}", "Connect to it, or name another path")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)  # nobody else may connect, from the first instant
    try:
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    sock.listen(_BACKLOG)
    return sock


class House:
    """The served kernel's process: connections, the desk, and the end."""

    def __init__(self, folder: Path) -> None:
        self.desk = desk.Desk(folder, self.leave)
        self.code = 0
        self._over = asyncio.Event()
        self._connections: dict[Connection, bool] = {}
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._guardian = os.getppid()

    def enter(self, wire: Wire, *, only: bool) -> Connection:
        """A program is there; `only`: its end is ours."""
        found = Connection(wire, self.desk, self._guardian, self._closed)
        self._connections[found] = only
        return found

    def _closed(self, connection: Connection) -> None:
        if self._connections.pop(connection, False):
            self.leave(0)
        goodbye = asyncio.ensure_future(connection.finish())
        self._goodbyes.add(goodbye)
        goodbye.add_done_callback(self._goodbyes.discard)

    def leave(self, code: int) -> None:
        """End; the first to say so says with which code."""
        if not self._over.is_set():
            self.code = code
            self.desk.request_kill()
            self._over.set()

    # ------------------------------------------------------------ what signals ask for

    def request_drain(self, reason: str) -> None:
        """Asked to end in order."""
        self.desk.request_drain(reason)
        waiting = asyncio.ensure_future(self.desk.gone())
        self._goodbyes.add(waiting)
        waiting.add_done_callback(lambda done: self.leave(0))

    def request_kill(self) -> None:
        """Asked to end at once."""
        self.leave(0)

    def log(self, level: str, event: str, **fields: Any) -> None:
        """What signals do, for whoever reads stderr."""
        sys.stderr.write(f"dsec-kernel: {event}\n")

    async def run(self, door: Door) -> int:
        """Serve until the end."""
        from dsec.engine.handover import Handover

        for name, nbytes in sweep():
            self.log("info", f"pool {name} of a killed kernel is gone, {nbytes:,} bytes")

        loop = asyncio.get_running_loop()
        handover = Handover(self.desk.folder / "handover.sock", self.desk.claim)
        stopping = stop.StopSignals(self, self, loop)
        stopping.install()
        door.open(self)
        try:
            await self._over.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.desk.gone(), END_MAX_S)
        finally:
            door.close()
            handover.close()
            await asyncio.gather(
                *(each.finish() for each in self._connections), *self._goodbyes,
                return_exceptions=True,
            )  # fmt: skip
            stopping.remove()
        return self.code


def serve(door: Door) -> int:
    """Serve programs that come in by `door` until the end; the exit code.

    Raises:
        MachineError: no process can be started, or something isn't installed.
    """
    signals.hold()
    folder = Path(tempfile.mkdtemp(prefix="dsec-"))
    try:
        return guard(lambda: _serve(door, folder), door.fds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(door: Door, folder: Path) -> int:
    import uvloop

    async def main() -> int:
        return await House(folder).run(door)

    proc.be_prompt()
    proc.set_subreaper(True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        return uvloop.run(main())
    except KeyboardInterrupt:  # a signal that came before anybody could come in
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)

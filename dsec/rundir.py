"""The run directory: one run, one directory, locked for as long as the run lives.

Owns its creation, the lock, and the small files beside the recording: `kernel.json` (who runs),
`config.yaml` (what was run, defaults and seed filled in) and `summary.json` (how it ended). What
runners and the recorder write in it is theirs.

The lock is flock(2) on `lock`: the system lets go of it when its holder is gone, however it went,
and nothing has to be cleaned up. Every file appears whole or not at all: it is written without a
name (O_TMPFILE) and then linked, so that a SIGKILL in between leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsec.errors import MachineError, RunDirAbsent, RunDirBusy

FREE_BYTES_MIN = 16 * 1024 * 1024
LOCK_FILE = "lock"
# Any of these says that a run has been here. The lock alone does not: it may have ended before it
# began, and may begin again.
TRACES = (
    "kernel.json", "summary.json", "config.yaml", "journal.dsj", "kept.dsj", "recording", "atoms",
    "parent.atom", "logs",
)  # fmt: skip


class RunDir:
    """A locked directory. Use as a context manager, or call `close`."""

    def __init__(self, path: Path, lock_fd: int, *, made: bool, reopened: bool = False) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._made = made
        self._reopened = reopened
        self._way_back: tuple[Callable[[], None], Callable[[], None]] | None = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lock; calling it again does nothing."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def on_discard(self, put_back: Callable[[], None], forget: Callable[[], None]) -> None:
        """Say how what was changed in a directory that was reopened is taken back, and how the
        means for that are given up."""
        self._way_back = put_back, forget

    def take_back(self) -> None:
        """Let a directory that was reopened be as it was then.

        Raises:
            OSError: something can't be written.
        """
        way, self._way_back = self._way_back, None
        if way is not None:
            way[0]()

    def settle(self) -> None:
        """What was changed stays. Idempotent."""
        way, self._way_back = self._way_back, None
        if way is not None:
            way[1]()

    def discard(self) -> None:
        """Take away what this run has left, because it never began: a name in its configuration
        leads nowhere, say, and the next try should find the directory free. What an earlier run has
        left is as it was before.

        Raises:
            OSError: that can't be written.
        """
        if self._reopened:
            try:
                self.take_back()
            finally:
                self.close()
            return
        for name in (*TRACES, LOCK_FILE):
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if self._made:
            with contextlib.suppress(OSError):  # something else is in it by now
                self.path.rmdir()
        self.close()

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` so that it appears whole.

        Raises:
            MachineError: it can't be written.
        """
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """As `write_text`."""
        try:
            _write_whole(self.path, name, data)
        except OSError as error:
            raise _cannot_write(self.path / name, error) from None

    def write_json(self, name: str, value: Any) -> None:
        """As `write_text`, one indented JSON document."""
        self.write_text(name, json.dumps(value, indent=2) + "\n")


def claim(out: Path | None, run_name: str, *, parent: Path = Path("runs")) -> RunDir:
    """Make the run directory and lock it.

    Args:
        out: the directory, existing or not; None for a new one below `parent`.
        run_name: what a new one's name begins with.

    Raises:
        RunDirBusy: a living run has it, or an earlier run has been there.
        MachineError: it can't be made, locked or written, or the disk is full.
    """
    if out is None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        out = parent / f"{run_name}-{stamp}-{secrets.token_hex(2)}"
    try:
        made = not out.exists()  # raises where it may not look
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        kind = "a link to nowhere" if out.is_symlink() else "a file"
        raise MachineError(f"{out} is {kind}, not a directory", "Choose another --out") from None
    except OSError as error:
        raise _cannot_write(out, error) from None
    path = out.resolve()
    lock_fd = _lock(path, "Wait for its end, or choose another --out")
    try:
        _refuse_traces(path)
        _check_space(path)
    except BaseException:
        os.close(lock_fd)
        raise
    return RunDir(path, lock_fd, made=made)


def reopen(path: Path) -> RunDir:
    """Lock the directory of a run that has ended, to go on with it. Nothing in it is changed.

    Raises:
        RunDirAbsent: no run has been there.
        RunDirBusy: a living run has it.
        MachineError: it can't be locked or written, or the disk is full.
    """
    if not (path / "config.yaml").is_file():
        raise RunDirAbsent(
            f"there is no run to resume in {path}{_what_is_there(path)}",
            "Name a run directory, which holds the config.yaml of its run",
        )
    path = path.resolve()
    lock_fd = _lock(path, "Wait for its end, or end it with SIGINT")
    try:
        _check_space(path)
    except BaseException:
        os.close(lock_fd)
        raise
    return RunDir(path, lock_fd, made=False, reopened=True)


def _what_is_there(path: Path) -> str:
    """Words for whoever named the folder of all runs, or something inside of one."""
    if not path.exists():
        return ": there is no such directory"
    found = sorted(path.glob("*/kernel.json"), key=lambda each: each.stat().st_mtime)
    if found:
        return f"; it holds run directories, the newest is {found[-1].parent}"
    outer = next((each for each in path.parents if (each / "kernel.json").exists()), None)
    return "" if outer is None else f"; the run directory is {outer}"


def _lock(path: Path, remedy: str) -> int:
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _cannot_write(path, error) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise RunDirBusy(f"a run is going on in {path} ({who})", remedy) from None
    except OSError as error:
        os.close(fd)
        raise MachineError(
            f"{path} can't be locked: {error.strerror}",
            "Choose an --out on a local file system that has flock",
        ) from None
    with contextlib.suppress(OSError):  # a full disk; whoever waits misses only the number
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _refuse_traces(path: Path) -> None:
    found = [name for name in TRACES if (path / name).exists()]
    if found:
        raise RunDirBusy(
            f"{path} is not free: it holds {', '.join(found)}, as an earlier run leaves them",
            f"Choose another --out, or remove what is there: rm -r {path}",
        )


def _check_space(path: Path) -> None:
    free = shutil.disk_usage(path).free
    if free < FREE_BYTES_MIN:
        raise MachineError(
            f"{path}: {free / 2**20:.1f} MiB are free on that disk, at least "
            f"{FREE_BYTES_MIN // 2**20} MiB are needed to begin",
            "Make room, or choose an --out on another disk",
        )


def _cannot_write(path: Path, error: OSError) -> MachineError:
    reason = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = "Choose another --out, or get write permission for it"
    elif error.errno == errno.EROFS:
        remedy = "Choose an --out on a file system that is writable"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Make room, or choose an --out on another disk"
    else:
        remedy = "Choose another --out"
    return MachineError(f"{path} can't be written: {reason}", remedy)


def _write_whole(folder: Path, name: str, data: bytes) -> None:
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
        _write_and_rename(folder, name, data)
        return
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(fd)
        if (folder / name).exists():
            _write_and_rename(folder, name, data)
            return
        # Only with a directory descriptor does Python call linkat, which can follow this link.
        names = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(str(fd), folder / name, src_dir_fd=names, follow_symlinks=True)
        finally:
            os.close(names)


def _write_and_rename(folder: Path, name: str, data: bytes) -> None:
    """For file systems that have no unnamed files (NFS, overlays), and to replace a file."""
    temporary = folder / f".{name}.new"
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(folder / name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise

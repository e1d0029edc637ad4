"""What a fork of this process would not have, or share with it: found before it is made.

A copy that takes over must be alone with what it computes from. Threads are not copied. Child
processes, pipes, sockets, shared memory and files that are written and read would have seen what
the dead process did after the fork, and a replay only shows that if it is long enough: such a
process is not cloned. The place in a file, which a fork shares, too, can be kept: the copy gets the
file opened anew at that place.

This file knows no snapshots and no kernel. Only Linux tells these things, in /proc/self.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from dsec.runners import isolate

SHOWN: Final = 4
_OUR_MAPPINGS: Final = "/memfd:dsec"
_SHARED: Final = (b" rw-s ", b" rwxs ", b" -w-s ", b" -wxs ")
"""How /proc/self/maps says that a mapping is shared and can be written to."""
_KEPT_FLAGS: Final = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECT | os.O_SYNC


def obstacles(own_fds: Collection[int], own_children: Collection[int]) -> tuple[str, ...]:
    """Sentences on what makes a forked copy of this process no copy; none if it would be one.

    Args:
        own_fds: descriptors of the runner itself.
        own_children: likewise its processes.
    """
    names = sorted(thread.name for thread in threading.enumerate() if thread.ident is not None)
    names.remove(threading.current_thread().name)
    others = [pid for pid in children() if pid not in own_children]
    streams, files = [], []
    for fd, target in _targets(own_fds):
        if target.startswith(("socket:", "pipe:")):
            streams.append(target)
        elif _is_file(fd, target) and _flags(fd) & os.O_ACCMODE == os.O_RDWR:
            files.append(target)
    found = (
        ("can't have its {} other Python threads ({})", names),
        ("would share its {} child processes ({})", others),
        ("would share its {} open pipes and sockets ({})", streams),
        ("would share its {} files open for reading and writing ({})", files),
        ("would share its {} mappings of shared memory ({})", _mappings()),
    )
    return tuple(f"a copy {text.format(len(what), _shown(what))}" for text, what in found if what)


def reopen(own_fds: Collection[int]) -> list[tuple[int, int]]:
    """Open every file once more at the place where it is, for a copy to move on alone.

    Returns:
        Pairs of a descriptor and the one that is to replace it.

    Raises:
        OSError: one can't be opened; nothing is left open.
    """
    pairs: list[tuple[int, int]] = []
    try:
        for fd, target in _targets(own_fds):
            if _is_file(fd, target):
                flags = _flags(fd) & _KEPT_FLAGS | os.O_CLOEXEC
                pairs.append((fd, os.open(f"/proc/self/fd/{fd}", flags)))
                os.lseek(pairs[-1][1], os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:
        let_go(pairs)
        raise
    return pairs


def let_go(pairs: list[tuple[int, int]]) -> None:
    """Close what `reopen` opened."""
    for _, copy in pairs:
        os.close(copy)


def replace(pairs: list[tuple[int, int]]) -> None:
    """In the copy: let go of what it shares with its parent."""
    for fd, copy in pairs:
        os.dup2(copy, fd, inheritable=os.get_inheritable(fd))
        os.close(copy)


def _targets(own_fds: Collection[int]) -> Iterator[tuple[int, str]]:
    """User code's descriptors, with what they lead to."""
    for fd in isolate.open_descriptors():
        if fd > 2 and fd not in own_fds:
            with contextlib.suppress(OSError):
                yield fd, str(Path(f"/proc/self/fd/{fd}").readlink())


def _is_file(fd: int, target: str) -> bool:
    """A file of a file system. Memory files have names there, too, and matter as mappings."""
    return not target.startswith("/memfd:") and stat.S_ISREG(os.fstat(fd).st_mode)


def _flags(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL)


def children() -> list[int]:
    """Child processes that have not ended."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return [pid for pid in found if not ended(pid)]


def ended(pid: int) -> bool:
    """Whether a child process has ended, be it that nobody has waited for it yet."""
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, options) is not None
    except ChildProcessError:
        return True


def _mappings() -> list[str]:
    """Shared memory that can be written to, without that of the rings."""
    text = Path("/proc/self/maps").read_bytes()
    found = []
    for mark in _SHARED:  # hundreds of lines are not taken apart for the few that matter
        at = text.find(mark)
        while at >= 0:
            begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
            words = text[begin:end].decode(errors="replace").split(maxsplit=5)
            name = words[5] if len(words) > 5 else "without a name"
            if words[1].encode() == mark.strip() and not name.startswith(_OUR_MAPPINGS):
                found.append(name)
            at = text.find(mark, end)
    return found


def _shown(what: Collection[object]) -> str:
    return ", ".join(map(str, list(what)[:SHOWN])) + (" ..." if len(what) > SHOWN else "")

"""Which denial an exception of user code comes from, in words, with the key that would allow it.

A denied call fails with an errno that could have other reasons, and Python's exception doesn't name
the call. So the latest call of certain kinds is remembered, by an audit hook, in processes that
deny something; whether it was that one is judged by the errno.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dsec.ipc.terms import Isolation
from dsec.runners import failure
from dsec.runners.isolation import landlock

_CHAIN_MAX: Final = 10
_REFUSED: Final = (errno.EACCES, errno.EPERM)
_FULL: Final = (errno.ENOSPC, errno.EFBIG)
_REMEMBERED: Final = {
    "socket.__new__": "network",
    "socket.connect": "network",
    "socket.bind": "network",
    "os.kill": "signal",
    "os.killpg": "signal",
    "os.chmod": "mode",
    "os.fork": "process",
    "os.forkpty": "process",
    "os.posix_spawn": "process",
    "subprocess.Popen": "process",
    "_thread.start_new_thread": "process",
}
_settings: Isolation | None = None
_readable: tuple[str, ...] = ()
_latest = ""


def watch(settings: Isolation, readable: tuple[str, ...]) -> None:
    """Remember what is denied from now on; once for a process, which can't be taken back."""
    global _settings, _readable
    _settings, _readable = settings, readable
    failure.explain_with(because)
    sys.addaudithook(_remember)


def _remember(event: str, _arguments: tuple[Any, ...]) -> None:
    global _latest
    if event in _REMEMBERED:
        _latest = _REMEMBERED[event]


def because(error: BaseException) -> str:
    """Why the isolation of this process raised that, and which key allows it; empty if it did
    not, as far as one can tell."""
    if _settings is None:
        return ""
    for each in _chain(error):
        if isinstance(each, OSError) and (said := _of(each, _settings)):
            return f"its isolation ({_settings.profile}) denies that: {said}"
        if isinstance(each, RuntimeError) and "start new thread" in str(each):
            return f"its isolation allows {_settings.processes} (isolation.processes)"
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if at is None:
            return
        yield at
        at = at.__cause__ or at.__context__


def _of(error: OSError, settings: Isolation) -> str:
    strict = settings.profile == "strict"
    if error.errno in _REFUSED:
        if isinstance(error.filename, str) and error.errno == errno.EACCES:
            return _of_file(error.filename, settings) if strict else ""
        match _latest:
            case "network":
                return "it may use no network (limits.network), nor a socket of this machine's"
            case "signal" if strict:
                return "it may signal only its own processes (isolation.profile)"
            case "mode" if strict:
                return "modes of files stay as they are (isolation.profile)"
            case _:
                return "a system call was refused (isolation.profile)" if strict else ""
    if error.errno == errno.EAGAIN and _latest == "process" and strict:
        return f"it may have {settings.processes} processes and threads (isolation.processes)"
    if error.errno in _FULL and strict:
        return f"its temporary files may take {settings.scratch_mb} MiB (isolation.scratch_mb)"
    return ""


def _of_file(path: str, settings: Isolation) -> str:
    """Its user may be refused as well: that is no matter of ours."""
    if re.match(r"/proc/\d", path):
        return "it may not look into other processes (isolation.profile)"
    if re.match(r"/proc/self/fd/\d", path):
        return "what it was given it has only as it was given (isolation.profile)"
    if landlock.below(path, (*settings.write, tempfile.gettempdir())):
        return ""
    if not landlock.below(path, _readable):
        return f"it may not open {path} (isolation.read, isolation.write)"
    refused = Path(path).exists() and not os.access(path, os.R_OK)
    return "" if refused else f"it may not write {path} (isolation.write)"

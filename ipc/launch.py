"""Executing a zygote: which descriptors it gets, and in which environment.

What is executed is a string here, for who launches it must never import what runs in a runner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import site
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dsec
from dsec.ipc.logs import Logs
from dsec.origin import VARIABLE, origin

MARK = "DSEC_RUN"  # names the run in the environment of all its processes
_ARGV = ("-P", "-m", "dsec.runners.zygote", "--control", "3", "--lifeline", "4")
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

_KEPT = (
    "PATH", "LANG", "LANGUAGE", "TZ", "TZDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME",
    "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
    "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "PYTHONMALLOC", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER",
    "SDL_AUDIODRIVER",
)  # fmt: skip
_KEPT_PREFIXES = ("LC_", "DSEC_")

DETERMINISTIC = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # else cuBLAS may add in another order each time
    "MKL_CBWR": "AUTO",  # else a sum may depend on how its array is aligned
    "NUMBA_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}
"""What `run.deterministic` adds: libraries read these when they are loaded, or first used. Whoever
has set one already had a reason."""


def environment(run: str, *, deterministic: bool = False) -> Mapping[str, str]:
    """The environment of zygotes: ours, with one thread for each library, a fixed hash seed, and
    those folders of our import path that a Python of this installation wouldn't search."""
    own, found = (f"{sys.prefix}/lib", f"{sys.base_prefix}/lib"), set(_site_folders())
    # This dsec first: the working directory, where another may lie, is not searched for it (-P).
    places = (str(Path(dsec.__file__).parent.parent), *sys.path)
    searched = [p for p in places if p and p not in found and not p.startswith(own)]
    paths = [str(Path(p).absolute()) for p in searched]
    paths += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    changes = {**dict.fromkeys(ONE_THREAD, "1"), "PYTHONHASHSEED": "0", MARK: run}
    changes[VARIABLE] = origin()
    if deterministic:
        changes |= {name: os.environ.get(name, pin) for name, pin in DETERMINISTIC.items()}
    return {**os.environ, **changes, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def scrubbed(env: Mapping[str, str], keep: Sequence[str] | None) -> Mapping[str, str]:
    """Of an environment what Python, its libraries and we ourselves need, and the names in `keep`;
    all of it where that is None. Whatever else is there (tokens, passwords, addresses) is then in
    no process that is started with it, nor can be read in /proc."""
    if keep is None:
        return env
    names = {*_KEPT, *ONE_THREAD, *DETERMINISTIC, *keep}
    return {n: text for n, text in env.items() if n in names or n.startswith(_KEPT_PREFIXES)}


def _site_folders() -> Iterator[str]:
    """Where installed packages lie, and what .pth files add. A zygote searches all that by itself;
    in PYTHONPATH it would come first, and another version of a package might be found."""
    for folder in map(Path, (*site.getsitepackages(), site.getusersitepackages())):
        yield str(folder)
        for pth in sorted(folder.glob("*.pth")):
            lines = pth.read_text(errors="replace").splitlines()
            yield from (str(folder / line.strip()) for line in lines if line.strip())


def lifeline() -> tuple[int, int]:
    """A pipe that ends with us: its read end, for all that we start, and the write end, which they
    can't open anew through the read end: whoever held it would keep all of them alive."""
    reading, writing = os.pipe()
    os.fchmod(reading, 0o444)
    return reading, writing


def inherited(theirs: socket.socket, lifeline: int, logs: Logs, stem: str) -> tuple[list[int], int]:
    """What a process of ours inherits, in its order: control socket (taken over), lifeline, stdout
    and stderr, the caller's to close; and where on stderr its output will begin.

    Raises:
        OSError: no descriptors are left, or the disk is full; nothing stays open.
    """
    fds = [theirs.detach()]
    try:
        fds.append(os.dup(lifeline))
        return fds, logs.open(stem, fds)
    except OSError:
        for fd in fds:
            os.close(fd)
        raise


def exec_zygote(
    fds: Sequence[int], env: Mapping[str, str], keep: Sequence[str] | None = None
) -> int:
    """Start a zygote with `fds` (control, lifeline, stdout, stderr) and no others, and of `env`
    what `scrubbed` leaves; return its pid.

    Raises:
        OSError: the system can't.
    """
    return execute(_ARGV, dict(zip((3, 4, 1, 2), fds, strict=True)), scrubbed(env, keep))


def execute(argv: Sequence[str], fds: Mapping[int, int], env: Mapping[str, str]) -> int:
    """Start a Python with these arguments; return its pid.

    Args:
        fds: what it has as descriptor 1, 2, 3 and so on; nothing else, and no input.

    Raises:
        OSError: the system can't.
    """
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        # The program around us may have descriptors that an exec would hand on.
        with contextlib.suppress(OSError):
            if fd > 2 and os.get_inheritable(fd):
                actions.append((os.POSIX_SPAWN_CLOSE, fd))
    with contextlib.ExitStack() as stack:
        for to, fd in fds.items():
            # Out of the way of 0 to 4 first, so that no dup2 overwrites the source of another.
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
            stack.callback(os.close, high)
            actions.append((os.POSIX_SPAWN_DUP2, high, to))
        # Those between the classic and the real-time ones are the C library's own: no set that is
        # handed to it may hold them, and not every Python leaves them out.
        ours = [n for n in signal.valid_signals() if n < 32 or n >= signal.SIGRTMIN]
        line = [sys.executable, *argv]
        return os.posix_spawn(
            line[0], line, env, file_actions=actions, setsigmask=(), setsigdef=ours
        )

"""The faults of the matrix that `faulty.FAULTS` has not: functions that do harm when called.

Owns only the harm itself: who is harmed and when, and what must come of it, is matrix.py's. Each
is the real thing where it can be had (a real SIGBUS of a real mapping, machine code that loops),
and bounded: no test machine is brought down by one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from tests import watchdog

HARM_CODE = {
    "x86_64": {"ill": b"\x0f\x0b", "fpe": b"\x31\xc9\x31\xc0\x99\xf7\xf9\xc3", "loop": b"\xeb\xfe"},
    "aarch64": {"ill": b"\x00\x00\x00\x00", "loop": b"\x00\x00\x00\x14"},
}
BOMB_BLOCK = 16 << 20
BOMB_BLOCKS_MAX = 1024  # 16 GB of address space, of which nothing is touched
FORKS, FORKS_DEEP = 3, 2
FILES_MAX = 4096
AWAIT_S = 90.0  # agents of the whole batch may have a spare made before
STOP_CONT = """
import os, signal, sys, time
pid, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    with open(f"/proc/{pid}/stat") as file:
        if file.read().rsplit(")", 1)[1].split()[0] == "T":
            break
    time.sleep(0.01)
os.kill(pid, signal.SIGCONT)
"""


def machine_code(name: str, otherwise: Callable[[], object]) -> None:
    """Call a few bytes of machine code with the interpreter's lock held, as an extension's call."""
    code = HARM_CODE.get(platform.machine(), {}).get(name)
    if code is None:
        otherwise()
        return
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.PYFUNCTYPE(None)(address)()


def illegal() -> None:
    machine_code("ill", lambda: signal.raise_signal(signal.SIGILL))


def divide() -> None:
    machine_code("fpe", lambda: signal.raise_signal(signal.SIGFPE))


def loop_in_c() -> None:
    machine_code("loop", lambda: ctypes.PyDLL(None).pause())


def loop_in_python() -> None:
    while True:
        pass


def sleep() -> None:
    """For ever, whatever signal comes to ask what it does."""
    while True:
        signal.pause()


def bus() -> None:
    """Touch a mapping behind the end of its file."""
    with TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        view = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        view[0] = 1


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_and_continue() -> None:
    """Be stopped, and be continued by somebody else who has seen it."""
    with subprocess.Popen([sys.executable, "-c", STOP_CONT, str(os.getpid()), "30"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def memory_bomb() -> None:
    blocks = []
    for _ in range(BOMB_BLOCKS_MAX):
        blocks.append(bytes(BOMB_BLOCK))
    raise AssertionError("this much memory was not refused")


def fork_bomb() -> None:
    """Children that have children, with everything open that their parent has; none ends."""
    for deep in range(FORKS_DEEP):
        for _ in range(FORKS):
            if os.fork() == 0:
                if deep + 1 < FORKS_DEEP:
                    os.fork()
                signal.pause()
                os._exit(0)


def leak_descriptors() -> None:
    for _ in range(FILES_MAX):
        os.dup(0)
    raise AssertionError("this many descriptors were not refused")


def close_descriptors() -> None:
    os.closerange(3, FILES_MAX)


def close_stdout() -> None:
    os.close(1)


def scribble() -> None:
    """Fill every shared segment that this process may write with one byte, as a stray loop does.

    It never comes back from it: the next record would mend what waiting readers look at.
    """
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, *_ = line.split()
        if "/memfd:" in line and mode.startswith("rw") and mode.endswith("s"):
            start, end = (int(part, 16) for part in span.split("-"))
            ctypes.memset(start, 0xA5, end - start)
            found += 1
    if not found:
        raise AssertionError("there is no segment to scribble on")
    sleep()


def move_away() -> None:
    os.chdir("/")
    os.umask(0o777)


def own_handler() -> None:
    """A handler in Python never gets its turn: the faulting instruction is tried for ever."""
    signal.signal(signal.SIGSEGV, lambda *_: None)
    ctypes.string_at(8)


def thread_crashes() -> None:
    thread = threading.Thread(target=ctypes.string_at, args=(8,))
    thread.start()
    thread.join()


HARM: dict[str, Callable[[], object]] = {
    "bus": bus,
    "fpe": divide,
    "ill": illegal,
    "exit0": lambda: os._exit(0),
    "sleep": sleep,
    "stop": stop,
    "stopcont": stop_and_continue,
    "spinpy": loop_in_python,
    "spinc": loop_in_c,
    "memory": memory_bomb,
    "forks": fork_bomb,
    "files": leak_descriptors,
    "closeall": close_descriptors,
    "closeout": close_stdout,
    "scribble": scribble,
    "moveaway": move_away,
    "handler": own_handler,
    "thread": thread_crashes,
}


def await_file(path: Path) -> None:
    """Wait until somebody else has left that file."""
    watchdog.until(path.exists, AWAIT_S, path.name)

"""Run a program under a limit and say where it hung.

Owns `run` (to the end) and `Watched` (a program that a test talks to while it lives). Must know
nothing of dsec. Every process test goes through it, so that no hang outlives its test and each
hang leaves a picture: the tails of its output and what every process of the tree waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dsec.testing import leaks

ROOT = Path(__file__).resolve().parent.parent


class HungError(AssertionError):
    """Something did not happen within its limit; the message shows where everybody was."""


def tree(pid: int) -> list[int]:
    """The process and all its descendants as they are linked now, parents first."""
    parents = {other: leaks.parent_of(other) for other in leaks.all_pids()}
    found = [pid] if pid in parents else []
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def picture(pids: Sequence[int]) -> str:
    """What each process is, and what it waits for in the operating system."""
    lines = []
    for pid in pids:
        try:
            wait = Path(f"/proc/{pid}/wchan").read_text() or "?"
        except OSError:
            wait = "?"
        lines.append(f"{leaks.process_line(pid)}; waits in {wait}")
    return "\n".join(lines) or "no process left"


def until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until the condition holds.

    Raises:
        HungError: it does not hold within timeout_s.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise HungError(f"not within {timeout_s} s: {what}")
        threading.Event().wait(0.01)


class Watched:
    """A living program: its output goes to two files, its end is certain.

    Leaving the `with` block kills what is left of its tree. Attributes: `pid`; `stdout` and
    `stderr`, the texts so far.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._paths = (folder / "stdout.txt", folder / "stderr.txt")
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self._process = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
                preexec_fn=prepare,
            )
        self.pid = self._process.pid

    @property
    def stdout(self) -> str:
        return self._paths[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._paths[1].read_text(errors="replace")

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def tree(self) -> list[int]:
        """All its processes: by descent, and by the mark of the test for those re-parented."""
        found = tree(self.pid)
        mark = os.environ.get(leaks.MARK, "")
        return found + sorted(leaks.marked(mark) - set(found)) if mark else found

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition while the program lives.

        Raises:
            HungError: not within timeout_s, or the program ended before.
        """

        def met() -> bool:
            if condition():
                return True
            if self._process.poll() is not None and not condition():
                raise HungError(
                    f"exit code {self._process.returncode} before {what}\n{self.tails()}"
                )
            return False

        try:
            until(met, timeout_s, what)
        except HungError as error:
            raise HungError(f"{error}\n{picture(self.tree())}\n{self.tails()}") from None

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code (negative: the signal).

        Raises:
            HungError: it lives on; it is killed when the block is left.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            where = picture(self.tree())
            raise HungError(f"still running after {timeout_s} s\n{where}\n{self.tails()}") from None

    def tails(self, characters: int = 4000) -> str:
        return f"--- stdout\n{self.stdout[-characters:]}\n--- stderr\n{self.stderr[-characters:]}"

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            for pid in self.tree():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait(10)


def run(
    argv: Sequence[str | Path],
    folder: Path,
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    prepare: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Raises:
        HungError: it did not end within timeout_s. Its tree is killed.
    """
    with Watched(argv, folder, env=env, cwd=cwd, prepare=prepare) as program:
        code = program.wait(timeout_s)
        return subprocess.CompletedProcess(
            list(map(str, argv)), code, program.stdout, program.stderr
        )

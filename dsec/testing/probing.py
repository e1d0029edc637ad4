"""The process that probes an environment (probe.py), from outside: what it is given, how long it
may take, what it told before it ended, however it ended. User code never comes here."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from dsec.errors import DsecError, MachineError
from dsec.ipc import launch
from dsec.ipc.frames import EnvSettings
from dsec.report import signal_name
from dsec.testing.job import Job

MODULE = "dsec.testing.probe"
TAIL_BYTES = 4000
END_S = 5.0
LAST = ("closed", "raised")
WORDS = {
    "construct": "while it was constructed",
    "course": "while it was stepped",
    "leaks": "while it was stepped and reset many times",
    "codecs": "while its state was captured",
    "replay": "while an episode was done again",
    "fork": "after its process had been forked",
    "close": "in close()",
}


class EnvironmentUnusable(DsecError):
    """The environment can't be made, or not even be stepped: there is nothing to check.

    Attributes:
        lookup: what was named does not exist.
        detail: a traceback, or the end of what it wrote; empty if there is none.
    """

    def __init__(self, message: str, *, lookup: bool = False, detail: str = "") -> None:
        super().__init__(message)
        self.lookup, self.detail = lookup, detail


class Told:
    """What a probe told, by part.

    Attributes:
        parts: the fields of each part, by its name; `leaked` by what.
        failed: why there is no more, in a sentence; empty if it came to its end.
        detail: the end of what it wrote to stderr, or a traceback.
        lookup: it failed because what was named does not exist.
    """

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        self.at = ""
        self.failed = self.detail = ""
        self.lookup = False

    def take(self, line: bytes) -> None:
        """One line of it."""
        fields = json.loads(line)
        self.at = what = fields.pop("what")
        if what == "raised":
            self.lookup = fields["lookup"]
            others = "".join(f"; {each['message']}" for each in fields["others"])
            kind = "" if self.lookup or not fields["traceback"] else f"{fields['type']}: "
            self.failed = f"{kind}{fields['message']}{others}"
            self.detail = fields["traceback"]
        else:
            self.parts[f"{what} {fields['of']}" if "of" in fields else what] = fields


def probe(
    env: EnvSettings,
    *,
    seed: int,
    steps: int,
    seconds: float,
    parts: Sequence[str] = (),
    limit_s: float,
    hash_seed: int = 0,
) -> Told:
    """Have an environment probed in a fresh process, with the surroundings that runners have.

    Args:
        seed, steps, seconds, parts: of the job.
        limit_s: then it is ended; what it told until then is kept.
        hash_seed: PYTHONHASHSEED.

    Raises:
        MachineError: no process can be started.
    """
    job = msgspec.json.encode(Job(env, seed, steps, seconds, tuple(parts), os.getpid()))
    surroundings = {**launch.environment(f"check-{os.getpid()}")}
    surroundings["PYTHONHASHSEED"] = str(hash_seed)
    source, sink = os.pipe2(os.O_CLOEXEC)
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(sink)],
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(sink,),
                env=surroundings,
                start_new_session=True,
            )
        except OSError as error:
            os.close(source)
            raise MachineError(f"no process can be started: {error.strerror}", "") from None
        finally:
            os.close(sink)
        assert process.stdin is not None, "it was asked for"
        try:
            with contextlib.suppress(BrokenPipeError):  # its end says why
                process.stdin.write(job)
                process.stdin.close()
            told, hung = _listen(source, time.monotonic() + limit_s)
            if not hung:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            os.close(source)
        if not told.failed and "closed" not in told.parts:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - TAIL_BYTES))
            told.detail = stderr.read().decode(errors="replace").strip()
            told.failed = _end(told.at, code, limit_s if hung else None)
    return told


def _listen(source: int, until: float) -> tuple[Told, bool]:
    """Take what is told until its end, or until it is time."""
    told, rest = Told(), b""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while True:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return told, True
        piece = os.read(source, 1 << 16)
        if not piece:
            return told, False
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            told.take(line)
        if told.at in LAST:  # whatever it has started may hold the pipe for longer
            return told, False


def _end(at: str, code: int, limit_s: float | None) -> str:
    where = WORDS.get(at, f"after {at}" if at else "before it was constructed")
    if limit_s is not None:
        return f"it was not done within {limit_s:g} s, {where}"
    if code < 0:
        return f"its process was killed by {signal_name(-code)} {where}"
    return f"its process left with exit code {code} {where}"

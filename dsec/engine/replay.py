"""Re-executing a recorded agent: the process that does it, and how its end is told.

Owns that process from outside: what it is given, how long it may take for what it says it is doing,
and what its death means. User code never comes here, nor numpy; what is compared with what is in
dsec.recording.reenact.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from dsec.config import agent_names, load
from dsec.engine import fork, identity
from dsec.engine.plan import make_spec
from dsec.errors import AgentsDiffer, LengthsDiffer, MachineError, RecordingAbsent
from dsec.ipc import frames, launch
from dsec.ipc.frames import FailoverSettings, Harm, Phase, Role
from dsec.report import signal_name
from dsec.spec import RunnerSpec

MODULE: Final = "dsec.recording.reenact"
START_S: Final = 60.0
LOOK_S: Final = 0.2
TAIL_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of re-executing an agent.

    Attributes:
        outcome: `identical`, `differs`, `lost` (its environment was lost there, in the run), or
            `failed`.
        begin: from where on it was stepped: 0, or where an atom was.
        step: where it differs, was lost or failed; else how many steps there are.
        differences: for each value what it is, the recorded one and the new one.
        cause: of a failure, in one sentence; `detail` is the traceback or the end of its stderr.
    """

    outcome: str
    begin: int = 0
    step: int = 0
    differences: tuple[dict[str, Any], ...] = ()
    cause: str = ""
    detail: str = field(default="", repr=False)


def replay(run_dir: Path, agent: str, first: int = 0) -> Replay:
    """Step an agent's environments once more, in a process of their own, and compare.

    Args:
        first: the step from which on is compared. Stepped is from the latest atom before it, if the
            run left one, and else from the beginning.

    Raises:
        RecordingAbsent: no run has been there, or it kept no recording.
        AgentsDiffer: it had no such agent.
        LengthsDiffer: it has no step `first`.
        ConfigError: its configuration can't be read any more.
        MachineError: no process can be started.
    """
    runner = _runner(run_dir, agent)
    start = msgspec.structs.replace(
        runner.start, failover=FailoverSettings("none", 0.0), chaos=Harm()
    )
    job = {
        "run_dir": str(run_dir.resolve()),
        "agent": agent,
        "first": first,
        "start": frames.encode(start),
        "ppid": os.getpid(),
    }
    with tempfile.TemporaryFile() as stderr:
        found = _Process(run_dir, msgspec.msgpack.encode(job), stderr).result(runner.deadline_s)
    if found.outcome == "identical" and first and first >= found.step:
        raise LengthsDiffer(
            f"{agent} has {found.step:,} steps in {run_dir}: none from step {first:,} on"
        )
    return found


def _runner(run_dir: Path, agent: str) -> RunnerSpec:
    """What the run's kernel told the agent's env runner."""
    path = run_dir / "config.yaml"
    if not path.exists():
        raise RecordingAbsent(f"{run_dir} is no run directory: there is no config.yaml in it")
    loaded = load(path)
    config = loaded.config
    if config.record.format == "none":
        raise RecordingAbsent(f"{run_dir}: the run was told to keep no recording (record.format)")
    known = [name for each in config.agents for name in agent_names(each.name, each.count)]
    if agent not in known:
        more = " …" if len(known) > 8 else ""
        raise AgentsDiffer(f"no agent {agent} in {run_dir}; there are {', '.join(known[:8])}{more}")
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    seed = config.run.seed or 0
    root = fork.lineage(run_dir, identity.read(run_dir).facts)
    starts = {root.agent: root.beginning(run_dir.resolve())} if root is not None else None
    spec = make_spec(loaded, run_dir=str(run_dir), seed=seed, open_files=open_files, starts=starts)
    (found,) = [each for each in spec.agents if each.name == agent]
    return next(each for each in found.runners if each.role is Role.ENV)


class _Process:
    """The process, its page, and the pipe that its result comes through."""

    def __init__(self, run_dir: Path, job: bytes, stderr: IO[bytes]) -> None:
        self._stderr = stderr
        self._page_fd = os.memfd_create("dsec-replay", os.MFD_CLOEXEC)
        os.ftruncate(self._page_fd, 24)
        self._page = mmap.mmap(self._page_fd, 24)
        self._from, into = os.pipe2(os.O_CLOEXEC)
        argv = [sys.executable, "-P", "-m", MODULE, str(into), str(self._page_fd)]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(into, self._page_fd),
                env=launch.environment(f"replay-{os.getpid()}"),
                cwd=_folder_of(run_dir),
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"no process can be started: {error.strerror}", "") from None
        finally:
            os.close(into)
        assert self._process.stdin is not None, "it was asked for"
        with contextlib.suppress(BrokenPipeError):  # its end says why
            self._process.stdin.write(job)
            self._process.stdin.close()

    def result(self, deadline_s: dict[Phase, float]) -> Replay:
        """Wait for what it says, as long as what it does may take; end it in any case."""
        said, hung = b"", ""
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        seen, since = b"", time.monotonic()
        try:
            while not hung:
                if poll.poll(LOOK_S * 1000):
                    chunk = os.read(self._from, 1 << 16)
                    if not chunk:
                        break
                    said += chunk
                now = bytes(self._page[:16])
                if now != seen:
                    seen, since = now, time.monotonic()
                phase, _, _ = self._where()
                limit_s = deadline_s.get(phase, START_S)
                if time.monotonic() - since > limit_s:
                    hung = f"hung in {phase.name.lower()} for {limit_s:g} s"
        finally:
            self._kill()
        return self._told(said, hung)

    def _where(self) -> tuple[Phase, int, int]:
        numbers = [int.from_bytes(self._page[at : at + 8], "little") for at in (0, 8, 16)]
        known = numbers[0] in Phase._value2member_map_
        return Phase(numbers[0]) if known else Phase.IDLE, numbers[1], numbers[2]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._from)

    def _told(self, said: bytes, hung: str) -> Replay:
        phase, step, compared = self._where()
        self._page.close()
        os.close(self._page_fd)
        if said:
            told = json.loads(said)
            error = told["error"]
            cause = ""
            if error is not None:
                doing = f" in {told['phase']}" if told["phase"] else ""
                cause = f"{error['type']}{doing}: {error['message']}"
            return Replay(
                told["outcome"], told["begin"], told["step"], tuple(told["differences"]), cause,
                error["traceback"] if error is not None else "",
            )  # fmt: skip
        code = self._process.returncode
        end = f"was killed by {signal_name(-code)}" if code < 0 else f"left with exit code {code}"
        cause = hung or f"{end} in {phase.name.lower()}"
        if compared:
            cause += f"; the steps before {compared:,} are identical"
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - TAIL_BYTES))
        tail = self._stderr.read().decode(errors="replace")
        return Replay("failed", 0, step, (), f"the process {cause}", tail)


def _folder_of(run_dir: Path) -> str | None:
    """The folder that the run was started in, for what is named relative to it."""
    try:
        folder = json.loads((run_dir / "kernel.json").read_text())["cwd"]
        return folder if Path(folder).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

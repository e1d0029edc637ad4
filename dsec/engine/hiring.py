"""Runs that a served kernel starts for programs, each in processes of its own (hired.py).

Owns such a run as the kernel sees it: what it has told so far, its signals and its end. A run with
all its processes is below this process, so that whatever ends the kernel ends its runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import uuid
from collections.abc import Callable

import msgspec

from dsec.engine import talk
from dsec.engine.methods import AgentRow, RunStarted, RunStatus
from dsec.engine.rpc import Code, Problem
from dsec.errors import ChannelClosed, MachineError, PeerError
from dsec.ipc import datagrams, launch

_ARGV = ("-P", "-m", "dsec.engine.hired")
_CODES = {"config": Code.CONFIG, "machine": Code.MACHINE, "internal": Code.INTERNAL}

Tell = Callable[[talk.AnyMessage], None]


class Run:
    """One run.

    Args:
        tell: called with all that it tells, from the loop.

    Attributes:
        keep: it goes on without whoever asked for it.

    Raises:
        MachineError: no process can be started.
    """

    def __init__(self, name: str, hire: talk.Hire, keep: bool, tell: Tell) -> None:
        self.name, self.keep = name, keep
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._begun: talk.Begun | None = None
        self._shot: talk.Shot | None = None
        self._outcome: talk.Outcome | None = None
        self._rows: dict[str, talk.Row] = {}
        self._known, self._gone = asyncio.Event(), asyncio.Event()
        self._stopped = 0
        self._sock, theirs = datagrams.pair()
        self._sock.setblocking(False)
        try:
            with contextlib.closing(theirs):
                datagrams.sendmsg(self._sock, talk.encode(hire), ())
                self._start(theirs)
        except BaseException:
            self._sock.close()
            raise
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _start(self, theirs: socket.socket) -> None:
        fds = {1: 2, 2: 2, 3: theirs.fileno()}
        try:
            self._pid = launch.execute(_ARGV, fds, launch.environment(uuid.uuid4().hex))
            self._pidfd = os.pidfd_open(self._pid)
        except OSError as error:
            raise MachineError(
                f"no process can be started for a run: {error.strerror}",
                "Free processes, memory or descriptors, or raise their limits",
            ) from None
        self._loop.add_reader(self._pidfd, self._ended)

    @property
    def ended(self) -> bool:
        """No process of it is left."""
        return self._gone.is_set()

    async def started(self) -> RunStarted:
        """Wait until it has its directory.

        Raises:
            Problem: it won't have one.
        """
        await self._known.wait()
        if self._begun is not None:
            begun = self._begun
            return RunStarted(
                run=self.name, run_dir=begun.run_dir, agents=begun.agents, seed=begun.seed
            )
        error = (self._outcome.error if self._outcome is not None else None) or {
            "kind": "internal",
            "message": "its process ended before the run began",
        }
        raise Problem(
            _CODES.get(error["kind"], Code.INTERNAL), error["message"], self.name, details=error
        )

    def status(self) -> RunStatus:
        """Where it stands."""
        shot = msgspec.to_builtins(self._shot) if self._shot is not None else {}
        shot.pop("t", None)
        end = self._outcome if self.ended else None
        return RunStatus(
            run=self.name,
            run_dir=self._begun.run_dir if self._begun is not None else "",
            state="ended" if self.ended else "running",
            progress=shot,
            exit_code=end.exit_code if end is not None else None,
            totals=end.totals if end is not None else None,
            error=end.error if end is not None else None,
        )

    def agents(self) -> list[AgentRow]:
        """Where its agents stood when it told so last."""
        return [
            AgentRow(**msgspec.structs.asdict(row), run=self.name) for row in self._rows.values()
        ]

    def stop(self, *, kill: bool) -> None:
        """Ask it to end, at the next boundary of each agent; `kill`: at once."""
        if self.ended:
            return
        if kill or not self._stopped:
            number = signal.SIGQUIT if kill else signal.SIGTERM
            self._stopped += 1
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def gone(self) -> RunStatus:
        """Wait until no process of it is left."""
        await self._gone.wait()
        return self.status()

    # ------------------------------------------------------------ inside

    def _readable(self) -> None:
        try:
            while True:
                message, fds = datagrams.receive(self._sock, talk.decode)
                datagrams.close_fds(fds)
                self._take(message)
        except BlockingIOError:
            return
        except (ChannelClosed, PeerError):
            self._loop.remove_reader(self._sock.fileno())

    def _take(self, message: talk.AnyMessage) -> None:
        match message:
            case talk.Begun():
                self._begun = message
                self._known.set()
            case talk.Rows():
                self._rows.update({row.agent: row for row in message.rows})
            case talk.Outcome():
                self._outcome = message
            case _:
                if isinstance(message, talk.Shot):
                    self._shot = message
                self._tell(message)

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        code = 255
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._pidfd)
        self._readable()  # what it said last
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._outcome is None:
            error = {"kind": "internal", "message": f"its process ended with code {code}"}
            self._outcome = talk.Outcome(code, {}, error)
        self._gone.set()
        self._known.set()
        if self._begun is not None:  # else that is the answer to whoever asked for it
            self._tell(self._outcome)

"""The kernel in a process of its own, beside the program that ordered it.

`python -m dsec.engine.host` with its end of a control socket as descriptor 3 and a pidfd of the
program as descriptor 4. Owns the life of that process: it detaches itself, so that the program has
no child that it doesn't know of; is guardian and supervisor as in `dsec-kernel run`; ends when
everything has ended, when it is told to leave, or when the program is gone, however it went; and
leaves no file. Steps don't pass through here: the program gets the rings, and what it gets besides
are messages (talk.py). Never imports numpy, Gymnasium or torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsec import __version__, rundir, signals
from dsec.config import Agent
from dsec.engine import preflight, talk
from dsec.engine.advice import advice
from dsec.engine.hosted import hosted_spec
from dsec.errors import ChannelClosed, DsecError, MachineError, PeerError
from dsec.hooks import Hooks
from dsec.ipc import datagrams, proc, segment
from dsec.ipc.frames import Role
from dsec.ipc.segment import Segment
from dsec.report import AgentReport, Death, Failover, RunReport

CONTROL, CALLER = 3, 4
ORDER_MAX_S = 10.0
QUEUE_MAX = 1000  # messages that wait for a program that doesn't read


def main() -> int:
    """Be the kernel of one program until the end."""
    if os.fork():
        os._exit(0)  # whoever executed us has nothing to wait for
    os.setpgid(0, 0)  # what a terminal sends to the program is the program's
    folder = tempfile.mkdtemp(prefix="dsec-")
    from dsec.engine import guardian

    try:
        signals.hold()
        return guardian.run(lambda: _serve(folder, os.getppid()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: str, guardian: int) -> int:
    sock = socket.socket(fileno=CONTROL)
    sock.setblocking(False)
    os.set_inheritable(CONTROL, False)
    os.set_inheritable(CALLER, False)
    import uvloop

    proc.be_prompt()
    try:
        return uvloop.run(_run(sock, folder, guardian))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(sock: socket.socket, folder: str, guardian: int) -> int:
    from dsec.engine.guardian import orphaned
    from dsec.engine.servers import servers
    from dsec.kernel.supervisor import Supervisor

    line = Line(sock)
    claimed: rundir.RunDir | None = None
    try:
        order = await line.order()
        agent = Agent.model_validate(order.agent)
        if order.out:
            claimed = rundir.claim(Path(order.out), agent.name)
        place = str(claimed.path) if claimed else folder
        open_files = preflight.check_limits(order.lanes, order.lanes)
        spec = hosted_spec(order, agent, run_dir=place, open_files=open_files)
        line.say(talk.Up(guardian, os.getpid(), folder))
        hooks = CallerHooks(line, order.reward)
        supervisor = Supervisor(spec, hooks, orphaned=orphaned, servers=servers)
        line.watch(supervisor.request_kill)
        report = await supervisor.run()
        error = report.failure_error
        no_pool = error is not None and error.where.startswith("pool")
        if report.failure and (no_pool or report.failure_kind != "config"):
            line.say(talk.Refused(report.failure_kind, report.failure))
        line.say(talk.Ended(report.files))
        await line.flushed()
        return 0
    except MachineError as error:
        line.say(talk.Refused("machine", error.problem, error.remedy))
    except DsecError as error:
        line.say(talk.Refused("internal", f"{type(error).__name__}: {error}"))
    finally:
        if claimed is not None:
            claimed.close()
    await line.flushed()
    return 1


class Line:
    """The host's end of the line to the program. Nothing here waits for the program to read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._writing = False
        self._leave: Any = None

    async def order(self) -> talk.Order:
        """Wait for what is to be run.

        Raises:
            PeerError: something else came, or the end of the line.
            MachineError: the order is of another version.
        """
        came = asyncio.Event()
        self._loop.add_reader(self._sock.fileno(), came.set)
        try:
            await asyncio.wait_for(came.wait(), ORDER_MAX_S)
        finally:
            self._loop.remove_reader(self._sock.fileno())
        order, _ = datagrams.receive(self._sock, talk.decode)
        if not isinstance(order, talk.Order):
            raise PeerError(f"{type(order).__name__} came where an order was due")
        if order.version != __version__:
            raise MachineError(
                f"the program has dsec-kernel {order.version}, its kernel is {__version__}",
                "Start it again: dsec-kernel was installed anew meanwhile",
            )
        return order

    def watch(self, leave: Any) -> None:
        """From now on call `leave` when the program says so, hangs up or is gone."""
        self._leave = leave
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._loop.add_reader(CALLER, self._gone)

    def say(self, message: talk.AnyMessage, fds: list[int] | None = None) -> None:
        """Send a message, now or later; `fds` are closed then."""
        self._queue.append((talk.encode(message), fds or []))
        if len(self._queue) > QUEUE_MAX:
            datagrams.close_fds(self._queue.popleft()[1])
        self._flush()

    async def flushed(self) -> None:
        """Give the program a moment to read what it has not read yet."""
        for _ in range(100):
            if not self._queue:
                return
            await asyncio.sleep(0.01)

    def _flush(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            try:
                datagrams.sendmsg(self._sock, data, fds)
            except BlockingIOError:
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError:
                pass  # it has hung up, which the reader finds out
            datagrams.close_fds(fds)
            self._queue.popleft()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError, ChannelClosed, PeerError):
            _, fds = datagrams.receive(self._sock, talk.decode)
            datagrams.close_fds(fds)
            self._gone()
            return
        self._gone()

    def _gone(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_reader(CALLER)
        self._leave()


class CallerHooks(Hooks):
    """Tells the program what concerns it."""

    def __init__(self, line: Line, reads_rewards: bool) -> None:
        self._line = line
        self._reads_rewards = reads_rewards

    def agent(self, report: AgentReport) -> None:
        return None

    def progress(self, report: RunReport) -> None:
        return None

    def disk(self, state: str, message: str) -> None:
        return None

    def note(self, event: str, **fields: Any) -> None:
        return None

    def wired(self, agent: str, segments: Mapping[Role, Segment], spaces: bytes) -> bool:
        refs, fds = segment.hand_out(segments.values(), Role.POLICY, 0)
        self._line.say(talk.Attach(agent, spaces, refs), fds)
        return self._reads_rewards

    def death(self, death: Death) -> None:
        error = death.error
        lines = [death.cause, error.traceback if error is not None else death.stderr_tail]
        self._line.say(
            talk.Lost(
                agent=death.agent,
                cause=death.cause.partition("\n")[0],
                report="\n".join(filter(None, [*lines, advice(death)]))[:40_000],
                error=error.type if error is not None else "",
                message=error.message if error is not None else "",
                lookup=error is not None and error.lookup,
            )
        )

    def away(self, agent: str, role: Role) -> None:
        if role is Role.ENV:
            self._line.say(talk.Away(agent))

    def kept(self, agent: str, role: Role, kept: Segment) -> None:
        if role is Role.REWARD:  # the environments tell their state themselves
            fds = [segment.readonly(kept.fd)]
            self._line.say(talk.Holds(agent, int(role), kept.size), fds)

    def failover(self, failover: Failover) -> None:
        self._line.say(
            talk.Survived(
                agent=failover.agent,
                role=failover.role.name.lower(),
                cause=failover.death.cause.partition("\n")[0],
                seq=failover.seq,
                level=failover.level,
                exact=failover.exact,
                why=failover.why,
                replayed=failover.replayed,
                total_ms=failover.total_ms,
            )
        )


if __name__ == "__main__":
    sys.exit(main())

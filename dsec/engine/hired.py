"""One run for a served kernel, in processes of its own: `python -m dsec.engine.hired`.

Descriptor 3 is its end of a control socket, on which the order comes (talk.Hire) and everything is
told that `dsec-kernel run` would show. All else is as there: a guardian, a supervisor, and the
same signals, with which it is stopped. It ends with the kernel that hired it: by the parent-death
signal of its guardian, as a SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any

from dsec import signals
from dsec.config import parse_override
from dsec.engine import talk, telling
from dsec.engine.progress import Snapshot
from dsec.engine.run import RunOptions, guard, run
from dsec.engine.summary import error_object
from dsec.errors import ConfigError, FrameError, MachineError
from dsec.ipc import datagrams
from dsec.ipc.proc import PR_SET_PDEATHSIG, prctl
from dsec.report import Death, Failover

CONTROL = 3
QUEUE_MAX = 1000  # messages that wait for a kernel that doesn't read
LAST_WORDS_S = 5.0
ROWS_MAX = 500  # agents told of in one message


def main() -> int:
    """Carry out one order; the exit code is the run's."""
    signals.hold()
    hirer = os.getppid()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != hirer:
        return 128 + signal.SIGTERM
    sock = socket.socket(fileno=CONTROL)
    os.set_inheritable(CONTROL, False)
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll(LAST_WORDS_S * 1000)
    order, _ = datagrams.receive(sock, talk.decode)
    if not isinstance(order, talk.Hire):
        raise FrameError(f"{type(order).__name__} came where an order was due")
    hire = order
    try:
        return guard(lambda: _run(hire, sock))
    except MachineError as error:
        view = Telling(sock)
        view.end(_refused(error, 3))
        return 3


def _run(hire: talk.Hire, sock: socket.socket) -> int:
    view = Telling(sock)
    try:
        signals.let_in()
        options = RunOptions(
            config=Path(hire.config) if hire.config is not None else None,
            overrides=[parse_override(text) for text in hire.set],
            out=Path(hire.out) if hire.out is not None else None,
            resume=Path(hire.resume) if hire.resume is not None else None,
            argv=("dsec-kernel", "serve"),
        )
        outcome = run(options, view)
        said = talk.Outcome(
            int(outcome.code), outcome.totals, error_object(outcome.error, int(outcome.code))
        )
    except ConfigError as error:  # of an override
        said = _refused(error, 2)
    except KeyboardInterrupt:
        said = talk.Outcome(130, {}, None)
    finally:
        signals.ignore()
    view.end(said)
    return said.exit_code


def _refused(error: ConfigError | MachineError, code: int) -> talk.Outcome:
    return talk.Outcome(code, {}, error_object(error, code))


class Telling:
    """A View whose reader is the kernel that ordered the run. Nothing here waits, but the end."""

    interval_s = 0.25

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[bytes] = deque(maxlen=QUEUE_MAX)
        self._rows: dict[str, talk.Row] = {}

    def begin(self, run_dir: str, agents: int, seed: int) -> None:
        """The run directory is claimed; processes start now."""
        self._say(talk.Begun(run_dir, agents, seed))

    def snapshot(self, snapshot: Snapshot) -> None:
        """The run at a glance."""
        known = self._rows
        rows = [
            talk.Row(each.name, each.state, each.steps, each.episodes, each.failovers)
            for each in snapshot.agents
        ]
        news = [row for row in rows if known.get(row.agent) != row]
        known.update({row.agent: row for row in news})
        for at in range(0, len(news), ROWS_MAX):
            self._say(talk.Rows(tuple(news[at : at + ROWS_MAX])))
        names = {name for name in talk.Shot.__struct_fields__ if name != "done_share"}
        plain = {name: getattr(snapshot, name) for name in names}
        plain["states"] = dict(snapshot.states)
        self._say(talk.Shot(done_share=snapshot.done_share, **plain))

    def death(self, death: Death, advice: str, log: str) -> None:
        """A runner died."""
        self._say(telling.lost(death))

    def failover(self, failover: Failover) -> None:
        """A role that was lost goes on."""
        self._say(telling.survived(failover))

    def log(self, level: str, event: str, **fields: Any) -> None:
        """Something to be noted."""
        if event == "agent":
            self._say(talk.Standing(fields["name"], fields["state"]))
        else:
            self._say(talk.Noted(level, event, {k: _plain(v) for k, v in fields.items()}))

    def end(self, outcome: talk.Outcome) -> None:
        """The last word, for which there is a moment."""
        self._say(outcome)
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        while self._queue and poll.poll(LAST_WORDS_S * 1000):
            self._flush()

    def _say(self, message: talk.AnyMessage) -> None:
        self._queue.append(talk.encode(message))
        self._flush()

    def _flush(self) -> None:
        while self._queue:
            try:
                datagrams.sendmsg(self._sock, self._queue[0], ())
            except BlockingIOError:
                return
            except OSError:
                self._queue.clear()  # the kernel is gone, and we are about to be
                return
            self._queue.popleft()


def _plain(value: Any) -> Any:
    """What MessagePack has, of what a log line holds."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return str(value)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())

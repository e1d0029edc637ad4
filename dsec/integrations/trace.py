"""The trace of tool calls: what was intended before it is done, what came of it before it is told.

Owns the file: JSON lines, each written by one call, so that several programs and threads may
append to one file and a killed one leaves at most its last line torn. A call with an intent and no
outcome is unresolved: whether it had its effect, nobody knows but the world.

    {"call": "3f-7", "do": "intent", "at": 1.5, "tool": "Shop.buy", "args": ["tea"], "kwargs": {}}
    {"call": "3f-7", "do": "result", "result": "1 tea"}

or "raised" with an error's words, or "unresolved" with the cause of the death.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.errors import JournalError

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Intent:
    """A call that was intended, and of which nothing is known to have come.

    Attributes:
        call: its name in the trace.
        at: seconds since 1970.
        cause: why there is no result, if that was written down; empty where the program itself
            has ended, or the call goes on.
    """

    call: str
    at: float
    tool: str
    args: list[Any]
    kwargs: dict[str, Any]
    cause: str = ""


class Trace:
    """Appends to a trace. What JSON has no form for is written as its `repr`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, _FLAGS, 0o600)
        self._life, self._calls = uuid.uuid4().hex, 0

    def intent(self, tool: str, args: Any, kwargs: Any) -> str:
        """Write that this is about to be called; return the call's name."""
        call = f"{self._life}-{self._calls}"
        self._calls += 1
        what = {"tool": tool, "args": list(args), "kwargs": kwargs}
        self._write({"call": call, "do": "intent", "at": time.time(), **what})
        return call

    def outcome(self, call: str, do: str, what: Any) -> None:
        """Write what came of it: `do` is `result`, `raised` or `unresolved`."""
        self._write({"call": call, "do": do, do: what})

    def close(self) -> None:
        """Close the file; again is no error."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, default=repr).encode() + b"\n"
        written = os.write(self._fd, line)
        if written != len(line):
            raise JournalError(f"only {written} of {len(line)} bytes of the trace were written")


def unresolved(path: Path | str) -> list[Intent]:
    """The calls of a trace that have an intent and no result, in their order.

    Raises:
        JournalError: a line is none of a trace. A torn last one is passed over: its program was
            killed while it wrote, before whatever it was to announce.
    """
    lines = Path(path).read_bytes().split(b"\n")
    intents: dict[str, Intent] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
            call, do = record["call"], record["do"]
            if do == "intent":
                fields = (record[key] for key in ("at", "tool", "args", "kwargs"))
                intents[call] = Intent(call, *fields)
            elif do == "unresolved":
                found = intents[call]
                intents[call] = Intent(
                    call, found.at, found.tool, found.args, found.kwargs, record[do]
                )
            else:
                del intents[call]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path}, line {number} is no line of a trace: {error!r}") from None
    return list(intents.values())

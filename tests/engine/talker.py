"""Programs that talk to `dsec-kernel serve`: JSON over any pair of descriptors; their kernels."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsec.engine import methods

COMMAND = [sys.executable, "-m", "dsec.cli.kernel", "serve"]
PATIENCE_S = 60.0
POLE = {
    "name": "pole",
    "env": {"id": "CartPole-v1"},
    "policy": {"entry": "dsec.policies:RandomPolicy"},
}
RUN = """\
run: {name: t, seed: 7, steps: %d}
agents:
  - {name: pole, env: {id: %s}, policy: {entry: "dsec.policies:RandomPolicy"}}
"""


class Talker:
    """A program that speaks JSON over any pair of descriptors, and remembers events."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.events: list[dict[str, Any]] = []
        self.replies: dict[Any, dict[str, Any]] = {}
        self.nameless: list[dict[str, Any]] = []  # answers to what had no readable id
        self.batches = 0
        self.ended = False
        self._rest = b""
        self._last = 0

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.sink, data) :]

    def ask(self, method: str, **params: Any) -> int:
        self._last += 1
        request = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        self.send(json.dumps(request).encode() + b"\n")
        return self._last

    def read(self) -> None:
        """Read what comes next, or the end."""
        ready, _, _ = select.select([self.source], [], [], PATIENCE_S)
        assert ready, "nothing came"
        with contextlib.suppress(ConnectionError):
            if data := os.read(self.source, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    if isinstance(said, list):
                        self.batches += 1
                    elif "method" in said:
                        self.events.append(said)
                    elif said["id"] is None:
                        self.nameless.append(said)
                    else:
                        self.replies[said["id"]] = said
                return
        self.ended = True

    def reply(self, number: Any) -> dict[str, Any]:
        while number not in self.replies:
            self.read()
            assert number in self.replies or not self.ended, "it ended without an answer"
        return self.replies.pop(number)

    def call(self, method: str, **params: Any) -> Any:
        said = self.reply(self.ask(method, **params))
        assert "result" in said, said
        return said["result"]

    def refused(self, method: str, **params: Any) -> tuple[int, dict[str, Any]]:
        error = self.reply(self.ask(method, **params))["error"]
        return error["code"], error["data"]

    def event(self, name: str) -> dict[str, Any]:
        """The next event of this name, of those that came and those to come."""
        while True:
            for i, each in enumerate(self.events):
                if each["method"] == name:
                    return self.events.pop(i)["params"]
            self.read()
            assert not self.ended, f"it ended without {name}"


class Served:
    """`dsec-kernel serve` with its streams."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdin is not None and process.stdout is not None
        self.talker = Talker(process.stdout.fileno(), process.stdin.fileno())

    def hello(self, events: tuple[str, ...] = tuple(methods.EVENTS), **more: Any) -> Any:
        return self.talker.call("initialize", protocol=1, events=events, **more)


@contextlib.contextmanager
def stdio() -> Iterator[Served]:
    process = subprocess.Popen(
        [*COMMAND, "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Served(process)
        process.stdin.close()
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def connected(path: Path) -> Iterator[Talker]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(path))
        sock.setblocking(True)
        yield Talker(sock.fileno(), sock.fileno())


@contextlib.contextmanager
def initialized(path: Path, *events: str) -> Iterator[Talker]:
    with connected(path) as talker:
        talker.call("initialize", protocol=1, events=events)
        yield talker

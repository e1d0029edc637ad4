"""Mutants of what runs beneath the kernel: the order of stores, of the journal and its cursor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

from dsec.ipc.frames import Role
from tests.simulation.env import EnvRunner
from tests.simulation.mutants import instead, mutant
from tests.simulation.recorder import RecorderProcess
from tests.simulation.runners import Runner
from tests.simulation.things import Record


@mutant
def tail_before_payload() -> Iterator[None]:
    """A record is visible before it is written."""

    def publish(original: Any, self: Runner, value: int, flags: int = 0) -> None:
        if not self.torn_next or self.outbox is None:
            original(self, value, flags)
            return
        record = Record(self.view, self.wire_epoch, 0, flags, self.pid)
        self.outbox.records.append(record)
        self.machine.tell("published", self, self.outbox, record)
        self.hung = True
        self.die(signal.SIGKILL, 0.0)

    with instead(Runner, "publish", publish):
        yield


@mutant
def cursor_before_journal() -> Iterator[None]:
    """The recorder gives back what is not on disk yet."""

    def commit(original: Any, self: RecorderProcess, name: str, track: Any) -> None:
        n, env = track.own.cursors.get(Role.ENV, 0), track.peers[Role.ENV].records
        if self.die_between and n + 1 < len(env):
            track.own.cursors[Role.ENV] = n + 1
            self.hung = True
            self.die(signal.SIGKILL, 0.0)
            return
        original(self, name, track)

    with instead(RecorderProcess, "commit", commit):
        yield


@mutant
def replay_not_compared() -> Iterator[None]:
    """Whatever comes out of a replay is taken for what was published."""

    def restore(original: Any, self: EnvRunner, kept: Any) -> None:
        faithful, self.faithful = self.faithful, True
        original(self, kept)
        self.faithful = faithful
        self.state += not faithful

    with instead(EnvRunner, "restore", restore):
        yield


@mutant
def caught_up_without_the_last() -> Iterator[None]:
    """What the dead one published after Takeover is not replayed."""

    def resume(original: Any, self: EnvRunner, kept: Any) -> None:
        state, exact, said = self.state, self.exact, self._said
        original_restore = self.restore
        self.restore = lambda thing: None  # type: ignore[method-assign]
        self.state, self.exact, self._said = state, exact, said
        original(self, kept)
        self.restore = original_restore  # type: ignore[method-assign]

    with instead(EnvRunner, "resume", resume):
        yield

"""Faults on purpose: what `chaos` in a configuration asks a runner to do to itself.

Owns their kinds, their chance, and how a planned one happens once. Randomness is the operating
system's and not the agent's: what is injected must not be part of what a successor restores, or it
would meet the same fault at the same step again. For the same reason nothing here belongs to the
environment: it is put around the call that serves a step, never around one that does it again.
Of a planned fault the successor learns from the file that the dead one has left. Where nothing is
asked for, nothing of this is there.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

from dsec.ipc.frames import Harm, Phase, PlannedFault

P = ParamSpec("P")
R = TypeVar("R")
EXIT_CODE: Final = 3
_BY_CHANCE: Final = (Phase.STEP, Phase.ACT, Phase.REWARD)
_RESET: Final = int(Phase.RESET)


class InjectedFault(Exception):
    """The exception that a plan asks for."""


class At(Protocol):
    """Knows the number of the record that is worked on; an outbox does."""

    @property
    def at(self) -> int: ...


def crash() -> None:
    """Read where nothing is mapped, as a broken simulator does."""
    ctypes.string_at(0)


def hang() -> None:
    """Never come back."""
    while True:
        pass


def _send(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def leave() -> None:
    """End the process without a word, as a library that calls exit() does."""
    os._exit(EXIT_CODE)


def throw() -> None:
    """Raise what nobody expects."""
    raise InjectedFault("a fault that was planned")


_KINDS: dict[str, Callable[[], None]] = {
    "segv": crash,
    "hang": hang,
    "abort": os.abort,
    "kill": _send(signal.SIGKILL),
    "stop": _send(signal.SIGSTOP),
    "exit": leave,
    "exception": throw,
}


def commit(kind: str) -> None:
    """Do a fault of this kind to this process.

    Raises:
        InjectedFault: the kind is `exception`.
        KeyError: there is no such kind.
    """
    _KINDS[kind]()


class Chaos:
    """Counts steps down to the next fault of each kind.

    Args:
        chances: of each kind, for each step; those that are 0 are left out.
    """

    def __init__(self, chances: Mapping[str, float]) -> None:
        dice = random.SystemRandom()
        self._left = {kind: _gap(chance, dice.random()) for kind, chance in chances.items()}

    def tick(self) -> None:
        """One step is about to be made; it may be the last."""
        for kind in self._left:
            self._left[kind] -= 1
            if not self._left[kind]:
                _KINDS[kind]()


class Planned:
    """The planned faults of one phase that have not happened yet, the first one first."""

    def __init__(self, harm: Harm, phase: int) -> None:
        self._folder = Path(harm.folder)
        mine = [fault for fault in harm.planned if fault.phase == phase]
        mine.sort(key=lambda fault: (fault.step, fault.after))
        self._left = deque(fault for fault in mine if not self._evidence(fault).exists())

    def __bool__(self) -> bool:
        return bool(self._left)

    def due(self, n: int, *, after: bool) -> None:
        """Record n is worked on; what was planned for it, or for an earlier one, happens now."""
        left = self._left
        while left and left[0].step <= n and left[0].after == after:
            fault = left.popleft()
            if self._first(fault, n):
                _KINDS[fault.kind]()

    def _evidence(self, fault: PlannedFault) -> Path:
        return self._folder / evidence_name(fault)

    def _first(self, fault: PlannedFault, n: int) -> bool:
        """Leave the file that says so, unless it is there. Without one a successor would meet the
        same fault again, so where it can't be written nothing happens."""
        told = {"seq": n, "pid": os.getpid(), "at": time.monotonic()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._evidence(fault).open("x") as file:
                json.dump(told, file)
        except OSError:
            return False
        return True


def evidence_name(fault: PlannedFault) -> str:
    """The file that a planned fault leaves."""
    instant = "after" if fault.after else "before"
    return f"{fault.step}.{Phase(fault.phase).name.lower()}.{instant}.{fault.kind}"


def with_faults(call: Callable[P, R], harm: Harm, phase: Phase, where: At) -> Callable[P, R]:
    """`call` as it is, or with something that may happen before or after it, each time.

    Args:
        call: of user code, in this phase.
        where: tells for which record.
    """
    if not harm:
        return call
    planned = Planned(harm, phase)
    chances = harm.chances if phase in _BY_CHANCE else {}
    if not planned and not chances:
        return call
    chaos = Chaos(chances)

    def faulty(*args: P.args, **kwargs: P.kwargs) -> R:
        chaos.tick()
        planned.due(where.at, after=False)
        result = call(*args, **kwargs)
        planned.due(where.at, after=True)
        return result

    return faulty


def with_resets(enter: Callable[[int, int], None], harm: Harm) -> Callable[[int, int], None]:
    """The same for resets, which begin when the progress word says so."""
    planned = Planned(harm, Phase.RESET)
    if not planned:
        return enter

    def faulty(phase: int, n: int) -> None:
        enter(phase, n)
        if phase == _RESET:
            planned.due(n, after=False)

    return faulty


def _gap(chance: float, dice: float) -> int:
    """Steps to the next fault, the faulty one included: as if each step threw the dice."""
    if chance >= 1.0:
        return 1
    return 1 + int(math.log(1.0 - dice) / math.log(1.0 - chance))

"""User code for the matrix: an environment, two policies and a reward that fail at one spot.

Each fires once, in a runner and never in a trial copy of one (a self-check steps environments in
scratch processes), and leaves its evidence beforehand, as `faulty.Fault` does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from dsec.policies import RandomPolicy
from dsec.runners.contract import Transitions
from tests.crash import harm
from tests.crash.faulty import FAULTS, Walk

SUPERVISOR = os.getppid()  # the parent of the zygote that imports this file, and of every runner
ALL = FAULTS | harm.HARM


def leave(path: Path) -> None:
    """Write the pid, whole or not at all."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_text(str(os.getpid()))
    made.rename(path)


class Spot:
    """One place in user code where a fault may happen: the `at`-th time it is come by, or later."""

    def __init__(self, kind: str, phase: str, at: int, evidence: str, name: str) -> None:
        self.kind, self.phase, self.at, self.calls = kind, phase, at, 0
        self.path = Path(evidence, name)

    def pass_by(self, phase: str, at: int | None = None) -> None:
        """Count a call; fire if it is the one."""
        if phase != self.phase:
            return
        self.calls += 1
        if self.calls >= (self.at if at is None else at):
            self.fire()

    def fire(self) -> None:
        """Do the harm, unless it was done."""
        if os.getppid() == SUPERVISOR and not self.path.exists():
            leave(self.path)
            ALL[self.kind]()

    def beside(self, suffix: str) -> Path:
        """Another file of this cell."""
        return self.path.with_name(f"{self.path.name}.{suffix}")


class World(Walk):
    """A walk with a spot in every phase of an environment's life."""

    def __init__(self, fault: str, phase: str, at: int, evidence: str, name: str) -> None:
        super().__init__()
        self.spot = Spot(fault, phase, at, evidence, name)
        self.spot.pass_by("construct", 1)
        if phase == "standby" and os.getppid() == SUPERVISOR:
            if (began := self.spot.beside("began")).exists():
                self.spot.fire()
            else:
                leave(began)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.spot.pass_by("first", 1)
        self.spot.pass_by("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.spot.pass_by("step")
        serves = os.getppid() == SUPERVISOR  # the trial of a codec steps, too, and has few seconds
        waits = serves and self.spot.phase == "standby" and self.spot.kind != "none"
        if waits and self.steps == self.spot.at:
            harm.await_file(self.spot.path)
        if self.spot.phase == "replay" and self.spot.kind != "none":
            self.replay()
        return super().step(action)

    def replay(self) -> None:
        """The first fault is a SIGKILL from outside; the spot is whoever steps then."""
        if os.getppid() != SUPERVISOR:
            return
        first = self.spot.beside("first")
        if not first.exists():
            if self.steps == self.spot.at:
                leave(first)
                ALL["kill"]()
        elif first.read_text() != str(os.getpid()):
            self.spot.fire()

    def close(self) -> None:
        if self.steps >= self.spot.at:  # a spare that was never needed closes, too
            self.spot.pass_by("close", 1)


class Chooser(RandomPolicy):
    """A random policy with a spot in every phase but `learn`."""

    def __init__(
        self, *, fault: str, phase: str, at: int, evidence: str, name: str, **spec: Any
    ) -> None:
        super().__init__(**spec)
        self.spot = Spot(fault, phase, at, evidence, name)
        self.spot.pass_by("construct", 1)

    def act(self, obs: Any) -> Any:
        self.spot.pass_by("act")
        return super().act(obs)

    def close(self) -> None:
        self.spot.pass_by("close", 1)


class Learner(Chooser):
    """What it learns changes what it does: the third action in a row that lost is turned round."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.lost = 0

    def act(self, obs: Any) -> Any:
        action = super().act(obs)
        return 1 - action if self.lost >= 3 else action

    def learn(self, transitions: Transitions) -> None:
        self.spot.pass_by("learn")
        self.lost = 0 if transitions.reward[0] > 0 else self.lost + 1

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"lost": self.lost}

    def set_state(self, state: dict[str, Any]) -> None:
        self.lost = state["lost"]
        super().set_state(state)


class Judge:
    """Halves the environment's reward, with a spot in every phase."""

    def __init__(
        self, *, fault: str, phase: str, at: int, evidence: str, name: str, **spec: Any
    ) -> None:
        self.spot = Spot(fault, phase, at, evidence, name)
        self.spot.pass_by("construct", 1)

    def compute(self, transitions: Transitions) -> np.ndarray:
        self.spot.pass_by("reward")
        return transitions.reward / 2

    def close(self) -> None:
        self.spot.pass_by("close", 1)

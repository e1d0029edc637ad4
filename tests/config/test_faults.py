"""Planned faults in a configuration: what is refused, in which words."""

from __future__ import annotations

import pytest

from dsec.config import loads
from dsec.errors import ConfigError

HEAD = """\
run: {steps: 100}
agents:
  - {name: a, env: {id: CartPole-v1}, policy: {entry: "m:P"}}
  - {name: many, count: 2, env: {id: CartPole-v1}, policy: {entry: "m:P"}}
chaos:
  faults:
    - """
GOOD = {"agent": "a", "role": "env", "phase": "step", "step": 3, "kind": "segv"}


def text(**changes: object) -> str:
    fault = {**GOOD, **changes}
    return HEAD + "{" + ", ".join(f"{key}: {value}" for key, value in fault.items()) + "}\n"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"agent": "many-001", "instant": "after"},
        {"role": "policy", "phase": "learn", "kind": "exit"},
        {"role": "reward", "phase": "reward", "kind": "hang", "step": 1e6},
        {"phase": "reset", "kind": "stop"},
    ],
)
def test_a_planned_fault_is_taken(changes: dict[str, object]) -> None:
    (fault,) = loads(text(**changes), "c").config.chaos.faults
    assert fault.model_dump() == {"instant": "before", **GOOD, **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phase": "act"}, "phase: a runner of role env has reset or step"),
        ({"role": "reward"}, "phase: a runner of role reward has reward"),
        ({"phase": "reset", "instant": "after"}, "instant: a reset has only before"),
        ({"agent": "b"}, 'agent: no agent is called "b"'),
        ({"agent": "many"}, "they have numbers: many-000 to many-001"),
        ({"agent": "many-002"}, 'no agent is called "many-002" (did you mean many-000?)'),
        ({"agent": "many-1"}, "no agent is called"),
        ({"kind": "sevg"}, "did you mean segv?"),
        ({"step": -1}, "must be at least 0"),
        ({"where": "x"}, "unknown key"),
    ],
)
def test_a_mistake_is_told_at_its_place(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text(**changes), "c")
    assert said in str(caught.value)
    assert "c:7:" in str(caught.value)

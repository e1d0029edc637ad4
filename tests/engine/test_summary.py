"""The run in numbers and its exit code, progress at a glance, and advice on deaths."""

from __future__ import annotations

import json
import math
import signal

import pytest

from dsec.engine.advice import advice
from dsec.engine.plan import Quota
from dsec.engine.progress import WINDOW_S, Meter
from dsec.engine.summary import Exit, details, exit_code, percentile, totals
from dsec.ipc.frames import ErrorInfo, Phase, Protection, Role
from dsec.report import FAILOVERS_WHOLE, AgentReport, Death, Failover, RunReport

KEYS = [
    "agents",
    "steps",
    "episodes",
    "seconds",
    "steps_per_s",
    "episodes_per_s",
    "mean_return",
    "deaths",
    "failovers",
    "recycled",
    "failover_ms",
    "lost",
    "quarantined",
    "memory",
    "atoms",
    "run_dir",
]


def death(**changes: object) -> Death:
    given: dict[str, object] = {
        "agent": "a",
        "role": Role.ENV,
        "epoch": 0,
        "pid": 5,
        "cause": "c",
        "kind": "signal",
        "phase": Phase.STEP,
    }
    return Death(**(given | changes))  # type: ignore[arg-type]


def report(*agents: AgentReport, **changes: object) -> RunReport:
    return RunReport({agent.name: agent for agent in agents}, **changes)  # type: ignore[arg-type]


def test_the_keys_are_always_all_there() -> None:
    assert list(totals(None, None)) == KEYS
    assert list(totals(report(), "/r")) == KEYS
    one = report(AgentReport("a", "a", steps=10, episodes=2, return_sum=5.0), seconds=2.0)
    numbers = totals(one, "/r")
    assert list(numbers) == KEYS
    assert numbers["steps_per_s"] == 5.0
    assert numbers["mean_return"] == 2.5
    assert numbers["failover_ms"] == {"p50": None, "p99": None}


def test_numbers_that_do_not_exist_are_null() -> None:
    metrics = {"loss": math.nan, "lr": 0.5}
    one = report(AgentReport("a", "a", steps=3, return_sum=math.inf, episodes=1, metrics=metrics))
    numbers = totals(one, None)
    assert numbers["steps_per_s"] is None
    assert numbers["mean_return"] is None
    assert numbers["metrics"] == {"a": {"loss": None, "lr": 0.5}}
    json.dumps({**numbers, **details(one)}, allow_nan=False)


@pytest.mark.parametrize(
    ("state", "changes", "code"),
    [
        ("done", {}, Exit.DONE),
        ("quarantined", {}, Exit.AGENTS_FAILED),
        ("running", {}, Exit.AGENTS_FAILED),
        ("quarantined", {"drained": True}, Exit.INTERRUPTED),
        ("done", {"failure": "x", "failure_kind": "config"}, Exit.CONFIG),
        ("done", {"failure": "x", "failure_kind": "machine", "drained": True}, Exit.MACHINE),
        ("done", {"failure": "x", "failure_kind": "internal"}, Exit.INTERNAL),
    ],
)
def test_exit_codes(state: str, changes: dict[str, object], code: Exit) -> None:
    assert exit_code(report(AgentReport("a", "a", state=state), **changes)) == code


def test_speed_is_that_of_the_last_seconds() -> None:
    meter = Meter([Quota(steps=1000), Quota(steps=1000)], now=0.0)
    agent = AgentReport("a", "a", state="starting")
    live = report(agent)
    snapshot = meter.read(live, 3.0)
    assert (snapshot.steps_per_s, snapshot.eta_s, snapshot.mean_return) == (None, None, None)
    agent.state = "running"
    for second in range(4, 30):
        agent.steps += 10 if second < 20 else 50
        snapshot = meter.read(live, float(second))
    assert snapshot.steps_per_s == pytest.approx(50.0)
    assert snapshot.eta_s == pytest.approx((2000 - agent.steps) / 50)
    assert snapshot.done_share == agent.steps / 2000
    assert snapshot.states == {"running": 1}
    assert meter.read(live, 30.0 + 2 * WINDOW_S).steps_per_s == 0.0


def test_episodes_can_bound_a_run_too() -> None:
    meter = Meter([Quota(episodes=10)], now=0.0)
    agent = AgentReport("a", "a", state="running", steps=10, episodes=1, returns_last=3.0)
    meter.read(report(agent), 1.0)
    agent.steps, agent.episodes = 50, 5
    snapshot = meter.read(report(agent), 2.0)
    assert (snapshot.done_share, snapshot.eta_s, snapshot.mean_return) == (0.5, 1.25, 3.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"signal": signal.SIGSEGV}, "Native code under the environment crashed"),
        ({"signal": signal.SIGKILL}, "dmesg"),
        ({"signal": signal.SIGTERM}, "Something sent SIGTERM"),
        ({"kind": "hang", "phase": Phase.RESET}, "raise deadlines.reset_s"),
        ({"kind": "hang", "phase": Phase.ACT, "role": Role.POLICY}, "raise deadlines.act_s"),
        ({"kind": "exit", "exit_code": 3}, "called sys.exit() or os._exit()"),
        ({"kind": "exit", "exit_code": 125}, "asks not to be started again"),
        ({"kind": "exception"}, "Mend the code of the environment"),
        (
            {"kind": "exception", "error": ErrorInfo("UserCodeError", "bad reward")},
            "Mend what the first line says",
        ),
        (
            {
                "kind": "exception",
                "memory_limit_bytes": 64 << 20,
                "error": ErrorInfo("MemoryError", ""),
            },
            "limit of 64 MiB; raise limits.memory_mb",
        ),
        (
            {
                "signal": signal.SIGABRT,
                "memory_limit_bytes": 64 << 20,
                "rss_peak_bytes": 63 << 20,
            },
            "raise limits.memory_mb",
        ),
        (
            {"kind": "exception", "error": ErrorInfo("dsec.errors.CorruptRingError", "env ring")},
            "Not the environment is to blame",
        ),
        (
            {"kind": "exception", "error": ErrorInfo("dsec.errors.FrameError", "unknown field")},
            "two versions of dsec-kernel",
        ),
        ({"kind": "protocol"}, "that are not its own"),
    ],
)
def test_every_death_has_its_advice(changes: dict[str, object], words: str) -> None:
    said = advice(death(**changes))
    assert words in said
    assert bool(said) == bool(words)


def failover(total_ms: float = 2.0, **changes: object) -> Failover:
    given: dict[str, object] = {
        "agent": "a",
        "role": Role.ENV,
        "epoch": 1,
        "death": death(stderr_tail="a stack"),
        "tried": (),
        "level": "state",
        "exact": True,
        "why": "",
        "poisoned": False,
        "seq": 41,
        "action_last": "1",
        "replayed": 7,
        "detect_ms": 0.5,
        "fence_ms": 1.0,
        "restore_ms": 0.25,
        "replay_ms": 0.125,
        "total_ms": total_ms,
    }
    return Failover(**(given | changes))  # type: ignore[arg-type]


def test_failovers_are_counted_and_measured_and_are_no_failure() -> None:
    run = report(AgentReport("a", "a", "done"))
    for number in range(1, 101):
        run.count(failover(float(number)))
    numbers = totals(run, "/r")
    assert (numbers["failovers"], numbers["deaths"]) == (100, 100)
    assert numbers["failover_ms"] == {"p50": 50.0, "p99": 99.0}
    assert exit_code(run) is Exit.DONE
    assert run.agents["a"].failovers == 100


def test_each_failover_is_one_whole_event() -> None:
    run = report(AgentReport("a", "a", "done"))
    run.count(failover(detect_ms=None, seq=-1, tried=("killed by SIGKILL while idle",)))
    [event] = details(run, None)["failovers_in_order"]
    assert json.loads(json.dumps(event)) == event
    assert (event["role"], event["level"], event["exact"]) == ("env", "state", True)
    assert (event["seq"], event["action_last"], event["replayed"]) == (None, "1", 7)
    assert event["ms"] == {
        "detect": None,
        "fence": 1.0,
        "restore": 0.25,
        "replay": 0.125,
        "total": 2.0,
    }
    assert event["tried"] == ["killed by SIGKILL while idle"]
    assert event["death"]["stderr_tail"] == "a stack"


def test_why_nothing_was_kept_is_told_where_it_mattered() -> None:
    agent = AgentReport("a", "a", "done")
    agent.protection[Role.ENV] = Protection("none", notes=("a snapshot would cost 9 ms",))
    run = report(agent)
    told = run.count(failover(exact=False, level="none", why="nothing was kept"))
    assert told.why == "nothing was kept: a snapshot would cost 9 ms"
    assert run.failovers == [told]
    assert run.count(failover()).why == "", "it was exact"


def test_of_very_many_failovers_only_the_figures_are_kept() -> None:
    run = report(AgentReport("a", "a", "done"))
    for _ in range(FAILOVERS_WHOLE + 1):
        run.count(failover())
    assert run.failovers[-2].death.stderr_tail == "a stack"
    assert run.failovers[-1].death.stderr_tail == ""
    assert run.failovers[-1].death.cause == "c"


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 1.0, 2.0)],
)
def test_a_percentile_is_one_of_the_values(
    values: list[float], share: float, value: float | None
) -> None:
    assert percentile(values, share) == value

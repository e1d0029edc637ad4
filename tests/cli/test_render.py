"""A run in words."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import pytest

from dsec.cli import render
from dsec.engine import (
    AgentReport,
    Death,
    Exit,
    Failover,
    Outcome,
    RunReport,
    Snapshot,
    error_object,
    totals,
)
from dsec.errors import ConfigError, Diagnostic, MachineError
from dsec.ipc.frames import ErrorInfo, Phase, Role


def snapshot(number: int = 2, **changes: object) -> Snapshot:
    reports = tuple(
        AgentReport(f"a-{n:03d}", "a" if n % 3 else "b", "running", 1500, 30, 660.0, 22.0)
        for n in range(number)
    )
    given: dict[str, object] = {
        "elapsed_s": 12.0,
        "states": Counter(running=number - 1, quarantined=1),
        "steps": 52_300,
        "episodes": 2_310,
        "deaths": 1,
        "steps_quota": 200_000,
        "steps_per_s": 48_000.4,
        "mean_return": 22.41,
        "eta_s": 3.08,
        "agents": reports,
    }
    return Snapshot(**(given | changes))  # type: ignore[arg-type]


def on_screen(view: Snapshot, width: int = 120) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render.progress_table(view, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_one_line_says_it_all() -> None:
    assert render.progress_line(snapshot()) == (
        "[12 s] 2 agents: 1 running, 1 quarantined | 52,300/200,000 steps (26%) | 48,000 steps/s | "
        "2,310 episodes | recent return 22.4 | 1 death | 3.1 s left"
    )
    by_episodes = snapshot(steps_quota=0, episodes_quota=5_000, eta_s=None, mean_return=None)
    assert "52,300 steps | " in render.progress_line(by_episodes)
    assert "2,310/5,000 episodes | 1 death" in render.progress_line(by_episodes)


def test_on_a_narrow_terminal_it_is_broken_between_its_parts() -> None:
    for width in (80, 60, 45):
        shown = on_screen(snapshot(), width).splitlines()
        begin = next(i for i, line in enumerate(shown) if line.startswith("[12 s]"))
        lines = [line.rstrip() for line in shown[begin:]]
        assert max(map(len, lines)) <= width
        assert " | ".join(lines) == render.progress_line(snapshot())
    assert len(lines) > 3


def test_few_agents_have_a_row_each_and_many_share_them() -> None:
    few = on_screen(snapshot(3))
    assert all(f"a-00{n}" in few for n in range(3))
    many = on_screen(snapshot(1000))
    assert len(many.splitlines()) < 10
    assert "a x 666" in many
    assert "b x 334" in many
    assert "999,000" in many  # 666 agents of 1,500 steps


def test_many_entries_are_cut_short() -> None:
    agents = tuple(AgentReport(f"g{n}", f"g{n}", "running", 1) for n in range(300))
    assert "284 more entries" in on_screen(snapshot(agents=agents))


@pytest.mark.guarantee("G6")
def test_a_death_is_told_with_all_that_is_known() -> None:
    death = Death(
        agent="cartpole-003",
        role=Role.ENV,
        epoch=0,
        pid=1234,
        cause="killed by SIGSEGV in step",
        kind="signal",
        signal=11,
        phase=Phase.STEP,
        seq_last=812,
        action_last="1",
        rss_peak_bytes=48 << 20,
        memory_limit_bytes=1024 << 20,
        fault_address="0x0",
        stderr_tail="one\n\x1b[31mtwo\x07",
    )
    assert render.death_lines(death, "Do this", "/r/a.err") == [
        "DEATH cartpole-003 env (pid 1234): killed by SIGSEGV in step",
        "  phase        step",
        "  sequence     812",
        "  last action  1",
        "  fault at     0x0",
        "  peak memory  48 MiB of 1,024 MiB",
        "  stderr",
        "    | one",
        "    | \\x1b[31mtwo\\x07",
        "  log          /r/a.err",
        "  what to do   Do this",
    ]


def test_a_death_of_which_nothing_is_known_is_short() -> None:
    death = Death("a", Role.POLICY, 0, 7, "could not be forked", "spawn")
    assert render.death_lines(death, "", "") == ["DEATH a policy (pid 7): could not be forked"]


def test_a_message_of_user_code_can_not_steer_the_terminal() -> None:
    wild = "raised E in step: \x1b[2J\x00 one\ntwo"
    died = Death("a", Role.ENV, 0, 1, wild, "exception")
    assert render.death_lines(died, "", "")[0] == (
        "DEATH a env (pid 1): raised E in step: \\x1b[2J\\x00 one\n    two"
    )
    problem = Diagnostic("run", wild)
    for error in (MachineError(wild, ""), ConfigError([problem])):
        assert "\x1b" not in "".join(render.error_lines(error))


@pytest.mark.guarantee("G6")
def test_of_a_crash_the_innermost_calls_are_shown() -> None:
    native = ["dsec: fatal signal 11 at address 0x8", *(f"lib.so(+{n})" for n in range(30))]
    python = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1"]
    python += [f'  File "{n}.py", line 1 in f' for n in range(30)]
    shown = render.stderr_lines("\n".join(["said before", *native, *python]))
    assert shown[:2] == native[:2]
    assert '  File "0.py", line 1 in f' in shown
    assert len(shown) == 2 * render.STACK_LINES_MAX
    assert "said before" not in shown
    plain = [f"{n}" for n in range(100)]
    assert render.stderr_lines("\n".join(plain)) == plain[-render.STDERR_LINES_MAX :]


@pytest.mark.guarantee("G6")
def test_of_a_hang_the_innermost_calls_are_shown() -> None:
    python = ["Current thread 0x1 (most recent call first):"]
    python += [f'  File "{n}.py", line 1 in f' for n in range(30)]
    shown = render.stderr_lines("\n".join(["said before", *python]))
    assert shown == python[: render.STACK_LINES_MAX]


def test_what_the_message_says_is_not_said_again_as_a_traceback_of_the_runner() -> None:
    error = ErrorInfo("UserCodeError", "environment 0: reward: expected a number")
    ours = f"Traceback (most recent call last):\n  File runners/env.py\nE: {error.message}"
    death = Death("a", Role.ENV, 0, 7, "c", "exception", error=error, stderr_tail=ours)
    assert render.death_lines(death, "", "") == ["DEATH a env (pid 7): c"]
    death = replace(death, stderr_tail=f"said before\n{ours}")
    assert render.death_lines(death, "", "")[1:] == ["  stderr", "    | said before"]


def test_a_crash_in_a_constructor_shows_the_innermost_calls() -> None:
    python = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1"]
    python += [f'  File "{n}.py", line 1 in f' for n in range(30)]
    problem = Diagnostic(
        "agents[0].env", "killed by SIGSEGV", detail="\n".join(["lib.so", *python])
    )
    _, *shown = render.error_lines(ConfigError([problem]))
    assert [line.strip() for line in shown] == [
        line.strip() for line in python[: render.STACK_LINES_MAX]
    ]


def test_a_traceback_takes_the_place_of_stderr() -> None:
    error = ErrorInfo("ValueError", "x", traceback="Traceback\n  here")
    death = Death("a", Role.REWARD, 0, 7, "c", "exception", error=error, stderr_tail="noise")
    lines = render.death_lines(death, "", "")
    assert "    |   here" in lines
    assert not any("noise" in line for line in lines)


def test_mistakes_are_one_line_each_with_the_traceback_below() -> None:
    error = ConfigError(
        [
            Diagnostic("a.b", "wrong", "c.yaml", 3, 5),
            Diagnostic("c", "worse", "c.yaml", 4, 1, detail="Traceback\n  x"),
        ]
    )
    assert render.error_lines(error) == [
        "c.yaml:3:5: a.b: wrong",
        "c.yaml:4:1: c: worse",
        "    Traceback",
        "      x",
    ]
    outcome = Outcome(Exit.CONFIG, totals(None, None), error)
    found = error_object(outcome.error, int(outcome.code))
    assert found is not None
    assert (found["kind"], found["exit_code"]) == ("config", 2)
    assert found["diagnostics"][0] == {
        "file": "c.yaml",
        "line": 3,
        "column": 5,
        "path": "a.b",
        "message": "wrong",
    }


def test_a_machine_that_cannot_says_what_to_do() -> None:
    assert render.error_lines(MachineError("no room", "Make some")) == [
        "dsec-kernel: no room",
        "  Make some",
    ]


def test_the_end_of_a_run() -> None:
    agents = {
        "a": AgentReport("a", "a", "done", 1000, 40, 880.0, 22.0),
        "b": AgentReport("b", "b", "quarantined", 200, 8, 160.0, 20.0, metrics={"loss": 0.25}),
    }
    report = RunReport(agents, seconds=2.0, files=("a.parquet",))
    outcome = Outcome(Exit.AGENTS_FAILED, totals(report, "/r"), report=report)
    done = "2 agents, 1,200 steps, 48 episodes in 2.0 s (600 steps/s, 24.0 episodes/s)"
    assert render.outcome_lines(outcome) == [
        f"ended with 1 quarantined: {done}",
        "mean return 21.7 | 0 deaths | 0 lost",
        "quarantined: b",
        "b: loss 0.250",
        "/r (a.parquet)",
    ]
    agents["b"].state = "done"
    assert render.outcome_lines(outcome)[0] == f"done: {done}"
    report.drained = True
    assert render.outcome_lines(outcome)[0].startswith("interrupted: ")
    assert render.outcome_lines(Outcome(Exit.CONFIG, totals(None, None))) == []
    validated = Outcome(Exit.MACHINE, totals(report, None), report=report)
    assert render.outcome_lines(validated) == [], "nothing was run"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3600, "1 h 00 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


@pytest.mark.parametrize("cells", [10, 20, 40])
@pytest.mark.parametrize(
    "name",
    ["a" * 200, "агент" * 30 + "-001", "代理人" * 60 + "-002", "🤖👩\u200d🚀" * 40, "[bold]-03"],
)
def test_a_name_is_shortened_to_its_beginning_and_end(name: str, cells: int) -> None:
    from rich.cells import cell_len

    shown = render.shortened(name, cells)
    assert cell_len(shown) <= cells
    if cell_len(name) <= cells:
        assert shown == name
    else:
        head, _, tail = shown.partition("…")
        assert head and tail
        assert name.startswith(head) and name.endswith(tail)


def test_a_name_that_looks_like_markup_is_shown_as_it_is() -> None:
    from rich.console import Console

    agent = AgentReport("[red]代理[/red]", "g", "running", steps=5)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render.progress_table(snapshot(agents=(agent,)), 100))
    assert "[red]代理[/red]" in console.export_text()


def failover(**changes: object) -> Failover:
    death = Death("cartpole-003", Role.ENV, 0, 9, "killed by SIGSEGV in step", "signal", signal=11)
    given: dict[str, object] = {
        "agent": "cartpole-003",
        "role": Role.ENV,
        "epoch": 1,
        "death": death,
        "tried": (),
        "level": "state",
        "exact": True,
        "why": "",
        "poisoned": False,
        "seq": 1812,
        "action_last": "1",
        "replayed": 1,
        "detect_ms": 0.1,
        "fence_ms": 1.0,
        "restore_ms": 0.3,
        "replay_ms": 0.2,
        "total_ms": 2.345,
    }
    return Failover(**(given | changes))  # type: ignore[arg-type]


def test_a_failover_is_one_line() -> None:
    assert render.failover_line(failover()) == (
        "FAILOVER cartpole-003 env: killed by SIGSEGV in step after record 1,812; "
        "went on exactly (state, 1 step replayed); 2.3 ms"
    )
    answers = render.failover_line(failover(role=Role.POLICY))
    assert "; went on with its state (state, 1 step replayed); " in answers
    lost = failover(exact=False, seq=-1, why="observation 7 came out\notherwise")
    assert render.failover_line(lost) == (
        "FAILOVER cartpole-003 env: killed by SIGSEGV in step; "
        "episode ended by infrastructure (observation 7 came out\\notherwise); 2.3 ms"
    )
    poisoned = render.failover_line(failover(exact=False, poisoned=True, why="not again"))
    assert "; episode ended by infrastructure (the same step was fatal twice); " in poisoned


def test_no_episode_ends_for_a_policy_that_begins_anew() -> None:
    lost = failover(role=Role.POLICY, exact=False, why="none of its state was kept")
    line = render.failover_line(lost)
    assert "; went on, but not exactly (none of its state was kept); " in line
    report = RunReport({"cartpole-003": AgentReport("cartpole-003", "c", "done", 100)}, seconds=1.0)
    for each in (lost, failover(exact=False), failover(), lost):
        report.count(each)
    line = render.failovers_line(totals(report, "/r"), report)
    assert line.endswith("; 1 exact; 1 episode ended by infrastructure; 2 not exact")


@pytest.mark.parametrize(
    ("value", "text"),
    [(20.0, "20"), (2000.0, "2,000"), (0.25, "0.250"), (3e-5, "3e-05"), (-1234.5, "-1,234")],
)
def test_a_metric_is_a_number_of_any_kind(value: float, text: str) -> None:
    assert render.metric(value) == text
    assert render.metric(None) == "-"


def test_failovers_have_a_line_at_the_end_of_a_run() -> None:
    report = RunReport({"cartpole-003": AgentReport("cartpole-003", "c", "done", 100)}, seconds=1.0)
    for exact in (True, True, False):
        report.count(failover(exact=exact))
    outcome = Outcome(Exit.DONE, totals(report, "/r"), report=report)
    assert (
        "3 failovers: p50 2.3 ms, p99 2.3 ms; 2 exact; 1 episode ended by infrastructure"
        in render.outcome_lines(outcome)
    )
    assert "3 failovers" in render.progress_line(snapshot(failovers=3))

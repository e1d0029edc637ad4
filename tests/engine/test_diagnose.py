"""What children say about the configuration comes back with its line."""

from __future__ import annotations

from pathlib import Path

from dsec.config import Loaded, load
from dsec.engine.diagnose import config_problems
from dsec.ipc.frames import ErrorInfo, Phase, Role
from dsec.report import AgentReport, Death, RunReport

CONFIG = """\
run: {steps: 1000}
agents:
  - name: a
    count: 3
    env:
      id: CartPole-v9
    policy: {entry: "my_policies:P"}
  - name: b
    env:
      id: CartPole-v1
      wrappers:
        - {entry: NoSuch}
    policy: {entry: "a:B"}
"""


def loaded(tmp_path: Path) -> Loaded:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return load(path)


def report(deaths: list[Death], steps: int = 0, **changes: object) -> RunReport:
    agents = {
        name: AgentReport(name, name[0], steps=steps) for name in ("a-000", "a-001", "a-002", "b")
    }
    return RunReport(agents, deaths=deaths, **changes)  # type: ignore[arg-type]


def death(agent: str, error: ErrorInfo | None, **changes: object) -> Death:
    given: dict[str, object] = {
        "role": Role.ENV,
        "epoch": 0,
        "pid": 5,
        "cause": "raised",
        "kind": "exception",
        "phase": Phase.CONSTRUCT,
    }
    return Death(agent=agent, error=error, **(given | changes))  # type: ignore[arg-type]


def lines(tmp_path: Path, report: RunReport, *, dry: bool = False) -> list[str]:
    found = config_problems(loaded(tmp_path), report, dry=dry)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in found]


def test_a_machine_without_memory_is_no_mistake_of_the_configuration(tmp_path: Path) -> None:
    error = ErrorInfo("MemoryError", "", "Traceback", where="env")
    found = report([death("b", error)], failure="raised", failure_kind="machine")
    assert lines(tmp_path, found, dry=True) == []
    loader = death("b", None, kind="import", stderr_tail="x.so: Cannot allocate memory\n")
    assert lines(tmp_path, report([loader])) == []
    limited = death("b", error, memory_limit_bytes=1 << 28)
    assert len(lines(tmp_path, report([limited]))) == 1, "the configuration set that limit"


NO_ENV = ErrorInfo(
    "UserCodeError",
    'no environment "CartPole-v9" (did you mean CartPole-v1?)',
    where="env.id",
    lookup=True,
)


def test_the_standard_for_every_mistake(tmp_path: Path) -> None:
    """However many agents met the fault, it is said once."""
    found = lines(tmp_path, report([death(f"a-00{n}", NO_ENV) for n in range(3)], steps=50))
    assert found == [f"config.yaml:6:7: agents[0].env.id: {NO_ENV.message}"]


def test_all_entries_are_named_in_file_order(tmp_path: Path) -> None:
    wrapper = ErrorInfo("X", "no wrapper", where="env.wrappers[0].entry", lookup=True)
    found = lines(tmp_path, report([death("b", wrapper), death("a-000", NO_ENV)]))
    assert [line.split(": ")[:2] for line in found] == [
        ["config.yaml:6:7", "agents[0].env.id"],
        ["config.yaml:12:12", "agents[1].env.wrappers[0].entry"],
    ]


def test_a_constructor_that_raises_comes_with_its_traceback_once(tmp_path: Path) -> None:
    error = ErrorInfo("ValueError", "bad size", traceback="Traceback: ...\n", where="env")
    deaths = [death(f"a-00{n}", error) for n in range(3)]
    found = config_problems(loaded(tmp_path), report(deaths), dry=False)
    assert len(found) == 1
    assert found[0].message == "can't be constructed: ValueError: bad size"
    assert (found[0].path, found[0].line) == ("agents[0].env", 5)
    assert found[0].detail == "Traceback: ..."
    silent = ErrorInfo("KeyboardInterrupt", "", traceback="Traceback: ...\n", where="env")
    (told,) = config_problems(loaded(tmp_path), report([death("a-000", silent)]), dry=False)
    assert told.message == "can't be constructed: KeyboardInterrupt"


def test_it_is_a_mistake_though_other_entries_step(tmp_path: Path) -> None:
    error = ErrorInfo("ValueError", "bad size", traceback="T", where="env")
    ended = report([death("b", error)], steps=5)
    ended.agents["b"].steps = 0
    assert lines(tmp_path, ended) == [
        "config.yaml:9:5: agents[1].env: can't be constructed: ValueError: bad size"
    ]


def test_one_that_raises_while_others_step_is_a_death_and_no_mistake(tmp_path: Path) -> None:
    error = ErrorInfo("ValueError", "bad luck", where="env")
    assert lines(tmp_path, report([death("a-000", error)], steps=5)) == []
    step = death("a-000", ErrorInfo("ValueError", "x"), phase=Phase.STEP)
    assert lines(tmp_path, report([step])) == []
    crash = death("a-000", None, kind="signal", phase=Phase.CONSTRUCT)
    assert lines(tmp_path, report([crash])) == []


def test_a_dry_run_reports_every_end(tmp_path: Path) -> None:
    crash = death("b", None, kind="signal", cause="killed by SIGSEGV in construct")
    assert lines(tmp_path, report([crash]), dry=True) == [
        "config.yaml:9:5: agents[1].env: killed by SIGSEGV in construct"
    ]


def test_an_image_that_cannot_be_imported_leads_to_its_entry(tmp_path: Path) -> None:
    error = ErrorInfo("LookupError", 'no module "my_policies"', lookup=True)
    cause = "image my_policies: import of my_policies raised LookupError: no module"
    deaths = [
        death(f"a-00{n}", error, kind="import", cause=cause, phase=Phase.IMPORT) for n in range(3)
    ]
    failed = report(deaths, failure=cause, failure_kind="config", failure_error=error)
    assert lines(tmp_path, failed) == [
        'config.yaml:7:14: agents[0].policy.entry: no module "my_policies"'
    ]


def test_an_import_that_kills_leads_to_its_entry_too(tmp_path: Path) -> None:
    cause = "image my_policies: killed by SIGSEGV in import"
    died = death(
        "a-000", None, kind="import", cause=cause, phase=Phase.IMPORT, signal=11, stderr_tail="Why"
    )
    error = ErrorInfo("SIGSEGV", cause)
    failed = report([died], failure=cause, failure_kind="config", failure_error=error)
    (problem,) = config_problems(loaded(tmp_path), failed, dry=False)
    assert problem.detail == "Why", "what it wrote is told, although the failure says the same"
    assert lines(tmp_path, failed) == [
        f"config.yaml:7:14: agents[0].policy.entry: can't be imported: {cause}"
    ]

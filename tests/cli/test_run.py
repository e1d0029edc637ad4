"""`dsec-kernel run` and `validate` with real processes: what is recorded, printed and left."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsec.testing import leaks
from tests import watchdog

pytestmark = pytest.mark.slow

COMMAND: list[str | Path] = [sys.executable, "-m", "dsec.cli.kernel"]
KEYS = {
    "agents",
    "atoms",
    "steps",
    "episodes",
    "seconds",
    "steps_per_s",
    "episodes_per_s",
    "mean_return",
    "deaths",
    "failovers",
    "failover_ms",
    "lost",
    "memory",
    "quarantined",
    "recycled",
    "run_dir",
}
GOOD = """\
run: {name: t, seed: 7, steps: 400}
agents:
  - name: pole
    count: 2
    env:
      id: CartPole-v1
    policy: {entry: "dsec.policies:RandomPolicy"}
"""
ENDLESS = GOOD.replace("steps: 400", "steps: 1_000_000_000")


def config(folder: Path, text: str = GOOD) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def call(folder: Path, *words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = watchdog.run([*COMMAND, *words], folder / "streams", timeout_s=90, **options)
    assert "Traceback" not in done.stdout
    return done


def result_of(stdout: str) -> dict[str, Any]:
    result = json.loads(stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def test_a_run_to_its_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(tmp_path, "run", config(tmp_path), "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = result_of(done.stdout)
    assert set(result) - {"metrics"} == KEYS
    assert (result["agents"], result["steps"], result["deaths"], result["lost"]) == (2, 400, 0, 0)
    assert result["run_dir"] == str(out)
    assert 9 < result["mean_return"] < 60
    kept = json.loads((out / "summary.json").read_text())
    assert kept["exit_code"] == 0
    assert {key: kept[key] for key in result} == result
    assert {name: agent["steps"] for name, agent in kept["agents_by_name"].items()} == {
        "pole-000": 200,
        "pole-001": 200,
    }
    facts = json.loads((out / "kernel.json").read_text())
    assert facts["argv"][1:] == ["run", str(tmp_path / "config.yaml"), "--json", "--out", str(out)]
    assert yaml.safe_load((out / "config.yaml").read_text())["run"]["seed"] == 7


def test_people_read_progress_and_a_summary_on_stdout(tmp_path: Path) -> None:
    done = call(tmp_path, "run", config(tmp_path), "--steps", "600", cwd=tmp_path, env=on_path())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any("2 agents: " in line and "/600 steps" in line for line in lines)
    assert any(line.startswith("done: 2 agents, 600 steps, ") for line in lines[-4:])
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.startswith("t-2")
    assert 'event="run started"' in done.stderr


def test_names_of_any_script_and_length(tmp_path: Path) -> None:
    """In the files, the recording and the summary; and the seeds derive from the whole name."""
    from dsec.recording import Recording

    long = "代理人 агент [red] a/b .. " + "ñ" * 173
    path = config(tmp_path)
    text = path.read_text().replace("name: pole", f'name: "{long}"')
    assert long in text and len(long) == 196
    path.write_text(text)
    out = tmp_path / "out"
    done = call(tmp_path, "run", path, "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    names = [f"{long}-000", f"{long}-001"]
    assert [*json.loads((out / "summary.json").read_text())["agents_by_name"]] == names
    with Recording.open(out) as recording:
        assert [agent.name for agent in recording.agents] == names
        first, second = (recording.transitions(name) for name in names)
    assert len(first.reward) == len(second.reward) == 200
    assert not (first.obs[0] == second.obs[0]).all()
    logs = [log.name for log in (out / "logs").iterdir()]
    for number in ("000", "001"):
        assert sum(name.endswith(f"-{number}.env.err") for name in logs) == 1


def on_path() -> dict[str, str]:
    return {"PYTHONPATH": str(watchdog.ROOT)}


def test_episodes_bound_a_run_too(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD.replace("steps: 400", "episodes: 7"))
    done = call(tmp_path, "run", path, "--json", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert result_of(done.stdout)["episodes"] == 7


def test_a_seed_left_out_is_drawn_and_written_down(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD.replace("seed: 7, ", ""))
    seeds = set()
    for name in ("a", "b"):
        done = call(tmp_path, "run", path, "--json", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        seeds.add(yaml.safe_load((tmp_path / name / "config.yaml").read_text())["run"]["seed"])
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "CartPole-v1",
            "CartPole-v9",
            '6:7: agents[0].env.id: no environment "CartPole-v9" (did you mean CartPole-v1?)',
        ),
        (
            "id: CartPole-v1",
            "id: no_such_module:CartPole-v1",
            '6:7: agents[0].env.id: no module "no_such_module"',
        ),
        (
            "dsec.policies:RandomPolicy",
            "dsec.policies:RandomPolice",
            '7:14: agents[0].policy.entry: module "dsec.policies" has no "RandomPolice" (did you',
        ),
        (
            "dsec.policies:RandomPolicy",
            "dsec_policies:RandomPolicy",
            '7:14: agents[0].policy.entry: no module "dsec_policies"',
        ),
        (
            "id: CartPole-v1",
            "{id: CartPole-v1, kwargs: {no_such_keyword: 1}}",
            "5:5: agents[0].env: can't be constructed: TypeError",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "validate"])
def test_names_that_lead_nowhere_have_their_line(
    tmp_path: Path, command: str, old: str, new: str, said: str
) -> None:
    text = (
        GOOD.replace("    env:\n      id: CartPole-v1", f"    env:\n      {new}")
        if (old.startswith("id:"))
        else GOOD.replace(old, new)
    )
    path = config(tmp_path, text)
    words: list[str | Path] = ["--out", tmp_path / "o"] if command == "run" else []
    done = call(tmp_path, command, path, *words)
    assert done.returncode == 2, done.stderr
    mistakes = [line for line in done.stderr.splitlines() if line.startswith(f"{path}:")]
    assert len(mistakes) == 1, done.stderr
    assert mistakes[0].startswith(f"{path}:{said}")
    assert "DEATH" not in done.stderr
    assert done.stderr.count("Traceback") <= 2 * ("constructed" in said), "once, with its cause"
    assert not (tmp_path / "o").exists()


MANY = """\
run: {steps: 100}
agents:
  - name: a
    env:
      id: CartPole-v9
      wrappers:
        - {entry: TimeLimitt, kwargs: {max_episode_steps: 5}}
        - {entry: "gymnasium.wrappers:NoSuch"}
    policy: {entry: "dsec.policies:RandomPolice"}
    reward: {entry: "dsec.reward:EnvReword"}
"""


def test_validate_tells_all_mistakes_of_an_agent_at_once(tmp_path: Path) -> None:
    """Whichever of its processes finds one first, the others say theirs before they end."""
    done = call(tmp_path, "validate", config(tmp_path, MANY))
    assert done.returncode == 2
    told = [line.split(": ")[1] for line in done.stderr.splitlines() if "agents[0]" in line]
    assert told == [
        f"agents[0].{key}"
        for key in (
            "env.id",
            "env.wrappers[0].entry",
            "env.wrappers[1].entry",
            "policy.entry",
            "reward.entry",
        )
    ], done.stderr


def test_a_valid_configuration_is_said_to_be(tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("dsec-validate-*"))
    done = call(tmp_path, "validate", config(tmp_path))
    assert (done.returncode, done.stdout.partition("\n")[0]) == (
        0,
        f"{tmp_path / 'config.yaml'}: valid",
    ), done.stderr
    assert set(Path("/tmp").glob("dsec-validate-*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "streams"]


def started(program: watchdog.Watched, out: Path) -> None:
    """Wait until the run has recorded something."""
    journal = out / "journal.dsj"
    program.until(
        lambda: journal.exists() and journal.stat().st_size > 20_000, 60, "the first records"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_run_in_order(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    words = [*COMMAND, "run", config(tmp_path, ENDLESS), "--json", "--out", out]
    with watchdog.Watched(words, tmp_path / "streams") as program:
        started(program, out)
        program.send(number)
        assert program.wait(30) == 130, program.tails()
        result = result_of(program.stdout)
        assert result["steps"] > 0
        assert result["lost"] == 0
        assert json.loads((out / "summary.json").read_text())["interrupted"] is True
        assert "Traceback" not in program.stderr
        said = [line for line in program.stderr.splitlines() if "once more to kill" in line]
        assert len(said) == 1


def test_an_interrupt_while_modules_are_imported_has_its_object_too(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from dsec.cli import kernel\n"
        "class Interrupt:\n"  # as the engine is looked for, that is, in the middle of it all
        "    def find_spec(self, name, *_):\n"
        "        if name == 'dsec.engine':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.exit(kernel.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "run", config(tmp_path), "--json"]
    done = watchdog.run(command, tmp_path / "streams", timeout_s=60)
    assert done.returncode == 130
    assert json.loads(done.stdout.splitlines()[-1]).keys() >= KEYS
    assert "interrupted before the run began" in done.stderr


def test_control_c_on_a_terminal_counts_once(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole foreground group, guardian and supervisor alike."""
    out = tmp_path / "out"
    words = [str(word) for word in (*COMMAND, "run", config(tmp_path, ENDLESS), "--out", out)]
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(watchdog.ROOT)
        os.execv(words[0], words)
    try:
        os.set_blocking(master, False)
        seen = bytearray()

        def journal_grows() -> bool:
            drain(master, seen)
            journal = out / "journal.dsj"
            return journal.exists() and journal.stat().st_size > 20_000

        watchdog.until(journal_grows, 60, "the first records")
        os.write(master, b"\x03")
        watchdog.until(lambda: drain(master, seen) or not alive(pid), 30, "the end")
        _, status = os.waitpid(pid, 0)
    except watchdog.HungError as error:
        where = watchdog.picture(watchdog.tree(pid))
        raise AssertionError(f"{error}\n{where}\n{seen.decode(errors='replace')}") from None
    finally:
        leaks.kill_and_reap([p for p in watchdog.tree(pid) if p != os.getpid()])
        os.close(master)
    text = seen.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "\x1b[" in text, "a live table"
    assert text.count("once more to kill") == 1, text
    assert "killing all" not in text
    assert "interrupted: 2 agents" in text


def drain(master: int, seen: bytearray) -> bool:
    """Read what a terminal shows; always False, for use in conditions."""
    try:
        while data := os.read(master, 65536):
            seen.extend(data)
    except OSError:
        return False
    return False


def alive(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


STUBBORN = ENDLESS.replace("id: CartPole-v1", 'entry: "tests.cli.stubborn:Stubborn"')


def test_the_second_signal_kills(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*COMMAND, "run", config(tmp_path, STUBBORN), "--json", "--out", out]
    with watchdog.Watched(words, tmp_path / "streams") as program:
        program.until((tmp_path / "out" / "logs").is_dir, 60, "the start")
        program.until(
            lambda: any("stuck" in p.read_text() for p in (out / "logs").glob("*.err")),
            60,
            "the environment to be stuck",
        )
        program.send(signal.SIGINT)
        program.until(lambda: "once more to kill" in program.stderr, 30, "the first to be heard")
        program.send(signal.SIGINT)
        assert program.wait(20) == 130, program.tails()
        assert "killing all runners" in program.stderr
        assert result_of(program.stdout)["run_dir"] == str(out)


def test_a_second_run_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = config(tmp_path, ENDLESS)
    words = [*COMMAND, "run", path, "--out", out]
    with watchdog.Watched(words, tmp_path / "first") as program:
        started(program, out)
        done = call(tmp_path, "run", path, "--out", out)
        assert done.returncode == 3
        assert "a run is going on in" in done.stderr
        assert f"process {json.loads((out / 'kernel.json').read_text())['supervisor_pid']}" in (
            done.stderr
        )
        program.send(signal.SIGINT)
        assert program.wait(30) == 130, program.tails()
    again = call(tmp_path, "run", path, "--out", out)
    assert again.returncode == 3
    assert "is not free" in again.stderr
    assert "rm -r" in again.stderr


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    done = call(tmp_path, "run", config(tmp_path), "--json", "--out", "/proc/no")
    assert done.returncode == 3
    assert "dsec-kernel: /proc/no can't be written" in done.stderr
    assert result_of(done.stdout)["error"]["kind"] == "machine"


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def test_too_few_descriptors_are_noticed_before_the_start(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD.replace("count: 2", "count: 20"))
    done = call(tmp_path, "run", path, "--out", tmp_path / "out", prepare=limit_files)
    assert done.returncode == 3
    assert "20 agents need 384 open files; the limit (RLIMIT_NOFILE) is 256" in done.stderr
    assert not (tmp_path / "out").exists()


def test_enough_descriptors_under_a_small_limit(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD.replace("count: 2", "count: 8"))
    done = call(tmp_path, "run", path, "--json", "--out", tmp_path / "out", prepare=limit_files)
    assert done.returncode == 0, done.stderr


def test_rings_larger_than_memory_are_a_mistake(tmp_path: Path) -> None:
    text = GOOD.replace("count: 2", "count: 1000\n    ipc: {ring_slots: 16_000_000}")
    done = call(tmp_path, "run", config(tmp_path, text), "--set", "run.steps=100_000")
    assert done.returncode == 2
    assert ":5:11: agents[0].ipc.ring_slots: 16,000,000 slots for 1,000 agents" in done.stderr


def test_a_reader_who_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = " ".join(map(str, [*COMMAND, "run", config(tmp_path), "--out", out]))
    done = watchdog.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"], tmp_path / "streams", timeout_s=90
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["steps"] == 400


def test_closed_streams_do_not_end_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = " ".join(map(str, [*COMMAND, "run", config(tmp_path), "--out", out]))
    script = f"{command} <&- >&- 2>&-"
    done = watchdog.run(["bash", "-c", script], tmp_path / "streams", timeout_s=90)
    assert done.returncode == 0
    assert json.loads((out / "summary.json").read_text())["steps"] == 400


def test_an_agent_that_dies_is_told_with_its_story(tmp_path: Path) -> None:
    text = GOOD + (
        "  - name: bad\n"
        '    env: {entry: "tests.cli.stubborn:Raises"}\n'
        '    policy: {entry: "dsec.policies:RandomPolicy"}\n'
        "    failover: {restarts: {max: 0}}\n"
    )
    done = call(tmp_path, "run", config(tmp_path, text), "--json", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    result = result_of(done.stdout)
    assert (result["deaths"], result["quarantined"]) == (1, 1)
    assert "DEATH bad env (pid " in done.stderr
    assert "  phase        step" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "what to do   Mend the code of the environment" in done.stderr


def test_another_dsec_in_the_working_directory_is_left_alone(tmp_path: Path) -> None:
    """As where somebody has a checkout and calls what is installed."""
    (tmp_path / "dsec").mkdir()
    (tmp_path / "dsec" / "__init__.py").write_text("raise ImportError('the wrong one')")
    words = [sys.executable, "-P", "-m", "dsec.cli.kernel", "validate", config(tmp_path)]
    done = watchdog.run(words, tmp_path / "streams", timeout_s=90, cwd=tmp_path)
    assert done.returncode == 0, done.stderr

"""Runs that ended before their time and go on record what they would have recorded."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsec.engine import identity
from dsec.engine.plan import pool_name
from dsec.errors import PoolAbsent, PoolError
from dsec.ipc.frames import EnvSettings
from dsec.seeds import agent_seed
from dsec.sml import spill
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
from tests import watchdog
from tests.crash import chance, runs
from tests.runners import actors
from tests.runners.atoms import lived, stored
from tests.runners.kernel import AgentPlan

pytest.importorskip("pyarrow")

SEED = 5
ENDLESS = 50_000_000
STEPS = 24_000
PLAIN = {
    "name": "plain",
    "count": 2,
    "env": {"id": "CartPole-v1"},
    "policy": {"entry": "dsec.policies:RandomPolicy"},
}
STACK = {
    "name": "stack",
    "env": {
        "id": "CartPole-v1",
        "num_envs": 2,
        "wrappers": [
            {"entry": "TimeLimit", "kwargs": {"max_episode_steps": 60}},
            {"entry": "NormalizeObservation"},
            {"entry": "FrameStackObservation", "kwargs": {"stack_size": 3}},
        ],
    },
    "policy": {"entry": f"{actors.HERE}:Averaging"},
    "reward": {"entry": f"{actors.HERE}:Smoothing"},
}


def plans(agents: list[dict[str, Any]]) -> list[AgentPlan]:
    """Every agent as the runners' tests describe it."""
    found = []
    for agent in agents:
        count = agent.get("count")
        names = [f"{agent['name']}-{i:03d}" for i in range(count)] if count else [agent["name"]]
        env = {key: value for key, value in agent["env"].items() if key != "num_envs"}
        env["wrappers"] = tuple(env.get("wrappers", ()))
        found += [
            AgentPlan(
                name=name,
                env=EnvSettings(**env),
                policy=agent["policy"]["entry"],
                reward=agent.get("reward", {}).get("entry", "dsec.reward:EnvReward"),
                seed=agent_seed(SEED, name),
                num_envs=agent["env"].get("num_envs", 1),
            )
            for name in names
        ]
    return found


def put_atoms(run_dir: Path, agents: list[dict[str, Any]], seqs: list[int]) -> None:
    """Atoms of every agent at these sequence numbers."""
    every, space = plans(agents), identity.read(run_dir).space
    assert space is not None
    for rank, plan in enumerate(every):
        for seq in seqs:
            atom = lived(plan, seq, rank=rank, ranks=len(every), space=space)
            stored(run_dir / "atoms", atom)


def recording(run_dir: Path) -> dict[str, str]:
    """The recording's files, as fingerprints."""
    files = sorted((run_dir / "recording").iterdir())
    assert files and not (run_dir / "journal.dsj").exists()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def interrupted(
    config: Path,
    folder: Path,
    end: Callable[[watchdog.Watched], None],
    codes: set[int],
    everybody: int,
) -> Path:
    """A run that was ended when each of its agents had done some steps."""
    out = folder / "run"

    def under_way() -> bool:
        done = runs.committed(out)
        return len(done) == everybody and min(done.values()) > 1000

    with watchdog.Watched(runs.argv(config, out), folder / "streams") as program:
        program.until(under_way, 60, "1,000 transitions of each agent")
        end(program)
        assert program.wait(30) in codes, program.tails()
        watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
    return out


def resumed(run_dir: Path, folder: Path, *options: str, code: int = 0) -> runs.Finished:
    argv = [runs.COMMAND, "run", "--resume", run_dir, "--json", *options]
    result = watchdog.run(argv, folder, timeout_s=90, cwd=watchdog.ROOT)
    assert result.returncode == code, result.stderr
    summary = runs.summary_of(result.stdout)
    return runs.Finished(result.returncode, summary, result.stdout, result.stderr, run_dir)


def drain(program: watchdog.Watched) -> None:
    program.send(signal.SIGINT)


def kill(program: watchdog.Watched) -> None:
    os.kill(runs.supervisor_of(program), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(("end", "codes"), [(drain, {130}), (kill, {70, 137})], ids=["int", "kill"])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    end: Callable[[watchdog.Watched], None], codes: set[int], tmp_path: Path
) -> None:
    agents = [PLAIN, STACK]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=STEPS, seed=SEED)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = runs.run(config, tmp_path / "whole")
    assert whole.code == 0, whole.stderr
    out = interrupted(config, tmp_path / "cut", end, codes, len(plans(agents)))
    put_atoms(out, agents, [450, 700])
    torn = sorted((out / "atoms").iterdir())[-1]
    torn.write_bytes(torn.read_bytes()[:-20])
    found = resumed(out, tmp_path / "streams")
    assert recording(out) == recording(whole.run_dir)
    kernel = json.loads((out / "kernel.json").read_text())
    begun = kernel["resumed"]["from"]
    assert begun["stack"] == 450, "the newer atom is torn"
    assert {*begun.values()} <= {450, 700}, "the others were done, or go on from the newer"
    assert len(kernel["earlier"]) == 1
    assert f"{torn.name}: a body of" in found.stderr
    mine, others = found.details, whole.details
    for name, told in others["agents_by_name"].items():
        again = mine["agents_by_name"][name]
        for key in ("state", "steps", "episodes", "mean_return", "chain"):
            assert again[key] == told[key], (name, key)


@pytest.mark.slow
@pytest.mark.guarantee("G12")
def test_global_generators_go_on_where_they_were(tmp_path: Path) -> None:
    """Every role draws from those of its process only: with their atoms a run that was killed ends
    as one that was not. Atoms beyond where it goes on are set aside."""
    agent = {
        "name": "gambler",
        "env": {"entry": f"{chance.HERE}:Dice"},
        "policy": {"entry": f"{chance.HERE}:Gambler"},
        "reward": {"entry": f"{chance.HERE}:Taxed"},
        "snapshot_interval": 20,
    }
    pool = {"size_mb": 2, "persist": True}
    config = runs.write_config(tmp_path / "config.yaml", [agent], steps=9000, seed=SEED, pool=pool)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    names = [pool_name("crash", str(tmp_path / each / "run")) for each in ("whole", "cut")]
    try:
        whole = runs.run(config, tmp_path / "whole")
        assert whole.code == 0, whole.stderr
        out = interrupted(config, tmp_path / "cut", kill, {70, 137}, 1)
        [*_, newest] = sorted((out / "atoms").iterdir(), key=lambda path: spill.label_of(path).seq)
        seq = spill.label_of(newest).seq
        newest.unlink()  # the pool has it, which outlived its kernel
        put_later(out, names[1])
        resumed(out, tmp_path / "streams")
        kernel = json.loads((out / "kernel.json").read_text())
        assert kernel["resumed"]["from"]["gambler"] == seq > 0
        assert recording(out) == recording(whole.run_dir)
        assert [*(out / "atoms").glob("*.past")], "later than what it went on from"
    finally:
        for name in names:
            with suppress(PoolAbsent, PoolError), ShmPool.adopt(name) as left:
                left.unlink()


def put_later(out: Path, pool: str) -> None:
    """An atom beyond all that is recorded, as a timeline may have left that is done anew."""
    with ShmPool.adopt(pool) as left:
        label = max((each.label for each in left.entries()), key=lambda each: each.seq)
        later = Label(label.id + 10**6, label.agent, seq=label.seq + 10**6)
        left.put(later, left.get(label.id))
        spill.spill(left, [later.id], out / "atoms")


def test_a_changed_key_is_named_and_refused_unless_it_is_harmless_or_allowed(
    tmp_path: Path,
) -> None:
    config = runs.write_config(tmp_path / "config.yaml", [PLAIN], steps=ENDLESS, seed=SEED)
    out = interrupted(config, tmp_path, kill, {70, 137}, len(plans([PLAIN])))
    journal = (out / "journal.dsj").read_bytes()
    changed = PLAIN | {"deadlines": {"step_s": 7}, "policy": {"entry": f"{actors.HERE}:Averaging"}}
    runs.write_config(config, [changed], steps=ENDLESS, seed=SEED)
    refused = resumed(out, tmp_path / "refused", str(config), code=2)
    assert "agents[0].policy.entry" in refused.stderr
    assert f"was dsec.policies:RandomPolicy, is {actors.HERE}:Averaging now" in refused.stderr
    assert "--allow agents[0].policy.entry" in refused.stderr
    assert f"{config}:" in refused.stderr, "the line of the key"
    assert "step_s" not in refused.stderr, "which changes nothing that is recorded"
    fewer = resumed(out, tmp_path / "fewer", "--set", "run.steps=1000", code=2)
    assert "run.steps" in fewer.stderr and "--allow run.steps" in fewer.stderr
    assert (out / "journal.dsj").read_bytes() == journal
    assert (out / "config.yaml").read_text() != config.read_text()
    found = resumed(out, tmp_path / "allowed", "--set", "run.steps=1000", "--allow", "run.steps")
    assert found.summary["steps"] == 1000
    assert "run.steps: 50000000 -> 1000" in found.stderr


def test_what_is_no_run_to_go_on_with_is_named(tmp_path: Path) -> None:
    absent = resumed(tmp_path / "nothing", tmp_path / "absent", code=3)
    assert "there is no run to resume" in absent.stderr
    config = runs.write_config(tmp_path / "config.yaml", [PLAIN], steps=ENDLESS, seed=SEED)
    out = tmp_path / "run"
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        program.until(lambda: bool(runs.committed(out)), 60, "the first transitions")
        busy = resumed(out, tmp_path / "busy", code=3)
        assert "a run is going on in" in busy.stderr
        drain(program)
        assert program.wait(30) == 130, program.tails()
    done = runs.run(config, tmp_path / "other", "--steps", "40")
    closed = resumed(done.run_dir, tmp_path / "closed", code=3)
    assert "came to its end" in closed.stderr
    kept = out / "kept.dsj"
    kept.write_bytes(b"?" + kept.read_bytes()[1:])
    before = kept.read_bytes()
    damaged = resumed(out, tmp_path / "damaged", code=3)
    assert "can't be resumed" in damaged.stderr and "no journal" in damaged.stderr
    assert kept.read_bytes() == before

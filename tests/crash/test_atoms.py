"""Atoms of a run that goes on: whole, consistent, and there whatever is killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces

from dsec.engine.plan import pool_name
from dsec.errors import AtomAbsent, MachineError, PoolAbsent, PoolBusy, PoolError
from dsec.failover.codecs import codec_named, object_codec_named
from dsec.policies import RandomPolicy
from dsec.recording import Recording
from dsec.sml import codec, spill
from dsec.sml.atom import Atom, Faith
from dsec.sml.pool_shm import ShmPool, ShmReader
from dsec.testing import leaks
from tests import watchdog
from tests.crash import runs
from tests.crash.faulty import Walk

ENDLESS = 50_000_000
LASTING: dict[str, Any] = {"restarts": {"max": 10_000, "period_s": 1}}
RUNNERS = ("env", "policy", "reward")


@contextmanager
def own_generators() -> Iterator[None]:
    """What a codec restores are this process's global generators, too."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def on_disk(run_dir: Path) -> dict[str, Atom]:
    """The newest atom of each agent; each must be whole."""
    found: dict[str, Atom] = {}
    for path in spill.files(run_dir / "atoms") if (run_dir / "atoms").exists() else ():
        try:
            atom = codec.decode(spill.load(path).body)
        except MachineError:
            assert not path.exists(), "one that a newer has replaced meanwhile"
            continue
        known = found.get(atom.manifest.agent)
        if known is None or known.manifest.seq < atom.manifest.seq:
            found[atom.manifest.agent] = atom
    return found


def same_future(atom: Atom, run_dir: Path, steps: int) -> int:
    """Assert that who is restored from an atom does what was recorded; return how many steps."""
    seq = atom.manifest.seq
    with Recording.open(run_dir) as recording:
        past = recording.transitions(atom.manifest.agent, env=0)
        led_to = past.next_obs()
    with own_generators():
        env: Env[Any, Any] = Walk()
        env.reset(seed=1)
        policy = RandomPolicy(
            observation_space=env.observation_space,
            action_space=spaces.Discrete(2),
            num_envs=1,
            seed=1,
        )
        assert atom.policy is not None
        [kept] = atom.env
        codec_named(kept.codec, env).restore(kept.data)
        object_codec_named(atom.policy.codec, policy).restore(atom.policy.data)
        for n in range(seq, min(seq + steps, len(past.seq))):
            [action] = policy.act(None)
            assert action == past.action[n], f"action {n}"
            obs, reward, terminated, _, _ = env.step(action)
            assert reward == past.reward[n], f"reward {n}"
            assert np.array_equal(obs, led_to[n]), f"observation {n + 1}"
            if terminated:
                env.reset()
    rewards = np.frombuffer(atom.rewards.rewards if atom.rewards else b"")
    assert np.array_equal(rewards, past.reward[seq - len(rewards) : seq]), "the window"
    return max(0, min(seq + steps, len(past.seq)) - seq)


def servers_of_atoms(program: watchdog.Watched, name: str) -> list[int]:
    """Who has the pool mapped for writing: one process, or none while it is being replaced."""
    found = []
    for pid in runs.remains(program):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            if any(f"dsec-pool-{name}" in line and " rw-s " in line for line in lines):
                found.append(pid)
    return found


def runner_pids(program: watchdog.Watched, agent: str, role: str) -> list[int]:
    """Runners, told by the files that they print to."""
    found = []
    for pid in runs.remains(program):
        with suppress(OSError):
            target = Path(f"/proc/{pid}/fd/2").readlink()
            if str(target).endswith(f"/{agent}.{role}.err"):
                found.append(pid)
    return found


@pytest.mark.slow
@pytest.mark.guarantee("G3")
def test_what_an_atom_holds_goes_on_as_the_agent_did(tmp_path: Path) -> None:
    """The pool outlives the run: of each agent the last two snapshots are there, the newest at the
    very end, on disk as well."""
    agents = [
        runs.walker("a", snapshot_interval=40, sync_interval=20),
        runs.walker("b", failover={"standby": "none"}, reward_window_size=30),
    ]
    pool = {"size_mb": 4, "persist": True}
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=9000, pool=pool)
    name = pool_name("crash", str(tmp_path / "run"))
    try:
        done = runs.run(config, tmp_path)
        assert done.code == 0, done.stderr
        with ShmReader(name) as reader:
            atoms = [codec.decode(reader.get(each.label.id)) for each in reader.entries()]
        disk = on_disk(done.run_dir)
        assert {agent: atom.manifest.seq for agent, atom in disk.items()} == {"a": 4500, "b": 4500}
        checked = sum(same_future(atom, done.run_dir, 100) for atom in atoms)
    finally:
        with ShmPool.adopt(name) as left:
            left.unlink()
    assert {atom.manifest.agent for atom in atoms} == {"a", "b"}
    assert checked > 0, "some lie before the end"
    said = done.summary["atoms"]
    assert said["captured"] >= len(atoms) and said["problem"] is None and said["missing"] == {}
    assert (said["kept"], said["on_disk"]) == (len(atoms), 2)
    newest = disk["b"]
    assert newest.rewards is not None
    assert (newest.rewards.length, newest.rewards.steps, newest.rewards.first_seq) == (30, 30, 4470)
    assert newest.env[0].faith is Faith.PROVEN
    assert newest.policy is not None and newest.policy.faith is Faith.BY_CONTRACT


def killed_at_random(
    tmp_path: Path, kills: int, seed: int, roles: tuple[str, ...]
) -> tuple[runs.Finished, int]:
    """Kill the atoms' server (`atoms`) and runners, at instants that chance chooses; then drain.

    While the run goes on every atom that a reader finds in the pool is whole, and what lies on disk
    never goes back."""
    dice = random.Random(seed)
    agents = [
        runs.walker(name, failover=LASTING, snapshot_interval=50, sync_interval=10)
        for name in ("a", "b")
    ]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=ENDLESS, pool={"size_mb": 2})
    out, name = tmp_path / "run", pool_name("crash", str(tmp_path / "run"))
    seqs: dict[str, int] = {}
    reads = 0
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        program.until(lambda: len(on_disk(out)) == 2, 90, "an atom of each on disk")
        for _ in range(kills):
            role, agent = dice.choice(roles), dice.choice("ab")

            def those(role: str = role, agent: str = agent) -> list[int]:
                if role == "atoms":
                    return servers_of_atoms(program, name)
                return runner_pids(program, agent, role)

            reached = runs.committed(out).get(agent, 0)
            program.until(lambda: bool(those()), 60, f"the {role} of {agent}")
            victim = those()[0]
            signal_at = reached + dice.randrange(200)

            def there(at: int = signal_at, agent: str = agent) -> bool:
                return runs.committed(out).get(agent, 0) >= at

            program.until(there, 60, "steps")
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            program.until(lambda pid=victim: pid not in those(), 30, "its death")
            with (
                suppress(PoolAbsent, PoolError),
                ShmReader(name) as reader,
            ):  # gone between two servers, or not
                entries = list(reader.entries())
                for entry in entries:
                    with suppress(AtomAbsent, PoolBusy):
                        atom = codec.decode(reader.get(entry.label.id))
                        assert atom.manifest.seq == entry.label.seq
                        reads += 1
            for agent_name, atom in on_disk(out).items():
                assert atom.manifest.seq >= seqs.get(agent_name, 0), "never back"
                seqs[agent_name] = atom.manifest.seq
        program.send(signal.SIGINT)
        assert program.wait(60) == 130, program.tails()
        summary = runs.summary_of(program.stdout)
        done = runs.Finished(130, summary, program.stdout, program.stderr, out)
    assert not [entry for entry in leaks.shm_entries() if name in entry], "gone with the run"
    return done, reads


def check_whole(done: runs.Finished) -> None:
    """Nothing was lost, and each agent has a newest atom, with which it would go on."""
    held = runs.check_recording(done.run_dir)
    assert done.summary["lost"] == 0
    newest = on_disk(done.run_dir)
    assert {agent: atom.manifest.seq for agent, atom in newest.items()} == held, "the very last"
    for atom in newest.values():
        same_future(atom, done.run_dir, 0)


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G8")
def test_a_killed_server_of_atoms_is_replaced_and_nobody_waits(tmp_path: Path) -> None:
    done, reads = killed_at_random(tmp_path, 4, seed=1, roles=("atoms",))
    check_whole(done)
    assert reads > 0
    deaths = [each for each in done.details["deaths_in_order"] if each["agent"] == "atoms"]
    assert len(deaths) == 4, "each was killed"
    assert done.summary["failovers"] == 0, "no runner noticed"
    assert done.summary["atoms"]["problem"] is None


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G3")
def test_atoms_go_on_when_runners_are_killed(tmp_path: Path) -> None:
    done, _ = killed_at_random(tmp_path, 6, seed=2, roles=RUNNERS)
    check_whole(done)
    assert done.summary["failovers"] == 6
    assert all(each["exact"] for each in done.details["failovers_in_order"])


@pytest.mark.soak
@pytest.mark.guarantee("G2", "G8")
@pytest.mark.parametrize("seed", range(20))
def test_five_hundred_kills(seed: int, tmp_path: Path) -> None:
    """The server is killed more rarely than its budget of restarts allows."""
    done, reads = killed_at_random(tmp_path, 500, seed, (*RUNNERS * 13, "atoms"))
    check_whole(done)
    assert reads > 0
    assert done.summary["failovers"] > 400


@pytest.mark.slow
@pytest.mark.guarantee("G8")
def test_the_kernel_is_killed_and_the_newest_atoms_are_on_disk(tmp_path: Path) -> None:
    config = runs.write_config(
        tmp_path / "config.yaml", [runs.walker("a")], steps=ENDLESS, pool={"size_mb": 2}
    )
    out, name = tmp_path / "run", pool_name("crash", str(tmp_path / "run"))
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        program.until(lambda: bool(on_disk(out)), 60, "an atom on disk")
        assert [entry for entry in leaks.shm_entries() if name in entry], "its pool"
        first = on_disk(out)["a"].manifest.seq
        program.until(
            lambda: runs.committed(out).get("a", 0) > first + 500, 60, "many boundaries more"
        )
        reached = runs.committed(out)["a"]
        os.kill(runs.supervisor_of(program), signal.SIGKILL)
        program.wait(30)
        watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
    newest = on_disk(out)["a"]
    assert newest.manifest.seq > reached - 100, "the last boundary, or the one before"
    assert not [entry for entry in leaks.shm_entries() if name in entry], "gone with the run"
    same_future(newest, out, 50)


@pytest.mark.slow
def test_a_pool_too_small_for_an_atom_is_named_where_it_stands(tmp_path: Path) -> None:
    agents = [runs.walker("wide", width=200_000, ipc={"ring_slots": 16})]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=1000, pool={"size_mb": 1})
    done = runs.run(config, tmp_path)
    assert done.code == 2, done.stderr
    line = next(i for i, text in enumerate(config.read_text().splitlines(), 1) if "size_mb" in text)
    assert f"config.yaml:{line}:" in done.stderr
    assert "pool.size_mb: an atom does not fit" in done.stderr


@pytest.mark.slow
def test_a_pool_that_somebody_owns_is_not_touched(tmp_path: Path) -> None:
    config = runs.write_config(
        tmp_path / "config.yaml", [runs.walker("a")], steps=500, pool={"size_mb": 1}
    )
    name = pool_name("crash", str(tmp_path / "run"))
    with ShmPool.create(name, 1 << 20) as mine:
        try:
            done = runs.run(config, tmp_path)
            assert mine.usage().atoms == 0
        finally:
            mine.unlink()
    assert done.code == 3, done.stderr
    assert f"pool {name} belongs to process {os.getpid()}" in done.stderr
    assert "End that run first" in done.stderr

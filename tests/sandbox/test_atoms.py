"""A sandbox's state as an atom: taken, put back, forked, and kept in a pool while it steps."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec import pools
from dsec.errors import AtomForeign, SandboxFailed, SnapshotError
from dsec.recording import Recording
from dsec.sandbox import AgentSandbox, TrackedEnv
from dsec.sml import codec
from tests import watchdog

CART = "tests.sandbox.worlds:Cart"
TRAP = "tests.sandbox.worlds:Trap"


def walk(env: TrackedEnv, steps: int, seed: int = 0) -> list[Any]:
    """What comes of these actions; resets where an episode ends."""
    seen: list[Any] = []
    for action in np.random.default_rng(seed).integers(2, size=steps).tolist():
        obs, *rest, _ = env.step(action)
        seen.append((obs.tobytes(), *rest))
        if rest[1]:
            seen.append(env.reset()[0].tobytes())
    return seen


@pytest.mark.guarantee("G3")
def test_goes_on_from_an_atom_as_often_as_one_likes() -> None:
    """In the same sandbox and in another, before its first reset; killed on the way, too."""
    failover = {"restarts": {"max": 100}}
    with (
        AgentSandbox(CART, seed=1, failover=failover) as first,
        AgentSandbox(CART, seed=2) as other,
    ):
        env = first.get_env()
        env.reset(seed=3)
        walk(env, 20)
        env.force_mag = 7.5
        last = env.step(1)[0]
        window = env.reward_window
        atom = codec.decode(codec.encode(first.snapshot()))
        expected = walk(env, 60)
        assert first.restore(atom).tobytes() == last.tobytes()
        assert env.reward_window.tolist() == window.tolist() and env.force_mag == 7.5
        os.kill(env.call("pid"), signal.SIGKILL)
        assert walk(env, 60) == expected
        first.restore(atom)
        os.kill(env.call("pid"), signal.SIGKILL)
        assert walk(env, 60) == expected
        assert other.restore(atom).tobytes() == last.tobytes()
        assert walk(other.get_env(), 60) == expected
        assert len(env.failovers) == 2 and all(each.exact for each in env.failovers)


def test_a_reward_s_state_and_the_script_s_own_are_in_it(tmp_path: Path) -> None:
    counts = {"steps": 0, "more": np.arange(3.0)}
    extra = [0]
    with AgentSandbox(
        CART, reward="tests.sandbox.worlds:Counted", seed=1, record=tmp_path / "run"
    ) as sandbox:
        env = sandbox.get_env()
        sandbox.register_state(lambda: dict(counts), counts.update)
        sandbox.register_state(
            lambda: list(extra), lambda state: extra.__setitem__(0, state[0]), "x"
        )
        with pytest.raises(ValueError, match="a name of its own"):
            sandbox.register_state(dict, dict)
        env.reset(seed=3)
        rewards = [env.step(1)[1] for _ in range(3)]
        counts["steps"], extra[0] = 3, 7
        random.seed(5)
        atom = sandbox.snapshot()
        drawn = random.random()
        assert atom.policy is not None and [name for name, _ in atom.registered] == ["x"]
        assert atom.rewards is not None and atom.rewards.state is not None
        assert rewards == [2.001, 2.002, 2.003]
        more = [env.step(0)[1] for _ in range(4)]
        counts["steps"], extra[0] = 9, 9
        sandbox.restore(atom)
        assert (counts["steps"], extra[0], random.random()) == (3, 7, drawn)
        assert env.reward_window.tolist() == rewards
        assert [env.step(0)[1] for _ in range(4)] == more, "its count is what it was"
        with AgentSandbox(CART, seed=2) as plain, pytest.raises(AtomForeign, match="'x'"):
            plain.restore(atom)
    with Recording.open(tmp_path / "run") as recording:
        lengths = [each.length for each in recording.episodes("sandbox-000")]
        assert lengths == [7, 4], "an episode begins where one goes on from"


def test_a_fork_has_random_streams_of_its_own() -> None:
    with AgentSandbox(CART, seed=1) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)
        walk(env, 12)
        with sandbox.fork() as one, sandbox.fork() as two:
            ones, twos = one.get_env(), two.get_env()
            assert env.reward_window.tolist() == ones.reward_window.tolist()
            steps = [each.step(1)[0].tobytes() for each in (env, ones, twos)]
            assert len(set(steps)) == 1, "the same episode"
            begun = [each.reset()[0].tobytes() for each in (env, ones, twos)]
            assert len(set(begun)) == 3, "and other ones after it"
            assert one.snapshot().manifest.parent is not None
            with one.fork() as deeper:
                assert deeper.get_env().step(0)[0].tobytes() == ones.step(0)[0].tobytes()


def test_what_can_not_be_taken_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with AgentSandbox(CART, resource_profile="unprotected") as sandbox:
        env = sandbox.get_env()
        with pytest.raises(SnapshotError, match="call reset"):
            sandbox.snapshot()
        env.reset(seed=1)
        atom = sandbox.snapshot()
        assert atom.env[0].codec == "attributes", "found when it was asked for"
        with pytest.raises(TypeError, match="restore"):
            sandbox.restore(b"")  # type: ignore[arg-type]
        assert env.step(1)[1] == 1.0
    with AgentSandbox(TRAP, env_kwargs={"what": "none", "at": -1}) as other:
        other.get_env().reset(seed=1)
        with pytest.raises(SnapshotError):
            other.restore(atom)
        assert other.get_env().reset(seed=1)[0][0] == 0
        assert other.get_env().failovers == []


def test_a_pool_has_them_while_it_steps(tmp_path: Path) -> None:
    with AgentSandbox(CART, resource_profile="rl_tuned", record=tmp_path / "run") as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)

        def stored() -> bool:
            walk(env, 20)
            found = [each for each in pools.survey() if each.name == sandbox.pool]
            return bool(found and found[0].usage and found[0].usage.atoms)

        watchdog.until(stored, 30, "an atom in the pool")
        taken = walk(env, 30)
    assert not any(each.name == sandbox.pool for each in pools.survey())
    assert taken and list((tmp_path / "run" / "atoms").glob("*.atom"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sync_interval": 3}, "sync_interval: a snapshot lies at each 50 steps"),
        ({"pool": {"size": 4}}, "pool.size"),
        ({"sync_interval": 0}, "sync_interval: must be at least 1"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentSandbox(CART, **arguments)


@pytest.mark.guarantee("G8")
def test_a_pool_too_small_is_told() -> None:
    with AgentSandbox(
        "tests.sandbox.worlds:Heavy", pool={"size_mb": 1}, sync_interval=1
    ) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)

        with pytest.raises(SandboxFailed, match="an atom does not fit"):
            for _ in range(1_000_000):  # the server comes to look when it does
                env.step(0)

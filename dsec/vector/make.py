"""From what somebody types to a vector of environments: its order, its lanes.

Owns the arguments that all vectors have in common, whichever face they get: Gymnasium's (env.py)
or another library's (`dsec.integrations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium.vector import AutoresetMode

from dsec.sandbox.lanes import Lanes
from dsec.sandbox.order import EnvName, Given, limits_of, make_order, spec_of
from dsec.vector.env import IsolatedVectorEnv

_MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}


def make_vec(
    env_id: EnvName,
    num_envs: int = 1,
    *,
    envs_per_process: int = 1,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    copy: bool = True,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    resource_profile: str = "rl_default",
    seed: int | None = None,
    reward: str | Mapping[str, Any] | None = None,
    snapshot_interval: int = 50,
    failover: Mapping[str, Any] | None = None,
    deadlines: Mapping[str, float] | None = None,
    limits: Mapping[str, Any] | None = None,
    isolation: Mapping[str, Any] | None = None,
    record: str | Path | None = None,
    start_timeout_s: float | None = None,
    answer_timeout_s: float | None = None,
) -> IsolatedVectorEnv:
    """Make a vector of isolated environments.

    Args:
        env_id, env_kwargs, wrappers: as for `AgentSandbox`.
        num_envs: environments in all.
        envs_per_process: of these in each process; num_envs is a multiple of it. More cost less,
            and share a fate.
        autoreset_mode: what follows the end of an episode, as Gymnasium defines it.
        copy: observations are fresh arrays; else the same ones are written over at each step.
        reward: `module:Class` of a reward, as for `AgentSandbox`; one in a process of its own for
            the environments of each process. What is no transition (a reset in the place of a
            step, the end of an episode that was lost) has the reward 0.0, whatever it says.
        record: a new directory for a recording of all transitions, as `dsec-kernel run` makes
            one; its agents are `vector-000` and so on, one for each process. With next-step
            autoreset, of one environment for each process only.
        resource_profile, seed, snapshot_interval, failover, deadlines, limits, isolation,
            start_timeout_s, answer_timeout_s: as for `AgentSandbox`.

    Raises:
        ValueError, TypeError: an argument that doesn't exist, or isn't in its range.
        SandboxFailed: an environment can't be made.
        MachineError: the machine can't; says what it needs.
    """
    mode = AutoresetMode(autoreset_mode)
    _check(num_envs, envs_per_process, mode, record is not None)
    given = Given(
        env=env_id,
        kwargs=env_kwargs or {},
        wrappers=wrappers,
        name="vector",
        seed=seed,
        profile=resource_profile,
        snapshot_interval=snapshot_interval,
        failover=failover,
        deadlines=deadlines,
        limits=limits,
        isolation=isolation,
        reward=reward,
        record=record,
    )
    lanes, width = num_envs // envs_per_process, envs_per_process
    order = make_order(given, lanes=lanes, num_envs=width, autoreset=_MODES[mode])
    start_s, answer_s, close_s = limits_of(order)
    opened = Lanes(
        order, width, start_s=start_timeout_s or start_s, answer_s=answer_timeout_s or answer_s,
        close_s=close_s,
    )  # fmt: skip
    return IsolatedVectorEnv(opened, mode, copy=copy, spec=spec_of(env_id))


def _check(count: int, width: int, mode: AutoresetMode, recorded: bool) -> None:
    for name, value in (("num_envs", count), ("envs_per_process", width)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} is an int from 1, not {value!r}")
    if count % width:
        raise ValueError(f"{count} environments can't be {width} to a process")
    if recorded and mode is AutoresetMode.NEXT_STEP and width > 1:
        raise ValueError(
            "a recording has a row for a step of all environments of a process, and with next-step"
            " autoreset some step while others are reset: envs_per_process=1, or another mode"
        )

"""dsec.sandbox: an environment that may crash, inside somebody's own training script.

    from dsec.sandbox import AgentSandbox

    with AgentSandbox("CartPole-v1") as sandbox:
        env = sandbox.get_env()      # a gymnasium.Env; all else stays as it was

Owns `AgentSandbox`: one environment in a process of its own, watched by a kernel of its own, with
failover as in `dsec-kernel run`. The script plays the policy's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dsec.sandbox.lanes import Lanes
from dsec.sandbox.order import (
    RESOURCE_PROFILES,
    EnvName,
    Given,
    cached_steps_of,
    limits_of,
    make_order,
    spec_of,
)
from dsec.sandbox.tracked import STEP_APIS, TrackedEnv

__all__ = ["RESOURCE_PROFILES", "AgentSandbox", "TrackedEnv"]


class AgentSandbox:
    """One isolated environment; a context manager, which closes it.

    Args:
        env_id: the id of a registered environment (`CartPole-v1`, `ale_py:ALE/Pong-v5`),
            `module:function`, an EnvSpec, or a function or class that makes one.
        env_kwargs: its keywords.
        wrappers: around it, innermost first: names, or `{"entry": name, "kwargs": {...}}`, as in a
            configuration file; or functions and classes.
        resource_profile: a name of RESOURCE_PROFILES.
        seed: what is random without a seed of its own derives from it; drawn if left out.
        reward: `module:Class` of a reward (see the guide), in a process of its own; `step` then
            returns its rewards. Left out: the environment's.
        snapshot_interval: steps from one boundary marker to the next.
        reward_window_size: rewards that `TrackedEnv.reward_window` holds.
        sync_interval: only 1: a sandbox has no Agent State Atoms yet that could be synchronised.
        step_api: `gymnasium`: `step` returns five values; `gym`: the four of the old Gym.
        failover, deadlines, limits: as in a configuration file, see docs/CONFIG.md; and
            `failover={"cached_steps": k}`: while a process that died is being replaced, up to k
            steps are answered at once with the last observation, see the guide under "Coasting".
        record: a new directory for a recording of all transitions, as `dsec-kernel run` makes one.
        start_timeout_s, answer_timeout_s: limits of the start, and of the wait for one answer;
            by default what deadlines and failover may take in all.

    Raises:
        ValueError, TypeError: an argument that doesn't exist, or isn't in its range.
        SandboxFailed: the environment can't be made.
        MachineError: the machine can't; says what it needs.
    """

    def __init__(
        self,
        env_id: EnvName | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Any] = (),
        resource_profile: str = "rl_default",
        seed: int | None = None,
        reward: str | Mapping[str, Any] | None = None,
        snapshot_interval: int = 50,
        reward_window_size: int = 200,
        sync_interval: int = 1,
        step_api: str = "gymnasium",
        failover: Mapping[str, Any] | None = None,
        deadlines: Mapping[str, float] | None = None,
        limits: Mapping[str, Any] | None = None,
        record: str | Path | None = None,
        start_timeout_s: float | None = None,
        answer_timeout_s: float | None = None,
    ) -> None:
        if step_api not in STEP_APIS:
            raise ValueError(f"step_api is one of {', '.join(STEP_APIS)}, not {step_api!r}")
        if type(reward_window_size) is not int or reward_window_size < 1:
            raise ValueError(
                f"reward_window_size is a whole number from 1, not {reward_window_size!r}"
            )
        if sync_interval != 1:
            raise ValueError(
                f"sync_interval is 1, not {sync_interval!r}: a sandbox has no Agent State Atoms yet"
            )
        given = Given(
            env=env_id,
            kwargs=env_kwargs or {},
            wrappers=wrappers,
            seed=seed,
            profile=resource_profile,
            snapshot_interval=snapshot_interval,
            failover=failover,
            deadlines=deadlines,
            limits=limits,
            reward=reward,
            record=record,
            coasts=True,
        )
        order = make_order(given, lanes=1, num_envs=1, autoreset="disabled")
        start_s, answer_s, close_s = limits_of(order)
        self._lanes = Lanes(
            order,
            1,
            start_s=start_timeout_s or start_s,
            answer_s=answer_timeout_s or answer_s,
            close_s=close_s,
        )
        self._env = TrackedEnv(
            self._lanes,
            spec=spec_of(env_id),
            step_api=step_api,
            reward_window_size=reward_window_size,
            cached_steps=cached_steps_of(order),
        )

    def get_env(self) -> TrackedEnv:
        """The environment; the same at each call."""
        return self._env

    @property
    def recording(self) -> tuple[str, ...]:
        """The files of the recording, relative to `record`, once this is closed."""
        return self._lanes.files

    def close(self) -> None:
        """Close the environment and end its processes. Again is no error."""
        self._env.close()

    def __enter__(self) -> AgentSandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

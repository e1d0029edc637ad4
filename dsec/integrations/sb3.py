"""Isolated environments as a `VecEnv` of Stable-Baselines3.

    from dsec.integrations.sb3 import make_vec_env  # in place of SB3's own
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=1)).learn(100_000)

Owns SB3's conventions: rewards of float32, one `done`, `terminal_observation`, resets by
themselves, one info for each environment, `Monitor`. Results are those of its DummyVecEnv.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.vec_env import VecEnv

from dsec.engine import talk
from dsec.errors import SandboxFailed
from dsec.sandbox import remote
from dsec.vector import IsolatedVectorEnv, make_vec

Indices = None | int | Iterable[int]
Result = tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]


def make_vec_env(
    env_id: Any,
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., Any] | str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    **isolation: Any,
) -> IsolatedVecEnv:
    """SB3's `make_vec_env`, of environments in processes of their own.

    Each is in SB3's Monitor, in its process. Files of `monitor_dir` are written here, so that
    they are whole whatever happens to an environment.

    Args:
        env_id, n_envs, seed, start_index, monitor_dir, env_kwargs, monitor_kwargs,
            wrapper_kwargs: as SB3 has them. With an id, `render_mode` is "rgb_array" where the
            environment takes that, as there.
        wrapper_class: a class or function, or its name, `module:Class`; around the Monitor.
        isolation: what `dsec.vector.make_vec` takes besides: `envs_per_process`, `failover`,
            `deadlines`, `limits`, `record`, …

    Raises:
        What `make_vec` does.
    """
    kept = dict(monitor_kwargs or {})
    override = bool(kept.pop("override_existing", True))
    named = isinstance(env_id, str)
    wrappers = _wrappers(kept, wrapper_class, dict(wrapper_kwargs or {}))
    given = {"render_mode": "rgb_array", **(env_kwargs or {})} if named else dict(env_kwargs or {})
    make = partial(
        make_vec,
        env_id,
        n_envs,
        wrappers=wrappers,
        autoreset_mode=AutoresetMode.SAME_STEP,
        seed=seed,
        **isolation,
    )
    try:
        made = make(env_kwargs=given)
    except SandboxFailed as failed:
        if given == (env_kwargs or {}) or "render_mode" not in str(failed):
            raise
        made = make(env_kwargs=env_kwargs)
    envs = IsolatedVecEnv(made)
    envs.seed(seed)
    if seed is not None:
        envs.action_space.seed(seed + start_index)
    if monitor_dir is not None:
        words = tuple(kept.get("reset_keywords", ())) + tuple(kept.get("info_keywords", ()))
        envs.write_monitor_files(Path(monitor_dir), start_index, words, override=override)
    return envs


def _wrappers(
    monitor: dict[str, Any], wrapper: Callable[..., Any] | str | None, kwargs: dict[str, Any]
) -> list[Any]:
    """The Monitor and what is around it."""
    found: list[Any] = [{"entry": "dsec.integrations.monitor:monitored", "kwargs": monitor}]
    if isinstance(wrapper, str):
        found.append({"entry": wrapper, "kwargs": kwargs})
    elif wrapper is not None:
        found.append(partial(wrapper, **kwargs))
    return found


class IsolatedVecEnv(VecEnv):
    """A vector of `dsec.vector.make_vec` with SB3's interface; made by `make_vec_env`.

    If a process dies its successor goes on in the same episode, and `learn` notices nothing.
    Where that is impossible the episode ends there: reward 0.0, done, `TimeLimit.truncated`, so
    that SB3 takes the value of the last observation for what would have come, and the cause in
    `info["dsec"]["infra_failure"]`.

    Args:
        envs: its autoreset mode is SAME_STEP.

    Raises:
        ValueError: it has another one. Else as `IsolatedVectorEnv`.
    """

    def __init__(self, envs: IsolatedVectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ValueError('SB3 resets in the same step: make_vec(autoreset_mode="SameStep")')
        self.envs = envs
        self._steps = envs.steps
        self._copy = envs.steps.lanes.layout.copy
        self._files: list[ResultsWriter] = []
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.metadata = {
            key: value for key, value in envs.metadata.items() if key != "autoreset_mode"
        }

    # ------------------------------------------------------------ steps

    def step(self, actions: Any) -> Result:
        """Step all environments.

        Returns:
            Observations, as fresh arrays (n, ...); rewards float32 (n,); dones bool (n,); an info
            for each environment.

        Raises:
            InvalidAction: actions that don't fit the space; nothing was sent.
        """
        with self._steps.using():
            return self._results(self._steps.step(actions))

    def step_async(self, actions: Any) -> None:
        """Send the actions; `step_wait` gets the results. Raises what `step` does."""
        with self._steps.using():
            self._steps.begin(actions)

    def step_wait(self) -> Result:
        """Wait for what `step_async` has begun."""
        with self._steps.using():
            return self._results(self._steps.finish())

    def _results(self, notable: bool) -> Result:
        steps = self._steps
        rewards = steps.reward.astype(np.float32)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if not notable:
            return self._copy(steps.obs), rewards, steps.terminated, infos
        dones = steps.terminated | steps.truncated
        for i, said in steps.told():
            info = infos[i] = said.info
            info["TimeLimit.truncated"] = bool(steps.truncated[i] and not steps.terminated[i])
            if said.ended:
                info["terminal_observation"] = said.final
                self.reset_infos[i] = said.reset_info or {}
                if said.ours:
                    info["dsec"] = said.ours
            if self._files and "episode" in info:
                self._files[i].write_row(info["episode"])
        return self._copy(steps.obs), rewards, dones, infos

    # ------------------------------------------------------------ resets

    def reset(self) -> Any:
        """Reset all environments, with the seeds and options that were set; return their
        observations. A step that was begun is finished first."""
        with self._steps.using():
            if self._steps.pending:
                self._steps.finish()
            for options, mask in self._by_options():
                for i, info in self._steps.reset(self._seeds, mask, options):
                    self.reset_infos[i] = info
            self._reset_seeds()
            self._reset_options()
            return self._copy(self._steps.obs)

    def _by_options(self) -> list[tuple[dict[str, Any] | None, NDArray[np.bool_]]]:
        """The different options, and which environments have them."""
        found: list[tuple[dict[str, Any] | None, NDArray[np.bool_]]] = []
        for i in range(self.num_envs):
            options = self._options[i] or None
            for known, mask in found:
                if known == options:
                    mask[i] = True
                    break
            else:
                mask = np.zeros(self.num_envs, np.bool_)
                mask[i] = True
                found.append((options, mask))
        return found

    # ------------------------------------------------------------ attributes

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of each environment of `indices`, all by default. A method comes as a
        function that calls it there.

        Raises:
            AttributeError: there is none.
            TypeError: it can't be carried to this process.
        """
        which = self._which(indices)
        pairs = self._steps.ask({"do": "get", "name": attr_name}, which)
        return [
            _method(self, attr_name, i) if remote.is_callable(pair) else remote.from_wire(pair)
            for i, pair in zip(which, pairs, strict=True)
        ]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of these environments, or of the wrapper around them that has it.

        Raises:
            TypeError: a value that can't be carried.
        """
        pair = remote.to_wire(value, attr_name)
        asked = {"do": "set", "name": attr_name, "values": [pair] * self._steps.width}
        self._steps.ask(asked, self._which(indices))

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of these environments, in their processes.

        Raises:
            TypeError: arguments or results that can't be carried.
        """
        remote.check_carried([method_args, method_kwargs], f"{method_name}()")
        asked = {"do": "call", "name": method_name, "args": method_args, "kwargs": method_kwargs}
        return [remote.from_wire(pair) for pair in self._steps.ask(asked, self._which(indices))]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether such a wrapper is around these environments, in their processes."""
        name = f"{wrapper_class.__module__}:{wrapper_class.__qualname__}"
        pairs = self._steps.ask({"do": "wrapped", "name": name}, self._which(indices))
        return [bool(remote.from_wire(pair)) for pair in pairs]

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """A frame of each environment, uint8 (height, width, 3); None with another render mode."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return list(self.envs.render())

    @property
    def failovers(self) -> list[talk.Survived]:
        """What was survived, the latest thousand."""
        return self.envs.failovers

    # ------------------------------------------------------------ files and the end

    def write_monitor_files(
        self, folder: Path, first: int, words: tuple[str, ...], *, override: bool
    ) -> None:
        """From now on write a `monitor.csv` for each environment, as SB3's Monitor does.

        Args:
            first: number of the first environment, in the files' names.
            words: columns besides return, length and time.
        """
        spec = self.envs.spec
        header: dict[str, float | str] = {"t_start": time.time(), "env_id": str(spec and spec.id)}
        self._files = [
            ResultsWriter(
                str(folder / str(first + i)),
                header=header,
                extra_keys=words,
                override_existing=override,
            )
            for i in range(self.num_envs)
        ]

    def close(self) -> None:
        """Close the environments and end their processes. Again is no error."""
        self.envs.close()
        for file in self._files:
            file.close()

    def _which(self, indices: Indices) -> list[int]:
        return [range(self.num_envs)[int(i)] for i in self._get_indices(indices)]


def _method(envs: IsolatedVecEnv, name: str, i: int) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        return envs.env_method(name, *args, indices=i, **kwargs)[0]

    method.__name__ = name
    return method

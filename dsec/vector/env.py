"""Gymnasium's face of a vector: what it says of vector environments, in the way of SyncVectorEnv.

Owns the form of results and infos, batching, attributes. How steps are done is steps.py's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dsec.engine import talk
from dsec.sandbox import remote
from dsec.sandbox.lanes import Lanes
from dsec.vector.steps import Said, Steps

Result = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class IsolatedVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """Environments in processes of their own; made by `make_vec`.

    Results are those of `gymnasium.vector.SyncVectorEnv` with the same environments, seeds and
    actions. If a process dies its successor goes on, and the others notice nothing. Where that is
    impossible its environments' episodes end there: reward 0.0, `truncated`, the last observation
    (with same-step autoreset as `final_obs`), and the cause in `infos["dsec"]["infra_failure"]`.
    From one thread at a time, in the process that made it.

    Attributes:
        autoreset_mode: what follows the end of an episode, as SyncVectorEnv has it.
        steps: what adapters to other libraries take results from, one environment after the other.
        recording: the files of the recording, relative to `record`, once this is closed.

    Raises (any method):
        ClosedEnvironmentError: it is closed.
        AlreadyPendingCallError, NoAsyncCallError: between `step_async` and `step_wait` there is
            nothing else to be done.
        SandboxFailed: an environment is gone for good.
        SandboxTimeout: no answer came in time.
        LocalError: another thread, or another process.
        Exception: what an environment itself raised.
    """

    def __init__(
        self,
        lanes: Lanes,
        mode: AutoresetMode,
        *,
        copy: bool,
        spec: gymnasium.envs.registration.EnvSpec | None,
    ) -> None:
        self._lanes = lanes
        self.steps = Steps(lanes, mode)
        self.autoreset_mode = mode
        self._copy = copy or bool(lanes.variable)
        self.num_envs = lanes.count
        self.single_observation_space = lanes.observation_space
        self.single_action_space = lanes.action_space
        self.observation_space = batch_space(lanes.observation_space, lanes.count)
        self.action_space = batch_space(lanes.action_space, lanes.count)
        about = remote.from_wire(self.steps.ask({"do": "about"})[0])
        self.metadata = {**about["metadata"], "autoreset_mode": mode}
        self.render_mode = about["render_mode"]
        self.spec = spec
        self._finalizer = weakref.finalize(self, lanes.close)

    # ------------------------------------------------------------ steps

    def step(self, actions: Any) -> Result:
        """Step all environments.

        Args:
            actions: a batch as `action_space` has it, or what numpy makes one of.

        Returns:
            Observations, batched as `observation_space` is; rewards float64 (n,); terminations
            and truncations bool (n,); infos.

        Raises:
            InvalidAction: actions that don't fit the space, or are not numbers; nothing was sent.
            ResetNeeded: with autoreset disabled, some have ended and were not reset.
        """
        lanes = self._lanes
        lanes.enter()
        try:
            return self._results(self.steps.step(actions))
        finally:
            lanes.leave()

    def step_async(self, actions: Any) -> None:
        """Send the actions; `step_wait` gets the results. Raises what `step` does."""
        with self.steps.using():
            self.steps.begin(actions)

    def step_wait(self, timeout: float | None = None) -> Result:
        """Wait for what `step_async` has begun.

        Raises:
            SandboxTimeout: not all have answered within `timeout` seconds; call it again.
        """
        with self.steps.using():
            return self._results(self.steps.finish(timeout))

    def _results(self, notable: bool) -> Result:
        steps = self.steps
        infos = self._infos(steps.told()) if notable else {}
        return (
            self._observations(),
            steps.reward.copy(),
            steps.terminated,
            steps.truncated,
            infos,
        )

    def _infos(self, told: list[tuple[int, Said]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, said in told:
            if not said.ended:
                infos = self._add_info(infos, said.info, i)
                continue
            self._add_final(infos, said.final, said.info, i)
            if said.ours:
                infos = self._add_info(infos, {"dsec": said.ours}, i)
            if said.reset_info:
                infos = self._add_info(infos, said.reset_info, i)
        return infos

    def _add_final(self, infos: dict[str, Any], obs: Any, info: dict[str, Any], i: int) -> None:
        """As `_add_info(infos, {"final_obs": obs, "final_info": info}, i)`, at a fifth of its cost:
        with many environments most steps end some episode."""
        if "final_obs" not in infos:
            infos["final_obs"] = np.full(self.num_envs, None, object)
            infos["final_info"] = {}
            infos["_final_obs"], infos["_final_info"] = np.zeros((2, self.num_envs), np.bool_)
        infos["final_obs"][i] = obs
        infos["_final_obs"][i] = infos["_final_info"][i] = True
        if info:
            infos["final_info"] = self._add_info(infos["final_info"], info, i)

    def _observations(self) -> Any:
        lanes = self._lanes
        return lanes.layout.copy(lanes.obs) if self._copy else lanes.obs

    # ------------------------------------------------------------ resets

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]` (bool, (n,)).

        Args:
            seed: of the first; the others have the following ones. Or one for each.
            options: for each environment.
        """
        seeds = self._seeds(seed)
        options = None if options is None else dict(options)
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = _checked_mask(options.pop("reset_mask"), self.num_envs)
        with self.steps.using():
            infos: dict[str, Any] = {}
            for i, info in self.steps.reset(seeds, mask, options):
                infos = self._add_info(infos, info, i)
            return self._observations(), infos

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments")
        return [None if each is None else int(each) for each in seed]

    # ------------------------------------------------------------ attributes

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment; an attribute that is none is returned as it is.

        Raises:
            TypeError: arguments or results that can't be carried.
        """
        remote.check_carried([args, kwargs], f"{name}()")
        return self._answers({"do": "call", "name": name, "args": args, "kwargs": kwargs})

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment. Raises what `call` does."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: to one of `values`, a list or tuple of as many, or
        all to the same.

        Raises:
            ValueError: more or fewer values than environments.
            TypeError: values that can't be carried.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} environments")
        pairs, width = [remote.to_wire(value, name) for value in values], self._lanes.width
        self.steps.ask_each(
            {
                lane: {"do": "set", "name": name, "values": pairs[lane * width :][:width]}
                for lane in range(self.num_envs // width)
            }
        )

    def render(self) -> tuple[Any, ...]:
        """What each environment's `render` returns."""
        return self._answers({"do": "render"})

    @property
    def np_random(self) -> Any:
        """Copies of the environments' generators, in the state that they are in now."""
        return self.get_attr("np_random")

    @np_random.setter
    def np_random(self, value: Any) -> None:
        self.set_attr("np_random", list(value))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments' generators."""
        return self.get_attr("np_random_seed")

    @property
    def failovers(self) -> list[talk.Survived]:
        """What was survived, the latest thousand."""
        self._lanes.hear()
        return list(self._lanes.failovers)

    @property
    def recording(self) -> tuple[str, ...]:
        """The files of the recording, relative to `record`, once this is closed."""
        return self._lanes.files

    def close_extras(self, **_kwargs: Any) -> None:
        """Close the environments and end their processes."""
        self._finalizer()

    def _answers(self, asked: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(map(remote.from_wire, self.steps.ask(asked)))


def _checked_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] is a numpy array of bool, not {mask!r}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask'] has shape ({count},), not {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] names no environment")
    return mask

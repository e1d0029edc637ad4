"""dsec.vector: many environments that may crash, stepped together as one `VectorEnv`.

    from dsec.vector import make_vec

    envs = make_vec("CartPole-v1", 8)      # in place of gymnasium.make_vec
    obs, infos = envs.reset(seed=1)

or, by Gymnasium's own function, `gymnasium.make_vec("dsec.vector:dsec/Vector-v0", 8,
env_id="CartPole-v1")`. Owns what Gymnasium says of vector environments, in the way of its
SyncVectorEnv; the processes, rings and waits are those of `dsec.sandbox`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dsec.engine import talk
from dsec.errors import EnvironmentLost, InvalidAction, LayoutError
from dsec.ipc.layout import FLAG_FRESH, FLAG_INFRA, FLAG_TERMINATED, FLAG_TRUNCATED
from dsec.sandbox import remote
from dsec.sandbox.lanes import Lanes, Told
from dsec.sandbox.order import EnvName, Given, limits_of, make_order, spec_of
from dsec.sandbox.trees import arrays

ID = "dsec/Vector-v0"

_MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}

Result = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


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
    snapshot_interval: int = 50,
    failover: Mapping[str, Any] | None = None,
    deadlines: Mapping[str, float] | None = None,
    limits: Mapping[str, Any] | None = None,
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
        resource_profile, seed, snapshot_interval, failover, deadlines, limits, start_timeout_s,
            answer_timeout_s: as for `AgentSandbox`.

    Raises:
        ValueError, TypeError: an argument that doesn't exist, or isn't in its range.
        SandboxFailed: an environment can't be made.
        MachineError: the machine can't; says what it needs.
    """
    for name, value in (("num_envs", num_envs), ("envs_per_process", envs_per_process)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} is an int from 1, not {value!r}")
    if num_envs % envs_per_process:
        raise ValueError(f"{num_envs} environments can't be {envs_per_process} to a process")
    mode = AutoresetMode(autoreset_mode)
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
    )
    lanes, width = num_envs // envs_per_process, envs_per_process
    order = make_order(given, lanes=lanes, num_envs=width, autoreset=_MODES[mode])
    start_s, answer_s, close_s = limits_of(order)
    opened = Lanes(
        order,
        width,
        start_s=start_timeout_s or start_s,
        answer_s=answer_timeout_s or answer_s,
        close_s=close_s,
    )
    return IsolatedVectorEnv(opened, mode, copy=copy, spec=spec_of(env_id))


class IsolatedVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """Environments in processes of their own; made by `make_vec`.

    Results are those of `gymnasium.vector.SyncVectorEnv` with the same environments, seeds and
    actions. If a process dies its successor goes on, and the others notice nothing. Where that is
    impossible its environments' episodes end there: reward 0.0, `truncated`, the last observation
    (with same-step autoreset as `final_obs`), and the cause in `infos["dsec"]["infra_failure"]`.
    From one thread at a time, in the process that made it.

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
        self._mode = mode
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._disabled = mode is AutoresetMode.DISABLED
        self._copy = copy or bool(lanes.variable)
        self._pending = False
        self._must_reset = False
        self._over = np.zeros(lanes.count, np.bool_)
        self._floats = [each for each in arrays(lanes.actions) if each.dtype.kind in "fc"]
        self.num_envs = lanes.count
        self.single_observation_space = lanes.observation_space
        self.single_action_space = lanes.action_space
        self.observation_space = batch_space(lanes.observation_space, lanes.count)
        self.action_space = batch_space(lanes.action_space, lanes.count)
        about = self._ask({"do": "about"})[0]
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
            self._prepare(actions)
            return self._results(lanes.send())
        finally:
            lanes.leave()

    def step_async(self, actions: Any) -> None:
        """Send the actions; `step_wait` gets the results. Raises what `step` does."""
        lanes = self._lanes
        lanes.enter()
        try:
            self._prepare(actions)
            lanes.send_only()
            self._pending = True
        finally:
            lanes.leave()

    def step_wait(self, timeout: float | None = None) -> Result:
        """Wait for what `step_async` has begun.

        Raises:
            SandboxTimeout: not all have answered within `timeout` seconds; call it again.
        """
        lanes = self._lanes
        lanes.enter()
        try:
            if not self._pending:
                raise NoAsyncCallError("step_wait without step_async", "step")
            notable = lanes.wait(timeout)
            self._pending = False
            return self._results(notable)
        finally:
            lanes.leave()

    def _prepare(self, actions: Any) -> None:
        if self._pending:
            self._check_idle()
        if self._must_reset:
            raise ResetNeeded("an environment was lost; call reset() for all of them")
        lanes = self._lanes
        if lanes.busy:
            lanes.settle()
        if self._disabled and self._over.any():
            raise ResetNeeded(
                f"environments {np.flatnonzero(self._over).tolist()} have ended; reset them with"
                ' options={"reset_mask": ...}'
            )
        try:
            lanes.all_actions.write_batch(lanes.actions, actions)
        except LayoutError as error:
            raise InvalidAction(str(error)) from None
        for array in self._floats:
            if np.isnan(array).any():
                raise InvalidAction("actions: some are not a number (NaN)")

    def _results(self, notable: bool) -> Result:
        lanes = self._lanes
        if not notable:  # nothing has ended, either: an end has a last observation to tell
            self._over, none, neither = np.zeros((3, self.num_envs), np.bool_)
            return self._observations(), lanes.reward.copy(), none, neither, {}
        told = {lane: lanes.told(lane) for lane in lanes.telling}
        _raise(told)
        infos = self._infos(told)
        flags = lanes.flags
        terminated = (flags & FLAG_TERMINATED) != 0
        truncated = (flags & FLAG_TRUNCATED) != 0
        self._over = terminated | truncated
        return self._observations(), lanes.reward.copy(), terminated, truncated, infos

    def _infos(self, told: Mapping[int, Told]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        width, flags = self._lanes.width, self._lanes.flags.tolist()
        for lane, (finals, own) in told.items():
            for j, info in enumerate(own):
                i = lane * width + j
                if not (self._same_step and flags[i] & (FLAG_TERMINATED | FLAG_TRUNCATED)):
                    infos = self._add_info(infos, info, i)
                    continue
                ours = dict(info.pop("dsec", {}))
                reset_info = ours.pop("reset_info", {})
                self._add_final(infos, finals[j], info, i)
                if ours:
                    infos = self._add_info(infos, {"dsec": ours}, i)
                if reset_info:
                    infos = self._add_info(infos, reset_info, i)
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
        remote.check_carried(options, "options")
        lanes, width = self._lanes, self._lanes.width
        asked = {}
        for lane in range(self.num_envs // width):
            part = slice(lane * width, (lane + 1) * width)
            if mask[part].any():
                asked[lane] = {
                    "do": "reset",
                    "seeds": seeds[part],
                    "mask": mask[part].tolist(),
                    "options": options,
                }
        lanes.enter()
        try:
            self._check_idle()
            told = lanes.request_each(asked)
            lost = (lanes.flags & (FLAG_INFRA | FLAG_FRESH)) == FLAG_INFRA
            if (lost & mask).any():
                self._must_reset = True
                raise EnvironmentLost("environments were lost in reset; call it for all of them")
            self._must_reset = self._must_reset and not mask.all()
            self._over &= ~mask
            infos: dict[str, Any] = {}
            for lane, (_, own) in told.items():
                for j, info in enumerate(own):
                    if mask[lane * width + j]:
                        infos = self._add_info(infos, info, lane * width + j)
            return self._observations(), infos
        finally:
            lanes.leave()

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
        asked = {"do": "call", "name": name, "args": args, "kwargs": kwargs}
        return tuple(self._ask(asked))

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
        self._ask_each(
            {
                lane: {"do": "set", "name": name, "values": pairs[lane * width :][:width]}
                for lane in range(self.num_envs // width)
            }
        )

    def render(self) -> tuple[Any, ...]:
        """What each environment's `render` returns."""
        return tuple(self._ask({"do": "render"}))

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

    def close_extras(self, **_kwargs: Any) -> None:
        """Close the environments and end their processes."""
        self._finalizer()

    def _ask(self, asked: dict[str, Any]) -> list[Any]:
        return self._ask_each(dict.fromkeys(range(self.num_envs // self._lanes.width), asked))

    def _ask_each(self, asked: dict[int, dict[str, Any]]) -> list[Any]:
        lanes = self._lanes
        lanes.enter()
        try:
            self._check_idle()
            told = lanes.request_each(asked)
            for _, infos in told.values():
                if "infra_failure" in infos[0]["dsec"]:
                    self._must_reset = True
                    cause = infos[0]["dsec"]["infra_failure"]["cause"]
                    raise EnvironmentLost(f"environments were lost: {cause}; reset all")
            answers = (infos[0]["dsec"]["answer"] for _, infos in told.values())
            return [remote.from_wire(pair) for answer in answers for pair in answer]
        finally:
            lanes.leave()

    def _check_idle(self) -> None:
        if self._pending:
            raise AlreadyPendingCallError("a step is under way: call step_wait first", "step")


def _raise(told: Mapping[int, Told]) -> None:
    """Raise what an environment has raised, if one has."""
    for _, infos in told.values():
        raised = remote.raised(infos[0]) if "dsec" in infos[0] else None
        if raised is not None:
            raise raised


def _checked_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] is a numpy array of bool, not {mask!r}")
    if mask.shape != (count,):
        raise ValueError(f"options['reset_mask'] has shape ({count},), not {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] names no environment")
    return mask


if ID not in gymnasium.registry:
    gymnasium.register(id=ID, vector_entry_point="dsec.vector:make_vec")

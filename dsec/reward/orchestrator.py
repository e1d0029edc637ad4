"""A reward of several objectives: raw values, their scale, their weights, and the sum.

Owns `RewardOrchestrator`, as it is called stand-alone and in a reward runner. What weights do is in
weighting.py, what the user may write in objectives.py. Everything that an answer depends on is in
`get_state`, so that a successor's answers are the same, bit for bit.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from dsec.errors import LocalError
from dsec.reward.estimators import Scale
from dsec.reward.objectives import Objective, changed, objectives
from dsec.reward.weighting import Weighting
from dsec.runners.contract import Transitions
from dsec.runners.lookup import resolve

SCALED_MAX: Final = 10.0
TRACE_STEPS: Final = 200
_VERSION: Final = 1
Function = Callable[..., float]


class RewardOrchestrator:
    """Weighs several objectives into one reward, and may shift the weights while it runs.

    The raw value of an objective is, in this order: what the function that was registered for it
    returns; `info["objectives"][name]`; the environment's reward, for the only objective or the
    first dense one. A sparse objective that `info["objectives"]` doesn't mention is 0 then.

    Args:
        objectives: by name, `{"weight": 0..1, "type": "dense" | "sparse"}`, and optionally `entry`,
            `module:function` to register for it. Weights add up to 1.
        dynamic_weighting: raise an objective's weight for a while, at most twofold, when the
            variance of its values jumps up (Page's CUSUM of block variances); the others give way.
            Off: weights stay as they are.
        per_agent_normalization: divide each agent's values by their own root mean square, within
            ±10, so that an agent of 0..1000 counts no more than one of 0..1. Off: raw values.
        min_reward_samples: samples of an objective before its weight can move.
        trace_raw_values: keep the latest 200 steps' raw values in `raw_values`.
        observation_space, action_space: of one environment; needed for functions where `compute` is
            given Transitions. A reward runner gives them.
        num_envs, seed: what a reward runner gives besides; not needed.

    Raises:
        LocalError: the objectives are none, or don't add up; the message says which and why.
        UserCodeError: an `entry` names nothing.
    """

    def __init__(
        self,
        objectives: Mapping[str, Mapping[str, Any]],
        dynamic_weighting: bool = True,
        per_agent_normalization: bool = False,
        min_reward_samples: int = 512,
        trace_raw_values: bool = True,
        *,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        num_envs: int = 1,
        seed: int = 0,
    ) -> None:
        del num_envs, seed
        self._spaces = observation_space, action_space
        self._batched: tuple[Space[Any], Space[Any]] | None = None
        if type(min_reward_samples) is not int or min_reward_samples < 1:
            raise LocalError(
                f"min_reward_samples is a whole number from 1 on, not {min_reward_samples!r}"
            )
        self._dynamic, self._normalized = bool(dynamic_weighting), bool(per_agent_normalization)
        self._functions: dict[str, tuple[Function, tuple[str, ...]]] = {}
        self._weighting = Weighting(min_reward_samples)
        self._scales: dict[str, dict[str, Scale]] = {}
        self._trace: deque[list[Any]] | None = (
            deque(maxlen=TRACE_STEPS) if trace_raw_values else None
        )
        self._objectives: dict[str, Objective] = {}
        self._adopt(_objectives(objectives))

    def _adopt(self, found: dict[str, Objective]) -> None:
        """These are the objectives from now on."""
        functions = {
            each.name: _function(each.name, _entry(each))
            for each in found.values()
            if each.entry and getattr(self._objectives.get(each.name), "entry", "") != each.entry
        }
        self._functions = {
            name: function
            for name, function in (self._functions | functions).items()
            if name in found
        }
        if self._trace is not None and list(found) != list(self._objectives):
            self._trace.clear()  # its rows are values of the objectives that there were
        self._objectives = found
        self._base = {name: each.weight for name, each in found.items()}
        self._weighting.keep(found)
        for scales in self._scales.values():
            for name in [name for name in scales if name not in found]:
                del scales[name]
        dense = [name for name, each in found.items() if each.kind == "dense"]
        self._environments = next(iter(found)) if len(found) == 1 else next(iter(dense), "")

    # ------------------------------------------------------------------ what it is told

    def register(self, name: str, function: Function) -> None:
        """Compute an objective's raw value by this function from now on.

        Args:
            name: of an objective.
            function: called as `function(obs, action, next_obs, done)`, and with `reward`, `info`
                or `agent` as keywords where it names them; returns a finite number.

        Raises:
            LocalError: there is no such objective, or it can't be called like that.
        """
        self._known(name)
        self._functions[name] = _function(name, function)

    def update_objectives(self, changes: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Change objectives while the reward runs; in force at the next `compute`.

        Args:
            changes: by name, what an objective is from now on; None takes it away. Those that are
                not named stay. What is known of the values of those that stay, stays too.

        Raises:
            LocalError: what comes of it doesn't add up, or is none; nothing was changed.
        """
        self._adopt(changed(self._objectives, changes))

    def _known(self, name: str) -> None:
        if name not in self._objectives:
            raise LocalError(f"no objective {name!r} (there are {', '.join(self._objectives)})")

    # ------------------------------------------------------------------ what it answers

    def compute(
        self,
        obs: Any,
        action: Any = None,
        next_obs: Any = None,
        done: Any = False,
        *,
        reward: float | None = None,
        info: Mapping[str, Any] | None = None,
        agent: str = "",
    ) -> Any:
        """The reward of one transition; or, given `Transitions` alone, of one of each environment.

        Args:
            obs, action, next_obs, done: the transition, for registered functions.
            reward: what the environment gave, if it did.
            info: its info, whose `objectives` may hold raw values.
            agent: whose it is, for per_agent_normalization.

        Returns:
            A float; for `Transitions`, float64 (n,), where each environment is an agent of its own.
            Those that were lost (`infra`) get 0.0 and are not counted.

        Raises:
            LocalError: an objective has no raw value, or one that is not finite. Nothing of the
                transition was counted.
        """
        if isinstance(obs, Transitions):
            return self._of_all(obs)
        return self._one(self._raw(obs, action, next_obs, done, reward, info, agent), agent)

    def _of_all(self, t: Transitions) -> NDArray[np.float64]:
        n = len(t.env_reward)
        rewards, raws = np.zeros(n), {}
        each = zip(*self._apart(t), strict=True) if self._functions else [(None, None, None)] * n
        for i, (obs, action, next_obs) in enumerate(each):
            if not t.infra[i]:
                done = bool(t.terminated[i] or t.truncated[i])
                env_reward = float(t.env_reward[i])
                raws[i] = self._raw(obs, action, next_obs, done, env_reward, t.infos[i], str(i))
        for i, raw in raws.items():
            rewards[i] = self._one(raw, str(i))
        return rewards

    def _apart(self, t: Transitions) -> list[list[Any]]:
        """Observations, actions and next observations of each environment by itself."""
        if self._batched is None:
            n, (space, actions) = len(t.env_reward), self._spaces
            if space is None or actions is None:
                raise LocalError("a function of batches needs observation_space and action_space")
            # Making one costs more than all else here.
            self._batched = batch_space(space, n), batch_space(actions, n)
        space, actions = self._batched
        pairs = ((space, t.obs), (actions, t.action), (space, t.next_obs))
        return [list(iterate(of, batch)) for of, batch in pairs]

    def _one(self, raw: dict[str, float], agent: str) -> float:
        """Count one transition's raw values, and weigh them."""
        values = raw
        if self._normalized:
            scales = self._scales.setdefault(agent, {})
            values = {
                name: scales.setdefault(name, Scale()).scaled(value, SCALED_MAX)
                for name, value in raw.items()
            }
        weights = self._weighting.weights(self._base) if self._dynamic else self._base
        total = 0.0
        for name, value in values.items():
            total += weights[name] * value
        if self._dynamic:
            self._weighting.see(values)
        if self._trace is not None:
            self._trace.append([agent, *raw.values()])
        return total

    def _raw(
        self,
        obs: Any,
        action: Any,
        next_obs: Any,
        done: Any,
        reward: float | None,
        info: Mapping[str, Any] | None,
        agent: str,
    ) -> dict[str, float]:
        """Every objective's raw value."""
        told = (info or {}).get("objectives")
        if told is not None and not isinstance(told, Mapping):
            raise LocalError(f'info["objectives"] is no mapping of names to numbers: {told!r}')
        found, missing = {}, []
        for name, each in self._objectives.items():
            if name in self._functions:
                function, wanted = self._functions[name]
                given = {"reward": reward, "info": info, "agent": agent}
                value = function(obs, action, next_obs, done, **{key: given[key] for key in wanted})
                source = "its function"
            elif told is not None and name in told:
                value, source = told[name], 'info["objectives"]'
            elif reward is not None and name == self._environments:
                value, source = reward, "the environment's reward"
            elif told is not None and each.kind == "sparse":
                value, source = 0.0, ""
            else:
                missing.append(name)
                continue
            found[name] = _number(value, name, source, agent)
        if missing:
            raise LocalError(self._nowhere(missing, reward is not None))
        return found

    def _nowhere(self, missing: list[str], rewarded: bool) -> str:
        of = self._environments
        taken = f' (the environment\'s reward is that of "{of}")' if rewarded and of else ""
        names = ", ".join(f'"{name}"' for name in missing)
        return (
            f"nothing tells the value of {names}{taken}: let the environment's info hold "
            f'{{"objectives": {{"{missing[0]}": …}}}}, or register("{missing[0]}", function), '
            "which `entry` does in a configuration"
        )

    # ------------------------------------------------------------------ what it tells

    @property
    def weights(self) -> dict[str, float]:
        """The weights in force at the next `compute`; they add up to 1."""
        return self._weighting.weights(self._base) if self._dynamic else dict(self._base)

    @property
    def raw_values(self) -> list[dict[str, Any]]:
        """The latest 200 steps, oldest first: `agent`, and each objective's raw value by its name.
        Empty without trace_raw_values."""
        names = ["agent", *self._objectives]
        return [dict(zip(names, row, strict=False)) for row in self._trace or ()]

    def metrics(self) -> dict[str, float]:
        """Weights and how often they were raised, for the summary of a run."""
        jumps = {name: share.jumps for name, share in self._weighting.shares.items()}
        return {f"weight_{name}": weight for name, weight in self.weights.items()} | {
            f"jumps_{name}": float(count) for name, count in jumps.items()
        }

    def get_state(self) -> dict[str, Any]:
        """All that answers depend on, but for the functions; JSON and msgpack take it as it is.
        `raw_values` are not part of it: no answer depends on them."""
        return {
            "version": _VERSION,
            "objectives": {name: each.described() for name, each in self._objectives.items()},
            "weighting": self._weighting.state(),
            "scales": {
                agent: {name: scale.state() for name, scale in scales.items()}
                for agent, scales in self._scales.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where the one was that told this state.

        Raises:
            LocalError: it is the state of something else, or of another version.
        """
        try:
            if state["version"] != _VERSION:
                raise LocalError(f"a state of version {state['version']}; this reads {_VERSION}")
            found = _objectives(state["objectives"])
            weighting = Weighting(self._weighting.samples_min)
            weighting.put_back({name: state["weighting"][name] for name in found})
            scales: dict[str, dict[str, Scale]] = {}
            for agent, of in state["scales"].items():
                scales[agent] = {name: Scale() for name in of}
                for name, scale in scales[agent].items():
                    scale.put_back(of[name])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LocalError(
                f"this is no state of a RewardOrchestrator: {type(error).__name__}: {error}"
            ) from None
        self._adopt(found)
        self._weighting, self._scales = weighting, scales


_objectives = objectives  # the name of a keyword, which callers type


def _entry(of: Objective) -> Any:
    return resolve(of.entry, where=f"reward.objectives.{of.name}.entry")


def _function(name: str, function: Any) -> tuple[Function, tuple[str, ...]]:
    """The function, and which keywords it wants."""
    if not callable(function):
        raise LocalError(f"objective {name!r}: {function!r} can't be called")
    try:
        names = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C, which doesn't tell
        return function, ()
    known = ("reward", "info", "agent")
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in names):
        return function, known
    return function, tuple(each.name for each in names if each.name in known)


def _number(value: Any, name: str, source: str, agent: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise LocalError(f"objective {name!r}: {source} is no number: {error}") from None
    if not math.isfinite(number):
        whose = f" of agent {agent!r}" if agent else ""
        raise LocalError(f"objective {name!r}{whose}: {source} is {number}")
    return number

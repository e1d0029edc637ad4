"""Several agents in one environment: PettingZoo's parallel API as a `gymnasium.Env`, and a policy
that is made of policies.

An environment in which many act at once is one environment to dsec: one process, one record for
each step. `ParallelEnv` gives everybody's observations and takes everybody's actions as one Dict,
and `Policies` takes that apart again. Whatever is done for each agent is done in one order, that of
their names, which is also a Dict space's, and never in that of some dict of the environment's: so a
policy that several share sees them in the same order in every run. Nothing here imports PettingZoo;
what has its interface will do. Loaded only in children.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dsec.runners import seeds
from dsec.runners.contract import Transitions
from dsec.runners.lookup import resolve

Tree = Any


class ParallelEnv(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """An environment of PettingZoo's parallel API.

    Observation: `observations`, a Dict of everybody's, and `alive`, a MultiBinary in the order of
    `agents`. Who has left keeps the last observation that it had, and its action goes nowhere.
    Reward: the sum of all. The info has what is each one's, in the order of `agents`: `rewards`
    float64, `terminated` and `truncated` bool, and `infos` of those that had something to tell.
    An episode ends when nobody is left: truncated, if anybody was truncated in that step.

    Args:
        entry: `module:name` of what returns such an environment, as a module's `parallel_env`.
        kwargs: for it.

    Attributes:
        agents: everybody's names, sorted.
    """

    def __init__(self, entry: str, kwargs: Mapping[str, Any] | None = None) -> None:
        self.env = resolve(entry, "env.kwargs.entry")(**(kwargs or {}))
        wanted = ("possible_agents", "observation_space", "action_space", "reset", "step")
        if missing := [name for name in wanted if not hasattr(self.env, name)]:
            raise TypeError(
                f'"{entry}" returned {type(self.env).__name__}, which has no'
                f" {', '.join(missing)}: no environment of PettingZoo's parallel API"
            )
        self.agents: tuple[str, ...] = tuple(sorted(self.env.possible_agents))
        self.observation_space = spaces.Dict(
            {
                "observations": spaces.Dict(
                    {name: self.env.observation_space(name) for name in self.agents}
                ),
                "alive": spaces.MultiBinary(len(self.agents)),
            }
        )
        self.action_space = spaces.Dict({name: self.env.action_space(name) for name in self.agents})
        self._seen: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode.

        Raises:
            ValueError: somebody is not there: all must be, at the beginning.
        """
        super().reset(seed=seed)
        self._seen, infos = self.env.reset(seed=seed, options=options)
        if missing := [name for name in self.agents if name not in self._seen]:
            raise ValueError(f"reset() gave no observation to {', '.join(missing)}")
        return self._observe(), self._told(infos)

    def step(
        self, action: dict[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Let everybody who is there act at once."""
        here = set(self.env.agents)
        acting = {name: action[name] for name in self.agents if name in here}
        seen, rewards, terminated, truncated, infos = self.env.step(acting)
        left = {name: deepcopy(self._seen[name]) for name in self.agents if name not in seen}
        self._seen = {**left, **seen}
        each = np.array([float(rewards.get(name, 0.0)) for name in self.agents])
        ended, cut = (
            np.array([bool(flags.get(name, False)) for name in self.agents])
            for flags in (terminated, truncated)
        )
        over, by_clock = not self.env.agents, bool(cut.any())
        info = {"rewards": each, "terminated": ended, "truncated": cut, **self._told(infos)}
        reward = float(sum(each.tolist()))
        return self._observe(), reward, over and not by_clock, over and by_clock, info

    def close(self) -> None:
        """Close it."""
        self.env.close()

    def render(self) -> Any:
        """Whatever it shows."""
        return self.env.render()

    def _observe(self) -> dict[str, Any]:
        here = set(self.env.agents)
        alive = np.array([name in here for name in self.agents], np.int8)
        return {"observations": {name: self._seen[name] for name in self.agents}, "alive": alive}

    def _told(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        told = {name: infos[name] for name in self.agents if infos.get(name)}
        return {"infos": told} if told else {}


class Policies:
    """Acts for everybody in a `ParallelEnv`, by policies of their own.

    Args:
        policies: by a pattern of names (`hunter_*`; the first that fits counts): `entry` and
            `kwargs` of a policy, as in a configuration, and `shared`: one object acts for all that
            fit, whose spaces must be alike. It gets them as one batch, agent after agent, and so
            it learns. Otherwise each has an object and a seed of its own.

    Raises:
        ValueError: no pattern fits somebody.
    """

    def __init__(
        self,
        *,
        observation_space: spaces.Dict,
        action_space: spaces.Dict,
        num_envs: int,
        seed: int,
        policies: Mapping[str, Mapping[str, Any]],
    ) -> None:
        seen = observation_space["observations"]
        assert isinstance(seen, spaces.Dict), "the space of a ParallelEnv"
        self.agents = tuple(seen.spaces)
        self._n = num_envs
        groups: dict[tuple[str, str], list[str]] = {}
        for name in self.agents:
            pattern = next((each for each in policies if fnmatchcase(name, each)), None)
            if pattern is None:
                raise ValueError(f"no pattern in policies fits {name!r}")
            shared = bool(policies[pattern].get("shared"))
            groups.setdefault((pattern, "" if shared else name), []).append(name)
        self.groups = [tuple(names) for names in groups.values()]
        self.policies: list[Any] = []
        for (pattern, name), names in groups.items():
            settings = policies[pattern]
            make: Callable[..., Any] = resolve(settings["entry"], "policy.kwargs.policies")
            self.policies.append(
                make(
                    observation_space=seen[names[0]],
                    action_space=action_space[names[0]],
                    num_envs=num_envs * len(names),
                    seed=seeds.derive(str(seed), "agent", name or pattern),
                    **(settings.get("kwargs") or {}),
                )
            )

    def act(self, obs: Tree) -> dict[str, Any]:
        """Everybody's actions."""
        seen = obs["observations"]
        actions: dict[str, Any] = {}
        for policy, names in zip(self.policies, self.groups, strict=True):
            chosen = policy.act(_join([seen[name] for name in names]))
            actions.update(zip(names, _split(chosen, len(names), self._n), strict=True))
        return actions

    @property
    def learn(self) -> Callable[[Transitions], None]:
        """There, if one of them learns."""
        if not any(hasattr(policy, "learn") for policy in self.policies):
            raise AttributeError("none of the policies learns")
        return self._learn

    def _learn(self, transitions: Transitions) -> None:
        """Let all that learn do so, one after the other. For who had left before it is `infra`:
        it made no such step."""
        for policy, names in zip(self.policies, self.groups, strict=True):
            if hasattr(policy, "learn"):
                policy.learn(self._of(transitions, names))

    def _of(self, told: Transitions, names: Sequence[str]) -> Transitions:
        places = [self.agents.index(name) for name in names]

        def each(key: str, dtype: Any) -> NDArray[Any]:
            rows = [info.get(key, np.zeros(len(self.agents), dtype))[places] for info in told.infos]
            return np.array(rows, dtype).T.reshape(-1)

        reward = each("rewards", np.float64)
        over = np.tile(told.terminated | told.truncated, len(names))
        terminated, truncated = each("terminated", np.bool_), each("truncated", np.bool_)
        gone = ~told.obs["alive"][:, places].astype(np.bool_).T.reshape(-1)
        lost = np.tile(told.infra, len(names)) | gone
        return Transitions(
            seq=told.seq,
            obs=_join([told.obs["observations"][name] for name in names]),
            action=_join([told.action[name] for name in names]),
            reward=reward,
            env_reward=reward,
            next_obs=_join([told.next_obs["observations"][name] for name in names]),
            terminated=terminated & ~lost,
            truncated=(truncated | (over & ~terminated)) | lost,
            infos=[
                (info.get("infos") or {}).get(name, {}) for name in names for info in told.infos
            ],
            infra=lost,
        )

    def get_state(self) -> list[Any]:
        """Each one's own word, or all of it."""
        return [each.get_state() if _tells(each) else each for each in self.policies]

    def set_state(self, state: list[Any]) -> None:
        """Go on from there."""
        for i, (policy, told) in enumerate(zip(self.policies, state, strict=True)):
            if _tells(policy):
                policy.set_state(told)
            else:
                self.policies[i] = told

    def metrics(self) -> dict[str, float]:
        """Each one's, under the name of the first agent that it acts for."""
        found: dict[str, float] = {}
        for policy, names in zip(self.policies, self.groups, strict=True):
            if (ask := getattr(policy, "metrics", None)) is not None:
                found |= {f"{names[0]}.{key}": value for key, value in ask().items()}
        return found

    def close(self) -> None:
        """Close all."""
        for policy in self.policies:
            if (close := getattr(policy, "close", None)) is not None:
                close()


def _tells(policy: Any) -> bool:
    return hasattr(policy, "get_state") and hasattr(policy, "set_state")


def _join(trees: Sequence[Tree]) -> Tree:
    """Batches as one, one after the other."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, dict):
        return {key: _join([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        return tuple(_join(parts) for parts in zip(*trees, strict=True))
    return np.concatenate(trees)


def _split(tree: Tree, count: int, n: int) -> list[Tree]:
    """A batch as `count` batches of n."""
    if count == 1:
        return [tree]
    if isinstance(tree, dict):
        parts = {key: _split(value, count, n) for key, value in tree.items()}
        return [{key: value[i] for key, value in parts.items()} for i in range(count)]
    if isinstance(tree, tuple):
        rows = [_split(value, count, n) for value in tree]
        return [tuple(row[i] for row in rows) for i in range(count)]
    return [tree[i * n : (i + 1) * n] for i in range(count)]

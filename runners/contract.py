"""The contracts of user code: what an environment, a policy and a reward must offer, and no more.

An environment is a `gymnasium.Env`. A policy and a reward are plain classes, named in the config
as `module:Class`, constructed in the child process with the keywords below, never pickled. All
arrays are batched over the agent's `num_envs` environments (leading axis n), also for n = 1.
Composite spaces come as dicts and tuples of such arrays, as Gymnasium's vector API batches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Transitions:
    """Transition `seq` of all n environments of one agent.

    `next_obs` is what the action led to, also where the episode ended there (the terminal
    observation); the observation that the policy acts on next is then the first of a new episode
    (Gymnasium calls this same-step autoreset). `infos` holds one dict for each environment; where
    an episode ended and the reset that followed had an info, that is `info["dsec"]["reset_info"]`.

    `infra` is set where the environment was lost with its process and nothing could bring it back:
    no such step was made. `next_obs` is then `obs`, the rewards are 0.0, `truncated` is set, and
    `info["dsec"]["infra_failure"]` says why. Let the episode end there and learn nothing from it;
    recordings leave such a transition out, and what `compute` returns for it counts as 0.0.

    Shapes: `obs`, `action`, `next_obs` batched (n, ...); `reward` float64 (n,), what the reward
    role computed; `env_reward` float64 (n,), what the environment returned; `terminated`,
    `truncated`, `infra` bool (n,), false everywhere if it is left out.
    """

    seq: int
    obs: Any
    action: Any
    reward: NDArray[np.float64]
    env_reward: NDArray[np.float64]
    next_obs: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: list[dict[str, Any]]
    infra: NDArray[np.bool_] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.infra is None:
            self.infra = np.zeros(len(self.truncated), np.bool_)


@runtime_checkable
class Policy(Protocol):
    """Chooses actions. Constructed as `cls(observation_space=..., action_space=..., num_envs=...,
    seed=..., **kwargs)`: single-environment spaces and an int seed of its own.

    Optional members, looked up once: `learn(transitions: Transitions) -> None`, called for each
    transition, in order, before `act` on the next observation; its presence makes the policy a
    learning one. `get_state() -> Any` and `set_state(state) -> None`: everything that its answers
    depend on, for the policy of a successor process; without them all its attributes are taken.
    `close() -> None`. `metrics() -> dict[str, float]`, asked once at the end.
    `zero_copy = True`: the observations given to `act` are read-only views of shared memory,
    valid only until it returns; otherwise they are copies. Where the observation or action space
    holds a Text, Sequence, Graph or OneOf they are copies always.
    """

    def act(self, obs: Any) -> Any:
        """Return one action for each environment: array (n, ...) in the action space, or for
        composite spaces a dict or tuple of such arrays; a tuple of n values for a Text, Sequence,
        Graph or OneOf."""


@runtime_checkable
class Reward(Protocol):
    """Computes rewards. Constructed as `cls(observation_space=..., action_space=...,
    num_envs=..., seed=..., **kwargs)`. Optional members: `get_state()` and `set_state(state)`,
    `close()`, `metrics()`, as a policy has them.
    `passthrough = True`: it returns the environment's rewards unchanged, so that the runner may
    copy them and never call `compute`.
    """

    def compute(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return the rewards, float64 (n,). `transitions.reward` holds the environment's."""

"""A policy as something that is stepped: how a caller has one in a process of its own.

To the runner it is an environment whose actions are observations and whose observations are
actions, so everything that holds of a caller's environment holds of its policy: it may crash and
goes on where it was, a hang has a deadline, what it raises is the caller's. New weights come as a
call between two steps, in the one order of everything; a successor that replays gets them again.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dsec.ipc.layout import decode_spaces
from dsec.runners.failure import UserCodeError
from dsec.runners.lookup import resolve

BFLOAT16 = "bfloat16"
"""A dtype that numpy has not: it travels as int16, bit by bit."""


class PolicyHost(gymnasium.Env[Any, Any]):
    """Acts on what it is stepped with.

    Args:
        entry, kwargs: the policy, by the contract of contract.py, for one environment.
        spaces: those of the environment, base64 of what `encode_spaces` makes.
        seed: the policy's.

    Raises:
        UserCodeError: there is no such policy.
    """

    def __init__(self, entry: str, kwargs: dict[str, Any], spaces: str, seed: int) -> None:
        seen, done = decode_spaces(base64.b64decode(spaces))
        self.observation_space, self.action_space = done, seen
        self._batched = batch_space(done, 1)
        made = resolve(entry, "policy.entry")
        self.policy = made(
            observation_space=seen, action_space=done, num_envs=1, seed=seed, **kwargs
        )
        if not callable(getattr(self.policy, "act", None)):
            raise UserCodeError(f'"{entry}" makes what has no method act()', where="policy.entry")
        self.updates = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Nothing begins for a policy; an action that means nothing."""
        super().reset(seed=seed)
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act on an observation."""
        space = self.action_space
        room: Any = create_empty_array(space, 1)
        seen = concatenate(space, [action], room)
        chosen = self.policy.act(seen)
        return next(iter(iterate(self._batched, chosen))), 0.0, False, False, {}

    def weights(self) -> dict[str, tuple[tuple[int, ...], str]] | None:
        """Shape and dtype of each of the policy's weights; None if it has none to be changed."""
        ways = (getattr(self.policy, name, None) for name in ("state_dict", "load_state_dict"))
        if not all(map(callable, ways)):
            return None
        return {str(name): shape_of(value) for name, value in self.policy.state_dict().items()}

    def load(self, weights: dict[str, Any]) -> int:
        """Let the policy have these weights, which are such as `weights` says."""
        own = self.policy.state_dict()
        self.policy.load_state_dict({name: _as(weights[str(name)], own[name]) for name in own})
        self.updates += 1
        return self.updates

    def close(self) -> None:
        """Close the policy."""
        close = getattr(self.policy, "close", None)
        if callable(close):
            close()


def shape_of(value: Any) -> tuple[tuple[int, ...], str]:
    """The shape and the dtype of an array, a tensor or a number."""
    if not hasattr(value, "dtype"):
        value = np.asarray(value)
    return tuple(int(each) for each in value.shape), str(value.dtype).removeprefix("torch.")


def carried(value: Any) -> np.ndarray[Any, Any]:
    """A weight as numpy array, on its way to a policy's process."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16)
        return np.asarray(value.numpy())
    return np.ascontiguousarray(value).reshape(np.shape(value))


def _as(array: Any, own: Any) -> Any:
    """A weight as the policy has it."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(own, torch.Tensor):
        return array
    tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    return tensor.view(torch.bfloat16) if own.dtype == torch.bfloat16 else tensor


def differences(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """In which ways weights are not such as a policy has."""
    said = [f"{name} is missing" for name in wanted if name not in given]
    said += [f"the policy has no {name}" for name in given if name not in wanted]
    for name in given.keys() & wanted.keys():
        shape, dtype = shape_of(given[name])
        if (shape, dtype) != (tuple(wanted[name][0]), wanted[name][1]):
            due = f"{wanted[name][1]} {tuple(wanted[name][0])}"
            said.append(f"{name} is {due} there, and {dtype} {shape} here")
    return sorted(said)

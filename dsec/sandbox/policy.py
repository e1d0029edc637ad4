"""A sandbox's policy in a process of its own: asked for actions, and given new weights.

Owns the lane to it, which is that of an environment turned round (runners/policy_host.py), so that
weights travel as one record through shared memory, in order with the observations: what acts has
the old ones or the new ones, whole.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from dsec.config import Agent
from dsec.engine import talk
from dsec.errors import EnvironmentLost, LayoutError, LocalError
from dsec.ipc.layout import FLAG_INFRA, encode_spaces
from dsec.runners.policy_host import carried, differences
from dsec.runners.seeds import derive
from dsec.sandbox import remote
from dsec.sandbox.lanes import Lanes
from dsec.sandbox.order import Given, make_order
from dsec.seeds import agent_seed

_HOST = "dsec.runners.policy_host:PolicyHost"
_SHOWN = 5


class PolicyRunner:
    """The policy of one sandbox.

    Args:
        sandbox: as it was typed; order: as it was ordered.
        policy: `module:Class`, or that as `entry` and its `kwargs`.
        lanes: the environment's.
        limits: as for Lanes.

    Raises:
        As for Lanes.
    """

    def __init__(
        self,
        sandbox: Given,
        policy: str | Mapping[str, Any],
        order: talk.Order,
        lanes: Lanes,
        limits: Mapping[str, float],
    ) -> None:
        named: dict[str, Any] = {"entry": policy} if isinstance(policy, str) else dict(policy)
        if not isinstance(named.get("entry"), str) or named.keys() - {"entry", "kwargs"}:
            raise ValueError(
                f"policy is 'module:Class' or {{'entry': ..., 'kwargs': {{...}}}}, not {policy!r}"
            )
        spaces = encode_spaces(lanes.observation_space, lanes.action_space)
        deadlines = Agent.model_validate(order.agent).deadlines
        failover = {k: v for k, v in (sandbox.failover or {}).items() if k != "cached_steps"}
        given = Given(
            env=_HOST,
            kwargs={
                "entry": named["entry"],
                "kwargs": dict(named.get("kwargs") or {}),
                "spaces": base64.b64encode(spaces).decode(),
                "seed": derive(agent_seed(order.seed, "policy"), "policy"),
            },
            name="policy",
            seed=order.seed,
            profile="unprotected" if sandbox.profile == "unprotected" else "rl_default",
            failover=failover,
            deadlines={
                "construct_s": deadlines.construct_s,
                "step_s": deadlines.act_s,
                "close_s": deadlines.close_s,
            },
            limits=sandbox.limits,
        )
        asked = make_order(given, lanes=1, num_envs=1, autoreset="disabled")
        self._lanes = Lanes(asked, 1, **limits)
        self._updates, self._loading = 0, False
        self._lanes.enter()
        try:
            self._lanes.request({"do": "reset", "seeds": [None], "mask": [True], "options": None})
            self._weights = self._call("weights")
        except BaseException:
            self._lanes.leave()
            self.close()
            raise
        self._lanes.leave()

    def act(self, obs: Any) -> Any:
        """What the policy does on an observation. Raises what `AgentSandbox.act` does."""
        lanes = self._lanes
        lanes.enter()
        try:
            self._loaded()
            if lanes.busy:
                lanes.settle()
            try:
                lanes.all_actions.write(lanes.actions, 0, obs)
            except LayoutError as error:
                raise LayoutError(f"not an observation: {error}") from None
            if lanes.send():
                self._look(lanes.told(0)[1][0])
            return lanes.layout.read(lanes.obs, 0)
        finally:
            lanes.leave()

    def update(self, weights: Mapping[str, Any]) -> int:
        """Send weights, if they fit. Raises what `AgentSandbox.update_policy` does."""
        if self._weights is None:
            raise LocalError(
                "this policy takes no weights: a class that does has state_dict() and"
                " load_state_dict(state), as torch modules have"
            )
        if not isinstance(weights, Mapping):
            raise TypeError(f"state_dict is a dict of arrays by name, not {type(weights).__name__}")
        wrong = differences(weights, self._weights)
        if wrong:
            more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise ValueError(
                f"these are no weights of this policy: {'; '.join(wrong[:_SHOWN])}{more}"
            )
        arrays = {name: carried(value) for name, value in weights.items()}
        lanes = self._lanes
        lanes.enter()
        try:
            self._loaded()
            lanes.post({"do": "call", "name": "load", "args": (arrays,), "kwargs": {}})
            self._loading = True
            self._updates += 1
            return self._updates
        finally:
            lanes.leave()

    def _loaded(self) -> None:
        """Take in what became of the weights that were sent last."""
        if self._loading:
            self._loading = False
            self._look(self._lanes.collect())

    def _look(self, info: dict[str, Any]) -> None:
        """Raise what the policy raised, or that it was lost with all its weights."""
        if self._lanes.flags[0] & FLAG_INFRA:
            cause = info["dsec"]["infra_failure"]["cause"]
            raise EnvironmentLost(
                f"the policy was lost ({cause}) and begins anew, with the weights that it was made"
                " with: call update_policy() and then act() again"
            )
        raised = remote.raised(info)
        if raised is not None:
            raise raised

    def _call(self, name: str) -> Any:
        told = self._lanes.request({"do": "call", "name": name, "args": (), "kwargs": {}})
        return remote.from_wire(told[0][1][0]["dsec"]["answer"][0])

    def close(self) -> None:
        """End its process. Again is no error."""
        self._lanes.close()

"""dsec.sandbox: an environment that may crash, inside somebody's own training script.

    from dsec.sandbox import AgentSandbox

    with AgentSandbox("CartPole-v1") as sandbox:
        env = sandbox.get_env()      # a gymnasium.Env; all else stays as it was

Owns `AgentSandbox`: one environment in a process of its own, watched by the program's kernel, with
failover as in `dsec-kernel run`. The script plays the policy's part, or asks a policy that has a
process of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from dsec.errors import DsecError, LocalError
from dsec.sandbox.atoms import Pair, Parent, States
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
from dsec.sandbox.policy import PolicyRunner
from dsec.sandbox.tracked import STEP_APIS, TrackedEnv
from dsec.seeds import agent_seed, fork_seed
from dsec.sml.atom import Atom

__all__ = ["RESOURCE_PROFILES", "AgentSandbox", "TrackedEnv"]


@dataclass(frozen=True, slots=True)
class _Manner:
    """What was typed beside the order."""

    step_api: str
    reward_window_size: int
    start_timeout_s: float | None
    answer_timeout_s: float | None
    policy: str | Mapping[str, Any] | None


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
        policy: `module:Class` of a policy, or `{"entry": name, "kwargs": {...}}`, in a process of
            its own, for `act` and `update_policy`. Left out: the script chooses its actions.
        snapshot_interval: steps between two atoms of which the pool keeps the latest few.
        reward_window_size: rewards that `TrackedEnv.reward_window` holds.
        sync_interval: have an Agent State Atom in a pool each so many steps, of which
            `snapshot_interval` is a multiple. Left out: that, where there is a pool.
        pool: of atoms, as `pool` of a configuration file; {} for one of 64 MiB, which is what
            `sync_interval` alone gives. Left out: `snapshot` makes atoms, and nothing else.
        step_api: `gymnasium`: `step` returns five values; `gym`: the four of the old Gym.
        failover, deadlines, limits, isolation: as in a configuration file, see docs/CONFIG.md; and
            `failover={"cached_steps": k}`: while a process that died is being replaced, up to k
            steps are answered at once with the last observation, see the guide under "Coasting".
        record: a new directory for a recording of all transitions, as `dsec-kernel run` makes one.
        start_timeout_s, answer_timeout_s: limits of the start, and of the wait for one answer;
            by default what deadlines and failover may take in all.

    Raises:
        ValueError, TypeError: an argument that doesn't exist, or isn't in its range.
        SandboxFailed: the environment, or the policy, can't be made.
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
        policy: str | Mapping[str, Any] | None = None,
        snapshot_interval: int = 50,
        reward_window_size: int = 200,
        sync_interval: int | None = None,
        pool: Mapping[str, Any] | None = None,
        step_api: str = "gymnasium",
        failover: Mapping[str, Any] | None = None,
        deadlines: Mapping[str, float] | None = None,
        limits: Mapping[str, Any] | None = None,
        isolation: Mapping[str, Any] | None = None,
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
        for name, limit in (("start", start_timeout_s), ("answer", answer_timeout_s)):
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                raise ValueError(f"{name}_timeout_s is a number of seconds above 0, not {limit!r}")
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
            isolation=isolation,
            reward=reward,
            record=record,
            sync_interval=sync_interval,
            pool=pool,
            coasts=True,
        )
        self._open(
            given,
            _Manner(step_api, reward_window_size, start_timeout_s, answer_timeout_s, policy),
            Parent(),
        )

    def _open(self, given: Given, manner: _Manner, parent: Parent) -> None:
        self._given, self._manner, self._forks = given, manner, 0
        self._policy: PolicyRunner | None = None
        order = make_order(given, lanes=1, num_envs=1, autoreset="disabled")
        self._seed = order.seed
        self._pool = "" if order.pool is None else str(order.pool["name"])
        start_s, answer_s, close_s = limits_of(order)
        limits = {
            "start_s": manner.start_timeout_s or start_s,
            "answer_s": manner.answer_timeout_s or answer_s,
            "close_s": close_s,
        }
        self._lanes = lanes = Lanes(order, 1, **limits)
        self._env = TrackedEnv(
            lanes,
            spec=spec_of(given.env),
            step_api=manner.step_api,
            reward_window_size=manner.reward_window_size,
            cached_steps=cached_steps_of(order),
        )
        window = self._env.rewards_kept
        self._states = States(lanes, window, reward=order.reward, parent=parent)
        try:
            if manner.policy is not None:
                self._policy = PolicyRunner(given, manner.policy, order, lanes, limits)
        except BaseException:
            self._env.close()
            raise

    def get_env(self) -> TrackedEnv:
        """The environment; the same at each call."""
        return self._env

    # ------------------------------------------------------------ atoms

    def snapshot(self) -> Atom:
        """The whole state of now as an Agent State Atom: the environment's and its generators', the
        reward's, the latest rewards, and what was registered (`register_state`).

        It costs a capture of all that, and no step is counted. An environment of which nothing is
        kept in a standby (`unprotected`, `fork`) is tried first, which takes up to seconds, once.

        Raises:
            SnapshotError: nothing was reset yet, or no codec holds a part of it; says why.
            EnvironmentLost: the environment died of it.
        """
        with self._env.using():
            return self._states.take()

    def restore(self, atom: Atom) -> Any:
        """Let everything be as it was when that atom was taken, in this sandbox or in another one
        of the same environment, in this program or in another.

        In a recording an episode begins here.

        Returns:
            The observation that was the last one then.

        Raises:
            AtomForeign: it is none of such a sandbox; nothing was changed.
            SnapshotError: the environment doesn't take it: `reset` it.
            EnvironmentLost: the environment died of it: `reset` it.
        """
        with self._env.using(begins=True):
            self._states.put(atom)
            return self._env.last_observation()

    def update_objectives(self, changes: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Change the objectives of the reward, in force from the next step on, and in every
        successor: the change has its place in the order of steps.

        Args:
            changes: by name, `{"weight": 0..1, "type": "dense" | "sparse"}` as the objective is
                from now on, or None to take it away; those that are not named stay.

        Raises:
            LocalError: this sandbox has no such reward, or what comes of it doesn't add up; nothing
                was changed.
            UserCodeError: an `entry` names nothing that can be imported here.
            EnvironmentLost: the environment died of it: `reset` it.
        """
        with self._env.using():
            self._states.update_objectives(changes)

    def fork(self, *, record: str | Path | None = None) -> AgentSandbox:
        """Another sandbox that goes on from here, with random streams of its own: those follow from
        this one's seed, from where it stands and from how often it was forked. To go on with the
        same numbers, `restore` a snapshot into a new sandbox.

        What was registered is the script's, which has it already: the new sandbox knows of none.
        A policy begins anew.

        Args:
            record: as for a new sandbox; the recording of this one is not shared.

        Raises:
            As `snapshot` and a new sandbox.
        """
        atom = self.snapshot()
        name = self._lanes.lanes[0].name
        seed = fork_seed(self._seed, name, atom.manifest.id, self._forks)
        parent = Parent(atom.manifest.id, self._forks)
        self._forks += 1
        made = object.__new__(type(self))
        made._open(replace(self._given, seed=seed, record=record), self._manner, parent)
        try:
            with made._env.using(begins=True):
                made._states.put(atom, anew=agent_seed(seed, name))
        except BaseException:
            made.close()
            raise
        return made

    def register_state(
        self, get: Callable[[], Any], set: Callable[[Any], Any], name: str = ""
    ) -> None:
        """Have a part of the script's own state in every atom that `snapshot` takes.

        Args:
            get: returns it: numbers, texts, arrays, tensors, and lists, tuples, sets and dicts of
                these, generators, and instances of classes that are made of such. Beside it the
                process' own generators are taken (`random`, numpy's, torch's), and put back.
            set: takes what `get` returned: new objects, which nobody else refers to.
            name: one without a name is the atom's policy.

        Raises:
            TypeError: these can't be called.
            ValueError: that name is taken.
        """
        self._states.register(Pair(get, set), name)

    @property
    def pool(self) -> str:
        """The name of the pool that atoms go to (`dsec.pools`, `dsec-rdma-gc`), "" without one."""
        return self._pool

    # ------------------------------------------------------------ the policy

    def act(self, obs: Any) -> Any:
        """What the policy does on an observation: an action for `step`.

        Raises:
            LocalError: this sandbox has no policy.
            LayoutError: not such an observation; nothing was sent.
            EnvironmentLost: its process died and its weights with it; there is a new one.
            SandboxFailed: the policy is gone for good.
            Exception: what the policy itself raised.
        """
        return self._policy_runner("act()").act(obs)

    def update_policy(self, state_dict: Mapping[str, Any]) -> int:
        """Have the policy act with other weights from its next `act` on, and not before.

        All or nothing: they go through shared memory as one record, which a policy that dies
        meanwhile gets again. Returns when they are on their way.

        Args:
            state_dict: weights by name, numpy arrays or tensors: names, shapes and dtypes as the
                policy's own `state_dict()` has them.

        Returns:
            How many updates there were.

        Raises:
            LocalError: this sandbox has no policy, or that one takes no weights.
            ValueError: other names, shapes or dtypes; says which. Nothing was sent.
        """
        return self._policy_runner("update_policy()").update(state_dict)

    def _policy_runner(self, what: str) -> PolicyRunner:
        if self._policy is None:
            raise LocalError(
                f"{what} needs a policy in a process of its own, and in this sandbox the script"
                " itself is the policy: make it with policy='module:Class'"
            )
        return self._policy

    # ------------------------------------------------------------ the end

    @property
    def recording(self) -> tuple[str, ...]:
        """The files of the recording, relative to `record`, once this is closed."""
        return self._lanes.files

    def close(self) -> None:
        """Close the environment and end its processes. Again is no error."""
        try:
            if self._policy is not None:
                with suppress(DsecError):
                    self._policy.close()
        finally:
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

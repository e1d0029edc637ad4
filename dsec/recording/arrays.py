"""Rows of a recording as arrays and episodes, in the structure of the agent's spaces.

Owns the value types that `dsec.recording` gives to people, and how rows become them. Knows no
file: a source is an agent and a function that gives its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from dsec.errors import DsecError, JournalError, LocalError
from dsec.ipc.layout import decode_spaces
from dsec.runners import records
from dsec.runners.columns import END_WORDS, Rows
from dsec.runners.records import LeafValues

_WORDS = np.array(END_WORDS)


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent of a recording.

    Attributes:
        transitions: how many there are; each is a step in every one of `num_envs` environments.
        ended: its stream was recorded to its end.
        abandoned: a runner of it died, and the agent was given up.
        action_last: the last action of an agent that was abandoned, in words.
        observation_space, action_space: of a single environment.
        chain: its hash chain at the end, in hexadecimal digits; empty where nobody vouches for it.
    """

    name: str
    group: str
    num_envs: int
    transitions: int
    ended: bool
    abandoned: bool
    action_last: str
    observation_space: Space[Any]
    action_space: Space[Any]
    chain: str = ""

    @property
    def steps(self) -> int:
        """Environment steps."""
        return self.transitions * self.num_envs


def make_agent(
    name: str, group: str, num_envs: int, spaces: bytes, transitions: int, ended: bool,
    abandoned: bool, action_last: str, chain: str,
) -> Agent:  # fmt: skip
    """Build an Agent from what a journal or a table says of it.

    Raises:
        JournalError: the spaces are unreadable.
    """
    try:
        obs_space, action_space = decode_spaces(spaces)
    except DsecError as error:
        raise JournalError(f"agent {name!r}: {error}") from None
    return Agent(
        *(name, group, num_envs, transitions, ended, abandoned, action_last),
        *(obs_space, action_space, chain),
    )


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode. `length` counts its recorded steps; `end` is as in `Transitions`."""

    agent: str
    env: int
    episode: int
    first_seq: int
    length: int
    total_reward: float
    total_env_reward: float
    end: str


@dataclass(frozen=True, slots=True)
class Transitions:
    """Consecutive transitions of one agent: arrays whose first axis is time.

    Of all environments the second axis is the environment: (T, n, ...). Of a single one (`env=`)
    there is no such axis, and the keys of the dicts are rows instead of (row, environment).

    Attributes:
        seq: int64 (T,), ascending; one is missing where an environment was lost (`infra`).
        episode, step: number of the episode, and of the step in it, both from 0.
        obs, action: array, or dict or tuple of arrays, as the space has it. A Text, Sequence,
            Graph or OneOf is an array of objects, one value for each (row, environment).
        reward: what the agent's reward computed; float64.
        env_reward: what the environment returned; float64.
        terminated, truncated: bool.
        end: text: why the episode ended with this step: `terminated`, `truncated`, `infra` (a
            process died, and with it what came next), `cut` (the run's quota or its end), or
            nothing where it goes on.
        final_obs: what the last step of an episode led to, wherever `end` says something.
        infos: the info of each step that had one.
        reset_infos: the info of the very first reset, by environment. Those of later resets are
            in the info of the step before, under `dsec`.
    """

    seq: NDArray[np.int64]
    episode: NDArray[np.int64]
    step: NDArray[np.int32]
    obs: Any
    action: Any
    reward: NDArray[np.float64]
    env_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    end: NDArray[np.str_]
    final_obs: dict[Any, Any]
    infos: dict[Any, dict[str, Any]]
    reset_infos: dict[int, dict[str, Any]]

    def __len__(self) -> int:
        return len(self.seq)

    def next_obs(self) -> Any:
        """Observations that the actions led to, terminal ones included, shaped as `obs`.

        Raises:
            LocalError: the last row's next observation is not among these transitions; a whole
                agent's always is.
        """
        last_rows = {key if isinstance(key, int) else key[0] for key in self.final_obs}
        if len(self) and len(self) - 1 not in last_rows:
            raise LocalError("the observation after the last of these transitions is not here")

        def following(leaf: NDArray[Any], finals: dict[Any, Any]) -> NDArray[Any]:
            out = np.empty_like(leaf)
            out[:-1] = leaf[1:]
            for key, value in finals.items():
                out[key] = value
            return out

        return _map(following, self.obs, self.final_obs)


def _map(make: Callable[..., Any], tree: Any, finals: dict[Any, Any]) -> Any:
    """Apply `make` to each leaf and the values that `finals` has for it."""
    if isinstance(tree, dict):
        return {
            name: _map(make, sub, {key: value[name] for key, value in finals.items()})
            for name, sub in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple(
            _map(make, sub, {key: value[i] for key, value in finals.items()})
            for i, sub in enumerate(tree)
        )
    return make(tree, finals)


@dataclass(frozen=True, slots=True)
class Source:
    """Where one agent's rows come from: each call of `rows` reads them anew.

    Attributes:
        spaces: as ipc/spaces.py encodes them.
        committed: transitions, those that were lost with an environment too; -1 if unknown.
        marks: reads the values of its hash chain at the multiples of MARK_EVERY.
        begins: the mark that it begins from, packed; empty where that is transition 0.
    """

    agent: Agent
    rows: Callable[[], Iterator[Rows]]
    spaces: bytes
    committed: int
    marks: Callable[[], list[bytes]]
    begins: bytes = b""

    def load(self, parts: list[Rows], env: int | None) -> Transitions:
        """Put rows together as arrays in the structure of the spaces."""
        agent = self.agent
        if env is not None and not 0 <= env < agent.num_envs:
            raise LocalError(f"no environment {env}: {agent.name} has {agent.num_envs}")
        pick: Any = slice(None) if env is None else env
        n = agent.num_envs

        def joined(name: str, dtype: Any) -> NDArray[Any]:
            arrays = [getattr(part, name)[:, pick] for part in parts]
            empty = np.zeros((0, n), dtype)[:, pick]
            return np.concatenate(arrays) if arrays else empty

        def tree(space: Space[Any], pieces: list[LeafValues]) -> Any:
            from_nothing = records.empty(space, n)
            leaves = [
                records.joined([piece[i] for piece in pieces] or [none])[:, pick]
                for i, none in enumerate(from_nothing)
            ]
            return records.unflatten(space, iter(leaves))

        keyed = _Keyed(parts, env)
        obs_space = agent.observation_space
        return Transitions(
            seq=np.concatenate([part.seq for part in parts]) if parts else np.zeros(0, np.int64),
            episode=joined("episode", np.int64),
            step=joined("step", np.int32),
            obs=tree(obs_space, [part.obs for part in parts]),
            action=tree(agent.action_space, [part.action for part in parts]),
            reward=joined("reward", np.float64),
            env_reward=joined("env_reward", np.float64),
            terminated=joined("terminated", np.bool_),
            truncated=joined("truncated", np.bool_),
            end=_WORDS[joined("end", np.uint8)],
            final_obs={
                key: records.unflatten(obs_space, iter(leaves))
                for key, leaves in keyed.all("finals")
            },
            infos=dict(keyed.all("infos")),
            reset_infos={
                i: info
                for part in parts
                for i, info in part.reset_infos.items()
                if env is None or i == env
            },
        )


class _Keyed:
    """The dicts of several pieces, with keys that count rows from the first piece on."""

    def __init__(self, parts: list[Rows], env: int | None) -> None:
        self._parts = parts
        self._env = env

    def all(self, name: str) -> Iterator[tuple[Any, Any]]:
        start = 0
        for part in self._parts:
            for (t, i), value in sorted(getattr(part, name).items(), key=lambda item: item[0]):
                if self._env is None:
                    yield (start + t, i), value
                elif i == self._env:
                    yield start + t, value
            start += len(part.seq)


def episodes(name: str, parts: Iterable[Rows]) -> Iterator[Episode]:
    """The episodes in rows; what an episode had before a piece is carried into it."""
    carried: dict[int, tuple[int, float, float]] = {}  # by environment: first seq, both sums
    for rows in parts:
        n = rows.end.shape[1]
        begins = dict.fromkeys(range(n), 0)
        for t, i in zip(*(axis.tolist() for axis in np.nonzero(rows.end)), strict=True):
            begin = begins[i]
            first, total, env_total = carried.pop(i, (int(rows.seq[begin]), 0.0, 0.0))
            yield Episode(
                agent=name,
                env=i,
                episode=int(rows.episode[t, i]),
                first_seq=first,
                length=int(rows.step[t, i]) + 1,
                total_reward=_added(total, rows.reward[begin : t + 1, i]),
                total_env_reward=_added(env_total, rows.env_reward[begin : t + 1, i]),
                end=END_WORDS[rows.end[t, i]],
            )
            begins[i] = t + 1
        for i, begin in begins.items():
            if begin < len(rows.seq):
                first, total, env_total = carried.pop(i, (int(rows.seq[begin]), 0.0, 0.0))
                carried[i] = (
                    first,
                    _added(total, rows.reward[begin:, i]),
                    _added(env_total, rows.env_reward[begin:, i]),
                )


def _added(total: float, rewards: NDArray[np.float64]) -> float:
    """Add in order: how rows come in pieces must not change the sum."""
    return float(np.cumsum(np.concatenate([[total], rewards]))[-1])

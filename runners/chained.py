"""An agent's hash chain over what is recorded of it: raw records, or the rows of a recording.

Brings the chain (sml/chain.py) and the layouts together. The recorder takes its batches in as they
lie in the rings; who verifies a recording takes in its rows, which give the same chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.ipc.layout import (
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    EnvRecord,
    Layout,
    Leaf,
    decode_spaces,
)
from dsec.runners.columns import Rows
from dsec.runners.records import LeafValues
from dsec.sml import chain
from dsec.sml.chain import BEGIN, Mark, Place, Shape, TableChain


def shape_of(env: EnvRecord, actions: Layout) -> Shape:
    """Where everything lies in the records of such an agent."""
    n = env.n
    return Shape(
        num_envs=n,
        flags_off=env.flags_off,
        obs_bytes=env.fixed_bytes,
        action_bytes=actions.nbytes,
        final_stride=env.final_stride,
        obs=tuple(
            Place(env.obs_off + leaf.offset, final.offset, leaf.nbytes // n)
            for leaf, final in zip(env.layout.leaves, env.final.leaves, strict=True)
        ),
        action=tuple(Place(leaf.offset, 0, leaf.nbytes // n) for leaf in actions.leaves),
        obs_variable=len(env.layout.variable),
        action_variable=len(actions.variable),
    )


class RowChain:
    """The chain of one agent's rows, taken in piece by piece and in order.

    Args:
        spaces: of the agent, encoded.
        num_envs: of the agent.
        at: where it begins.

    Attributes:
        marks: the chain at multiples of MARK_EVERY, in order.
    """

    def __init__(self, spaces: bytes, num_envs: int, at: Mark = BEGIN) -> None:
        obs_space, action_space = decode_spaces(spaces)
        self._obs = Layout(obs_space, num_envs)
        self._action = Layout(action_space, num_envs)
        self._n = num_envs
        self._table = TableChain(num_envs, at)
        self.marks: list[Mark] = []

    @property
    def at(self) -> Mark:
        """Where it stands."""
        return self._table.at

    def take(self, rows: Rows, led: LeafValues) -> None:
        """Take rows in, with what they led to (columns.outcomes)."""
        count = len(rows.seq)
        flags = rows.terminated * np.uint8(FLAG_TERMINATED) + rows.truncated * np.uint8(
            FLAG_TRUNCATED
        )
        # Behind a gap (a step was lost, or a caller asked for something) everything begins anew.
        before = np.concatenate([[self.at.seq - 1], rows.seq[:-1]])
        begins = (rows.step == 0) | (rows.seq != before + 1)[:, None]
        first = np.zeros((count, chain.LINK_BYTES), np.uint8)
        some = np.flatnonzero(begins.any(axis=1))
        for t in some.tolist():
            picked = [leaf[t : t + 1, begins[t]] for leaf in rows.obs]
            first[t] = np.frombuffer(self._hashes(self._obs, picked, 1), np.uint8)
        made = chain.Rows(
            seq=np.ascontiguousarray(rows.seq, np.uint64),
            obs=self._hashes(self._obs, led, count),
            action=self._hashes(self._action, rows.action, count),
            first=first,
            reward=np.ascontiguousarray(rows.reward, "<f8"),
            env_reward=np.ascontiguousarray(rows.env_reward, "<f8"),
            flags=np.ascontiguousarray(flags, np.uint8),
        )
        self.marks += self._table.take(made, count)

    def end(self, committed: int) -> Mark:
        """Take in that all transitions up to `committed` that were not among the rows were lost."""
        self.marks += self._table.skip(committed)
        return self.at

    def _hashes(self, layout: Layout, leaves: LeafValues, count: int) -> bytes:
        """The hash of each row: arrays first, then each value without a fixed size."""
        columns = [
            _bytes_of(leaf, count)
            for place, leaf in zip(layout.order, leaves, strict=True)
            if isinstance(place, Leaf)
        ]
        nothing = np.zeros((count, 0), np.uint8)
        fixed = columns[0] if len(columns) == 1 else np.concatenate([nothing, *columns], axis=1)
        if not layout.variable:
            return chain.hash_rows(np.ascontiguousarray(fixed).data, fixed.shape[1], count)
        loose = [
            (place, leaf)
            for place, leaf in zip(layout.order, leaves, strict=True)
            if not isinstance(place, Leaf)
        ]
        hashes = []
        for t in range(count):
            parts = [fixed[t].tobytes()]
            for place, leaf in loose:
                for value in leaf[t]:
                    encoded = place.encode(value)
                    parts += [len(encoded).to_bytes(8, "little"), encoded]
            hashes.append(chain.hash_rows(b"".join(parts), sum(map(len, parts)), 1))
        return b"".join(hashes)


def _bytes_of(leaf: NDArray[Any], count: int) -> NDArray[np.uint8]:
    """An array's rows as bytes."""
    flat = np.ascontiguousarray(leaf).reshape(count, -1)
    return flat.view(np.uint8) if flat.shape[1] else np.zeros((count, 0), np.uint8)

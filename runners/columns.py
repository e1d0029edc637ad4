"""From raw records in the journal to columns: arrays over transitions and environments.

Owns how the records of env, policy and reward are put together into transitions, and what the
derived columns (episode, step, end) mean. Knows neither Parquet nor who asks: convert.py writes
these rows to files, `dsec.recording` gives them to people. Records are taken apart a run at a
time, not one by one: those of one size lie at one stride, so a column of a run is a strided view.

What a row is: transition `seq` of environment `env`. `obs` is what the policy saw, `reward` what
the reward role computed, `env_reward` what the environment returned. `episode` counts the
environment's episodes from 0, `step` the transitions within one. `end` says why the episode
ended with this row, and is empty elsewhere:

    terminated, truncated   the environment said so (both at once count as terminated)
    infra                   a runner, or the kernel, died; the stream ends here, unfinished
    cut                     the agent's quota, or a drain, ended the stream within an episode

Where `end` is not empty there is a final observation: what the last action led to. Elsewhere it
is the `obs` of the environment's next row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dsec.errors import JournalError, LayoutError, PeerError
from dsec.ipc.layout import (
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    EnvRecord,
    Layout,
    Leaf,
    RewardRecord,
    decode_spaces,
    record_bytes,
)
from dsec.ipc.ring import KIND_ACTION, KIND_OBS, KIND_REWARD
from dsec.ipc.spaces import children
from dsec.runners.journal import Block, Declaration, JournalReader

END_WORDS: Final = ("", "terminated", "truncated", "infra", "cut")
END_NONE, END_TERMINATED, END_TRUNCATED, END_INFRA, END_CUT = range(5)

HEAD: Final = np.dtype(
    [
        ("position", "<u8"),
        ("seq", "<u8"),
        ("nbytes", "<u4"),
        ("epoch", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("mark", "<u4"),
    ]
)
_RUN_GUESS: Final = 16

Path = tuple[str | int, ...]
LeafValues = list[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Span:
    """Records of one kind and size, one after the other at one stride, in a buffer."""

    buffer: memoryview
    offset: int
    stride: int
    heads: NDArray[Any]

    @property
    def payload_bytes(self) -> int:
        """Payload of each record."""
        return int(self.heads["nbytes"][0])

    def column(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The array (records, *shape) that lies `offset` bytes into each payload; a view."""
        strides: list[int] = []
        size = dtype.itemsize
        for side in reversed(shape):
            strides.insert(0, size)
            size *= side
        return np.ndarray(
            (len(self.heads), *shape),
            dtype,
            self.buffer,
            self.offset + HEAD.itemsize + offset,
            (self.stride, *strides),
        )

    def payload(self, i: int) -> memoryview:
        """The payload of record i."""
        start = self.offset + i * self.stride + HEAD.itemsize
        return self.buffer[start : start + self.payload_bytes]


def split(buffer: memoryview, kind: int) -> list[Span]:
    """Find the records of this kind in raw ring bytes, in order.

    Raises:
        JournalError: the bytes are no row of records.
    """
    found: list[Span] = []
    at, guess = 0, _RUN_GUESS
    while at < len(buffer):
        if len(buffer) - at < HEAD.itemsize:
            raise JournalError(f"{len(buffer) - at} bytes at {at} are no record")
        first = np.ndarray((), HEAD, buffer, at)
        stride = record_bytes(int(first["nbytes"]))
        room = (len(buffer) - at) // stride
        if room == 0:
            raise JournalError(f"the record at {at} claims {int(first['nbytes'])} bytes")
        count = min(room, guess)
        heads = np.ndarray((count,), HEAD, buffer, at, (stride,))
        # Where the next size begins, what a header of this size would say is wrong: ring
        # positions grow by the stride from record to record.
        expected = first["position"] + np.arange(count, dtype=np.uint64) * np.uint64(stride)
        same = heads["position"] == expected
        for name in ("mark", "nbytes", "kind"):
            same &= heads[name] == first[name]
        wrong = np.flatnonzero(~same)
        if len(wrong):
            count, guess = int(wrong[0]), _RUN_GUESS
        else:
            guess *= 4
        if int(first["kind"]) == kind:
            found.append(Span(buffer, at, stride, heads[:count]))
        at += count * stride
    return found


@dataclass(slots=True)
class Rows:
    """Consecutive transitions of one agent: T of them, in n environments.

    Attributes:
        seq: int64 (T,).
        episode, step: int64 and int32 (T, n).
        obs, action: one array (T, n, *leaf) for each leaf of the space, in its order.
        reward, env_reward: float64 (T, n).
        terminated, truncated: bool (T, n).
        end: uint8 (T, n), an index into END_WORDS.
        finals: leaf values of the final observation by (row, environment), wherever `end` is set.
        infos: what is not empty, by (row, environment).
        reset_infos: what the first `reset` returned beside the observation, by environment; only
            in an agent's first rows. Later ones are in the infos, as the env runner put them.
    """

    seq: NDArray[np.int64]
    episode: NDArray[np.int64]
    step: NDArray[np.int32]
    obs: LeafValues
    action: LeafValues
    reward: NDArray[np.float64]
    env_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    end: NDArray[np.uint8]
    finals: dict[tuple[int, int], LeafValues]
    infos: dict[tuple[int, int], dict[str, Any]]
    reset_infos: dict[int, dict[str, Any]]


def leaf_paths(space: Space[Any]) -> list[Path]:
    """The keys that lead to each leaf of a space, in the order of its layout's leaves."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [()]
    return [(key, *rest) for key, sub in children(space, "space") for rest in leaf_paths(sub)]


def flatten(space: Space[Any], tree: Any) -> list[Any]:
    """The leaves of a value of this space, in the order of its layout's leaves."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [tree]
    return [leaf for key, sub in children(space, "space") for leaf in flatten(sub, tree[key])]


def unflatten(space: Space[Any], leaves: Iterator[Any]) -> Any:
    """Build a value of this space's structure from its leaves."""
    if isinstance(space, spaces.Dict):
        return {key: unflatten(sub, leaves) for key, sub in children(space, "space")}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(sub, leaves) for _, sub in children(space, "space"))
    return next(leaves)


def empty(space: Space[Any], n: int) -> LeafValues:
    """No values at all: an array (0, n, *leaf) for each leaf."""
    return [np.zeros((0, n, *leaf.shape), leaf.dtype) for leaf in Layout(space, n).leaves]


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """One array of several, with their dtype: concatenate() alone makes it native-endian."""
    if len(arrays) == 1:
        return arrays[0]
    shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=np.empty(shape, arrays[0].dtype))


class Decoder:
    """Takes apart the records of agents that were declared alike.

    Raises:
        JournalError: the declaration doesn't fit this version's layouts.
    """

    def __init__(self, declaration: Declaration) -> None:
        try:
            self.obs_space, self.action_space = decode_spaces(declaration.spaces)
            self.n = declaration.num_envs
            self.env = EnvRecord(self.obs_space, self.n)
            self.actions = Layout(self.action_space, self.n, "action")
            self.rewards = RewardRecord(self.n)
        except (LayoutError, PeerError) as error:
            raise JournalError(f"agent {declaration.agent!r}: {error}") from None
        here = (self.env.reward_off, self.env.flags_off, self.env.obs_off, self.env.fixed_bytes)
        there = (
            declaration.reward_off,
            declaration.flags_off,
            declaration.obs_off,
            declaration.fixed_bytes,
        )
        if here != there:
            raise JournalError(
                f"agent {declaration.agent!r} was recorded with the layout {there}; this version"
                f" of dsec-kernel has {here}. Read it with the version that wrote it."
            )

    def _column(
        self, spans: list[Span], offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        out = np.empty((sum(len(span.heads) for span in spans), *shape), dtype)
        at = 0
        for span in spans:
            end = at + len(span.heads)
            out[at:end] = span.column(offset, dtype, shape)
            at = end
        return out

    def leaves(self, spans: list[Span], leaves: tuple[Leaf, ...], offset: int) -> LeafValues:
        """One array (records, n, *shape) for each leaf; copies."""
        return [
            self._column(spans, offset + leaf.offset, leaf.dtype, (self.n, *leaf.shape))
            for leaf in leaves
        ]

    def numbers(self, spans: list[Span], offset: int, dtype: str) -> NDArray[Any]:
        """One array (records, n) of the numbers at `offset`; a copy."""
        return self._column(spans, offset, np.dtype(dtype), (self.n,))

    def spans(self, block: Block) -> tuple[list[Span], list[Span], list[Span]]:
        """The records of a batch, checked against what the batch claims to hold.

        Raises:
            JournalError: a record is missing, too many, or of the wrong size.
        """
        env, policy, reward = (
            split(part, kind)
            for part, kind in zip(block.parts, (KIND_OBS, KIND_ACTION, KIND_REWARD), strict=True)
        )
        first, end = block.first_seq, block.first_seq + block.count
        # The first batch also holds observation 0, to which no transition led.
        _expect(env, first + 1 if first else 0, end + 1, self.env.fixed_bytes, None)
        _expect(policy, first, end, self.actions.nbytes, self.actions.nbytes)
        _expect(reward, first, end, self.rewards.fixed_bytes, self.rewards.fixed_bytes)
        return env, policy, reward


def _expect(spans: list[Span], first: int, end: int, least: int, most: int | None) -> None:
    seqs = [span.heads["seq"] for span in spans]
    found = np.concatenate(seqs) if seqs else np.zeros(0, np.uint64)
    if not np.array_equal(found, np.arange(first, end, dtype=np.uint64)):
        raise JournalError(f"records {first} to {end - 1} are due; it holds {found.tolist()[:8]}")
    for span in spans:
        if span.payload_bytes < least or (most is not None and span.payload_bytes > most):
            raise JournalError(f"a record of {span.payload_bytes} bytes where {least} are due")


def rows(journal: JournalReader, agent: int) -> Iterator[Rows]:
    """Read one agent's transitions, a batch at a time.

    Raises:
        JournalError: a block is damaged, or its records don't make sense; the agent and the
            offset are named. What was given before is right.
    """
    index = journal.index.agents[agent]
    declaration = index.declaration
    stop = END_CUT if index.ended else END_INFRA
    builder = _Builder(Decoder(declaration))
    for block in journal.batches(agent):
        if block.count == 0:
            continue
        last = block.first_seq + block.count - 1 == index.seq_committed
        try:
            yield builder.build(block, stop if last else END_NONE)
        except (JournalError, PeerError, LayoutError) as error:
            raise JournalError(
                f"{journal.path}: agent {declaration.agent!r}, block at offset {block.offset},"
                f" transitions from {block.first_seq} on: {error}"
            ) from None


class _Builder:
    """Carries from batch to batch what transitions have across them."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        n = decoder.n
        self._obs: LeafValues = []
        self._episode = np.zeros(n, np.int64)
        self._step = np.zeros(n, np.int64)

    def build(self, block: Block, stop: int) -> Rows:
        """Make the rows of one batch; `stop` is what ends the stream after it, if anything."""
        decoder, count = self._decoder, block.count
        env, policy, reward = decoder.spans(block)
        record = decoder.env
        seen = decoder.leaves(env, record.layout.leaves, record.obs_off)
        if self._obs:
            seen = [joined([before, now]) for before, now in zip(self._obs, seen, strict=True)]
        self._obs = [leaf[-1:] for leaf in seen]
        flags = decoder.numbers(env, record.flags_off, "u1")[-count:]
        terminated, truncated = flags & FLAG_TERMINATED != 0, flags & FLAG_TRUNCATED != 0
        end = np.where(truncated, END_TRUNCATED, END_NONE).astype(np.uint8)
        end[terminated] = END_TERMINATED
        episode, step = self._count(terminated | truncated)
        finals, infos, reset_infos = self._extras(env, block.first_seq)
        if stop != END_NONE:
            for i in np.flatnonzero(end[-1] == END_NONE).tolist():
                end[-1, i] = stop
                finals[count - 1, i] = [leaf[-1, i] for leaf in seen]
        ends = set(zip(*(axis.tolist() for axis in np.nonzero(end)), strict=True))
        if ends != finals.keys():
            raise JournalError(
                f"final observations of {sorted(finals)[:8]} where episodes end at"
                f" {sorted(ends)[:8]} (transition, environment)"
            )
        return Rows(
            seq=np.arange(block.first_seq, block.first_seq + count, dtype=np.int64),
            episode=episode,
            step=step,
            obs=[leaf[:-1] for leaf in seen],
            action=decoder.leaves(policy, decoder.actions.leaves, 0),
            reward=decoder.numbers(reward, 0, "<f8"),
            env_reward=decoder.numbers(env, record.reward_off, "<f8")[-count:],
            terminated=terminated,
            truncated=truncated,
            end=end,
            finals=finals,
            infos=infos,
            reset_infos=reset_infos,
        )

    def _count(self, done: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Number the episodes and the steps within them; carries both on."""
        count = len(done)
        ended = np.cumsum(done, axis=0)
        episode = self._episode + ended - done
        index = np.arange(count)[:, None]
        # For each row, the row at which its episode began; negative where in an earlier batch.
        starts = np.where(np.roll(done, 1, axis=0), index, -1)
        starts[0] = -1
        began = np.maximum.accumulate(starts, axis=0)
        step = np.where(began >= 0, index - began, self._step + index)
        self._episode = self._episode + ended[-1]
        self._step = np.where(done[-1], 0, step[-1] + 1)
        return episode.astype(np.int64), step.astype(np.int32)

    def _extras(
        self, env: list[Span], first_seq: int
    ) -> tuple[
        dict[tuple[int, int], LeafValues],
        dict[tuple[int, int], dict[str, Any]],
        dict[int, dict[str, Any]],
    ]:
        record = self._decoder.env
        all_finals: dict[tuple[int, int], LeafValues] = {}
        all_infos: dict[tuple[int, int], dict[str, Any]] = {}
        reset_infos: dict[int, dict[str, Any]] = {}
        for span in env:
            if span.payload_bytes == record.fixed_bytes:
                continue
            for i, seq in enumerate(span.heads["seq"].tolist()):
                finals, infos = record.decode_extras(span.payload(i)[record.fixed_bytes :])
                row = seq - 1 - first_seq
                told = {e: info for e, info in enumerate(infos) if info}
                if row < 0:
                    reset_infos = told
                    continue
                for e, final in finals.items():
                    leaves = flatten(record.layout.space, final)
                    all_finals[row, e] = [np.asarray(leaf)[()] for leaf in leaves]
                for e, info in told.items():
                    all_infos[row, e] = info
        return all_finals, all_infos, reset_infos

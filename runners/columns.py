"""From raw records in the journal to columns: arrays over transitions and environments.

Owns how the records of env, policy and reward are put together into transitions, and what the
derived columns (episode, step, end) mean. Knows neither Parquet nor who asks: convert.py writes
these rows to files, `dsec.recording` gives them to people.

What a row is: transition `seq` of environment `env`. `obs` is what the policy saw, `reward` what
the reward role computed, `env_reward` what the environment returned. `episode` counts the
environment's episodes from 0, `step` the transitions within one. `end` says why the episode
ended with this row, and is empty elsewhere:

    terminated, truncated   the environment said so (both at once count as terminated)
    infra                   a runner, or the kernel, died: what comes next is unknown
    cut                     the agent's quota, or a drain, ended the stream within an episode

A record that only says that the environments were lost (FLAG_INFRA: reward 0.0 for a step that
nobody made) is no row. The rows before it end with `infra`, `seq` has a gap there, and the
episodes after it are new ones. Nor is one that answers what a caller has asked for beside steps
(FLAG_ASIDE); a reset in the middle of an episode cuts it.

Where `end` is not empty there is a final observation: what the last action led to. Elsewhere it
is the `obs` of the environment's next row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dsec.errors import JournalError, LayoutError, PeerError
from dsec.ipc.layout import (
    FLAG_ASIDE,
    FLAG_FRESH,
    FLAG_INFRA,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    Leaf,
)
from dsec.runners.journal import Block, Declaration, JournalReader
from dsec.runners.records import HEAD, Decoder, LeafValues, Span, flatten, joined

END_WORDS: Final = ("", "terminated", "truncated", "infra", "cut")
END_NONE, END_TERMINATED, END_TRUNCATED, END_INFRA, END_CUT = range(5)

BUNDLE_ROWS_MAX: Final = 4096
BUNDLE_BYTES_MAX: Final = 8 << 20


@dataclass(slots=True)
class Rows:
    """Consecutive transitions of one agent: T of them, in n environments.

    Attributes:
        seq: int64 (T,), ascending.
        episode, step: int64 and int32 (T, n).
        obs, action: one array (T, n, *leaf) for each leaf of the space, in its order; of objects
            (T, n) where the leaf has no fixed size.
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

    def part(self, rows: slice) -> Rows:
        """Some of these rows, without what only few rows have."""
        return Rows(
            seq=self.seq[rows],
            episode=self.episode[rows],
            step=self.step[rows],
            obs=[leaf[rows] for leaf in self.obs],
            action=[leaf[rows] for leaf in self.action],
            reward=self.reward[rows],
            env_reward=self.env_reward[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            end=self.end[rows],
            finals={},
            infos={},
            reset_infos={},
        )


def rows(journal: JournalReader, agent: int) -> Iterator[Rows]:
    """Read one agent's transitions, some thousands at a time.

    Raises:
        JournalError: a block is damaged, or its records don't make sense; the agent and the
            offset are named. Everything before it has been given.
    """
    index = journal.index.agents[agent]
    stop = END_CUT if index.ended else END_INFRA
    builder = _Builder(Decoder(index.declaration))
    for blocks in _bundles(journal, agent):
        end = blocks[-1].first_seq + blocks[-1].count
        try:
            built = builder.build(_merged(blocks), stop if end > index.seq_committed else END_NONE)
            if len(built.seq):
                yield built
        except (JournalError, PeerError, LayoutError):
            # Again one by one, to give what is before the fault and to say where it is.
            yield from _singly(journal, builder, blocks, stop)


def outcomes(pieces: Iterable[Rows]) -> Iterator[tuple[Rows, LeafValues]]:
    """Rows with what each of their actions led to: the terminal observation where an episode ended,
    else the next one; arrays like those of `obs`."""
    held: Rows | None = None
    for rows in pieces:
        if len(rows.seq):
            if held is not None:
                yield held, _led(held, [leaf[:1] for leaf in rows.obs])
            held = rows
    if held is not None:
        # Behind the last row nothing comes: it ended, whatever ended it.
        yield held, _led(held, [leaf[-1:] for leaf in held.obs])


def _led(rows: Rows, after: LeafValues) -> LeafValues:
    led = [joined([leaf[1:], next_one]) for leaf, next_one in zip(rows.obs, after, strict=True)]
    for (t, e), final in rows.finals.items():
        for leaf, value in zip(led, final, strict=True):
            leaf[t, e] = value
    return led


def _singly(
    journal: JournalReader, builder: _Builder, blocks: list[Block], stop: int
) -> Iterator[Rows]:
    index = journal.index.agents[blocks[0].agent]
    for block in blocks:
        end = block.first_seq + block.count
        try:
            built = builder.build(block, stop if end > index.seq_committed else END_NONE)
            if len(built.seq):
                yield built
        except (JournalError, PeerError, LayoutError) as error:
            raise JournalError(
                f"{journal.path}: agent {index.declaration.agent!r}, block at offset"
                f" {block.offset}, transitions from {block.first_seq} on: {error}"
            ) from None


def _bundles(journal: JournalReader, agent: int) -> Iterator[list[Block]]:
    """An agent's batches, several at a time: many small ones would cost a call each.

    A batch that begins with the loss of the environments stays with the one before it, which gets
    its ends from it.
    """
    declared = journal.index.agents[agent].declaration
    bundle: list[Block] = []
    count = nbytes = 0
    batches = journal.batches(agent)
    while True:
        try:
            block = next(batches, None)
        except JournalError:
            if bundle:
                yield bundle
            raise
        if block is None:
            break
        full = count >= BUNDLE_ROWS_MAX or nbytes >= BUNDLE_BYTES_MAX
        if full and not _begins_with_loss(block, declared):
            yield bundle
            bundle, count, nbytes = [], 0, 0
        if block.count:
            bundle.append(block)
            count += block.count
            nbytes += sum(map(len, block.parts))
    if bundle:
        yield bundle


def _begins_with_loss(block: Block, declared: Declaration) -> bool:
    at = HEAD.itemsize + declared.flags_off
    env = block.parts[0]
    lost = FLAG_INFRA | FLAG_ASIDE
    return block.first_seq > declared.first and len(env) > at and bool(env[at] & lost)


def _merged(blocks: list[Block]) -> Block:
    """One block of several that follow one another."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    env, policy, reward = (
        memoryview(b"".join(parts))
        for parts in zip(*(block.parts for block in blocks), strict=True)
    )
    count = sum(block.count for block in blocks)
    return Block(
        first.offset, first.kind, first.agent, count, first.first_seq, (env, policy, reward)
    )


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
        seen = decoder.leaves(env, record.layout, record.obs_off, record.fixed_bytes)
        if self._obs:
            seen = [joined([before, now]) for before, now in zip(self._obs, seen, strict=True)]
        flags = decoder.numbers(env, record.flags_off, "u1")[-count:]
        infra, fresh = (flags & FLAG_INFRA != 0).any(axis=1), flags & FLAG_FRESH != 0
        lost = infra | (flags & FLAG_ASIDE != 0).any(axis=1)
        real: Any = np.flatnonzero(~lost) if lost.any() else np.arange(count)
        finals, infos, reset_infos = self._extras(env, block.first_seq)
        end = _ends(flags)
        for t in np.flatnonzero(infra | fresh.any(axis=1)).tolist():
            if infra[t]:
                _end_before(t, END_INFRA, end, finals, seen, lost)
            else:
                _end_before(t, END_CUT, end, finals, seen, lost, only=fresh[t])
        if stop != END_NONE and not infra[-1]:
            _end_before(count, stop, end, finals, seen, lost)
        if lost.any():
            row = np.cumsum(~lost) - 1
            finals = {(int(row[t]), i): final for (t, i), final in finals.items() if not lost[t]}
            infos = {(int(row[t]), i): info for (t, i), info in infos.items() if not lost[t]}
            end = end[real]
        ends = set(zip(*(axis.tolist() for axis in np.nonzero(end)), strict=True))
        if ends != finals.keys():
            raise JournalError(
                f"final observations of {sorted(finals)[:8]} where episodes end at"
                f" {sorted(ends)[:8]} (transition, environment)"
            )
        episode, step = self._count(end != END_NONE)
        action = decoder.leaves(policy, decoder.actions, 0, decoder.actions.nbytes)
        made = Rows(
            seq=block.first_seq + real,
            episode=episode,
            step=step,
            obs=[leaf[:-1][real] for leaf in seen],
            action=[leaf[real] for leaf in action],
            reward=decoder.numbers(reward, 0, "<f8")[real],
            env_reward=decoder.numbers(env, record.reward_off, "<f8")[-count:][real],
            terminated=(flags & FLAG_TERMINATED != 0)[real],
            truncated=(flags & FLAG_TRUNCATED != 0)[real],
            end=end,
            finals=finals,
            infos=infos,
            reset_infos=reset_infos,
        )
        # Only now: a batch that turned out to be wrong leaves no trace here.
        self._obs = [leaf[-1:] for leaf in seen]
        if len(real):
            done = end[-1] != END_NONE
            self._episode = episode[-1] + done
            self._step = np.where(done, 0, step[-1] + 1).astype(np.int64)
        return made

    def _count(self, done: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Number the episodes and the steps within them."""
        count = len(done)
        if not count:
            return np.zeros(done.shape, np.int64), np.zeros(done.shape, np.int32)
        ended = np.cumsum(done, axis=0)
        episode = self._episode + ended - done
        index = np.arange(count)[:, None]
        # For each row, the row at which its episode began; negative where in an earlier batch.
        starts = np.where(np.roll(done, 1, axis=0), index, -1)
        starts[0] = -1
        began = np.maximum.accumulate(starts, axis=0)
        step = np.where(began >= 0, index - began, self._step + index)
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
        bare = record.layout.bare()
        for span in env:
            if span.payload_bytes == record.fixed_bytes:
                continue
            for i, seq in enumerate(span.heads["seq"].tolist()):
                tail = span.payload(i)[record.fixed_bytes :]
                finals, infos = record.decode_extras(record.open_tail(bare, tail))
                row = seq - 1 - first_seq
                told = {e: info for e, info in enumerate(infos) if info}
                if row < 0:
                    reset_infos = told
                    continue
                for e, final in finals.items():
                    leaves = flatten(record.layout.space, final)
                    all_finals[row, e] = [
                        np.asarray(value)[()] if isinstance(leaf, Leaf) else value
                        for leaf, value in zip(record.layout.order, leaves, strict=True)
                    ]
                for e, info in told.items():
                    all_infos[row, e] = info
        return all_finals, all_infos, reset_infos


def _ends(flags: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What the environments said, as an index into END_WORDS."""
    end = np.where(flags & FLAG_TRUNCATED != 0, END_TRUNCATED, END_NONE).astype(np.uint8)
    end[flags & FLAG_TERMINATED != 0] = END_TERMINATED
    return end


def _end_before(
    t: int, why: int, end: NDArray[np.uint8], finals: dict[tuple[int, int], LeafValues],
    seen: LeafValues, lost: NDArray[np.bool_], only: NDArray[np.bool_] | None = None,
) -> None:  # fmt: skip
    """End what is under way in the row before t: its action led to the observation before t.
    `only`: of these environments."""
    while t and lost[t - 1]:
        t -= 1
    if t == 0:
        return
    open_ends = end[t - 1] == END_NONE
    for i in np.flatnonzero(open_ends if only is None else open_ends & only).tolist():
        end[t - 1, i] = why
        finals[t - 1, i] = [leaf[t, i] for leaf in seen]

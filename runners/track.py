"""One agent as the recorder sees it: its rings, what is journaled of them, and what it adds up to.

Owns the join's life (attach, resume after a restart, take, commit) and the words of an agent's
end. Knows no file and no channel: recorder.py writes what `take` returns and then says
`committed`. After a restart the journal, not the cursors, says what is next: a recorder that died
between write and release finds its cursors behind the journal, and the join drops what is
already written.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dsec.errors import CorruptRingError, FrameError, JournalError
from dsec.ipc.frames import AgentProgress, Finished, Phase, Role, Wire
from dsec.ipc.join import Batch, Join, iter_records
from dsec.ipc.layout import (
    FLAG_ASIDE,
    FLAG_FRESH,
    FLAG_INFRA,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    EnvRecord,
    Layout,
    decode_spaces,
)
from dsec.ipc.ring import (
    FLAG_END,
    KIND_ACTION,
    KIND_OBS,
    KIND_REWARD,
    Outbox,
    Peer,
    Reader,
    stride,
)
from dsec.ipc.segment import ProgressWord
from dsec.runners.chained import shape_of
from dsec.runners.journal import AgentIndex, Declaration, JournalReader, Totals, Trailer
from dsec.runners.records import Decoder
from dsec.runners.words import action_words
from dsec.sml.chain import BEGIN, Chain, Shape, unpack

RETURNS_KEPT: Final = 100
_WRITERS: Final = (Role.ENV, Role.POLICY, Role.REWARD)


@functools.lru_cache(maxsize=64)
def _layouts(spaces: bytes, n: int) -> tuple[EnvRecord, Layout, Shape]:
    """The layouts of a group's agents, which are all alike."""
    obs_space, action_space = decode_spaces(spaces)
    env, actions = EnvRecord(obs_space, n), Layout(action_space, n, "action")
    return env, actions, shape_of(env, actions)


class Track:
    """The rings of one agent, read by this process.

    Args:
        wire: what the kernel sent; `fds` came with it and are closed here.
        past: what a journal that is continued holds of this agent, with `journal` to read it.
        recorded: there is a journal at all.

    Attributes:
        index: the agent's number in the journal, -1 as long as it is not declared there.
        batch: taken from the rings and not yet written; `trailer` goes behind it.
        link: the value of the hash chain after what is written, in hexadecimal digits; empty where
            a record makes no sense, or it was lost with a recorder that recorded nothing.
        seq_committed: last transition that is written, -1 before the first.
        abandoned: the kernel has fenced the writers: what isn't there now never comes.
        corrupt: what is wrong with a ring; empty if nothing is. `corrupt_told`: the kernel knows.
        saw_first: observation 0 is written.
        interval_s, due_s: when to look at it again, for the recorder.
        finished: journaled to the end; nothing is left to do.

    Raises:
        FrameError: a segment or descriptor is missing.
        PeerError, MachineError: a segment is not what it should be, or can't be mapped.
        JournalError: the agent is not the one that the journal declares.
    """

    def __init__(
        self,
        wire: Wire,
        fds: Sequence[int],
        past: AgentIndex | None = None,
        journal: JournalReader | None = None,
        *,
        recorded: bool = True,
    ) -> None:
        self.name = wire.agent
        self.index = past.declaration.index if past else -1
        self._peers: dict[int, Peer] = {}
        self._recorded = recorded
        self._outbox, readers, (phase, _, told) = self._attach(wire, fds)
        self._env, self._actions, shape = _layouts(wire.spaces, wire.num_envs)
        self._wire = wire
        self.seq_committed = past.seq_committed if past else wire.first - 1
        begins = past is None or not past.batches
        if not recorded and told > wire.first:
            self.seq_committed, begins = told - 1, False
        self._readers = readers
        self._join = Join(
            *readers,
            num_envs=wire.num_envs,
            reward_off_env=self._env.reward_off,
            flags_off_env=self._env.flags_off,
            first_seq=self.seq_committed + 1,
            begins=begins,
        )
        self.batch: Batch | None = None
        self.trailer = Trailer()
        # A chain begins at transition 0, or goes on from another host's: nobody keeps one of an
        # agent that was forked.
        at = unpack(wire.chain)[0] if wire.chain else BEGIN
        self._chain: Chain | None = Chain(shape, at) if begins and at.seq == wire.first else None
        self.link = self._chain.value.hex() if self._chain is not None else ""
        self.abandoned = False
        self.remainder_written = False
        self.corrupt = ""
        self.corrupt_told = False
        self.finished = past.finished if past else False
        self.interval_s = 0.0
        self.due_s = 0.0
        self.visited_s = 0.0
        self._rate = 0.0
        self._steps = (self.seq_committed + 1 - wire.first) * wire.num_envs
        self._episodes = 0
        self._return_sum = 0.0
        self._returns: deque[float] = deque(maxlen=RETURNS_KEPT)
        self.saw_first = not recorded and not begins
        self._saw_end = not recorded and phase is Phase.CLOSE
        self._policy_bytes: bytes | memoryview = b""
        if past is not None:
            self._resume(past, journal, shape)

    def _attach(
        self, wire: Wire, fds: Sequence[int]
    ) -> tuple[Outbox, list[Reader], tuple[Phase, int, int]]:
        """Map the four segments; whatever happens, the descriptors are closed.

        Returns:
            My outbox, the three readers, and what my progress word said.
        """
        outbox: Outbox | None = None
        progress = Phase.IDLE, 0, 0
        try:
            for segment in wire.segments:
                if not 0 <= segment.fd < len(fds):
                    raise FrameError(f"Wire of {wire.agent!r} refers to a descriptor it lacks")
                if segment.role == Role.RECORDER:
                    word = ProgressWord(fds[segment.fd])
                    progress = word.read()
                    word.close()
                    outbox = Outbox(fds[segment.fd], segment.size, segment.role)
                    outbox.enter(progress[0], progress[2])  # opening it forgets that
                else:
                    peer = Peer(fds[segment.fd], segment.size, segment.role)
                    self._peers[segment.role] = peer
        finally:
            for fd in fds:
                os.close(fd)
        if outbox is None or not self._peers.keys() >= set(_WRITERS):
            raise FrameError(f"Wire of {wire.agent!r} lacks a segment")
        readers = [Reader(outbox, self._peers[role]) for role in _WRITERS]
        return outbox, readers, progress

    def declaration(self, index: int) -> Declaration:
        """What the journal is told of this agent before its first batch."""
        wire, record = self._wire, self._env
        return Declaration(
            agent=wire.agent,
            index=index,
            group=wire.config_group or wire.agent,
            num_envs=wire.num_envs,
            spaces=wire.spaces,
            reward_off=record.reward_off,
            flags_off=record.flags_off,
            obs_off=record.obs_off,
            fixed_bytes=record.fixed_bytes,
            first=wire.first,
            chain=wire.chain,
        )

    def _resume(self, past: AgentIndex, journal: JournalReader | None, shape: Shape) -> None:
        """Add up what the journal holds, and find out whether the end was seen."""
        was = past.declaration
        if was != self.declaration(was.index):
            raise JournalError(f"agent {self.name!r} is not the one that the journal declares")
        assert journal is not None, "a past comes with its journal"
        decoder = Decoder(was)
        running = np.zeros(was.num_envs)
        block = None
        for block in journal.batches(self.index):
            self.saw_first = True
            if not block.count:
                continue
            env, _, reward = decoder.spans(block)
            rewards = decoder.numbers(reward, 0, "<f8")
            flags = decoder.numbers(env, self._env.flags_off, "u1")[-block.count :]
            lost = flags & (FLAG_INFRA | FLAG_ASIDE) != 0
            done = flags & (FLAG_TERMINATED | FLAG_TRUNCATED | FLAG_INFRA | FLAG_FRESH) != 0
            self._steps -= int(lost.sum())
            begin = 0
            for t in np.flatnonzero(done.any(axis=1)).tolist():
                running = _added(running, rewards[begin : t + 1])
                begin = t + 1
                for i in np.flatnonzero(done[t]).tolist():
                    if not lost[t, i]:
                        self._ended_episode(float(running[i]))
                    running[i] = 0.0
            running = _added(running, rewards[begin:])
        for i, value in enumerate(running.tolist()):
            self._join.c.running[i] = value
        if block is not None:
            mark = block.trailer.last
            self._chain = Chain(shape, mark) if mark is not None else None
            self.link = mark.value.hex() if mark is not None else ""
            self._policy_bytes = block.parts[1]
            *_, last = iter_records(block.parts[0])
            # The ends of the other two carry no data, and may be given back already.
            self._saw_end = bool(last.flags & FLAG_END)

    def _ended_episode(self, value: float) -> None:
        # One by one: a sum of sums would depend on where the batches were cut.
        self._episodes += 1
        self._return_sum += value
        self._returns.append(value)

    # ------------------------------------------------------------------ while it runs

    def fill(self) -> float:
        """How full the fullest of the rings is, from 0 to 1."""
        return max(reader.available / reader.peer.capacity for reader in self._readers)

    def pace(self, now_s: float, fill: float, target: float) -> float:
        """Seconds until the fullest ring is at `target`, going by how it filled lately."""
        elapsed = max(now_s - self.visited_s, 1e-4)
        self.visited_s = now_s
        # A burst is remembered for a while: what pauses to learn comes back as fast as before.
        self._rate = max(fill / elapsed, 0.8 * self._rate)
        return target / self._rate if self._rate > 0 else float("inf")

    def take(self, bytes_max: int) -> Batch | None:
        """What is complete and not yet written; the same again until `committed`.

        Returns None as well where a ring is corrupt, and sets `corrupt`.
        """
        if self.batch is None and not self.corrupt:
            try:
                self.batch = self._join.take(bytes_max)
            except CorruptRingError as error:
                self.corrupt = str(error)
            if self.batch is not None:
                self.trailer = self._trailer(self.batch)
        return self.batch

    def _trailer(self, batch: Batch) -> Trailer:
        """What goes behind a batch in the journal."""
        marks: bytes | memoryview = b""
        if self._chain is not None:
            try:
                env = batch.env
                if batch.first_seq == self._wire.first != 0:  # that is linked already
                    env = env[stride(len(next(iter(iter_records(env))).payload)) :]
                marks = self._chain.take(env, batch.policy, batch.reward, batch.count)
            except JournalError:
                # What an env says beside its observations may be nonsense. It is journaled as it
                # is, whoever reads it is told, and from here on nobody vouches for the agent.
                self._chain = None
        made = self._steps + batch.steps
        all_of_them = batch.first_seq + batch.count - self._wire.first
        return Trailer(marks, all_of_them * self._wire.num_envs - made)

    def committed(self) -> None:
        """The batch is written: give its records back to their writers."""
        batch = self.batch
        assert batch is not None, "only what was taken is committed"
        if not self._recorded:
            # Before the release: the join drops what was counted, and misses what was not.
            phase = Phase.CLOSE if self.ending else Phase.IDLE
            self._outbox.enter(phase, batch.first_seq + batch.count)
        self._join.release()
        self.batch = None
        self.link = self._chain.value.hex() if self._chain is not None else ""
        self.seq_committed = batch.first_seq + batch.count - 1
        self.saw_first = True
        if batch.count:
            self._policy_bytes = batch.policy
        self._steps += batch.steps
        for value in batch.returns:
            self._ended_episode(value)

    @property
    def ended(self) -> bool:
        """All is written and all ends were seen."""
        return self.batch is None and (self._join.ended or self._saw_end)

    @property
    def ending(self) -> bool:
        """The env's last record is taken: the ends of the other two come at any moment."""
        return bool(self._join.c.seen_end & 1)

    def progress(self) -> AgentProgress:
        """The totals so far."""
        returns = self._returns
        return AgentProgress(
            agent=self.name,
            steps=self._steps,
            episodes=self._episodes,
            return_sum=self._return_sum,
            returns_last=sum(returns) / len(returns) if returns else 0.0,
        )

    @property
    def totals(self) -> Totals:
        """The same, for the journal."""
        said = self.progress()
        return Totals(said.steps, said.episodes, said.return_sum, said.returns_last, self.link)

    # ------------------------------------------------------------------ the end

    def remainder(self) -> tuple[memoryview, memoryview, memoryview]:
        """Raw records that are published and not written."""
        return self._join.remainder()

    def report(self, *, clean: bool) -> Finished:
        """What the kernel is told when nothing more will be written."""
        env, policy, reward = (
            _last_of(part, kind)
            for part, kind in zip(
                self.remainder(), (KIND_OBS, KIND_ACTION, KIND_REWARD), strict=True
            )
        )
        seq_last = self.seq_committed + 1 if self.saw_first else -1
        complete = self.seq_committed
        if env is not None:
            seq_last = env[0]
            if policy is not None and reward is not None:
                complete = max(complete, min(env[0] - 1, policy[0], reward[0]))
        if self.corrupt:  # what was in that ring nobody can read any more; the others tell of it
            before = (env and env[0] - 1, policy and policy[0] - 1, reward and reward[0])
            complete = max([complete, *(seq for seq in before if seq is not None)])
        if policy is None:
            policy = _last_of(self._policy_bytes, KIND_ACTION)
        return Finished(
            agent=self.name,
            clean=clean,
            steps=self._steps,
            episodes=self._episodes,
            return_sum=self._return_sum,
            seq_last=seq_last,
            seq_committed=self.seq_committed,
            action_last=action_words(self._actions, policy[1]) if policy is not None else "",
            lost=complete - self.seq_committed,
            chain=self.link,
        )

    def close(self) -> None:
        """Unmap the rings; again is no error."""
        self._policy_bytes = b""
        self.batch = None
        self._outbox.close()
        for peer in self._peers.values():
            peer.close()


def _added(running: Any, rewards: Any) -> Any:
    """Sums over time, added in the order in which the join adds them."""
    return np.cumsum(np.vstack([running, rewards]), axis=0)[-1]


def _last_of(raw: bytes | memoryview, kind: int) -> tuple[int, memoryview] | None:
    """Sequence number and payload of the last record of a kind."""
    found = None
    try:
        for record in iter_records(raw):
            if record.kind == kind:
                found = record.seq, record.payload
    except CorruptRingError:
        return found
    return found

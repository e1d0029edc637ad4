"""The ring against a model, for any interleaving; and against a peer that writes anything."""

from __future__ import annotations

import struct
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dsec.errors import PeerError, RecordTooLarge, RingTimeout
from dsec.ipc.frames import Role
from dsec.ipc.ring import Outbox, Reader, stride
from tests.ipc.rings import STARTS, Wires, pattern, payload_of, put

E, P, R, J = Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER
CAPACITY = 4096


class View:
    """One reader and what the model says of it."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.ahead: deque[tuple[int, int]] = deque()  # (seq, nbytes) committed and not read
        self.held: deque[tuple[int, int]] = deque()  # read and not given back

    @property
    def used(self) -> int:
        return sum(stride(nbytes) for _, nbytes in (*self.held, *self.ahead))


class RingMachine(RuleBasedStateMachine):
    """A deque for each reader is the specification."""

    wires: Wires
    outbox: Outbox
    views: list[View]

    @initialize(start=st.sampled_from(STARTS), readers=st.integers(1, 3))
    def begin(self, start: int, readers: int) -> None:
        roles = (P, R, J)[:readers]
        self.wires = Wires(CAPACITY, start=start)
        self.outbox = self.wires.writer(E, *roles)
        self.views = [View(self.wires.reader(role, E)) for role in roles]
        self.seq = 0
        self.claimed: int | None = None
        self.offset = 0

    @rule(nbytes=st.integers(0, 2200))
    def claim(self, nbytes: int) -> None:
        size = stride(nbytes)
        try:
            offset = self.outbox.claim(nbytes, 0.0)
        except RecordTooLarge:
            assert size > CAPACITY // 2
            return
        except RingTimeout:
            assert max(view.used for view in self.views) + size > CAPACITY
            return
        assert size <= CAPACITY // 2
        assert max(view.used for view in self.views) + size <= CAPACITY
        self.claimed, self.offset = nbytes, offset
        self.outbox.buffer[offset : offset + nbytes] = pattern(self.seq, nbytes)

    @precondition(lambda self: self.claimed is not None)
    @rule(keep=st.floats(0, 1))
    def commit(self, keep: float) -> None:
        assert self.claimed is not None
        nbytes = int(self.claimed * keep)
        self.outbox.commit(self.seq, 1, 0, nbytes)
        for view in self.views:
            view.ahead.append((self.seq, nbytes))
        self.seq += 1
        self.claimed = None

    @rule(which=st.integers(0, 2))
    def next(self, which: int) -> None:
        view = self.views[which % len(self.views)]
        assert view.reader.try_next() == bool(view.ahead)
        if view.ahead:
            seq, nbytes = view.ahead.popleft()
            view.held.append((seq, nbytes))
            assert (view.reader.seq, view.reader.nbytes) == (seq, nbytes)
            assert payload_of(view.reader) == pattern(seq, nbytes)

    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        view = self.views[which % len(self.views)]
        view.reader.release()
        view.held.clear()

    @rule(which=st.integers(0, 2))
    def release_prior(self, which: int) -> None:
        view = self.views[which % len(self.views)]
        if view.held:
            view.reader.release_prior()
            view.held = deque([view.held[-1]])

    @rule()
    def writer_dies(self) -> None:
        """What was claimed is gone; what was committed stays."""
        roles = [view.reader.mine.role for view in self.views]
        self.outbox.close()
        self.outbox = self.wires.writer(E, *(Role(role) for role in roles))
        self.claimed = None

    @invariant()
    def what_is_held_is_untouched(self) -> None:
        for view in getattr(self, "views", []):
            assert view.reader.available == sum(stride(nbytes) for _, nbytes in view.ahead)
            if view.held:
                assert payload_of(view.reader) == pattern(*view.held[-1])

    def teardown(self) -> None:
        if hasattr(self, "wires"):
            self.wires.close()


TestRingMachine = pytest.mark.slow(pytest.mark.guarantee("G2")(RingMachine.TestCase))
RingMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40)


nasty = st.one_of(
    st.binary(min_size=8, max_size=8),
    st.integers(-4, 4).map(lambda n: struct.pack("<q", n * 64)),
    st.integers(0, 2**32).map(lambda n: struct.pack("<Q", n)),
)


@pytest.mark.guarantee("G9")
@given(
    hits=st.lists(st.tuples(st.integers(0, 8184 // 8), nasty), min_size=1, max_size=12),
    records=st.lists(st.integers(0, 600), max_size=5),
    held=st.booleans(),
)
def test_whatever_a_writer_puts_into_its_segment_is_an_error_or_data(
    hits: list[tuple[int, bytes]], records: list[int], held: bool
) -> None:
    with Wires(CAPACITY, roles=(E, P)) as wires:
        outbox = wires.writer(E, P)
        reader = wires.reader(P, E)
        mine = wires.writer(P, E)
        for seq, nbytes in enumerate(records):
            put(outbox, seq, bytes(nbytes))
        for word, data in hits:
            wires.poke(E, word * 8, data)
        for _ in range(len(records) + 2):
            try:
                reader.next(0.0)
                end = reader.offset + reader.nbytes
                assert end <= len(reader.peer.buffer)
                assert len(payload_of(reader)) == reader.nbytes
                if not held:
                    reader.release()
                mine.claim(1000, 0.0)
                mine.commit(0, 2, 0, 10)
            except (PeerError, RingTimeout):
                break
        try:
            wires.reader(P, E)
        except PeerError as error:
            assert "env segment" in str(error) or "policy segment" in str(error)

"""The join of sections to cuts: whatever order they come in, whoever dies, a cut is whole."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsec.sml.cut import HELD_MAX, Cuts

ROLES = (0, 1, 2)
INTERVAL = 5


class Agent(RuleBasedStateMachine):
    """Three roles, each with a memory file of a few places that it writes in turn, and someone who
    looks now and then. A section is (role, boundary, incarnation)."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: Cuts[tuple[int, int, int]] = Cuts(ROLES)
        self.files: dict[int, dict[int, tuple[int, int, int]]] = {role: {} for role in ROLES}
        self.at = dict.fromkeys(ROLES, 0)
        self.life = dict.fromkeys(ROLES, 0)
        self.made: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.taken: list[int] = []
        self.torn: set[tuple[int, int]] = set()

    def keep(self, role: int, seq: int) -> None:
        self.made[role, seq].add(self.life[role])
        file = self.files[role]
        file[seq] = (role, seq, self.life[role])
        while len(file) > 4:
            del file[min(file)]

    @rule(role=st.sampled_from(ROLES))
    def goes_on(self, role: int) -> None:
        """To its next boundary. E is at most one ahead of P, as in lockstep; R may lag."""
        ahead = min(self.at[0], self.at[1]) if role == 2 else self.at[1 - role] + INTERVAL
        if self.at[role] + INTERVAL <= ahead:
            self.at[role] += INTERVAL
            self.keep(role, self.at[role])

    @rule(role=st.sampled_from(ROLES), back=st.integers(0, 3), before=st.booleans())
    def dies(self, role: int, back: int, before: bool) -> None:
        """Its successor has a file of its own, and goes over boundaries that were kept already."""
        if before:
            self.replaced(role)
        self.life[role] += 1
        self.files[role] = {}
        for seq in range(
            max(INTERVAL, self.at[role] - back * INTERVAL), self.at[role] + 1, INTERVAL
        ):
            self.keep(role, seq)

    def replaced(self, role: int) -> None:
        """The one who looks is told that there is another file: it holds what the old one has."""
        for seq, section in self.files[role].items():
            self.cuts.hold(role, seq, section)

    @rule(role=st.sampled_from(ROLES), seq=st.integers(-9, 40))
    def comes_late_or_twice(self, role: int, seq: int) -> None:
        section = self.files[role].get(seq)
        if section is not None:
            self.cuts.hold(role, seq, section)
            self.cuts.hold(role, seq, section)

    @rule(torn=st.sets(st.tuples(st.sampled_from(ROLES), st.integers(0, 40))))
    def looks(self, torn: set[tuple[int, int]]) -> None:
        """What is torn was seen, and is written over before it can be copied."""

        def fetch(role: int, seq: int) -> tuple[int, int, int] | None:
            return None if (role, seq) in torn else self.files[role][seq]

        seen = {role: self.files[role].keys() for role in ROLES}
        found = self.cuts.next(seen, fetch)
        if found is None:
            return
        seq, cut = found
        assert sorted(cut) == list(ROLES), "one section of each role"
        for role, (whose, where, life) in cut.items():
            assert (whose, where) == (role, seq), "of this role, at this boundary"
            assert life in self.made[role, seq], "and one that was made"
        assert not self.taken or seq > self.taken[-1], "never the same twice, never back"
        self.taken.append(seq)

    @precondition(lambda self: min(self.at.values()) > 0)
    @rule()
    def settles(self) -> None:
        """When nobody writes any more, the newest boundary that all files have is found."""
        common = set.intersection(*(set(file) for file in self.files.values()))
        self.looks(set())
        if common:
            assert self.cuts.last >= max(common)

    @invariant()
    def holds_little(self) -> None:
        assert all(len(held) <= HELD_MAX for held in self.cuts._held.values())
        assert all(seq > self.cuts.last for held in self.cuts._held.values() for seq in held)


TestCuts = Agent.TestCase


def test_the_first_section_of_a_boundary_counts() -> None:
    cuts: Cuts[str] = Cuts(ROLES)
    cuts.hold(0, 5, "of the first life")
    cuts.hold(0, 5, "of the second")
    found = cuts.next({0: {5}, 1: {5}, 2: {5}}, lambda role, seq: "seen")
    assert found == (5, {0: "of the first life", 1: "seen", 2: "seen"})


def test_a_role_that_gives_nothing_keeps_everybody_waiting() -> None:
    cuts: Cuts[str] = Cuts(ROLES)
    assert cuts.next({0: {5, 10}, 1: {5, 10}}, lambda role, seq: "x") is None
    assert Cuts[str](()).next({}, lambda role, seq: "x") is None


def test_what_comes_after_a_restart_is_beyond_what_the_pool_has() -> None:
    cuts: Cuts[str] = Cuts(ROLES, last=10)
    seen = {role: {5, 10} for role in ROLES}
    assert cuts.next(seen, lambda role, seq: "x") is None
    assert cuts.next({role: {10, 15} for role in ROLES}, lambda role, seq: "x") is not None
    assert cuts.last == 15


def test_the_newest_that_can_be_had_is_taken() -> None:
    cuts: Cuts[str] = Cuts(ROLES)
    seen = {role: {5, 10, 15} for role in ROLES}
    found = cuts.next(seen, lambda role, seq: None if (role, seq) == (2, 15) else "x")
    assert found is not None and found[0] == 10

"""Who holds a run: in whatever order things happen, are late or lost, no agent is two hosts'.

The world has a source with a clock of its own (at most twice as fast or slow as the heir's), the
heir's ledger, and what is on the way between them. The one rule is checked after every step.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dsec.errors import FencedOut, LocalError
from dsec.sml.remote.tenure import Tenure
from dsec.sml.remote.wards import Ward, Wards

LEASE_S = 10.0
AGENTS = ("a", "b", "c")


def agents_of(config: str) -> tuple[str, ...]:
    return tuple(json.loads(config))


def entering(**changes: Any) -> dict[str, Any]:
    known = {"do": "ward", "run": "r", "config": json.dumps(AGENTS), "heir": True, "over": []}
    return known | changes


class TwoHosts(RuleBasedStateMachine):
    """A source, its heir, a lossy way between them, and clocks that nobody compares."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.drift = 1.9
        self.wards = Wards(LEASE_S, agents_of)
        self.tenure = Tenure(LEASE_S, "r")
        self.running = set(AGENTS)
        self.begun: set[str] = set()
        self.disk: dict[str, Any] | None = None
        self.asks: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        number = self.tenure.ask(self.own())
        self.wards.asked(entering(), self.now)
        self.tenure.granted(number)
        self.save()

    def own(self) -> float:
        return 1000.0 + self.now * self.drift

    def save(self) -> None:
        self.disk = self.wards.wards["r"].lasting()

    @rule(seconds=st.floats(0.0, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.source_looks()

    def source_looks(self) -> None:
        """The source's kernel acts on its own clock, at least as often as time is looked at."""
        if not self.tenure.valid(self.own()):
            self.running.clear()

    @rule()
    def source_asks(self) -> None:
        self.source_looks()
        self.asks.append({"do": "hold", "run": "r", "number": self.tenure.ask(self.own())})

    @rule()
    def ask_arrives(self) -> None:
        if self.asks:
            try:
                self.answers.append(self.wards.asked(self.asks.pop(0), self.now))
            except FencedOut:
                self.answers.append({"fenced": True})

    @rule()
    def ask_is_lost(self) -> None:
        self.asks[:1] = []

    @rule(newest=st.booleans())
    def answer_arrives(self, newest: bool) -> None:
        if not self.answers:
            return
        answer = self.answers.pop(-1 if newest else 0)
        if answer.get("fenced"):
            self.running.clear()
            return
        self.tenure.granted(answer["number"])
        self.running -= set(answer["taken"])

    @rule(agent=st.sampled_from(AGENTS))
    def somebody_wants_one(self, agent: str) -> None:
        if agent not in self.wards.wards["r"].over:
            self.wards.asked({"do": "move", "run": "r", "agent": agent}, self.now)

    @rule(agent=st.sampled_from(AGENTS))
    def source_hands_over(self, agent: str) -> None:
        if agent in self.running and agent in self.wards.wards["r"].wanted:
            self.running.discard(agent)  # ended at its boundary, and only then said so
            self.wards.asked({"do": "hand", "run": "r", "agent": agent}, self.now)

    @rule()
    def heir_looks(self) -> None:
        for ward, agents in self.wards.due(self.now):
            self.wards.take(ward, agents)
            self.save()  # before anything of it runs
            assert not self.begun & set(agents), "begun twice"
            self.begun |= set(agents)

    @rule()
    def heir_is_started_again(self) -> None:
        assert self.disk is not None
        self.wards = Wards(LEASE_S, agents_of)
        self.wards.remember(Ward.known(json.loads(json.dumps(self.disk))), self.now)

    @invariant()
    def no_agent_is_two_hosts(self) -> None:
        self.source_looks()
        assert not self.running & self.begun


TestTwoHosts = TwoHosts.TestCase


def test_a_silent_source_loses_its_agents_and_is_told_when_it_returns() -> None:
    wards = Wards(LEASE_S, agents_of)
    wards.asked(entering(), 0.0)
    assert wards.due(9.9) == []
    [(ward, agents)] = wards.due(10.0)
    assert agents == list(AGENTS)
    with pytest.raises(FencedOut, match="taken over"):
        wards.asked(entering(), 10.0)
    assert wards.take(ward, agents) == 2
    assert wards.asked(entering(), 11.0)["taken"] == list(AGENTS)
    with pytest.raises(FencedOut, match="epoch 2"):
        wards.check_seat("r")
    assert wards.due(100.0) == []


def test_only_the_heir_takes_over_and_only_what_is_not_over() -> None:
    wards = Wards(LEASE_S, agents_of)
    wards.asked(entering(heir=False), 0.0)
    assert wards.due(99.0) == []
    wards.asked(entering(run="s", over=["b"]), 0.0)
    [(ward, agents)] = wards.due(99.0)
    assert (ward.run, agents) == ("s", ["a", "c"])
    wards.asked({"do": "over", "run": "s", "agents": ["a", "c"]}, 99.0)
    assert wards.due(99.0) == []


def test_what_nobody_can_mean_is_refused_by_name() -> None:
    wards = Wards(LEASE_S, agents_of)
    for bad in (
        {},
        {"do": "dance"},
        {"do": "hold", "run": "unknown", "number": 1},
        {"do": "move", "run": "r"},
    ):
        with pytest.raises(LocalError):
            wards.asked(bad, 0.0)
    wards.asked(entering(), 0.0)
    for bad in (
        {"do": "move", "run": "r", "agent": "z"},
        {"do": "hand", "run": "r", "agent": "a"},
        {"do": "hold", "run": "r", "number": "x"},
        {"do": "marks", "run": "r", "marks": {"z": []}},
        {"do": "marks", "run": "r", "marks": 5},
    ):
        with pytest.raises(LocalError):
            wards.asked(bad, 0.0)

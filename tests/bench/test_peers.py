"""The benchmarks say whom they left out."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack

import pytest

from bench import peers


def test_who_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with ExitStack() as stack:
        steps, left_out = peers.open_all("cartpole", 2, stack)
    assert not steps
    for label, (package, _) in peers.PEERS.items():
        assert f"{label} ({package} is not installed)" in left_out


def test_who_does_not_have_an_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only = {"EnvPool, no isolation": peers.PEERS["EnvPool, no isolation"]}
    monkeypatch.setattr(peers, "PEERS", only)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with ExitStack() as stack:
        steps, left_out = peers.open_all("frames", 2, stack)
    assert not steps
    assert left_out == " Left out: EnvPool, no isolation (has no such environment)."

"""The random state of a process: what it costs in bytes, and that it comes back whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import SnapshotError
from dsec.failover.codecs.ambient import Ambient, decoded
from dsec.ipc.frames import Role
from dsec.runners import seeds
from dsec.sml.atom import Generator, RandomState
from dsec.sml.atom import Role as Whose

DRAWS: tuple[Callable[[], Any], ...] = (
    random.random,
    lambda: random.gauss(0.0, 1.0),
    lambda: random.getrandbits(7),
    lambda: np.random.random(),
    lambda: np.random.randn(),
    lambda: np.random.randint(9, dtype=np.uint16),
)


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    """What is restored here are this process's own."""
    python, legacy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(legacy)


def fresh() -> Ambient:
    """Of a process that has just been seeded."""
    seeds.reseed_globals("abc", "env")
    return Ambient(Role.ENV, seeds.SEEDED)


def kinds(state: RandomState) -> dict[str, Generator]:
    return {each.kind: each for each in state.generators}


def draw(count: int) -> list[Any]:
    return [each() for _ in range(count) for each in DRAWS]


def test_untouched_generators_are_their_seeds() -> None:
    ambient = fresh()
    data = ambient.capture()
    state = decoded(data)
    for kind in ("python", "numpy"):
        assert kinds(state)[kind].state is None and kinds(state)[kind].seed is not None
    expected = draw(3)
    assert ambient.capture() != data, "they have been drawn from"
    ambient.restore(state)
    assert draw(3) == expected


@given(st.lists(st.sampled_from(range(len(DRAWS))), max_size=12))
def test_every_draw_shows_and_comes_back(order: list[int]) -> None:
    ambient = fresh()
    before = ambient.capture()
    for each in order:
        DRAWS[each]()
        after = ambient.capture()
        assert after != before
        before = after
    assert before == ambient.capture() == Ambient(Role.ENV, seeds.SEEDED).capture()
    expected = draw(2)
    seeds.reseed_globals("other", "env")
    Ambient(Role.ENV, seeds.SEEDED).restore(decoded(before))
    assert draw(2) == expected


def test_another_bit_generator_of_numpy_comes_back() -> None:
    ambient = fresh()
    ambient.capture()
    mine = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        np.random.random()
        kept = ambient.capture()
        expected = np.random.random(4).tolist()
        assert ambient.capture() != kept, "draws show in the one that was set, too"
        np.random.set_bit_generator(mine)
        ambient.restore(decoded(kept))
        assert np.random.random(4).tolist() == expected
    finally:
        np.random.set_bit_generator(mine)


def test_torch_and_its_switches_come_back() -> None:
    torch = pytest.importorskip("torch")
    kept_state, warn = torch.get_rng_state(), torch.is_deterministic_algorithms_warn_only_enabled()
    enabled, benchmark = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
    )
    try:
        ambient = fresh()
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        first = decoded(ambient.capture())
        assert kinds(first)["torch.cpu"].state is None, "untouched since it was seeded"
        assert ("env.deterministic_algorithms", True) in first.flags
        torch.rand(3)
        second = decoded(ambient.capture())
        assert len(kinds(second)["torch.cpu"].state or b"") > 5000
        expected = torch.rand(3).tolist()
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False
        ambient.restore(second)
        assert torch.rand(3).tolist() == expected
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.benchmark
        ambient.restore(first)
        torch.rand(3)
        assert torch.rand(3).tolist() == expected
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn)
        torch.backends.cudnn.benchmark = benchmark
        torch.set_rng_state(kept_state)


def test_what_is_another_roles_is_passed_over_and_nonsense_refused() -> None:
    ambient = fresh()
    state = decoded(ambient.capture())
    theirs = RandomState(
        tuple(
            Generator(Whose.POLICY, each.kind, "", each.engine, None, b"nonsense")
            for each in state.generators
        )
    )
    expected = draw(1)
    ambient.restore(state)
    ambient.restore(theirs)
    assert draw(1) == expected
    bad = Generator(Whose.ENV, "python", "", "MT19937", None, b"nonsense")
    with pytest.raises(SnapshotError, match="random state of the process"):
        ambient.restore(RandomState((bad,)))
    with pytest.raises(SnapshotError, match="not known here"):
        ambient.restore(RandomState((Generator(Whose.ENV, "dice", "", "x"),)))
    with pytest.raises(SnapshotError, match="no random state"):
        decoded(b"nonsense")


def test_a_fork_has_streams_of_its_own_and_always_the_same() -> None:
    ambient = fresh()
    draw(1)
    state = decoded(ambient.capture())

    def number(kind: str, bits: int) -> int:
        return seeds.derive("fork", kind, bits=bits)

    parents = draw(1)
    ambient.restore(ambient.anew(state, number))
    own = draw(1)
    ambient.restore(ambient.anew(state, number))
    assert draw(1) == own != parents

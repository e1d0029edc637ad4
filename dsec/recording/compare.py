"""Where two agents' transitions differ first, and in what: looked up value by value.

Owns the comparison. Numbers are compared as bytes, so NaN equals itself and 0.0 is not -0.0. What
the hash chain covers is compared, and infos, which may hold times, are not. Knows no file and no
run: it is given rows, and `dsec.recording.verify` decides what to make of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.ipc.layout import Layout
from dsec.ipc.variable import Variable
from dsec.recording.arrays import Agent
from dsec.runners.columns import END_INFRA, END_NONE, Rows, outcomes
from dsec.runners.records import LeafValues, leaf_paths


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that two recordings disagree about.

    Attributes:
        env: which environment.
        what: `first observation` (of an episode that this step begins), `action`, `observation`
            (that the action led to; `terminal observation` where the episode ended), `env_reward`,
            `terminated`, `truncated`, `reward`, or `step` (lost with its environment in one).
        where: which element of it, as `[2]` or `.pixels[3, 4]`; empty for a single number.
        a, b: both values: a number, or text.
        others: how many more elements of the same value differ.
    """

    env: int
    what: str
    where: str
    a: Any
    b: Any
    others: int = 0


class Comparison:
    """Compares transitions of one agent; both sides have its spaces."""

    def __init__(self, agent: Agent) -> None:
        self._n = agent.num_envs
        self._obs = _leaves(agent.observation_space)
        self._action = _leaves(agent.action_space)

    def first(
        self, a: Iterable[Rows], b: Iterable[Rows], start: int, end: int
    ) -> tuple[int, tuple[Difference, ...]] | None:
        """The first transition from `start` to before `end`, which both have, in which they differ,
        and in what; None where there is none."""
        left, right = _Cursor(a, start, end), _Cursor(b, start, end)
        while left.fill() & right.fill():
            count = min(left.left, right.left)
            found = self.piece(left.take(count), right.take(count))
            if found is not None:
                return found
        # What one of them has no row for was lost there.
        for side, states in ((left, ("done", "lost")), (right, ("lost", "done"))):
            if side.fill():
                return side.seq, (Difference(0, "step", "", *states),)
        return None

    def piece(self, one: Piece, other: Piece) -> tuple[int, tuple[Difference, ...]] | None:
        """The same of as many rows as both have, with what they led to."""
        unlike = self._unlike(one, other)
        if not unlike.any():
            return None
        t = int(np.argmax(unlike))
        return min(int(one[0].seq[t]), int(other[0].seq[t])), self._at(one, other, t)

    def _unlike(self, one: Piece, other: Piece) -> NDArray[np.bool_]:
        """For each row, whether anything differs."""
        (a, led_a), (b, led_b) = one, other
        unlike: NDArray[np.bool_] = a.seq != b.seq
        for name in _NUMBERS:
            unlike |= _bytes_differ(getattr(a, name), getattr(b, name)).any(axis=(1, 2))
        trees = [(self._action, a.action, b.action), (self._obs, led_a, led_b)]
        for leaves, left, right in trees:
            for (_, leaf), mine, theirs in zip(leaves, left, right, strict=True):
                unlike |= _elements_differ(leaf, mine, theirs).reshape(len(mine), -1).any(axis=1)
        begins = (a.step == 0).any(axis=1)
        if begins.any():
            for (_, leaf), mine, theirs in zip(self._obs, a.obs, b.obs, strict=True):
                found = _elements_differ(leaf, mine[begins], theirs[begins])
                found = found.reshape(*found.shape[:2], -1).any(axis=2) & (a.step[begins] == 0)
                unlike[begins] |= found.any(axis=1)
        return unlike

    def _at(self, one: Piece, other: Piece, t: int) -> tuple[Difference, ...]:
        """What differs in row t, in the order of cause and effect."""
        (a, led_a), (b, led_b) = one, other
        if a.seq[t] != b.seq[t]:
            lost = ("done", "lost") if a.seq[t] < b.seq[t] else ("lost", "done")
            return (Difference(0, "step", "", *lost),)
        found: list[Difference] = []
        for e in range(self._n):
            ended = a.end[t, e] not in (END_NONE, END_INFRA) and (
                a.terminated[t, e] or a.truncated[t, e]
            )
            if a.step[t, e] == 0:
                found += _tree("first observation", e, self._obs, a.obs, b.obs, t)
            found += _tree("action", e, self._action, a.action, b.action, t)
            what = "terminal observation" if ended else "observation"
            found += _tree(what, e, self._obs, led_a, led_b, t)
            for name in _NUMBERS:
                mine, theirs = getattr(a, name)[t, e], getattr(b, name)[t, e]
                if mine.tobytes() != theirs.tobytes():
                    found.append(Difference(e, name, "", *_both(mine, theirs)))
        return tuple(found)


_NUMBERS = ("env_reward", "terminated", "truncated", "reward")
Piece = tuple[Rows, LeafValues]
_Leaves = list[tuple[str, Any]]


class _Cursor:
    """A place in rows that come piece by piece."""

    def __init__(self, pieces: Iterable[Rows], start: int, end: int) -> None:
        self._pieces: Iterator[Piece] = outcomes(pieces)
        self._start, self._end = start, end
        self._piece: Piece | None = None
        self._at = 0

    def fill(self) -> bool:
        """Whether there is a row here."""
        while self._piece is None or self._at == len(self._piece[0].seq):
            self._piece = next(self._pieces, None)
            if self._piece is None:
                return False
            self._at = int(np.searchsorted(self._piece[0].seq, self._start))
        return self.seq < self._end

    @property
    def seq(self) -> int:
        """The transition here."""
        assert self._piece is not None, "fill comes first"
        return int(self._piece[0].seq[self._at])

    @property
    def left(self) -> int:
        """How many rows are here."""
        assert self._piece is not None, "fill comes first"
        return int(np.searchsorted(self._piece[0].seq, self._end)) - self._at

    def take(self, count: int) -> Piece:
        """The next rows, without what few of them have."""
        assert self._piece is not None, "fill comes first"
        rows, led = self._piece
        part = slice(self._at, self._at + count)
        self._at += count
        return rows.part(part), [leaf[part] for leaf in led]


def _leaves(space: Any) -> _Leaves:
    """Path and leaf of each array or value of a space."""
    return [
        ("".join(f".{key}" for key in path), leaf)
        for path, leaf in zip(leaf_paths(space), Layout(space, 1).order, strict=True)
    ]


def _bytes_differ(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """For each element, and each of its bytes along one more axis, whether they differ."""
    left, right = (
        np.ascontiguousarray(x).reshape(x.shape)[..., None].view(np.uint8) for x in (a, b)
    )
    found: NDArray[np.bool_] = left != right
    return found


def _elements_differ(leaf: Any, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """For each element, whether it differs."""
    if isinstance(leaf, Variable):
        flat = [leaf.encode(x) != leaf.encode(y) for x, y in zip(a.flat, b.flat, strict=True)]
        return np.array(flat, np.bool_).reshape(a.shape)
    return np.asarray(_bytes_differ(a, b).any(axis=-1), np.bool_)


def _tree(
    what: str, e: int, leaves: _Leaves, a: LeafValues, b: LeafValues, t: int
) -> Iterator[Difference]:
    for (path, leaf), mine, theirs in zip(leaves, a, b, strict=True):
        yield from _leaf(what, e, path, leaf, mine[t, e], theirs[t, e])


def _leaf(what: str, e: int, path: str, leaf: Any, mine: Any, theirs: Any) -> Iterator[Difference]:
    """The first element of one array, or one value, that differs."""
    if isinstance(leaf, Variable):
        if leaf.encode(mine) != leaf.encode(theirs):
            yield Difference(e, what, path, *_both(mine, theirs))
        return
    a, b = np.asarray(mine, leaf.dtype), np.asarray(theirs, leaf.dtype)
    unlike = _elements_differ(leaf, a, b)
    if unlike.any():
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(unlike)), unlike.shape))
        where = f"{path}[{', '.join(map(str, at))}]" if at else path
        yield Difference(e, what, where, *_both(a[at], b[at]), others=int(unlike.sum()) - 1)


def _both(a: Any, b: Any) -> tuple[Any, Any]:
    """Both values so that one sees the difference."""
    left, right = _plain(a), _plain(b)
    if left == right and str(left) == str(right) and hasattr(a, "tobytes"):
        return f"{left} (0x{a.tobytes()[::-1].hex()})", f"{right} (0x{b.tobytes()[::-1].hex()})"
    return left, right


def _plain(value: Any) -> Any:
    """A number that JSON has, as short as it says the value; else text of bounded length."""
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, np.floating):
        number = float(str(value))
        return number if math.isfinite(number) else str(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"

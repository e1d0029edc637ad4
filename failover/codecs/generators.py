"""Nodes that make random numbers: numpy's bit generators and RandomState, Python's Random.

Owns their states, whole: the buffered half of a 32-bit draw, the kept second gaussian, and the
count of children that a SeedSequence has spawned (numpy's own `state` leaves that out, and a
restored generator would spawn its children again). Reading such a state through Python takes 2 to
40 µs and most of the time nothing has been drawn, so nodes are watched by their memory (memory.py).
`trusted` proves at import, on objects of its own, that every draw shows there; where it wouldn't
(another Python, another numpy), nothing is watched.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import SeedSequence

from dsec.errors import SnapshotError
from dsec.failover.codecs.memory import body, bytes_at, of_dict, region, shows
from dsec.failover.codecs.reading import Reader
from dsec.failover.codecs.writing import Writer
from dsec.ipc.watch import Region

KNOWN_BITS = ("PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937")


def trusted() -> frozenset[type]:
    """The types whose draws show in their own memory."""
    found: set[type] = set()
    for name in KNOWN_BITS:
        bits = getattr(np.random, name)(1)
        draw = np.random.Generator(bits)
        half = functools.partial(draw.integers, 0, 9, dtype=np.uint32)
        normal = functools.partial(draw.standard_normal, 3)
        if shows(bits, draw.random, half, half, half, normal, draw.random):
            found.add(type(bits))
    seed = SeedSequence(1)
    if shows(seed, lambda: seed.spawn(1), lambda: seed.spawn(2)):
        found.add(SeedSequence)
    mine = random.Random(1)
    if shows(mine, mine.random, lambda: mine.getrandbits(8)):
        found.add(random.Random)
    legacy = np.random.RandomState(np.random.MT19937(1))
    if np.random.MT19937 in found and shows(legacy, legacy.randn, legacy.randn):
        found.add(np.random.RandomState)
    return frozenset(found)


TRUSTED = trusted()


class Places(NamedTuple):
    """Where in its own memory a generator has the words of its state."""

    state: int
    inc: int
    has_uint32: int
    uinteger: int


def places(kind: type) -> Places | None:
    """Find them, for one of the PCG64 family; None where what is found there isn't always what
    numpy says."""
    found = None
    for seed in range(1, 6):
        bits = kind(seed)
        np.random.Generator(bits).integers(0, 1 << 32, seed, dtype=np.uint32)
        state, memory = bits.state, body(bits).tobytes()
        wide = [state["state"][name].to_bytes(16, "little") for name in ("state", "inc")]
        half = struct.pack("<iI", state["has_uint32"], state["uinteger"])
        if found is None and not all(memory.count(each) == 1 for each in (*wide, half)):
            return None
        at = [memory.find(each) for each in (*wide, half)]
        found = found or at
        if at[:2] != found[:2] or memory[found[2] : found[2] + len(half)] != half:
            return None
    assert found is not None, "there are some seeds"
    return Places(found[0], found[1], found[2], found[2] + 4)


PLACES: dict[type, Places] = {
    kind: where
    for kind in (np.random.PCG64, np.random.PCG64DXSM)
    if kind in TRUSTED and (where := places(kind)) is not None
}


def _plain(state: Any) -> Any:
    """A state dict of numpy as plain data."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return [state.dtype.str, state.tobytes()]
    if isinstance(state, int) and not 0 <= state < 1 << 63:
        return hex(state)
    return state


def _state(plain: Any) -> Any:
    """The mirror of `_plain`."""
    if isinstance(plain, dict):
        return {key: _state(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return np.frombuffer(plain[1], plain[0]).copy()
    if isinstance(plain, str) and plain.lstrip("-").startswith("0x"):
        return int(plain, 16)
    return plain


def _seed_of(bits: Any) -> SeedSequence | None:
    seed = getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)
    return seed if type(seed) is SeedSequence else None


def _seed_state(seed: SeedSequence | None, writer: Writer) -> Any:
    if seed is None:
        return None
    entropy = seed.entropy
    many = isinstance(entropy, list | tuple | np.ndarray)
    numbers = [int(each) for each in entropy] if many else entropy  # type: ignore[union-attr]
    return [
        writer.sequence(numbers) if many else writer.value(numbers),
        many,
        writer.sequence(tuple(seed.spawn_key)),
        seed.pool_size,
        seed.n_children_spawned,
    ]


def seed_state(bits: Any) -> Any:
    """What is written of a bit generator's seed."""
    return _seed_state(_seed_of(bits), Writer({}))


_noted: dict[int, tuple[Any, bytes]] = {}
"""The two global generators, by their numbers: what they were filled with last, and the memory that
this gave. To fill numpy's takes 180 µs, and most environments draw from neither."""


def _memory(node: Any) -> bytes:
    """What changes with the state of a global generator; empty for all others."""
    if node is not random._inst and node is not np.random.mtrand._rand:
        return b""
    return b"".join(bytes_at(each) for each in regions(node))


def _note(node: Any, content: Any) -> None:
    if memory := _memory(node):
        _noted[id(node)] = content, memory


def _untouched(node: Any, content: Any) -> bool:
    """Whether it has been filled with the same, and nobody has drawn from it since."""
    noted = _noted.get(id(node))
    return noted is not None and noted[0] == content and noted[1] == _memory(node)


class Watched:
    """What the three have in common: no children, and a cheap look at their memory."""

    def regions(self, node: Any) -> tuple[Region, ...]:
        """Memory that changes with the state, if that is proven for this type."""
        return regions(node)

    def watch(self, node: Any) -> Callable[[], Any] | None:
        """For want of that: a function whose result does."""
        return look(node)

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """They have no children."""


class BitGenerator(Watched):
    """Any of numpy's five. Content: [state, seed sequence]."""

    tag = "g"

    def head(self, node: Any, writer: Writer) -> Any:
        """Its name in numpy.random."""
        return type(node).__name__

    def read(self, node: Any, writer: Writer) -> Any:
        """The state that numpy gives, and the seed's."""
        return [_plain(node.state), _seed_state(_seed_of(node), writer)]

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The one in place, if it has the same seed; a seed sequence can't be set, only made."""
        if type(hint).__name__ == head and isinstance(hint, np.random.BitGenerator):
            blank = Writer({})
            if content[1] is None or _seed_state(_seed_of(hint), blank) == content[1]:
                return hint
        kind = getattr(np.random, head, None)
        if head not in KNOWN_BITS or kind is None:
            raise SnapshotError(f"numpy has no bit generator {head} here")
        if content[1] is None:
            return kind(0)
        numbers, many, spawn_key, pool_size, spawned = content[1]
        entropy = reader.values(numbers) if many else reader.value(numbers)
        return kind(
            SeedSequence(
                entropy,
                spawn_key=reader.values(spawn_key),
                pool_size=pool_size,
                n_children_spawned=spawned,
            )
        )

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set the state."""
        node.state = _state(content[0])


class RandomState(Watched):
    """numpy's legacy generator, the global one as well."""

    tag = "r"

    def head(self, node: Any, writer: Writer) -> Any:
        """Nothing."""

    def read(self, node: Any, writer: Writer) -> Any:
        """All five parts; the kept gaussian is one."""
        return _plain(node.get_state(legacy=False))

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The one in place if it rests on the same bit generator."""
        name = content["bit_generator"]
        if type(hint) is np.random.RandomState and type(hint._bit_generator).__name__ == name:
            return hint
        if name not in KNOWN_BITS:
            raise SnapshotError(f"numpy has no bit generator {name} here")
        return np.random.RandomState(getattr(np.random, name)(0))

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set the state."""
        if not _untouched(node, content):
            node.set_state(_state(content))
            _note(node, content)


class PythonRandom(Watched):
    """`random.Random`, the global one as well. Content: [version, words, gauss_next]."""

    tag = "p"

    def head(self, node: Any, writer: Writer) -> Any:
        """Nothing."""

    def read(self, node: Any, writer: Writer) -> Any:
        """Its state, the words as bytes."""
        version, words, gauss_next = node.getstate()
        return [version, np.array(words, np.uint32).tobytes(), gauss_next]

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """Any will do."""
        return hint if type(hint) is random.Random else random.Random(0)

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set the state."""
        if not _untouched(node, content):
            version, words, gauss_next = content
            node.setstate((version, tuple(np.frombuffer(words, np.uint32).tolist()), gauss_next))
            _note(node, content)


def regions(node: Any) -> tuple[Region, ...]:
    """Memory that changes whenever the state of this generator does; nothing where that isn't
    proven for its type."""
    if type(node) not in TRUSTED:
        return ()
    if isinstance(node, random.Random):
        kept = of_dict(vars(node))  # the second gaussian
        return (region(node), *kept) if kept else ()
    below = node._bit_generator if isinstance(node, np.random.RandomState) else _seed_of(node)
    if below is None:
        return (region(node),)
    return (region(node), region(below)) if type(below) in TRUSTED else ()


def look(node: Any) -> Callable[[], Any] | None:
    """A cheap function whose result changes whenever the state of Python's generator does, for a
    Python where no memory tells of its second gaussian. None: read it every time."""
    if type(node) is not random.Random or random.Random not in TRUSTED:
        return None
    memory = body(node).tobytes
    return lambda: (memory(), node.gauss_next)  # type: ignore[attr-defined]

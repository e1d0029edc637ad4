"""A captured state with other random streams: what an agent that was forked begins from.

Owns which bytes of a state are random generators, and what stands there instead. Done to the bytes
and not to the restored object: so what is restored is whole in one go, a generator's seed sequence
(which can't be set, and from which children are spawned) included, and the same bytes and seed give
the same ones. Every generator that a codec holds is reached, for it is a node of its own: those of
the process, of wrappers and spaces, of a policy. Numbers in which an object keeps the state of a
generator by itself are just numbers here.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.random import SeedSequence

from dsec.errors import SnapshotError
from dsec.failover.codecs import ale, generators, pickled, tensors
from dsec.failover.codecs.plan import decoded
from dsec.failover.codecs.trackers import encode
from dsec.failover.codecs.writing import Writer


def seeded_anew(codec: str, data: bytes, seed: int) -> bytes:
    """A state as it was captured, but for its random generators, which are seeded.

    Args:
        codec: the name of the one that captured it.
        seed: each generator gets a stream of its own, derived from this.

    Raises:
        SnapshotError: these bytes are no state of this codec.
    """
    if codec != pickled.PickleCodec.name:
        return _nodes(data, seed, 0)
    process, dumped = pickled.parts(data)
    into = io.BytesIO()
    _Pickler(into, seed).dump(pickled.loaded(dumped))
    return pickled.whole(_nodes(process, seed, 1), into.getvalue())


def _nodes(data: bytes | memoryview, seed: int, part: int) -> bytes:
    form, names, refs, heads, contents, more_heads, more = decoded(data)
    number = 0
    for described, each in ((heads, contents), (more_heads, more)):
        for i, (tag, head) in enumerate(described):
            make = _MADE.get(tag)
            if make is not None:
                each[i] = make(head, each[i], SeedSequence(seed, spawn_key=(part, number)))
            number += 1
    return encode((form, names, refs, heads, contents, more_heads, more))


def _bit_generator(head: Any, content: Any, seed: SeedSequence) -> Any:
    del content
    kind = getattr(np.random, head, None) if head in generators.KNOWN_BITS else None
    if kind is None:
        raise SnapshotError(f"numpy has no bit generator {head} here")
    return generators.BitGenerator().read(kind(seed), Writer({}))


def _random_state(head: Any, content: Any, seed: SeedSequence) -> Any:
    del head
    kind = getattr(np.random, content["bit_generator"])
    return generators.RandomState().read(np.random.RandomState(kind(seed)), Writer({}))


def _python_random(head: Any, content: Any, seed: SeedSequence) -> Any:
    del head, content
    return generators.PythonRandom().read(_random(seed), Writer({}))


def _torch_generator(head: Any, content: Any, seed: SeedSequence) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return content  # which nobody can restore here; whoever tries says so
    generator = torch.Generator().manual_seed(_number(seed, 63))
    return tensors.Generator(torch).read(generator, Writer({}))


def _emulator(head: Any, content: Any, seed: SeedSequence) -> Any:
    del head
    state, action, strength = content
    return [ale.drawing(state, seed.generate_state(ale.WORDS).tolist()), action, strength]


_MADE: Final[dict[str, Callable[[Any, Any, SeedSequence], Any]]] = {
    generators.BitGenerator.tag: _bit_generator,
    generators.RandomState.tag: _random_state,
    generators.PythonRandom.tag: _python_random,
    tensors.Generator.tag: _torch_generator,
    ale.Emulator.tag: _emulator,
}


class _Pickler(pickle.Pickler):
    """Pickles other generators in the place of those that it meets."""

    def __init__(self, into: io.BytesIO, seed: int) -> None:
        super().__init__(into, protocol=pickle.HIGHEST_PROTOCOL)
        self._seed, self._met = seed, 0

    def reducer_override(self, node: Any) -> Any:
        """How to make another one, where it is a generator."""
        if not isinstance(node, np.random.BitGenerator | np.random.RandomState | random.Random):
            return NotImplemented
        self._met += 1
        seed = self._seed, self._met
        if isinstance(node, np.random.BitGenerator):
            return _pickled_bits, (type(node), *seed)
        if isinstance(node, np.random.RandomState):
            return _pickled_state, (node.get_state(legacy=False)["bit_generator"], *seed)
        return _pickled_random, (type(node), *seed)


def _pickled_bits(kind: Any, seed: int, number: int) -> Any:
    return kind(SeedSequence(seed, spawn_key=(0, number)))


def _pickled_state(name: str, seed: int, number: int) -> np.random.RandomState:
    return np.random.RandomState(_pickled_bits(getattr(np.random, name), seed, number))


def _pickled_random(kind: Any, seed: int, number: int) -> random.Random:
    return _random(SeedSequence(seed, spawn_key=(0, number)), kind)


def _random(seed: SeedSequence, kind: type[random.Random] = random.Random) -> random.Random:
    return kind(_number(seed, 128))


def _number(seed: SeedSequence, bits: int) -> int:
    return int.from_bytes(seed.generate_state(4).tobytes(), "little") & ((1 << bits) - 1)

"""The random state of a process that no object owns: its global generators, and torch's flags.

Owns what a role keeps beside the states of its objects: Python's `random`, numpy's legacy
generator, and, where torch is loaded, its generators of the CPU and of the GPUs in use and its
switches of determinism. They are a section of their own, so that it can be put back last of all,
after whatever an object may draw or set while it is restored. Generators that an object holds are
that object's state, and in its codec's bytes.

Most programs never draw from them. So a look costs a comparison of their memory, and one that is
still as it was seeded is written as its seed.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.random import mtrand

from dsec.errors import SnapshotError
from dsec.failover.codecs import generators
from dsec.failover.codecs.plan import load_torch
from dsec.failover.codecs.writing import Writer
from dsec.ipc.watch import Watch
from dsec.sml.atom import Generator, JsonScalar, RandomState, Role, Seed

TWISTER: Final = "MT19937"
WORDS: Final = 624
PYTHON, NUMPY, CPU, CUDA = "python", "numpy", "torch.cpu", "torch.cuda:"
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(RandomState)


class Ambient:
    """Of this process.

    Args:
        role: whose process it is.
        seeds: what the runner has seeded, by the name of the library; looked at in each capture.
    """

    def __init__(self, role: int, seeds: Mapping[str, int]) -> None:
        self._role = Role(role)
        self._seeds = seeds
        self._watch: Watch | None = None
        self._plain: tuple[Generator, ...] = ()  # Python's and numpy's
        self._torch: tuple[Any, ...] = ()  # as it was seen last
        self._fresh: dict[str, tuple[int, Any]] = {}  # what a seed makes, by the generator's kind
        self._bytes = b""

    def capture(self) -> bytes:
        """The state now; the very same bytes as long as nothing has changed."""
        watch, torch = self._watch, sys.modules.get("torch")
        changed = watch is None or bool(watch.changed())
        if not changed and torch is None:
            return self._bytes
        seen = () if torch is None else _look(torch)
        if not changed and seen == self._torch:
            return self._bytes
        if changed:
            self._plain = self._python(), self._numpy()
            self._watch_again()
        self._torch = seen
        found = [*self._plain]
        flags: tuple[tuple[str, JsonScalar], ...] = ()
        if torch is not None:
            found += [self._of_torch(torch, kind, state) for kind, state in seen[0]]
            flags = tuple((f"{self._role.name.lower()}.{name}", value) for name, value in seen[1])
        self._bytes = _encode(RandomState(tuple(found), flags))
        return self._bytes

    def restore(self, state: RandomState) -> None:
        """Put it back; what belongs to other roles is passed over. To be called last.

        Raises:
            SnapshotError: a generator is none that there is here, or its state is none.
        """
        prefix = f"{self._role.name.lower()}."
        flags = {name.removeprefix(prefix): v for name, v in state.flags if name.startswith(prefix)}
        mine = [each for each in state.generators if each.role is self._role]
        try:
            for each in mine:
                _put(each)
            if flags:
                load_torch()
                _set_flags(sys.modules["torch"], flags)
        except (LookupError, TypeError, ValueError, RuntimeError, struct.error) as error:
            raise SnapshotError(f"the random state of the process is none: {error}") from error

    def anew(self, state: RandomState, number: Callable[[str, int], int]) -> RandomState:
        """The same with streams of its own, for one that is forked.

        Args:
            number: gives a seed, for a kind of generator, of so many bits.
        """
        made = tuple(
            Generator(each.role, each.kind, each.where, each.engine, _seed(number(each.kind, 32)))
            if each.role is self._role
            else each
            for each in state.generators
        )
        return RandomState(made, state.flags)

    def _watch_again(self) -> None:
        parts = [generators.regions(random._inst), generators.regions(mtrand._rand)]
        self._watch = Watch(parts) if all(parts) else None

    def _python(self) -> Generator:
        state = random._inst.getstate()
        if self._as_seeded(PYTHON, "random", state):
            return self._untouched(PYTHON, TWISTER, "random")
        _, words, spare = state
        packed = np.array(words[:-1], "<u4").tobytes()
        return Generator(
            self._role, PYTHON, "", TWISTER, None, packed, words[-1],
            spare is not None, 0, spare or 0.0,
        )  # fmt: skip

    def _numpy(self) -> Generator:
        state = mtrand._rand.get_state(legacy=False)
        if state["bit_generator"] != TWISTER:  # somebody has set another
            content = generators.RandomState().read(mtrand._rand, Writer({}))
            engine = str(state["bit_generator"])
            return Generator(self._role, NUMPY, "", engine, None, _encode(content))
        inner, spare = state["state"], state["gauss"]
        plain = inner["key"].astype("<u4").tobytes(), inner["pos"], state["has_gauss"], spare
        if self._as_seeded(NUMPY, "numpy", plain):
            return self._untouched(NUMPY, TWISTER, "numpy")
        return Generator(
            self._role, NUMPY, "", TWISTER, None, plain[0], plain[1], bool(plain[2]), 0, spare
        )

    def _of_torch(self, torch: Any, kind: str, state: bytes) -> Generator:
        if kind == CPU and self._as_seeded(kind, "torch", state):
            return self._untouched(kind, "torch", "torch")
        return Generator(self._role, kind, "", "torch", None, state)

    def _untouched(self, kind: str, engine: str, library: str) -> Generator:
        return Generator(self._role, kind, "", engine, _seed(self._seeds[library]))

    def _as_seeded(self, kind: str, library: str, state: Any) -> bool:
        seed = self._seeds.get(library)
        if seed is None:
            return False
        known = self._fresh.get(kind)
        if known is None or known[0] != seed:
            known = self._fresh[kind] = seed, _FRESH[kind](seed)
        return bool(known[1] == state)


def decoded(data: bytes | memoryview) -> RandomState:
    """What `capture` made.

    Raises:
        SnapshotError: these bytes are none.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SnapshotError(f"these bytes are no random state of a process: {error}") from None


def encoded(state: RandomState) -> bytes:
    """The mirror of `decoded`."""
    return _encode(state)


def _seed(number: int) -> Seed:
    return Seed(number.to_bytes(-(-max(1, number.bit_length()) // 32) * 4, "little"))


def _fresh_python(seed: int) -> Any:
    return random.Random(seed).getstate()


def _fresh_numpy(seed: int) -> Any:
    state = np.random.RandomState(seed).get_state(legacy=False)
    inner = state["state"]
    return inner["key"].astype("<u4").tobytes(), inner["pos"], state["has_gauss"], state["gauss"]


def _fresh_torch(seed: int) -> Any:
    return _bytes(sys.modules["torch"].Generator().manual_seed(seed).get_state())


_FRESH: Final = {PYTHON: _fresh_python, NUMPY: _fresh_numpy, CPU: _fresh_torch}


def _bytes(state: Any) -> bytes:
    return bytes(state.numpy().tobytes())


def _look(torch: Any) -> tuple[Any, ...]:
    """torch's generators, and its switches."""
    found = [(CPU, _bytes(torch.default_generator.get_state()))]
    if torch.cuda.is_initialized():
        found += [
            (f"{CUDA}{i}", _bytes(each.get_state()))
            for i, each in enumerate(torch.cuda.default_generators)
        ]
    cudnn = torch.backends.cudnn
    flags = (
        ("deterministic_algorithms", torch.are_deterministic_algorithms_enabled()),
        ("deterministic_warn_only", torch.is_deterministic_algorithms_warn_only_enabled()),
        ("cudnn.deterministic", cudnn.deterministic),
        ("cudnn.benchmark", cudnn.benchmark),
        ("float32_matmul_precision", torch.get_float32_matmul_precision()),
    )
    return tuple(found), flags


def _set_flags(torch: Any, flags: dict[str, JsonScalar]) -> None:
    torch.use_deterministic_algorithms(
        bool(flags["deterministic_algorithms"]), warn_only=bool(flags["deterministic_warn_only"])
    )
    torch.backends.cudnn.deterministic = bool(flags["cudnn.deterministic"])
    torch.backends.cudnn.benchmark = bool(flags["cudnn.benchmark"])
    torch.set_float32_matmul_precision(str(flags["float32_matmul_precision"]))


def _put(generator: Generator) -> None:
    """Set one generator."""
    if generator.kind.startswith("torch"):
        load_torch()
        _put_torch(sys.modules["torch"], generator)
    elif generator.kind == PYTHON:
        random._inst.setstate(_python_state(generator))
    elif generator.kind == NUMPY:
        _put_numpy(generator)
    else:
        raise SnapshotError(f"the atom has a generator {generator.kind}, which is not known here")


def _number(generator: Generator) -> int:
    if generator.seed is None:
        raise ValueError(f"{generator.kind} has neither state nor seed")
    return int.from_bytes(generator.seed.entropy, "little")


def _python_state(generator: Generator) -> Any:
    if generator.state is None:
        return _fresh_python(_number(generator))
    words = struct.unpack(f"<{WORDS}I", generator.state)
    spare = generator.spare_gauss if generator.has_spare else None
    return random.Random.VERSION, (*words, generator.position), spare


def _put_numpy(generator: Generator) -> None:
    mine = mtrand._rand
    if generator.engine != TWISTER:
        content = msgspec.msgpack.decode(generator.state or b"")
        if mine.get_state(legacy=False)["bit_generator"] != generator.engine:
            kind = getattr(np.random, generator.engine)
            mtrand.set_bit_generator(kind(0))
            mine = mtrand._rand
        generators.RandomState().fill(mine, content, None)  # type: ignore[arg-type]
    elif generator.state is None:
        mine.seed(_number(generator))
    else:
        words = np.frombuffer(generator.state, "<u4", WORDS).astype(np.uint32)
        has, spare = int(generator.has_spare), generator.spare_gauss
        mine.set_state((TWISTER, words, generator.position, has, spare))


def _put_torch(torch: Any, generator: Generator) -> None:
    if generator.kind == CPU:
        target = torch.default_generator
    else:
        target = torch.cuda.default_generators[int(generator.kind.removeprefix(CUDA))]
    if generator.state is None:
        target.manual_seed(_number(generator))
    else:
        target.set_state(torch.frombuffer(bytearray(generator.state), dtype=torch.uint8))

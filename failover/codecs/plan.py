"""The compiled attribute plan: an object's attributes, and all that hangs on them, as its state.

Owns compiling (one walk over the graph, which numbers its nodes), capturing (each node by its
tracker, what is loose by a fresh walk) and the frame of the bytes. The first walk is the expensive
one and checks every type on the way; a capture then costs little more than what has changed. The
graph may change its shape at any time; the plan notices and is compiled again, and an attribute
that keeps changing its object is taken out of it, so this ends.

The global generators of Python and numpy (and torch's, where it is loaded) are roots of every plan:
they are as much of a runner's state as its attributes.
"""

from __future__ import annotations

import importlib
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from dsec.errors import SnapshotError
from dsec.failover.codecs import arrays, containers, generators, plain
from dsec.failover.codecs.quick import Quick, Unfit, array_head
from dsec.failover.codecs.reading import MISSING, Reader, kinds_by_tag
from dsec.failover.codecs.trackers import Edge, Restructured, Tracked, encode, track
from dsec.failover.codecs.writing import Closure, Kind, Refused, Writer
from dsec.ipc.watch import Watch

FORMAT = "dsec state 1"
COMPILES_MAX = 100  # in a row: each takes one more edge out, so more means a graph that never rests
COMPILE_AGAIN = (8, 64, 512)  # captures after which what was loose has shown whether it stays
QUICK_AFTER = 4  # captures in Python, before and between those in C; it doubles
QUICK_AFTER_MAX = 4096

KINDS: dict[type, Kind] = {
    object: containers.Instance(),
    dict: containers.Container("d", dict),
    OrderedDict: containers.Container("o", OrderedDict),
    defaultdict: containers.Container("e", defaultdict),
    list: containers.Container("l", list),
    deque: containers.Container("q", deque),
    set: containers.Container("s", set),
    bytearray: containers.Container("b", bytearray),
    types.CellType: containers.Cell(),
    Closure: containers.Function(),
    np.ndarray: arrays.ArrayKind(),
    np.random.RandomState: generators.RandomState(),
    random.Random: generators.PythonRandom(),
}
_bits = generators.BitGenerator()
for _name in generators.KNOWN_BITS:
    KINDS[getattr(np.random, _name)] = _bits

TABLE = plain.Table()

State = tuple[str, list[str], list[Any], list[list[Any]], list[Any], list[list[Any]], list[Any]]
_decoder = msgspec.msgpack.Decoder(State)


def global_roots(kinds: Mapping[type, Kind]) -> dict[str, Any]:
    """The generators that belong to the process, by name; torch's for plans that know torch."""
    roots: dict[str, Any] = {
        "random": random._inst,
        "numpy.random": np.random.mtrand._rand,
    }
    default = getattr(sys.modules.get("torch"), "default_generator", None)
    if type(default) in kinds:
        roots["torch"] = default
    return roots


class AttributePlan:
    """The state of `root` and everything it refers to.

    Args:
        root: the object; captured, and restored in place.
        name: of the codec.
        called: what the root is called in messages.
        natives: gives the kinds for what packages made in C, by exact type; asked before each walk,
            since packages may be imported late.
        globals_too: whether the generators of the process are part of the state. Who keeps them
            apart (ambient.py) says no; `restore` takes them in any case.
    """

    def __init__(
        self,
        root: Any,
        *,
        name: str = "attributes",
        called: str = "env",
        natives: Callable[[], dict[type, Kind]] = dict,
        globals_too: bool = True,
    ) -> None:
        self.name = name
        self._roots = {called: root}
        self._natives = natives
        self._had_torch = False
        self._kinds = {**KINDS, **natives()}
        self._globals_too = globals_too
        self._readings: list[Tracked] = []
        self._watch = Watch(())
        self._contents: list[Any] = []  # as they were read last, for what has not changed since
        self._unwatched: set[int] = set()  # what is read every time
        self._heads = msgspec.Raw(b"\x90")
        self._known: dict[int, int] = {}
        self._where: list[tuple[int, Any]] = []
        self._nodes: list[tuple[Kind, Any]] = []
        self._root_refs: list[Any] = []
        self._names: list[str] = []
        self._constants: dict[int, list[Any]] = {}
        self._loose: set[Edge] = set()
        self._captures = 0
        self._quick: Quick | None = None
        self._quick_at, self._quick_after = QUICK_AFTER, QUICK_AFTER
        self._not_tables: set[int] = set()
        self._take_whole({})

    @property
    def holds(self) -> frozenset[str]:
        """The tags of the kinds of nodes found when the plan was last compiled."""
        return frozenset(kind.tag for kind, _ in self._nodes)

    def compile(self) -> None:
        """Walk the graph and number it. Changes nothing in it.

        Raises:
            SnapshotError: something can't be held; the message names the attribute.
        """
        self._kinds = {**KINDS, **self._natives()}
        self._had_torch = "torch" in sys.modules
        self._quick = None
        self._take_whole({})
        counts = self._compile()
        self._take_whole(plain.tables(self._nodes, counts, self._not_tables))
        if self._tables:
            self._compile()

    def _writer(self, *, number: int = 0) -> Writer:
        writer = Writer(self._kinds, self._known if number else {}, number)
        writer.constants = self._constants if number else {}
        writer.tables, writer.inner = self._table_kinds, self._inner
        return writer

    def _take_whole(self, tables: dict[int, set[int]]) -> None:
        """From the next walk on, these are single nodes."""
        self._tables = tables
        self._table_kinds: dict[int, Kind] = dict.fromkeys(tables, TABLE)
        self._inner: dict[int, Exception] = {
            part: plain.Changed(root) for root, parts in tables.items() for part in parts - {root}
        }

    def _compile(self) -> dict[int, int]:
        """One walk; gives how often each node is referred to."""
        roots = self._roots | (global_roots(self._kinds) if self._globals_too else {})
        writer = self._writer()
        self._names = list(roots)
        refs: list[Any] = []
        heads: list[Any] = []
        readings: list[Tracked] = []
        try:
            for name, root in roots.items():
                writer.node, writer.key = -1, name
                refs.append(writer.value(root))
            while len(readings) < len(writer.nodes):
                writer.node = len(readings)
                kind, node = writer.nodes[writer.node]
                writer.key = ""
                heads.append([kind.tag, kind.head(node, writer)])
                readings.append(track(node, kind, self._loose, writer))
        except Refused as error:
            raise SnapshotError(self._sentence(writer, [], error)) from None
        self._readings, self._nodes, self._root_refs = readings, writer.nodes, refs
        self._where, self._known = writer.parents, writer.index
        self._constants = writer.constants
        self._heads = msgspec.Raw(encode(heads))
        self._watch = Watch([each.regions for each in readings])
        self._contents = []
        return writer.counts

    def capture(self) -> bytes:
        """The state now.

        Raises:
            SnapshotError: something can't be held; the message names the attribute.
        """
        self._captures += 1
        late = ("torch" in sys.modules) is not self._had_torch  # its generator is a root, too
        if not self._readings or self._captures in COMPILE_AGAIN or late:
            self.compile()
        if self._quick is not None:
            if (state := self._quick.take()) is not None:
                return state
            self._quick, self._contents = None, []  # what was read before is no longer right
            self._quick_after = min(2 * self._quick_after, QUICK_AFTER_MAX)
            self._quick_at = self._captures + self._quick_after
        for _ in range(COMPILES_MAX):
            try:
                return self._capture()
            except Restructured as change:
                if change.edge is not None:
                    self._loose.add(change.edge)
                self.compile()
            except plain.Changed as change:
                self._not_tables |= self._tables.get(change.where, {change.where})
                self.compile()
        raise SnapshotError("the objects change their structure while they are being looked at")

    def _capture(self) -> bytes:
        writer = self._writer(number=len(self._readings))
        due: Iterable[int] = sorted(self._unwatched.union(self._watch.changed()))
        if not self._contents:
            due = range(len(self._readings))
            self._contents = [None] * len(self._readings)
            self._unwatched = {i for i in due if not self._readings[i].regions}
        contents, number = self._contents, -1
        try:
            for number in due:
                contents[number] = content = self._readings[number].read(writer)
                if type(content) is not msgspec.Raw:
                    self._unwatched.add(number)
            heads, loose = self._capture_loose(writer)
        except Refused as error:
            self._readings = []  # which have taken in what was refused; the next capture compiles
            if writer.node < 0:
                writer.node = number
            raise SnapshotError(self._sentence(writer, self._where, error)) from None
        whole = FORMAT, self._names, self._root_refs, self._heads, contents, heads, loose
        state = encode(whole)
        if self._captures >= self._quick_at and self._quick is None:
            self._go_quick(encode(whole[:4]), heads, [node for _, node in writer.nodes], state)
        return state

    def _go_quick(self, before: bytes, heads: list[Any], loose: list[Any], state: bytes) -> None:
        """Have the next captures made in C, if they can be."""
        before = array_head(7) + before[1:]  # of which these four are the first
        try:
            self._quick = Quick(
                self._readings, self._watch, before, heads, loose, state, self._tell
            )
        except Unfit:
            self._quick_after = min(2 * self._quick_after, QUICK_AFTER_MAX)
            self._quick_at = self._captures + self._quick_after

    def _tell(self, number: int) -> bytes | None:
        """A node that only Python can read; None where it can't be read as before."""
        writer = self._writer(number=len(self._readings))
        try:
            content = self._readings[number].read(writer)
        except (Restructured, plain.Changed, Refused):
            return None
        return None if writer.nodes else encode(content)

    def _capture_loose(self, writer: Writer) -> tuple[list[Any], list[Any]]:
        """Write what isn't in the plan; it may refer to more of its kind."""
        heads: list[Any] = []
        contents: list[Any] = []
        while len(contents) < len(writer.nodes):
            kind, node = writer.nodes[len(contents)]
            writer.node = len(self._readings) + len(contents)
            writer.key = ""
            heads.append([kind.tag, kind.head(node, writer)])
            contents.append(kind.read(node, writer))
        return heads, contents

    def _sentence(self, writer: Writer, known: list[tuple[int, Any]], error: Refused) -> str:
        """The refusal with the way to the attribute: `env.env.world holds …`."""
        parents = [*known, *writer.parents]
        path, number = [_step(writer.key)], writer.node
        while number >= 0:
            number, key = parents[number]
            path.append(_step(key) if number >= 0 else str(key))
        return f"{''.join(reversed(path))} {error.reason}"

    def restore(self, data: bytes | memoryview) -> None:
        """Put a captured state into the roots of this process.

        Raises:
            SnapshotError: these bytes are no state of such an object.
        """
        _, names, refs, heads, contents, more_heads, more = decoded(data)
        if "torch" in names:
            load_torch()
        self._kinds = {**KINDS, **self._natives()}
        roots = self._roots | global_roots(self._kinds)  # which others may have kept
        if names[: len(self._roots)] != list(self._roots):
            raise SnapshotError(
                f"this is the state of {names[0]}, not of {next(iter(self._roots))}"
            )
        nodes = [(head[0], head[1], content) for head, content in zip(heads, contents, strict=True)]
        nodes += [
            (head[0], head[1], content) for head, content in zip(more_heads, more, strict=True)
        ]
        try:
            self._fill(names, refs, roots, nodes)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SnapshotError(f"the state is damaged, or of another program: {error}") from error
        self._readings, self._quick = [], None

    def _fill(
        self, names: list[str], refs: list[Any], roots: dict[str, Any], nodes: list[Any]
    ) -> None:
        reader = Reader({**kinds_by_tag(self._kinds), TABLE.tag: TABLE}, nodes)
        for name, ref in zip(names, refs, strict=True):
            if name not in roots:
                raise SnapshotError(f"the state has a part {name}, which is not loaded here")
            reader.hint(ref, roots[name])
        reader.restore()
        for name, ref in zip(names, refs, strict=True):
            if reader.value(ref) is not roots[name]:
                raise SnapshotError(f"{name} is of another class than in the state")


def load_torch() -> None:
    """The state has torch's generator: what imports torch late here must find it as it was there.

    Raises:
        SnapshotError: there is no torch here.
    """
    if "torch" in sys.modules:
        return
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise SnapshotError(f"the state has a part torch, which can't be loaded: {error}") from None


def decoded(data: bytes | memoryview) -> State:
    """The parts of a captured state: format, names and references of the roots, then heads and
    contents of the nodes, and again of those that no plan had.

    Raises:
        SnapshotError: these bytes are no state.
    """
    try:
        state: State = _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SnapshotError(f"these bytes are no state of an object: {error}") from None
    form, _, _, heads, contents, more_heads, more = state
    if form != FORMAT or len(heads) != len(contents) or len(more_heads) != len(more):
        raise SnapshotError(f"these bytes are no state of an object of the format {FORMAT!r}")
    return state


def _step(key: Any) -> str:
    if key == "" or key is MISSING:
        return ""
    if isinstance(key, str):
        return key if key.startswith("[") else f".{key}"
    return f"[{key!r}]"

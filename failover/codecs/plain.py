"""Large constants: a dict or list of hundreds of containers with nothing but numbers and texts.

Owns the shortcut for them. A transition table (toy text has one of 3,500 lists) would cost a node
for each list. As one node it costs one pass of an encoder in C to see that it has not changed, and
a restore into a table that is equal does nothing. It is a shortcut only: a table that does change,
or a part of which is referred to from elsewhere, becomes nodes like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import xxhash

from dsec.failover.codecs import reading as r
from dsec.failover.codecs import writing as w

NODES_MIN = 32
LIST, DICT = -2, -3


def _other(value: Any) -> Any:
    """What the encoder doesn't know: numpy's scalars, by type and bits."""
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return [value.dtype.str, value.tobytes()]
    if isinstance(value, int):
        return [str(value)]
    raise TypeError(f"{type(value)} is no plain value")


_encode = msgspec.msgpack.Encoder(enc_hook=_other).encode


def _print(value: Any) -> bytes:
    """The fingerprint of a plain structure."""
    return xxhash.xxh3_128_digest(_encode(value))


class Changed(Exception):
    """A table is no constant, or not alone: `where` is its id, or that of a part of it."""

    def __init__(self, where: int) -> None:
        super().__init__(where)
        self.where = where


class Table:
    """A plain dict or list and all below it. Content: [fingerprint, exact items as bytes]."""

    tag = "plain"

    def head(self, node: Any, writer: w.Writer) -> Any:
        """Which of the two it is."""
        return type(node) is dict

    def read(self, node: Any, writer: w.Writer) -> Any:
        """All of it."""
        return [_print(node), msgspec.msgpack.encode(_exact(node, writer))]

    def track(self, node: Any) -> Callable[[w.Writer], Any]:
        """Look whether it is what it was."""
        seen = _encode(node)
        content = msgspec.Raw(msgspec.msgpack.encode(self.read(node, w.Writer({}))))

        def read(writer: w.Writer) -> Any:
            if _encode(node) != seen:
                raise Changed(id(node))
            return content

        return read

    def find(self, head: Any, content: Any, hint: Any, reader: r.Reader) -> Any:
        """Any dict, or any list."""
        kind = dict if head else list
        return hint if type(hint) is kind else kind()

    def hints(self, node: Any, content: Any, reader: r.Reader) -> None:
        """Nothing in it is known to anybody else."""

    def fill(self, node: Any, content: Any, reader: r.Reader) -> None:
        """Replace what is in it, unless it is the same already."""
        fingerprint, items = content
        try:
            if _print(node) == fingerprint:
                return
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass  # something else is in there now
        made = _made(msgspec.msgpack.decode(items), reader)
        node.clear()
        if isinstance(node, dict):
            node.update(made)
        else:
            node.extend(made)


def _exact(value: Any, writer: w.Writer) -> Any:
    """A plain structure as values, lists and dicts among them."""
    if type(value) is list:
        return [LIST, [_exact(each, writer) for each in value]]
    if type(value) is dict:
        keys = [writer.value(key) for key in value]
        return [DICT, keys, [_exact(each, writer) for each in value.values()]]
    return writer.value(value)


def _made(written: Any, reader: r.Reader) -> Any:
    if type(written) is list and written[0] == LIST:
        return [_made(each, reader) for each in written[1]]
    if type(written) is list and written[0] == DICT:
        values = [_made(each, reader) for each in written[2]]
        return dict(zip(map(reader.value, written[1]), values, strict=True))
    return reader.value(written)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return (
        value is None
        or type(value) in (int, float, bool, str, bytes)
        or isinstance(value, np.generic)
    )


def tables(
    nodes: list[tuple[w.Kind, Any]], referred: dict[int, int], banned: Iterable[int]
) -> dict[int, set[int]]:
    """The tables among the nodes of a graph: id of each one's root -> ids of all containers in it.

    Args:
        nodes: kinds and objects, parents before their children.
        referred: how often each number is referred to.
        banned: ids of what must not be part of any.
    """
    never = set(banned)
    numbers = {id(node): number for number, (_, node) in enumerate(nodes)}
    within: dict[int, set[int]] = {}  # by id of the root of what is plain so far
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number][1]
        if type(node) not in (dict, list) or id(node) in never:
            continue
        values = node.values() if type(node) is dict else node
        inner = [each for each in values if type(each) in (dict, list)]
        plain = all(type(each) in (dict, list) or _is_plain(each) for each in values)
        plain = plain and (type(node) is list or all(map(_is_plain, node)))
        alone = all(
            referred.get(numbers[id(each)], 0) == 1 for each in inner if id(each) in numbers
        )
        if plain and alone and all(id(each) in within for each in inner):
            parts = {id(node)}
            for each in inner:
                parts |= within[id(each)]
            within[id(node)] = parts
    found = {root: parts for root, parts in within.items() if len(parts) >= NODES_MIN}
    below = {part for root, parts in found.items() for part in parts if part != root}
    return {root: parts for root, parts in found.items() if root not in below}

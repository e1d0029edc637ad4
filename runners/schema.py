"""What stands in a Parquet file's metadata: its agents, and its columns for the spaces' leaves.

Owns these descriptions, which parquet.py writes and tables.py reads as JSON, and what columns a
space makes. Knows no Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from gymnasium import Space

from dsec.ipc.layout import Layout
from dsec.ipc.variable import Variable
from dsec.runners.records import leaf_paths

METADATA_KEY: Final = b"dsec"
METADATA_VERSION: Final = 2
METADATA_OLDEST: Final = 1
LIST_ITEMS_MAX: Final = 1024


class Column(msgspec.Struct, frozen=True):
    """A leaf of a space as a column; `name` is empty where the leaf holds no numbers at all.

    `kind` is empty for numbers. A leaf without a fixed size is a `text` (an Arrow string) or a
    `value` (bytes, as ipc/variable.py encodes them); its dtype is `|O` and its shape ().
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str = ""

    @property
    def native(self) -> np.dtype[Any]:
        """The dtype in this machine's byte order; Arrow knows no other."""
        return np.dtype(self.dtype).newbyteorder("=")

    @property
    def items(self) -> int:
        """Numbers in one value."""
        return math.prod(self.shape)


class AgentPart(msgspec.Struct, frozen=True):
    """One agent's part of a file: `rows` rows from `first_row` on.

    `ended`: its stream was seen to its end. `abandoned`: it was given up, for `cause`.
    `committed` counts its transitions, those that were lost with an environment (G4) and are no
    rows too; -1 where a version before 2 wrote this. `chain` is its hash chain after them, in
    hexadecimal digits, `marks` that at every multiple of 4,096, one after the other; empty where
    nobody vouches for them. `begins` is the mark that it begins from, if that is not at 0.
    """

    agent: str
    first_row: int
    rows: int
    ended: bool
    abandoned: bool
    cause: str = ""
    action_last: str = ""
    committed: int = -1
    chain: str = ""
    marks: str = ""
    begins: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """What is written beside the rows. `spaces` is base64 of what ipc/layout.py encodes."""

    version: int
    run: str
    seed: int
    group: str
    num_envs: int
    spaces: str
    obs: tuple[Column, ...]
    action: tuple[Column, ...]
    agents: tuple[AgentPart, ...]


def columns_of(space: Space[Any], prefix: str) -> tuple[Column, ...]:
    """The columns of a space: `prefix`, or `prefix.key.key` for the leaves of a composite."""
    found: list[Column] = []
    taken: set[str] = set()
    for leaf, path in zip(Layout(space, 1).order, leaf_paths(space), strict=True):
        name = ".".join([prefix, *map(str, path)])
        while name in taken:  # {"a.b": ...} beside {"a": {"b": ...}}
            name += "~"
        taken.add(name)
        if isinstance(leaf, Variable):
            found.append(Column(name, "|O", (), "text" if leaf.is_text else "value"))
            continue
        empty = 0 in leaf.shape
        found.append(Column("" if empty else name, leaf.dtype.str, leaf.shape))
    return tuple(found)


def variable_leaves(
    *parts: tuple[Space[Any], tuple[Column, ...]], decode: bool = False
) -> dict[str, Callable[[Any], Any]]:
    """What turns values without a fixed size into what Arrow holds, or back, by column name."""
    found: dict[str, Callable[[Any], Any]] = {}
    for space, columns in parts:
        for leaf, column in zip(Layout(space, 1).order, columns, strict=True):
            if isinstance(leaf, Variable):
                found[column.name] = leaf.decode if decode else leaf.encode
                if leaf.is_text:
                    found[column.name] = str
    return found

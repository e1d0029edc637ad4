"""Rows of transitions as a Parquet file, and back.

Owns the schema, how a numpy column becomes an Arrow column, and the metadata that makes a file
readable without its run. Knows no journal: convert.py gives it rows, and `dsec.recording` asks
it for them. pyarrow, the extra `record`, is imported by the two classes' constructors only.

Columns (columns.py says what they mean): agent, env, seq, episode, step, obs.*, action.*, reward,
env_reward, terminated, truncated, end, final_obs.* (null where `end` is empty), info and
reset_info (bytes of ipc/values.py, null where empty). Array leaves are fixed-size lists in C
order; those of more than LIST_ITEMS_MAX numbers are fixed-size binary, which is ten times as fast
to write and to read. Row groups have a size that depends on the spaces only, so the same rows
give the same file. Spaces, agents and where each agent's rows are: in the file's metadata, as
JSON under `dsec`.
"""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from dsec.errors import DsecError, JournalError
from dsec.ipc import values
from dsec.ipc.layout import Layout, decode_spaces
from dsec.runners.columns import END_WORDS, Rows
from dsec.runners.records import LeafValues, leaf_paths

METADATA_KEY: Final = b"dsec"
METADATA_VERSION: Final = 1
LIST_ITEMS_MAX: Final = 1024
ROWS_MAX: Final = 65_536
ROW_GROUP_BYTES_MAX: Final = 64 << 20
ROW_BYTES_LEAST: Final = 64


class Column(msgspec.Struct, frozen=True):
    """A leaf of a space as a column; `name` is empty where the leaf holds no numbers at all."""

    name: str
    dtype: str
    shape: tuple[int, ...]

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
    """

    agent: str
    first_row: int
    rows: int
    ended: bool
    abandoned: bool
    cause: str = ""
    action_last: str = ""


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
    leaves = Layout(space, 1).leaves
    for leaf, path in zip(leaves, leaf_paths(space), strict=True):
        name = ".".join([prefix, *map(str, path)])
        while name in taken:  # {"a.b": ...} beside {"a": {"b": ...}}
            name += "~"
        taken.add(name)
        empty = 0 in leaf.shape
        found.append(Column("" if empty else name, leaf.dtype.str, leaf.shape))
    return tuple(found)


def _final(column: Column) -> str:
    return f"final_{column.name}"


class TableWriter:
    """Writes rows to one file, a row group at a time; memory is bounded by the row group.

    Args:
        path: where to write.
        spaces: of the agents, encoded.
        num_envs: of each agent.
        agents: the names that `add` refers to by index.
    """

    def __init__(self, path: str, spaces: bytes, num_envs: int, agents: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pa = pa
        self._n = num_envs
        self._agents = pa.array(agents, pa.string())
        obs_space, action_space = decode_spaces(spaces)
        self.obs = columns_of(obs_space, "obs")
        self.action = columns_of(action_space, "action")
        self._schema = self._make_schema()
        self._sink = pa.OSFile(path, "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            use_dictionary=["agent", "end"],
            write_statistics=["agent", "env", "seq", "episode", "reward"],
        )
        row_bytes = ROW_BYTES_LEAST + sum(
            np.dtype(column.dtype).itemsize * column.items
            for column in (*self.obs, *self.obs, *self.action)
        )
        rows = max(1, min(ROWS_MAX, ROW_GROUP_BYTES_MAX // row_bytes) // num_envs) * num_envs
        self._buffers = self._make_buffers(rows)
        self._rows_max = rows
        self._filled = 0
        self._finals: dict[int, LeafValues] = {}
        self._infos: dict[int, bytes] = {}
        self._reset_infos: dict[int, bytes] = {}
        self._flushed = 0

    @property
    def rows(self) -> int:
        """Rows added so far."""
        return self._flushed + self._filled

    def _leaf_type(self, column: Column) -> Any:
        pa, dtype = self._pa, column.native
        if not column.shape:
            return pa.from_numpy_dtype(dtype)
        if column.items > LIST_ITEMS_MAX:
            return pa.binary(dtype.itemsize * column.items)
        return pa.list_(pa.from_numpy_dtype(dtype), column.items)

    def _make_schema(self) -> Any:
        pa = self._pa
        words = pa.dictionary(pa.int32(), pa.string())
        fields = [("agent", words), ("env", pa.int32()), ("seq", pa.int64())]
        fields += [("episode", pa.int64()), ("step", pa.int32())]
        fields += [(c.name, self._leaf_type(c)) for c in (*self.obs, *self.action) if c.name]
        fields += [("reward", pa.float64()), ("env_reward", pa.float64())]
        fields += [("terminated", pa.bool_()), ("truncated", pa.bool_()), ("end", words)]
        fields += [(_final(c), self._leaf_type(c)) for c in self.obs if c.name]
        fields += [("info", pa.binary()), ("reset_info", pa.binary())]
        return pa.schema(fields)

    def _make_buffers(self, rows: int) -> dict[str, NDArray[Any]]:
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "agent": ("<i4", ()), "env": ("<i4", ()), "seq": ("<i8", ()), "episode": ("<i8", ()),
            "step": ("<i4", ()), "reward": ("<f8", ()), "env_reward": ("<f8", ()),
            "terminated": ("?", ()), "truncated": ("?", ()), "end": ("u1", ()),
        }  # fmt: skip
        for column in (*self.obs, *self.action):
            if column.name:
                shapes[column.name] = (column.native, column.shape)
        return {name: np.empty((rows, *shape), dtype) for name, (dtype, shape) in shapes.items()}

    def add(self, agent: int, rows: Rows) -> None:
        """Append the rows of one agent; `agent` is its index among those given."""
        count, n = rows.end.shape
        source: dict[str, NDArray[Any]] = {
            "agent": np.full((count, n), agent, np.int32),
            "env": np.broadcast_to(np.arange(n, dtype=np.int32), (count, n)),
            "seq": np.broadcast_to(rows.seq[:, None], (count, n)),
            "episode": rows.episode, "step": rows.step, "reward": rows.reward,
            "env_reward": rows.env_reward, "terminated": rows.terminated,
            "truncated": rows.truncated, "end": rows.end,
        }  # fmt: skip
        for columns, leaves in ((self.obs, rows.obs), (self.action, rows.action)):
            for column, leaf in zip(columns, leaves, strict=True):
                if column.name:
                    source[column.name] = leaf
        done = 0
        while done < count:
            take = min(count - done, (self._rows_max - self._filled) // n)
            at, end = self._filled, self._filled + take * n
            for name, buffer in self._buffers.items():
                part = source[name][done : done + take]
                buffer[at:end].reshape(part.shape)[...] = part
            self._add_sparse(rows, done, done + take, at)
            done += take
            self._filled = end
            if end == self._rows_max:
                self._flush()

    def _add_sparse(self, rows: Rows, first: int, end: int, at: int) -> None:
        n = self._n
        for (t, i), final in rows.finals.items():
            if first <= t < end:
                self._finals[at + (t - first) * n + i] = final
        for (t, i), info in rows.infos.items():
            if first <= t < end:
                self._infos[at + (t - first) * n + i] = values.encode(info)
        if first == 0:
            for i, info in rows.reset_infos.items():
                self._reset_infos[at + i] = values.encode(info)

    def _flush(self) -> None:
        pa, rows = self._pa, self._filled
        arrays = []
        for field in self._schema:
            name = field.name
            if name in ("info", "reset_info"):
                told = self._infos if name == "info" else self._reset_infos
                arrays.append(pa.array([told.get(row) for row in range(rows)], pa.binary()))
            elif name == "agent":
                codes = pa.array(self._buffers[name][:rows])
                arrays.append(pa.DictionaryArray.from_arrays(codes, self._agents))
            elif name == "end":
                codes = pa.array(self._buffers[name][:rows].astype(np.int32))
                words = pa.array(END_WORDS, pa.string())
                arrays.append(pa.DictionaryArray.from_arrays(codes, words))
            elif name in self._buffers:
                arrays.append(self._array(self._buffers[name][:rows], field.type, None))
            else:
                arrays.append(self._final_array(name, field.type, rows))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._writer.write_batch(batch, row_group_size=self._rows_max)
        self._flushed += rows
        self._filled = 0
        self._finals, self._infos, self._reset_infos = {}, {}, {}

    def _final_array(self, name: str, kind: Any, rows: int) -> Any:
        if not self._finals:
            return self._pa.nulls(rows, kind)
        leaf = next(
            i for i, column in enumerate(self.obs) if column.name and _final(column) == name
        )
        column = self.obs[leaf]
        data = np.zeros((rows, *column.shape), column.native)
        mask = np.ones(rows, np.bool_)
        for row, final in self._finals.items():
            data[row] = final[leaf]
            mask[row] = False
        return self._array(data, kind, mask)

    def _array(self, data: NDArray[Any], kind: Any, mask: NDArray[np.bool_] | None) -> Any:
        pa = self._pa
        nulls = None if mask is None else pa.array(mask)
        if pa.types.is_fixed_size_list(kind):
            return pa.FixedSizeListArray.from_arrays(
                pa.array(data.reshape(-1)), type=kind, mask=nulls
            )
        if pa.types.is_fixed_size_binary(kind):
            valid = None if mask is None else pa.array(~mask).buffers()[1]
            return pa.FixedSizeBinaryArray.from_buffers(
                kind, len(data), [valid, pa.py_buffer(data)]
            )
        return pa.array(data, kind, mask=mask)

    def close(self, metadata: Metadata | None) -> None:
        """Write what is left and the footer; None gives the file up instead."""
        if metadata is None:
            with contextlib.suppress(OSError, ValueError, self._pa.ArrowException):
                self._writer.close()
        else:
            if self._filled:
                self._flush()
            self._writer.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(metadata)})
            self._writer.close()
        self._sink.close()


class TableReader:
    """Reads a file that TableWriter wrote.

    Raises:
        JournalError: it can't be read, or is no recording.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        self._pa, self._pc = pa, pc
        self.path = path
        try:
            self._file = pq.ParquetFile(path)
            found = (self._file.metadata.metadata or {}).get(METADATA_KEY)
            if found is None:
                raise JournalError(f"{path} was not written by dsec-kernel")
            self.metadata = msgspec.json.decode(found, type=Metadata)
            self.spaces = base64.b64decode(self.metadata.spaces)
        except (OSError, ValueError, msgspec.MsgspecError, pa.ArrowException) as error:
            raise JournalError(f"can't read {path}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, part: AgentPart) -> Iterator[Rows]:
        """One agent's rows, a row group at a time.

        Raises:
            JournalError: the file is damaged.
        """
        start = 0
        try:
            for group in range(self._file.num_row_groups):
                count = self._file.metadata.row_group(group).num_rows
                first = max(start, part.first_row)
                end = min(start + count, part.first_row + part.rows)
                if first < end:
                    table = self._file.read_row_group(group).slice(first - start, end - first)
                    yield self._decode(table.combine_chunks())
                start += count
        except (OSError, ValueError, KeyError, DsecError, self._pa.ArrowException) as error:
            raise JournalError(f"{self.path}: damaged: {error}") from None

    def _decode(self, table: Any) -> Rows:
        n = self.metadata.num_envs
        count = table.num_rows // n

        def numbers(name: str) -> NDArray[Any]:
            return self._numpy(table, name, table[name].type).reshape(count, n)

        words = self._pa.array(END_WORDS, self._pa.string())
        plain = table["end"].cast(self._pa.string())
        end = self._pc.index_in(plain, value_set=words).to_numpy().astype(np.uint8)
        ends = np.flatnonzero(end)
        last = table.take(self._pa.array(ends))
        final_leaves = self._leaves(last, self.metadata.obs, len(ends), "final_")
        return Rows(
            seq=numbers("seq")[:, 0],
            episode=numbers("episode"),
            step=numbers("step"),
            obs=[leaf.reshape(count, n, *leaf.shape[1:]) for leaf in
                 self._leaves(table, self.metadata.obs, count * n)],
            action=[leaf.reshape(count, n, *leaf.shape[1:]) for leaf in
                    self._leaves(table, self.metadata.action, count * n)],
            reward=numbers("reward"),
            env_reward=numbers("env_reward"),
            terminated=numbers("terminated"),
            truncated=numbers("truncated"),
            end=end.reshape(count, n),
            finals={
                divmod(row, n): [leaf[k] for leaf in final_leaves]
                for k, row in enumerate(ends.tolist())
            },
            infos={divmod(row, n): info for row, info in self._told(table["info"])},
            reset_infos={row % n: info for row, info in self._told(table["reset_info"])},
        )  # fmt: skip

    def _leaves(
        self, table: Any, columns: tuple[Column, ...], rows: int, prefix: str = ""
    ) -> LeafValues:
        found = []
        for column in columns:
            if column.name:
                name = prefix + column.name
                flat = self._numpy(table, name, table[name].type, np.dtype(column.dtype))
            else:
                flat = np.zeros(0, column.dtype)
            found.append(flat.reshape(rows, *column.shape))
        return found

    def _numpy(
        self, table: Any, name: str, kind: Any, dtype: np.dtype[Any] | None = None
    ) -> NDArray[Any]:
        chunks = table[name].chunks
        array = (
            chunks[0]
            if len(chunks) == 1
            else self._pa.concat_arrays([self._pa.array([], kind), *chunks])
        )
        if self._pa.types.is_fixed_size_list(kind):
            array = array.flatten()
        elif self._pa.types.is_fixed_size_binary(kind):
            assert dtype is not None
            flat = np.frombuffer(array.buffers()[1], np.uint8)
            width = kind.byte_width
            part = flat[array.offset * width : (array.offset + len(array)) * width]
            return part.view(dtype.newbyteorder("=")).astype(dtype, copy=False)
        result: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return result if dtype is None else result.astype(dtype, copy=False)

    def _told(self, column: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        there = np.flatnonzero(column.is_valid().to_numpy())
        for row in there.tolist():
            yield row, values.decode(column[row].as_py())

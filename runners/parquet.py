"""Rows of transitions as a Parquet file.

Owns how a numpy column becomes an Arrow column. Knows no journal: convert.py gives it rows. The
columns are described in schema.py, tables.py reads the file. pyarrow, the extra `record`, is
imported by the two classes' constructors only.

Columns (columns.py says what they mean): agent, env, seq, episode, step, obs.*, action.*, reward,
env_reward, terminated, truncated, end, final_obs.* (null where `end` is empty), info and
reset_info (bytes of ipc/values.py, null where empty). Array leaves are fixed-size lists in C
order; those of more than LIST_ITEMS_MAX numbers are fixed-size binary, which is ten times as fast
to write and to read. A Text is a string; a Sequence, Graph or OneOf is binary, as ipc/variable.py
encodes it. Row groups have a size that depends on the spaces, and on the bytes of what has no
fixed size, so the same rows give the same file. Spaces, agents and where each agent's rows are:
in the file's metadata, as JSON under `dsec`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsec.ipc import values
from dsec.ipc.layout import decode_spaces
from dsec.runners.columns import END_WORDS, Rows
from dsec.runners.records import LeafValues
from dsec.runners.schema import (
    LIST_ITEMS_MAX,
    METADATA_KEY,
    Column,
    Metadata,
    columns_of,
    variable_leaves,
)

ROWS_MAX: Final = 65_536
ROW_GROUP_BYTES_MAX: Final = 64 << 20
ROW_BYTES_LEAST: Final = 64


_Sparse = tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]


def _final(column: Column) -> str:
    return f"final_{column.name}"


def _map(make: Callable[[Any], Any], column: NDArray[Any]) -> NDArray[Any]:
    """An array of objects made of those of another."""
    out = np.empty(column.shape, np.object_)
    flat = out.reshape(-1)
    for i, value in enumerate(column.reshape(-1)):
        flat[i] = make(value)
    return out


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
        self._variable = variable_leaves((obs_space, self.obs), (action_space, self.action))
        self._filled = 0
        self._weight = 0  # bytes of what has no fixed size among the rows that aren't flushed
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
        if column.kind:
            return pa.string() if column.kind == "text" else pa.binary()
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
                if column.kind:
                    source[column.name] = _map(self._variable[column.name], leaf)
                elif column.name:
                    source[column.name] = leaf
        sparse = self._sparse(rows)
        weights = self._weigh(source, sparse, count)
        done = 0
        while done < count:
            take = min(count - done, (self._rows_max - self._filled) // n)
            ahead = np.cumsum(weights[done : done + take]) + self._weight
            fitting = int(np.searchsorted(ahead, ROW_GROUP_BYTES_MAX, side="right"))
            if not fitting and self._filled:
                self._flush()
                continue
            take = max(1, min(take, fitting))
            at, end = self._filled, self._filled + take * n
            for name, buffer in self._buffers.items():
                part = source[name][done : done + take]
                buffer[at:end].reshape(part.shape)[...] = part
            self._add_sparse(sparse, done, done + take, at)
            self._weight += int(weights[done : done + take].sum())
            done += take
            self._filled = end
            if end == self._rows_max:
                self._flush()

    def _sparse(self, rows: Rows) -> _Sparse:
        """What few rows have, encoded, by (row, environment)."""
        finals = {
            key: [
                self._variable[column.name](value) if column.kind else value
                for column, value in zip(self.obs, final, strict=True)
            ]
            for key, final in rows.finals.items()
        }
        infos = {key: values.encode(info) for key, info in rows.infos.items()}
        resets = {(0, i): values.encode(info) for i, info in rows.reset_infos.items()}
        return finals, infos, resets

    def _weigh(
        self, source: dict[str, NDArray[Any]], sparse: _Sparse, count: int
    ) -> NDArray[np.int64]:
        """Bytes of what has no fixed size, in each row."""
        weights = np.zeros(count, np.int64)
        for name in self._variable:
            weights += np.array([sum(map(len, row)) for row in source[name]], np.int64)
        finals, *infos = sparse
        for (t, _), final in finals.items():
            weights[t] += sum(
                len(value) for column, value in zip(self.obs, final, strict=True) if column.kind
            )
        for told in infos:
            for (t, _), info in told.items():
                weights[t] += len(info)
        return weights

    def _add_sparse(self, sparse: _Sparse, first: int, end: int, at: int) -> None:
        kept: tuple[dict[int, Any], ...] = (self._finals, self._infos, self._reset_infos)
        for found, target in zip(sparse, kept, strict=True):
            for (t, i), value in found.items():
                if first <= t < end:
                    target[at + (t - first) * self._n + i] = value

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
            elif name in self._variable:
                arrays.append(pa.array(self._buffers[name][:rows].tolist(), field.type))
                self._buffers[name][:rows] = None
            elif name in self._buffers:
                arrays.append(self._array(self._buffers[name][:rows], field.type, None))
            else:
                arrays.append(self._final_array(name, field.type, rows))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._writer.write_batch(batch, row_group_size=self._rows_max)
        self._flushed += rows
        self._filled = self._weight = 0
        self._finals, self._infos, self._reset_infos = {}, {}, {}

    def _final_array(self, name: str, kind: Any, rows: int) -> Any:
        if not self._finals:
            return self._pa.nulls(rows, kind)
        leaf = next(
            i for i, column in enumerate(self.obs) if column.name and _final(column) == name
        )
        column = self.obs[leaf]
        if column.kind:
            found = {row: final[leaf] for row, final in self._finals.items()}
            return self._pa.array([found.get(row) for row in range(rows)], kind)
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

"""Rows of transitions out of a Parquet file that parquet.py wrote.

Owns how an Arrow column becomes a numpy column again, with the leaf's own dtype and byte order.
Knows no journal and no run: `dsec.recording` asks it for one agent's rows. pyarrow, the extra
`record`, is imported by the class's constructor only.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dsec.errors import DsecError, JournalError
from dsec.ipc import values
from dsec.ipc.layout import decode_spaces
from dsec.runners.columns import END_WORDS, Rows
from dsec.runners.records import LeafValues
from dsec.runners.schema import (
    METADATA_KEY,
    METADATA_OLDEST,
    METADATA_VERSION,
    AgentPart,
    Column,
    Metadata,
    variable_leaves,
)


class _Version(msgspec.Struct):
    version: int


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
            version = msgspec.json.decode(found, type=_Version).version
            if not METADATA_OLDEST <= version <= METADATA_VERSION:
                raise JournalError(
                    f"a recording of version {version}; this dsec-kernel reads {METADATA_OLDEST} to"
                    f" {METADATA_VERSION}"
                )
            self.metadata = msgspec.json.decode(found, type=Metadata)
            self.spaces = base64.b64decode(self.metadata.spaces)
            obs_space, action_space = decode_spaces(self.spaces)
            pairs = (obs_space, self.metadata.obs), (action_space, self.metadata.action)
            self._variable = variable_leaves(*pairs, decode=True)
        except (
            *(OSError, ValueError, DsecError),
            *(msgspec.MsgspecError, pa.ArrowException),
        ) as error:
            raise JournalError(f"can't read {path}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, part: AgentPart) -> Iterator[Rows]:
        """One agent's rows, a row group at a time.

        Raises:
            JournalError: the file is damaged.
        """
        start, seq = 0, -1
        try:
            for group in range(self._file.num_row_groups):
                count = self._file.metadata.row_group(group).num_rows
                first = max(start, part.first_row)
                end = min(start + count, part.first_row + part.rows)
                if first < end:
                    table = self._file.read_row_group(group).slice(first - start, end - first)
                    rows = self._decode(table.combine_chunks())
                    seq = self._follows(rows.seq, seq, part)
                    yield rows
                start += count
        except (OSError, ValueError, KeyError, DsecError, self._pa.ArrowException) as error:
            raise JournalError(f"{self.path}: damaged: {error}") from None

    def _follows(self, seqs: NDArray[np.int64], before: int, part: AgentPart) -> int:
        """The last one of these sequence numbers, which must ascend from `before`."""
        end = part.committed if part.committed >= 0 else np.iinfo(np.int64).max
        if not (before < seqs[0] and seqs[-1] < end and bool((np.diff(seqs) > 0).all())):
            raise ValueError(f"the sequence numbers of {part.agent!r} are none")
        return int(seqs[-1])

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
            if column.kind:
                told = table[prefix + column.name].to_pylist()
                flat = np.empty(rows, np.object_)
                for i, value in enumerate(told):
                    flat[i] = self._variable[column.name](value)
                found.append(flat)
                continue
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

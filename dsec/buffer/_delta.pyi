# The compiled module (delta.cdef.h), as far as codec.py uses it.
from typing import Any

CData = Any

class _Ffi:
    def from_buffer(self, ctype: str, buffer: object, require_writable: bool = ...) -> CData: ...

class _Lib:
    DELTA_RAW: int
    DELTA_SPARSE: int
    def delta_bound(self, count: int, nbytes: int, /) -> int: ...
    def delta_encode(
        self, planes: CData, count: int, nbytes: int, row: int, out: CData, room: int, /
    ) -> int: ...
    def delta_decode(
        self,
        chunks: CData,
        kinds: CData,
        slots: CData,
        rows: CData,
        requests: int,
        count: int,
        nbytes: int,
        row: int,
        scratch: CData,
        out: CData,
        /,
    ) -> int: ...
    def delta_interleave(
        self,
        planes: CData,
        rows: CData,
        items: int,
        stack: int,
        elements: int,
        element_bytes: int,
        out: CData,
        /,
    ) -> None: ...
    def quant_decode32(
        self, chunks: CData, slots: CData, rows: CData, requests: int, width: int, out: CData, /
    ) -> None: ...
    def quant_decode64(
        self, chunks: CData, slots: CData, rows: CData, requests: int, width: int, out: CData, /
    ) -> None: ...

ffi: _Ffi
lib: _Lib

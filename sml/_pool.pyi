# The compiled module (pool.cdef.h), as far as the modules of this room use it.
from typing import Any

CData = Any  # a cffi value: a pointer to one of the structs of pool.cdef.h

class _Ffi:
    NULL: CData
    def new(self, ctype: str, init: object = ..., /) -> CData: ...
    def buffer(self, cdata: CData, size: int = ..., /) -> Any: ...
    def from_buffer(self, ctype: str, buffer: object, require_writable: bool = ...) -> CData: ...
    def addressof(self, cdata: CData, *fields: str | int) -> CData: ...
    def release(self, cdata: CData, /) -> None: ...
    def sizeof(self, ctype: str, /) -> int: ...
    def offsetof(self, ctype: str, *fields: str | int) -> int: ...

class _Lib:
    ASA_OK: int
    ASA_ABSENT: int
    ASA_EXISTS: int
    ASA_NO_SPACE: int
    ASA_NO_CELL: int
    ASA_TOO_LARGE: int
    ASA_CORRUPT: int
    ASA_BUSY: int
    ASA_SMALL: int
    ASA_MISUSE: int
    ASA_NO_MEMORY: int
    ASA_PAGE: int
    ASA_GRAIN: int
    ASA_HEAD: int
    ASA_CELL: int
    ASA_CELLS_AN_ATOM: int
    ASA_PINNED: int
    ASA_STANDBY: int
    ASA_PERSIST: int
    ASA_BAD_MAGIC: int
    ASA_BAD_UNFINISHED: int
    ASA_BAD_OLD: int
    ASA_BAD_NEW: int
    ASA_BAD_IDENT: int
    ASA_BAD_SIZE: int
    ASA_BAD_GEOMETRY: int
    ASA_BAD_CELL: int
    ASA_BAD_LENGTH: int
    ASA_BAD_GENERATION: int
    ASA_BAD_ID: int
    ASA_BAD_SUM: int
    def asa_xxh3(self, data: CData, nbytes: int, /) -> int: ...
    def asa_xxh3_plain(self, data: CData, nbytes: int, /) -> int: ...
    def asa_arena_check(self, arena: CData, /) -> int: ...
    def asa_format(
        self,
        base: CData,
        size: int,
        atoms_max: int,
        flags: int,
        space: CData,
        created_s: int,
        /,
    ) -> int: ...
    def asa_pool_open(self, pool: CData, base: CData, size: int, verify: int, /) -> int: ...
    def asa_pool_close(self, pool: CData, /) -> None: ...
    def asa_put(self, pool: CData, meta: CData, data: CData, nbytes: int, /) -> int: ...
    def asa_free(self, pool: CData, atom_id: int, /) -> int: ...
    def asa_mark(self, pool: CData, atom_id: int, marks: int, /) -> int: ...
    def asa_lease(self, pool: CData, /) -> int: ...
    def asa_room(self, nbytes: int, /) -> int: ...
    def asa_view_open(self, view: CData, base: CData, size: int, /) -> int: ...
    def asa_find(self, view: CData, atom_id: int, out: CData, /) -> int: ...
    def asa_fetch(self, desk: CData, atom_id: int, /) -> int: ...
    def asa_scan(self, view: CData, cell: CData, out: CData, most: int, /) -> int: ...

ffi: _Ffi
lib: _Lib

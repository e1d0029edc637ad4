"""cffi API-mode builder for dsec.sml._pool: run by setup.py, never imported at run time.

The declarations that Python sees are in the cdef.h files, which the C sources include as well, so
neither can drift from the other.
"""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = ("xxh3.c", "arena.c", "view.c", "pool.c", "chain.c", "words.c", "keep.c")

ffibuilder = FFI()
for name in ("pool.cdef.h", "chain.cdef.h", "keep.cdef.h"):
    ffibuilder.cdef((HERE / name).read_text())
ffibuilder.set_source(
    "dsec.sml._pool",
    '#include "pool.h"',
    sources=[f"dsec/sml/{name}" for name in SOURCES],
    depends=[
        *("dsec/sml/pool.h", "dsec/sml/pool.cdef.h", "dsec/sml/chain.cdef.h"),
        "dsec/sml/keep.cdef.h",
        *("dsec/ipc/record.h", "dsec/ipc/ring.cdef.h"),
    ],
    include_dirs=["dsec/sml", "dsec/ipc"],
    extra_compile_args=[
        "-O3",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Wno-missing-field-initializers",
        "-fno-omit-frame-pointer",
    ],
)

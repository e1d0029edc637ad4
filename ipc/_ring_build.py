"""cffi API-mode builder for dsec.ipc._ring: run by setup.py, never imported at run time.

The declarations that Python sees are in ring.cdef.h, which the C sources include as well, so
neither can drift from the other.
"""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
_NAMES = (
    *("segment", "wait", "ring", "reader", "turn", "group", "join", "crash", "watch", "items"),
)
SOURCES = tuple(f"{name}.c" for name in _NAMES)

ffibuilder = FFI()
ffibuilder.cdef((HERE / "ring.cdef.h").read_text())
ffibuilder.set_source(
    "dsec.ipc._ring",
    '#include "ring.h"',
    sources=[f"dsec/ipc/{name}" for name in SOURCES],
    depends=["dsec/ipc/ring.h", "dsec/ipc/record.h", "dsec/ipc/ring.cdef.h"],
    include_dirs=["dsec/ipc"],
    extra_compile_args=[
        "-O2",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-Wno-missing-field-initializers",
        "-fno-omit-frame-pointer",
    ],
)

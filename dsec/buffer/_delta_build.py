"""cffi API-mode builder for dsec.buffer._delta: run by setup.py, never imported at run time.

The declarations that Python sees are in delta.cdef.h, which delta.c includes as well.
"""

from pathlib import Path

from cffi import FFI

ffibuilder = FFI()
ffibuilder.cdef((Path(__file__).resolve().parent / "delta.cdef.h").read_text())
ffibuilder.set_source(
    "dsec.buffer._delta",
    '#include <stdint.h>\n#include "delta.cdef.h"',
    sources=["dsec/buffer/delta.c"],
    depends=["dsec/buffer/delta.cdef.h"],
    include_dirs=["dsec/buffer"],
    extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter"],
)

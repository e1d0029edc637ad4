"""Only what pyproject.toml can't say: the C extension, and what to do when it can't be built."""

import shutil
import sysconfig
from pathlib import Path

from setuptools import setup

if not Path("dsec/kernel/__init__.py").is_file():
    raise SystemExit("dsec/* symlinks are missing: use `git clone` or an sdist, not a zip archive")

compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
if shutil.which(compiler) is None and shutil.which("cc") is None:
    raise SystemExit(
        f"dsec-kernel builds a small C extension and found no C compiler ({compiler!r}). "
        "Install one and try again: on Debian or Ubuntu `apt-get install gcc python3-dev`."
    )

setup(
    cffi_modules=[
        "dsec/ipc/_ring_build.py:ffibuilder",
        "dsec/sml/_pool_build.py:ffibuilder",
        "dsec/buffer/_delta_build.py:ffibuilder",
    ]
)

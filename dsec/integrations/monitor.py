"""Stable-Baselines3's Monitor, for use in an env runner: the module alone, without the library.

Owns how that one file is loaded. `import stable_baselines3` brings torch, which takes seconds and
a hundred megabytes, and an environment needs none of it; its `common/monitor.py` needs the
standard library and Gymnasium only. It is entered under its own name, so that a later import of
the library finds this very class.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

_NAME = "stable_baselines3.common.monitor"
CLASS = f"{_NAME}:Monitor"


def monitored(env: gymnasium.Env[Any, Any], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """The environment in SB3's Monitor, with these keywords of it."""
    made: gymnasium.Env[Any, Any] = _module().Monitor(env, **kwargs)
    return made


def _module() -> ModuleType:
    """The module, loaded at the first call.

    Raises:
        ModuleNotFoundError: Stable-Baselines3 is not installed.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    library = importlib.util.find_spec("stable_baselines3")
    if library is None or library.origin is None:
        raise ModuleNotFoundError(
            'Stable-Baselines3 is not installed: pip install "dsec-kernel[sb3]"',
            name="stable_baselines3",
        )
    place = Path(library.origin).parent / "common" / "monitor.py"
    spec = importlib.util.spec_from_file_location(_NAME, place)
    assert spec is not None and spec.loader is not None, "a file that ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module

"""`run.deterministic` inside a runner: what would make other numbers come out is pinned, and what
is in force is told.

The variables of the environment are set before anything is imported (ipc/launch.py); here is what
only a library itself can be told, as soon as it is loaded, and again after user code had its turn.
What a library was told is read back from it: the report says what is so, not what was asked for.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from dsec.ipc.launch import DETERMINISTIC, ONE_THREAD


def pin() -> None:
    """Pin the libraries that are loaded; again is no error.

    Torch: one thread, only deterministic algorithms (an operation that has none raises
    RuntimeError), and no choice of kernels by trial. An operation on uninitialised memory finds
    the same bytes there each time.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "use_deterministic_algorithms"):
        return
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def in_force() -> dict[str, str]:
    """What holds in this process now, by name."""
    names = ("PYTHONHASHSEED", *ONE_THREAD, *DETERMINISTIC)
    found = {name: os.environ.get(name, "") for name in names}
    torch = sys.modules.get("torch")
    if torch is not None:
        found |= _of_torch(torch)
    return found


def _of_torch(torch: Any) -> dict[str, str]:
    backend = torch.backends.cudnn
    return {
        "torch.threads": str(torch.get_num_threads()),
        "torch.deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "torch.cudnn.deterministic": str(backend.deterministic),
        "torch.cudnn.benchmark": str(backend.benchmark),
    }

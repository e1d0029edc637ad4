"""What a buffer is told by its caller, checked: numbers and dtypes, by the name of the setting."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsec.buffer.leaves import FLOATS
from dsec.errors import LocalError


def whole_number(value: object, name: str, least: int) -> None:
    """Raises: LocalError: it is none, or less than `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise LocalError(f"{name} must be a whole number from {least} on, not {value!r}")


def float_dtype(value: Any, name: str) -> np.dtype[Any]:
    """A floating dtype of numpy or torch as one of numpy.

    Raises:
        LocalError: it is none, or one that numpy doesn't know.
    """
    text = str(value)
    try:
        dtype = np.dtype(text.removeprefix("torch.") if text.startswith("torch.") else value)
    except TypeError:
        dtype = np.dtype(object)
    if dtype not in FLOATS:
        hint = "; for a byte each set obs_quantize" if "int" in text and name == "obs_dtype" else ""
        raise LocalError(f"{name} is float16, float32 or float64, not {value}{hint}")
    return dtype

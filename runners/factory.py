"""Environments that the calling program has no name for: a function or a registration of its own
script, which came along pickled by value.

Only ever loaded in a runner, and only what its own caller has sent: nothing that a runner wrote is
unpickled anywhere.
"""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle

from dsec.runners.failure import UserCodeError, describe


def load(pickled: str, kwargs: dict[str, Any]) -> Any:
    """Make the environment: `pickled` is a callable, by cloudpickle in base64.

    Raises:
        UserCodeError: it can't be loaded here.
    """
    try:
        make = cloudpickle.loads(base64.b64decode(pickled))
    except Exception as error:
        raise UserCodeError(
            f"the environment's function can't be loaded: {describe(error).message}", where="env"
        ) from error
    return make(**kwargs)

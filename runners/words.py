"""An action in words, for reports of deaths and of failovers: short, on one line, of any bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dsec.errors import PeerError
from dsec.ipc.layout import Layout

WORDS_CHARS_MAX: Final = 200
ITEMS_SHOWN: Final = 16


def action_words(actions: Layout, payload: memoryview) -> str:
    """An action record in words; that of a single environment without the axis over one.

    Empty for bytes that are no action.
    """
    if len(payload) < actions.nbytes:
        return ""
    tree = actions.views(payload)
    try:
        actions.unpack(tree, payload[actions.nbytes :])
        value = actions.read(tree, 0) if actions.n == 1 else actions.copy(tree)
    except PeerError:
        return ""
    with np.printoptions(precision=6, threshold=16, edgeitems=4, linewidth=WORDS_CHARS_MAX):
        text = " ".join(_plain(value).split())
    return text if len(text) <= WORDS_CHARS_MAX else text[: WORDS_CHARS_MAX - 3] + "..."


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(sub)}" for key, sub in value.items()) + "}"
    if isinstance(value, tuple):
        shown = [_plain(sub) for sub in value[:ITEMS_SHOWN]]
        return "(" + ", ".join(shown + ["..."] * (len(value) > ITEMS_SHOWN)) + ")"
    if isinstance(value, str):
        return repr(value[:WORDS_CHARS_MAX])
    return str(value)

"""The log on stderr: for people on a terminal, key=value lines for programs everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog

if TYPE_CHECKING:
    from dsec.cli.stream import SafeStream

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def make_logger(stream: SafeStream, *, colors: bool, verbose: bool) -> Any:
    """A structlog logger of its own; the program's global configuration stays as it is.

    Args:
        stream: where the lines go.
        colors: write for people, with colours; else key=value.
        verbose: let debug lines through.
    """
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if colors else "iso", utc=not colors),
    ]
    if colors:
        renderer: Any = structlog.dev.ConsoleRenderer(colors=True, pad_event_to=0)
    else:
        renderer = structlog.processors.LogfmtRenderer(
            key_order=["timestamp", "level", "event"], bool_as_flag=False
        )
    threshold = _LEVELS["debug" if verbose else "info"]
    return structlog.wrap_logger(
        structlog.PrintLogger(file=cast("TextIO", stream)),
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
    )

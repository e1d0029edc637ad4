"""Exceptions of user code, turned into text that is safe to send.

Rule 1: nothing in an exception is trusted. Its `__str__` may raise, print or return megabytes of
half surrogates; it may not be picklable; it is text before it leaves the process. Rule 2: this
file imports nothing beyond the standard library and the frames, because zygotes load it before
the modules that may fail.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from dsec.errors import DsecError
from dsec.ipc.frames import ErrorInfo

EXIT_FAILED = 70
"""Exit code after a Failed frame (EX_SOFTWARE); 125 is left to user code and means "permanent"."""
EXIT_KERNEL_GONE = 71
"""Exit code of a runner whose control channel ended: nobody is left to report to."""

MESSAGE_CHARS_MAX = 4_000
SHOWN_CHARS_MAX = 80
TRACEBACK_CHARS_MAX = 24_000  # at four bytes a character a frame still holds both

# Frames from these files come before user code in a traceback, and say nothing to its author.
_MACHINERY = (str(Path(__file__).parent) + "/", importlib.__file__, "<frozen importlib")

_T = TypeVar("_T")
_because: Callable[[BaseException], str] | None = None


class UserCodeError(DsecError):
    """Something that the user named or wrote is wrong, and we can say it better than Python.

    Args:
        message: what is wrong, and what to write instead where one can tell.
        where: the config key at fault, relative to the agent; empty if none is.
        lookup: the named thing doesn't exist or is of the wrong kind, so that no retry can help;
            such a fault is shown without a traceback.

    Attributes:
        others: what else was found to be wrong, beside this one.
    """

    def __init__(self, message: str, *, where: str = "", lookup: bool = False) -> None:
        super().__init__(message)
        self.where = where
        self.lookup = lookup
        self.others: tuple[UserCodeError, ...] = ()


class RunnerExit(BaseException):
    """Ends this runner with `code`. Not an Exception, so that no handler in between takes it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def explain_with(because: Callable[[BaseException], str]) -> None:
    """From now on ask this for what is behind an exception, and say that, too."""
    global _because
    _because = because


def describe(error: BaseException, *, where: str = "") -> ErrorInfo:
    """Put an exception into words.

    A `UserCodeError` speaks for itself; its cause, where it has one, gives type and traceback.
    `where` counts only for errors that don't bring their own. Never raises.
    """
    if isinstance(error, UserCodeError):
        cause = error.__cause__
        return ErrorInfo(
            type=_type_name(cause or error),
            message=clean(_text_of(error), MESSAGE_CHARS_MAX),
            traceback="" if error.lookup or cause is None else _format(cause),
            where=error.where or where,
            lookup=error.lookup,
            others=tuple(describe(each) for each in error.others),
        )
    because = _because
    text = _text_of(error)
    why = "" if because is None else _guarded(lambda: because(error), "")
    return ErrorInfo(
        type=_type_name(error),
        message=clean(f"{text} ({why})" if why else text, MESSAGE_CHARS_MAX),
        traceback=_format(error),
        where=where,
    )


def exit_code(error: BaseException) -> int:
    """The code a runner exits with after `error`: that of `sys.exit(n)`, else EXIT_FAILED.

    `sys.exit()` and `sys.exit(0)` in the middle of a stream are failures too, and a code of 0
    would say the opposite.
    """
    if isinstance(error, SystemExit):
        code = error.code
        if isinstance(code, int) and code & 0xFF != 0:
            return code & 0xFF
        if code is not None and not isinstance(code, int):
            return 1  # what Python makes of sys.exit("a message")
    return EXIT_FAILED


def clean(text: str, chars_max: int) -> str:
    """`text` as valid UTF-8 of at most about `chars_max` characters, its middle left out."""
    if len(text) > chars_max:
        half = chars_max // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def kind_of(value: object) -> str:
    """`an int` for 3, to go on with in a sentence."""
    name = type(value).__qualname__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def shown(value: object) -> str:
    """A value as an error message shows it: itself if that is short, else what it is."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} values"
    kind = kind_of(value)
    text = _guarded(lambda: repr(value), kind)
    return text if len(text) <= SHOWN_CHARS_MAX else kind


def _type_name(error: BaseException) -> str:
    if isinstance(error, UserCodeError):
        return "LookupError" if error.lookup else "UserCodeError"
    kind = type(error)
    name = _guarded(lambda: str(kind.__qualname__), "unnamed exception")
    module = _guarded(lambda: str(kind.__module__), "builtins")
    full = name if module in ("builtins", "__main__") else f"{module}.{name}"
    return clean(full, 400)


def _text_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        code = error.code
        shown = "" if code is None else _guarded(lambda: repr(code), "...")
        return f"user code called sys.exit({shown})"
    if isinstance(error, MemoryError) and not error.args:
        return "out of memory (limits.memory_mb, or the machine's)"
    text = _guarded(lambda: str(error), "")
    if text:
        return text
    if not _guarded(lambda: bool(error.args), False):
        return ""
    return _guarded(lambda: repr(error), "the exception's own __str__ and __repr__ raise")


def _guarded(make: Callable[[], _T], otherwise: _T) -> _T:
    """What `make` returns, or `otherwise` if user code behind it raises anything at all."""
    try:
        return make()
    except BaseException:
        return otherwise


def _format(error: BaseException) -> str:
    """The traceback from the first frame outside this package on: where user code began."""
    try:
        frames = _users_part(error.__traceback__)
        if frames is None and not isinstance(error, SyntaxError):
            frames = error.__traceback__  # it is all ours, or the compiler's
        lines = traceback.format_exception(type(error), error, frames)
        return clean("".join(lines), TRACEBACK_CHARS_MAX)
    except BaseException:
        return ""


def _users_part(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not machinery; None if all are."""
    position = frames
    while position is not None:
        if not position.tb_frame.f_code.co_filename.startswith(_MACHINERY):
            return position
        position = position.tb_next
    return None

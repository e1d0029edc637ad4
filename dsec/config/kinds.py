"""The kinds of values that the configuration has: their ranges, and what a wrong one hears.

Owns no key: which has which kind is in models.py. A kind's JSON Schema says as much of its rule as
a schema can.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from dsec.sml.remote.address import host_port

STEPS_MAX = 10**15
AGENTS_MAX = 100_000
WEEK_S = 7 * 24 * 3600.0
NAME_CHARS_MAX = 200
_JOINERS = "\u200c\u200d"  # invisible, and part of how some scripts are written


def _say(message: str) -> PydanticCustomError:
    return PydanticCustomError("dsec", "{message}", {"message": message})


def whole(value: object) -> object:
    """Let 1e6 be a whole number: YAML reads it as a float and no one means anything else by it."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", value):
        raise _say(
            "a name has 1 to 64 letters, digits, `_`, `-` or `.` and begins with a letter or a "
            "digit, because files are named after it"
        )
    return value


def _agent_name(value: str) -> str:
    """Any script: files get names of their own that are derived from it."""
    if not 1 <= len(value) <= NAME_CHARS_MAX:
        raise _say(f"a name has 1 to {NAME_CHARS_MAX} characters, not {len(value):,}")
    if value != value.strip():
        raise _say("a name neither begins nor ends with a space")
    for place, char in enumerate(value, 1):
        if not char.isprintable() and char not in _JOINERS:
            raise _say(f"a name has no control characters; character {place} is U+{ord(char):04X}")
    return value


def _absolute(value: str) -> str:
    if value.startswith("/") and "\0" not in value:
        return value
    raise _say("expected a path that begins with /, for a run may be started anywhere")


def _variable(value: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        return value
    raise _say("expected the name of an environment variable: letters, digits and _")


def _entry(value: str) -> str:
    dotted = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
    if re.fullmatch(f"{dotted}:{dotted}", value):
        return value
    hint = ""
    if re.fullmatch(dotted, value) and "." in value:
        module, _, name = value.rpartition(".")
        hint = f" (did you mean {module}:{name}?)"
    elif re.fullmatch(rf"{dotted}:", value) or re.fullmatch(dotted, value):
        hint = f" (the module alone; add the name, as in {value.rstrip(':')}:MyClass)"
    elif value.endswith(".py") or "/" in value:
        hint = " (a module as in an import statement, not a file)"
    raise _say(f'expected "module:name"{hint}')


def _wrapper(value: str) -> str:
    return value if value.isidentifier() else _entry(value)


def _env_id(value: str) -> str:
    if not re.fullmatch(r"(?:[\w.]+:)?(?:[\w:.-]+/)*[\w:.-]+", value):
        raise _say("expected the id of a registered environment, such as CartPole-v1")
    return value


def _host_port(value: str) -> str:
    try:
        host_port(value)
    except ValueError:
        raise _say("expected host:port, as in 10.0.0.2:7070") from None
    return value


Amount = Annotated[int, Field(ge=1, le=STEPS_MAX), BeforeValidator(whole)]
Seed = Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(whole)]
Count = Annotated[int, Field(ge=1, le=AGENTS_MAX), BeforeValidator(whole)]
Width = Annotated[int, Field(ge=1, le=65_536), BeforeValidator(whole)]
Interval = Annotated[int, Field(ge=1, le=2**31), BeforeValidator(whole)]
Slots = Annotated[int, Field(ge=4, le=2**24), BeforeValidator(whole)]
Mebibytes = Annotated[int, Field(ge=16, le=2**40), BeforeValidator(whole)]
Files = Annotated[int, Field(ge=16, le=2**30), BeforeValidator(whole)]
Core = Annotated[int, Field(ge=0, le=65_535), BeforeValidator(whole)]
Cores = Annotated[list[Core], Field(min_length=1)]
FileName = Annotated[
    str,
    AfterValidator(_file_name),
    WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$"}),
]
AgentName = Annotated[
    str,
    AfterValidator(_agent_name),
    WithJsonSchema({"type": "string", "pattern": r"^\S(.{0,198}\S)?$"}),
]
Entry = Annotated[
    str, AfterValidator(_entry), WithJsonSchema({"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"})
]
WrapperEntry = Annotated[
    str,
    AfterValidator(_wrapper),
    WithJsonSchema({"type": "string", "pattern": r"^[^:\s]+(:[^:\s]+)?$"}),
]
EnvId = Annotated[str, AfterValidator(_env_id)]
HostPort = Annotated[
    str, AfterValidator(_host_port), WithJsonSchema({"type": "string", "pattern": r"^.+:[0-9]+$"})
]
Restartings = Annotated[int, Field(ge=0, le=10**9), BeforeValidator(whole)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=WEEK_S, allow_inf_nan=False)]
AbsolutePath = Annotated[
    str, AfterValidator(_absolute), WithJsonSchema({"type": "string", "pattern": "^/"})
]
VariableName = Annotated[
    str,
    AfterValidator(_variable),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}),
]
Processes = Annotated[int, Field(ge=4, le=2**20), BeforeValidator(whole)]
Kwargs = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]

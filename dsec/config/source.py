"""YAML text to plain values, with the place of every value kept.

This file owns the reading: bytes, encoding, syntax, anchors, merges, duplicate keys. It knows no
key of the configuration and raises for nothing that a file may hold: what is wrong is collected as
`Diagnostic`s, so that a reader gets all of it at once.

Scalars follow the YAML 1.2 core schema, plus underscores in numbers: `1e6` is a number, `no`, `on`
and `2026-01-31` are text, `010` is ten. PyYAML's own rules (YAML 1.1) would turn a run called `no`
into `false` and a learning rate of `3e-4` into text, which editors, that follow 1.2, never show.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dsec.errors import ConfigError, Diagnostic

FILE_BYTES_MAX = 4 * 1024 * 1024
VALUES_MAX = 100_000
DEPTH_MAX = 64

KeyPath = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: 1-based line and column in a file; both 0 where there is no text to point at."""

    file: str
    line: int = 0
    column: int = 0


@dataclass(slots=True)
class Source:
    """A document as plain values (None, bool, int, float, str, list, dict) and their places.

    Attributes:
        file: the file as the user named it.
        data: the document; None if it is empty.
        marks: the place of each value by its path: of its key in a mapping, of itself in a list.
        problems: what was wrong with the text itself.
    """

    file: str
    data: Any = None
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)

    def locate(self, path: KeyPath) -> Mark:
        """The place of `path`, or of the innermost thing around it that has one."""
        for length in range(len(path), -1, -1):
            mark = self.marks.get(path[:length])
            if mark is not None:
                return mark
        return Mark(self.file)

    def diagnostic(self, path: KeyPath, message: str, detail: str = "") -> Diagnostic:
        """A Diagnostic about `path`, with its place."""
        mark = self.locate(path)
        return Diagnostic(
            dotted(path), message, file=mark.file, line=mark.line, column=mark.column, detail=detail
        )

    def replace(self, path: KeyPath, file: str) -> None:
        """Note that `path` and all below it now come from `file` (`--set`, say)."""
        size = len(path)
        for known in [known for known in self.marks if known[:size] == path]:
            del self.marks[known]
        self.marks[path] = Mark(file)


def dotted(path: KeyPath) -> str:
    """`("agents", 0, "env", "id")` as `agents[0].env.id`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(text: str, limit: int = 60) -> str:
    """`text` in double quotes on one line, control characters escaped, cut at `limit`."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return '"' + shown.replace('"', '\\"') + '"'


def read_file(path: Path) -> Source:
    """Read a configuration file.

    Raises:
        ConfigError: the file can't be read, is no UTF-8 text or no YAML.
    """
    file = str(path)
    try:
        # A descriptor from the shell (`<(make-it)`) has no size to ask for: one bounded read.
        with path.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError([Diagnostic("", _missing(path), file=file)]) from None
    except IsADirectoryError:
        raise ConfigError([Diagnostic("", "is a directory, not a file", file=file)]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([Diagnostic("", f"can't be read: {reason}", file=file)]) from None
    if len(raw) > FILE_BYTES_MAX:
        message = f"larger than {FILE_BYTES_MAX // 2**20} MiB; that is no configuration"
        raise ConfigError([Diagnostic("", message, file=file)])
    return parse(_decode(raw, file), file)


def _missing(path: Path) -> str:
    from difflib import get_close_matches

    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"no such file, and no folder {quoted(str(path.parent))}"
    close = get_close_matches(path.name, names, n=1)
    return f"no such file (did you mean {path.parent / close[0]}?)" if close else "no such file"


def _decode(raw: bytes, file: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        message = f"not UTF-8 text (byte 0x{raw[error.start]:02x}); save the file as UTF-8"
        raise ConfigError([Diagnostic("", message, file=file, line=line, column=column)]) from None


def parse(text: str, file: str) -> Source:
    """Parse one YAML document.

    Raises:
        ConfigError: the text is no YAML at all; lesser faults are in `Source.problems`.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigError([_syntax(error, text, file)]) from None
    except RecursionError:
        raise ConfigError([Diagnostic("", _TOO_DEEP, file=file)]) from None
    except (
        ValueError,
        OverflowError,
    ) as error:  # an escape such as "\UFFFFFFFF", which no code point has
        raise ConfigError([Diagnostic("", f"YAML: {error}", file=file)]) from None
    source = Source(file)
    if node is not None:
        builder = _Builder(source)
        try:
            source.data = builder.value(node, ())
        except _TooMuchError as error:
            source.problems.append(Diagnostic("", str(error), file=file))
            raise ConfigError(source.problems) from None
        source.marks[()] = _mark(node, file)
    return source


def _syntax(error: yaml.YAMLError, text: str, file: str) -> Diagnostic:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        message = f"YAML: {error.problem or error.context}"
        if error.problem and error.context:
            message += f" ({error.context})"
        if "'\\t'" in message:
            message += "; indent with spaces, not tabs"
        if mark is None:
            return Diagnostic("", message, file=file)
        return Diagnostic("", message, file=file, line=mark.line + 1, column=mark.column + 1)
    position = getattr(error, "position", 0)
    character = getattr(error, "character", 0)
    before = text[:position]
    message = f"character U+{character:04X} is not allowed in YAML; is this a text file?"
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    return Diagnostic("", message, file=file, line=line, column=column)


def _mark(node: yaml.Node, file: str) -> Mark:
    return Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as text, and not what PyYAML's own rules would."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def render(data: Any) -> str:
    """Plain values as YAML that `parse` reads as the same values."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _resolve(kind: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(_TAG + kind, re.compile(pattern), [*first] or [""])


_FLOAT = (
    r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?$"
    r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_resolve("bool", r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve("int", r"(?:[-+]?[0-9][0-9_]*|0o[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+)$", "-+0123456789")
_resolve("float", _FLOAT, "-+.0123456789")
_resolve("null", r"(?:~|null|Null|NULL)$", "~nN")
_resolve("null", r"$", "")
_resolve("merge", r"<<$", "<")

_TOO_DEEP = f"nested more than {DEPTH_MAX} levels deep"


class _TooMuchError(Exception):
    """The document expands to more than any configuration holds; reading on makes no sense."""


class _Builder:
    """Turns the node graph into values; shared nodes (aliases) become separate values."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._values = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._values += 1
        if self._values > VALUES_MAX:
            raise _TooMuchError(
                f"expands to more than {VALUES_MAX:,} values; are there too many aliases?"
            )
        if len(path) > DEPTH_MAX:
            raise _TooMuchError(_TOO_DEEP)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._problem(node, path, "this anchor holds itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> Any:
        if node.tag != _TAG + "seq":
            self._bad_tag(node, path)
        items = []
        for index, item in enumerate(node.value):
            inner = (*path, index)
            self._source.marks[inner] = _mark(item, self._source.file)
            items.append(self.value(item, inner))
        return items

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> Any:
        if node.tag != _TAG + "map":
            self._bad_tag(node, path)
        result: dict[str | int, Any] = {}
        for key, (key_node, value_node) in self._entries(node, path).items():
            inner = (*path, key)
            self._source.marks[inner] = _mark(key_node, self._source.file)
            result[key] = self.value(value_node, inner)
        return result

    def _entries(
        self, node: yaml.MappingNode, path: KeyPath
    ) -> dict[str | int, tuple[yaml.Node, yaml.Node]]:
        own: dict[str | int, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str | int, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for base in self._bases(value_node, path):
                    merged = {**self._merge(base, path), **merged}
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in own:
                line = own[key][0].start_mark.line + 1
                message = f"duplicate key (first given on line {line})"
                self._problem(key_node, (*path, key), message)
                continue
            own[key] = (key_node, value_node)
        return {**merged, **own}

    def _merge(
        self, base: yaml.MappingNode, path: KeyPath
    ) -> dict[str | int, tuple[yaml.Node, yaml.Node]]:
        self._values += 1 + len(base.value)
        if self._values > VALUES_MAX:
            raise _TooMuchError(
                f"expands to more than {VALUES_MAX:,} values; are there too many aliases?"
            )
        if id(base) in self._open:
            self._problem(base, path, "this anchor merges itself")
            return {}
        self._open.add(id(base))
        try:
            return self._entries(base, path)
        finally:
            self._open.discard(id(base))

    def _bases(self, node: yaml.Node, path: KeyPath) -> Iterator[yaml.MappingNode]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for base in nodes:
            if isinstance(base, yaml.MappingNode):
                yield base
            else:
                self._problem(base, path, "`<<` merges mappings only, such as `<<: *anchor`")

    def _key(self, node: yaml.Node, path: KeyPath) -> str | int | None:
        if isinstance(node, yaml.ScalarNode):
            key = self._scalar(node, path)
            if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
                return key
        self._problem(node, path, "a key has to be text; put it in quotes")
        return None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix(_TAG)
        try:
            if kind == "str":
                text.encode()  # an escape can smuggle in half a surrogate pair
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return _whole(text)
            if kind == "float":
                return _real(text)
            if kind == "merge":
                return text
        except UnicodeEncodeError:
            self._problem(node, path, "holds half of a surrogate pair, which is no character")
            return ""
        except (ValueError, KeyError):
            self._problem(node, path, f"{quoted(text)} is no {_KINDS[kind]} that can be used")
            return None
        self._bad_tag(node, path)
        return None

    def _bad_tag(self, node: yaml.Node, path: KeyPath) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self._problem(node, path, f"YAML tag {quoted(tag)} is not allowed here")

    def _problem(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        mark = _mark(node, self._source.file)
        problem = Diagnostic(
            dotted(path), message, file=mark.file, line=mark.line, column=mark.column
        )
        if problem not in self._source.problems:  # an alias is visited once for each use
            self._source.problems.append(problem)


_KINDS = {"bool": "true or false", "int": "whole number", "float": "number"}


def _whole(text: str) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    bare = digits.lstrip("+-")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(bare[:2].lower(), 10)
    return sign * (int(bare[2:], base) if base != 10 else int(bare, 10))


def _real(text: str) -> float:
    bare = text.replace("_", "").lower()
    return float(bare.replace(".inf", "inf").replace(".nan", "nan"))

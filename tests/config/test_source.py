"""YAML text to values with places, and every way in which a file can be no configuration."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from dsec.config.source import (
    DEPTH_MAX,
    FILE_BYTES_MAX,
    Mark,
    dotted,
    parse,
    quoted,
    read_file,
    render,
)
from dsec.errors import ConfigError


def the_fault(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert len(caught.value.diagnostics) == 1
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200_000", 200_000),
        ("1e6", 1e6),
        ("3e-4", 3e-4),
        (".5", 0.5),
        ("-1", -1),
        ("0x1f", 31),
        ("0o17", 15),
        ("0b101", 5),
        ("010", 10),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("2026-01-31", "2026-01-31"),
        ("-.inf", -math.inf),
        ("'7'", "7"),
        ('"\\u00e9"', "é"),
        ("1.2.3", "1.2.3"),
        ("!!str 7", "7"),
        ("!!float 7", 7.0),
    ],
)
def test_scalars_follow_yaml_1_2_with_underscores(text: str, value: object) -> None:
    source = parse(f"k: {text}\n", "f")
    assert source.problems == []
    assert source.data == {"k": value}
    assert type(source.data["k"]) is type(value)


def test_not_a_number_is_read() -> None:
    assert math.isnan(parse("k: .nan", "f").data["k"])


def test_every_value_has_a_place() -> None:
    source = parse("run: {name: a}\nagents:\n  - name: b\n    env:\n      id: X\n  - 7\n", "f")
    assert source.locate(("run",)) == Mark("f", 1, 1)
    assert source.locate(("run", "name")) == Mark("f", 1, 7)
    assert source.locate(("agents", 0)) == Mark("f", 3, 5)
    assert source.locate(("agents", 0, "env", "id")) == Mark("f", 5, 7)
    assert source.locate(("agents", 1)) == Mark("f", 6, 5)
    assert source.locate(("agents", 0, "env", "missing")) == Mark("f", 4, 5)
    assert source.locate(("nothing", "at", "all")) == Mark("f", 1, 1)


def test_anchors_and_merges_keep_the_place_where_the_text_stands() -> None:
    source = parse("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: {<<: [*x, {c: 4}]}\nw: *x\n", "f")
    assert source.problems == []
    assert source.data == {
        "x": {"a": 1, "b": 2},
        "y": {"a": 1, "b": 3},
        "z": {"a": 1, "b": 2, "c": 4},
        "w": {"a": 1, "b": 2},
    }
    assert source.locate(("y", "a")) == Mark("f", 1, 8)
    assert source.locate(("y", "b")) == Mark("f", 4, 3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3:1: a: duplicate key (first given on line 1)"),
        ("a: {b: 1, b: 2}", "f:1:11: a.b: duplicate key (first given on line 1)"),
        ("? [1]\n: 2\n", "f:1:3: a key has to be text; put it in quotes"),
        ("1.5: 2\n", "f:1:1: a key has to be text; put it in quotes"),
        ("a: !!python/object:os.system {}", 'f:1:4: a: YAML tag "!!python/object:os.system" is'),
        ("a: !thing 3", 'f:1:4: a: YAML tag "!thing" is not allowed here'),
        ("a: !!set {b}", 'f:1:4: a: YAML tag "!!set" is not allowed here'),
        ("a: &a [*a]", "f:1:4: a[0]: this anchor holds itself"),
        ("a: &a {<<: *a}", "f:1:4: a: this anchor merges itself"),
        ("a: {<<: 3}", "f:1:9: a: `<<` merges mappings only"),
        ("a: !!int x", 'f:1:4: a: "x" is no whole number that can be used'),
        ("a: " + "9" * 5000, 'f:1:4: a: "99999'),
        ('a: "\\ud800"', "f:1:4: a: holds half of a surrogate pair"),
    ],
)
def test_lesser_faults_are_collected(text: str, problem: str) -> None:
    source = parse(text, "f")
    assert len(source.problems) == 1
    assert str(source.problems[0]).startswith(problem)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [1, 2\nb: 3\n", "f:2:2: YAML: expected ',' or ']', but got"),
        ("a: b: c", "f:1:5: YAML: mapping values are not allowed here"),
        ("a:\n\t- b\n", "f:2:1: YAML: found character '\\t' that cannot start any token"),
        ("a: *b", "f:1:4: YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2\n", "f:2:1: YAML: but found another document"),
        ("a: \x00", "f:1:4: character U+0000 is not allowed in YAML"),
        ('a: "\\UFFFFFFFF"', "f: YAML: "),
        ("[" * 5000, f"f: nested more than {DEPTH_MAX} levels deep"),
        ("[" * 100 + "]" * 100, f"f: nested more than {DEPTH_MAX} levels deep"),
    ],
)
def test_text_that_is_no_yaml(text: str, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value).startswith(start)


def test_tabs_get_the_advice_that_they_need() -> None:
    with pytest.raises(ConfigError, match="indent with spaces, not tabs"):
        parse("a:\n\t- b\n", "f")


@pytest.mark.parametrize("merge", [False, True])
def test_a_bomb_of_aliases_ends_early(merge: bool) -> None:
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(9)) + "}"]
    for level in range(1, 40):
        inner = ", ".join(f"*a{level - 1}" for _ in range(9))
        lines.append(f"a{level}: &a{level} " + (f"{{<<: [{inner}]}}" if merge else f"[{inner}]"))
    with pytest.raises(ConfigError, match="too many aliases"):
        parse("\n".join(lines), "f")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1")
    assert the_fault(tmp_path / "confg.yaml") == (
        f"FILE: no such file (did you mean {tmp_path / 'config.yaml'}?)"
    )
    assert the_fault(tmp_path / "no" / "x.yaml").startswith("FILE: no such file, and no folder")
    assert the_fault(tmp_path) == "FILE: is a directory, not a file"
    assert the_fault(tmp_path / "config.yaml" / "x").startswith("FILE: can't be read: Not a dir")
    assert the_fault(tmp_path / ("x" * 300)).startswith("FILE: can't be read: File name too long")
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in the_fault(tmp_path / "loop")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert the_fault(path) == "FILE: can't be read: Permission denied"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes("run: 1\nä: é\xff".encode("latin-1"))
    assert the_fault(path) == "FILE:2:1: not UTF-8 text (byte 0xe4); save the file as UTF-8"
    path.write_bytes(bytes(range(128)))
    assert the_fault(path) == (
        "FILE:1:1: character U+0000 is not allowed in YAML; is this a text file?"
    )
    path.write_bytes(b"a" * (FILE_BYTES_MAX + 1))
    assert the_fault(path) == "FILE: larger than 4 MiB; that is no configuration"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_file(path).data == {"a": 1}


VALUES = [
    "no",
    "1e3",
    "010",
    "1:30",
    "~",
    "",
    " a",
    "é\n",
    1e-7,
    1e300,
    -0.0,
    math.inf,
    2**70,
    None,
]


@pytest.mark.parametrize("value", VALUES)
def test_what_is_written_is_read_as_the_same(value: object) -> None:
    again = parse(render({"k": [value]}), "f").data["k"][0]
    assert again == value
    assert type(again) is type(value)


def test_paths_and_quotes_are_legible() -> None:
    assert dotted(("agents", 0, "env", "id")) == "agents[0].env.id"
    assert dotted(("a", "b.c", 3, "é")) == 'a["b.c"][3]["é"]'
    assert quoted('a"\n\x1b[31m') == '"a\\"\\n\\x1b[31m"'
    assert len(quoted("x" * 1000)) == 62

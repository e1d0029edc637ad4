"""Names, tails and sizes of log files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsec.ipc.logs import LOOKS_PER_TICK, TAIL_BYTES, Logs, file_name

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(NAMES)
@example("../../etc/passwd")
@example("")
@example("x" * 10_000)
def test_any_name_makes_one_file_name(name: str) -> None:
    made = file_name(name)
    assert "/" not in made
    assert "." not in made
    assert "\0" not in made
    assert "@" not in made
    assert len(f"{made}.policy.err.1".encode()) <= 255


@given(st.lists(NAMES, unique=True, min_size=2, max_size=2))
@example(["a%2F", "a/"])
@example(["x" * 400, "x" * 401])
@example(["長" * 100, "長" * 101])
def test_distinct_names_stay_distinct(names: list[str]) -> None:
    assert file_name(names[0]) != file_name(names[1])


def test_names_of_many_scripts_stay_legible() -> None:
    assert file_name("агент-1_長") == "агент-1_長"
    assert file_name("a b") == "a%20b"


def test_a_lone_surrogate_is_no_obstacle() -> None:
    assert file_name("\ud800") == "%3F"


def write(logs: Logs, stem: str, data: bytes) -> int:
    """One incarnation that writes to stderr; returns where its output began."""
    fds: list[int] = []
    begin = logs.open(stem, fds)
    os.write(fds[1], data)
    for fd in fds:
        os.close(fd)
    return begin


def test_a_tail_is_the_last_whole_lines_of_this_incarnation(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", 1 << 20)
    write(logs, "a", b"an earlier one\n")
    begin = write(logs, "a", b"last \xff words\n")
    assert logs.tail("a", begin) == "last \N{REPLACEMENT CHARACTER} words"
    begin = write(logs, "a", b"".join(b"line %d\n" % n for n in range(5000)))
    tail = logs.tail("a", begin)
    assert tail.endswith("line 4998\nline 4999")
    assert tail.startswith("line ")
    assert TAIL_BYTES - 20 < len(tail) <= TAIL_BYTES


def test_one_endless_line_has_a_tail_too(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", 1 << 20)
    begin = write(logs, "a", b"x" * 40_000)
    assert logs.tail("a", begin) == "x" * TAIL_BYTES


def test_no_file_no_tail(tmp_path: Path) -> None:
    assert Logs(tmp_path / "logs", 1 << 20).tail("nobody", 0) == ""


def test_a_large_log_is_cut_and_its_end_is_kept(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", 100)
    fds: list[int] = []
    logs.open("a", fds)
    os.write(fds[0], b"o" * 250 + b"THE END")
    os.write(fds[1], b"small")
    logs.rotate()
    folder = tmp_path / "logs"
    assert (folder / "a.out").read_bytes() == b""
    assert (folder / "a.out.1").read_bytes() == b"o" * 93 + b"THE END"
    assert (folder / "a.err").read_bytes() == b"small"
    os.write(fds[0], b"goes on at the start")
    assert (folder / "a.out").read_bytes() == b"goes on at the start"
    assert logs.tail("a", 5000) == "small", "begun before the file was cut"
    for fd in fds:
        os.close(fd)


@pytest.mark.guarantee("G11")
def test_one_call_looks_at_a_bounded_number_of_files_and_at_all_in_turn(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", 10)
    count = LOOKS_PER_TICK // 2 + 50
    for number in range(count):
        write(logs, f"a{number}", b"x" * 20)
    logs.rotate()
    cut = len(list((tmp_path / "logs").glob("*.1")))
    assert 0 < cut < count
    logs.rotate()
    assert len(list((tmp_path / "logs").glob("*.1"))) == count


def test_a_folder_that_vanished_is_for_the_writers_to_notice(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", 1)
    write(logs, "a", b"xx")
    for path in (tmp_path / "logs").iterdir():
        path.unlink()
    logs.rotate()

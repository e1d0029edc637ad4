"""Output that can't fail."""

from __future__ import annotations

import io
import os

import pytest

from dsec.cli.logs import make_logger
from dsec.cli.stream import SafeStream


def test_a_reader_who_went_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as broken:  # noqa: PTH123
        stream = SafeStream(broken)
        stream.line("hello")
        assert stream.silent
        stream.line("again")
        assert not stream.isatty()


def test_a_full_disk_is_no_error() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        stream = SafeStream(full)
        stream.line("hello")
        assert stream.silent


def test_a_poor_encoding_is_no_error() -> None:
    raw = io.BytesIO()
    stream = SafeStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.line("é → x")
    assert raw.getvalue() == b"\\xe9 \\u2192 x\n"


@pytest.mark.parametrize("verbose", [False, True])
def test_the_log_is_keys_and_values_where_no_person_reads(verbose: bool) -> None:
    text = io.StringIO()
    logger = make_logger(SafeStream(text), colors=False, verbose=verbose)
    logger.debug("agent", name="a")
    logger.info("run started", run_dir="/a b", agents=8)
    lines = text.getvalue().splitlines()
    assert len(lines) == 1 + verbose
    assert lines[-1].endswith('level=info event="run started" run_dir="/a b" agents=8')


def test_the_log_has_colours_for_people() -> None:
    text = io.StringIO()
    make_logger(SafeStream(text), colors=True, verbose=False).warning("careful")
    assert "\x1b[" in text.getvalue()
    assert "careful" in text.getvalue()

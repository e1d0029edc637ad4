"""The pool's C core by itself: model, kill points, races (tests/sml/c), and its hash."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import xxhash

from dsec.sml._pool import ffi, lib

HERE = Path(__file__).resolve().parent / "c"
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def make(*arguments: str, timeout_s: float = 110) -> str:
    done = subprocess.run(
        ["make", "-C", str(HERE), *arguments], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    assert found is not None, text
    return [int(each) for each in found.groups()]


@pytest.mark.guarantee("G2")
@pytest.mark.slow
@needs_make
def test_a_death_after_any_store_leaves_a_pool_that_opens_whole() -> None:
    writes, formats = numbers(r"killed at (\d+) stores, formats at (\d+)", make("killpoints"))
    assert writes > 1500, "every word of cells, headers and bodies is a point"
    assert formats >= 6


@pytest.mark.guarantee("G9")
@pytest.mark.slow
@needs_make
def test_readers_in_other_processes_are_never_deceived() -> None:
    text = make("race", "READS=300000", "SECONDS_OF_RACE=15")
    pattern = r"generation: (\d+) reads.* (\d+) good.* (\d+) wrong"
    reads, good, wrong = numbers(pattern, text)
    assert reads >= good > 0
    assert wrong == 0
    (wrong,) = numbers(r"remote, lines in any order: .* (\d+) wrong", text)
    assert wrong == 0
    for baseline in ("head and tail", "lease only"):
        (caught,) = numbers(rf"{baseline}.* (\d+) wrong", text)
        assert caught > 0, "the harness catches a protocol that is too weak"


@pytest.mark.soak
@needs_make
def test_a_hundred_million_reads_are_never_deceived() -> None:
    text = make("race", "READS=100000000", "SECONDS_OF_RACE=1600", timeout_s=3500)
    reads, wrong = numbers(r"generation: (\d+) reads.* (\d+) wrong", text)
    assert reads >= 100_000_000, "the machine was too slow for so many in this time"
    assert wrong == 0


def test_the_hash_is_xxh3() -> None:
    rng = random.Random(3)
    edges = (1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 5000, 100_001)
    for nbytes in (*range(600), *edges):
        data = rng.randbytes(nbytes)
        buffer = ffi.from_buffer("uint8_t[]", data)
        for function in (lib.asa_xxh3, lib.asa_xxh3_plain):
            assert function(buffer, nbytes) == xxhash.xxh3_64_intdigest(data), nbytes
        out = bytearray(16)
        lib.asa_xxh3_128(buffer, nbytes, ffi.from_buffer("uint8_t[]", out))
        assert out == xxhash.xxh3_128_digest(data), nbytes

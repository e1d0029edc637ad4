"""Filling the holes of a heap: where objects lie afterwards, and what it takes. Each in a fresh
interpreter, whose heap nobody else has filled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = 400
CODE = f"""
import gc, unittest.mock, xml.dom.minidom, email.message, decimal  # many objects, many holes
from dsec.runners import holes

def pages(size):
    made = [bytes(size - 33) for _ in range({COUNT})]
    return len({{id(each) >> 12 for each in made}})

gc.collect()
sizes = 48, 64, 128, 256
scattered = sum(map(pages, sizes))
taken = holes.fill()
print(scattered, sum(map(pages, sizes)), taken)
"""


def in_fresh_interpreter(code: str, **environment: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [int(word) for word in done.stdout.split()]


def test_afterwards_new_objects_lie_side_by_side() -> None:
    scattered, packed, taken = in_fresh_interpreter(CODE)
    needed = sum(COUNT * size / 4096 for size in (48, 64, 128, 256))
    assert taken > 1000
    assert packed < scattered
    assert packed <= needed + 4 * 5  # a pool is four pages, and may begin anywhere in them


@pytest.mark.parametrize("allocator", ["malloc", "pymalloc_debug"])
def test_with_another_allocator_it_ends(allocator: str) -> None:
    code = "from dsec.runners import holes; print(int(holes.fill() > 0))"
    assert in_fresh_interpreter(code, PYTHONMALLOC=allocator) == [1]

"""A supervisor makes its process a subreaper for good; the next test must not adopt strangers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsec.ipc import proc


@pytest.fixture(autouse=True)
def adopts_as_before() -> Iterator[None]:
    was = proc.set_subreaper(False)
    proc.set_subreaper(was)
    yield
    proc.set_subreaper(was)

"""A supervisor makes its process a subreaper for good; the next test must not adopt strangers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsec.kernel import reap


@pytest.fixture(autouse=True)
def adopts_as_before() -> Iterator[None]:
    was = reap.set_subreaper(False)
    reap.set_subreaper(was)
    yield
    reap.set_subreaper(was)

"""What a user's program is: no subreaper, as the tests' own kernels make the test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.subreaper import is_subreaper, set_subreaper


@pytest.fixture(autouse=True)
def adopts_nobody() -> Iterator[None]:
    was = is_subreaper()
    set_subreaper(False)
    yield
    set_subreaper(was)

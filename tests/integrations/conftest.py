"""What a user's program is: no subreaper, as the tests' own kernels make the test process."""

from __future__ import annotations

from tests.sandbox.conftest import adopts_nobody

__all__ = ["adopts_nobody"]

"""What every test gets: the leak check, the Hypothesis profiles, the watchdog, and its orphans.

Owns only what is common to all rooms. `dev` is quick and looks elsewhere each time; `ci` (chosen
by the environment variable CI) always draws the same examples, so that a red build is the
change's fault. No profile has a deadline: two busy cores are no bug.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import watchdog
from tests.subreaper import is_subreaper, set_subreaper

# Under nohup, or as a job in the background of a shell, these are ignored, and so they would be in
# every program that a test starts. What such a program does then has tests of its own.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def adopting_as_before() -> Iterator[None]:
    """A supervisor makes its process a subreaper for good, and orphans that the next tests leave
    to init would come to it as zombies."""
    was = is_subreaper()
    yield
    set_subreaper(was)


# What the tests of a file share may keep the process a subreaper from its first test to its last.
file_adopts_as_before = pytest.fixture(autouse=True, scope="module")(adopting_as_before)


@pytest.fixture(autouse=True)
def adopts_as_before(dsec_no_leaks: None) -> Iterator[None]:
    yield from adopting_as_before()


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., watchdog.Watched]:
    """Start programs under the watchdog: `with watched([sys.executable, ...]) as program:`."""
    count = 0

    def start(argv: list[str | Path], **options: object) -> watchdog.Watched:
        nonlocal count
        count += 1
        return watchdog.Watched(argv, tmp_path / f"program-{count}", **options)  # type: ignore[arg-type]

    return start

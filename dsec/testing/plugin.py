"""The pytest plugin: a seed, and the leak check, for tests that ask for them.

Owns `--dsec-seed`, the fixtures `dsec_seed` and `dsec_no_leaks`, and the ini key `dsec_leaks`,
which puts that fixture around every test. It is loaded by every pytest where dsec-kernel is
installed, so it imports nothing of dsec before it is used, and does nothing to who doesn't ask.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    pass

SEED_BITS = 32
LEAKS_INI = "dsec_leaks"

CALL_FAILED = pytest.StashKey[bool]()
SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option, one ini key."""
    parser.getgroup("dsec").addoption(
        "--dsec-seed",
        type=int,
        metavar="N",
        help="the seed that dsec_seed gives to tests; drawn anew, and printed, if left out",
    )
    parser.addini(
        LEAKS_INI,
        "fail a test that leaves processes, descriptors, shared memory, asyncio tasks or threads",
        type="bool",
        default=False,
    )


class Everywhere:
    """Registered only where the ini key asks for it."""

    @pytest.fixture(autouse=True)
    def _dsec_no_leaks_everywhere(self, dsec_no_leaks: None) -> None:
        """Each test has the leak check."""


def pytest_configure(config: pytest.Config) -> None:
    """See whether the leak check is for all tests."""
    if config.getini(LEAKS_INI):
        config.pluginmanager.register(Everywhere(), "dsec.testing.everywhere")


@pytest.fixture(scope="session")
def dsec_seed(request: pytest.FixtureRequest) -> int:
    """The seed of what a test leaves to chance; a failing test says which one it was."""
    stash = request.config.stash
    if SEED not in stash:
        given = request.config.getoption("--dsec-seed")
        stash[SEED] = secrets.randbits(SEED_BITS) if given is None else int(given)
    return stash[SEED]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember who failed, and say with which seed."""
    report = yield
    if report.when != "teardown" and report.failed:
        item.stash[CALL_FAILED] = True
        if "dsec_seed" in getattr(item, "fixturenames", ()) and SEED in item.config.stash:
            again = f"run it again with --dsec-seed {item.config.stash[SEED]}"
            report.sections.append(("dsec", again))
    return report


@pytest.fixture
def dsec_no_leaks(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Fail a test that leaves something behind, and name what.

    After a test that failed anyway nothing is reported (its traceback keeps its objects alive),
    but its processes are ended all the same.
    """
    from dsec.testing import leaks

    with leaks.marked_work() as before:
        with leaks.at_work(before.mark):
            yield
        if request.node.stash.get(CALL_FAILED, False):
            leaks.kill_and_reap(before.processes())
            return
        found = leaks.settled_leaks(before)
        leaks.kill_and_reap(before.processes())
    if found:
        pytest.fail("this test leaves behind:\n  " + "\n  ".join(found), pytrace=False)

"""Evidence in, cause out: what counts for more than what, and the words for it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from dsec.failover.detect import Word
from dsec.failover.diagnose import (
    Evidence,
    Verdict,
    blames_the_config,
    diagnose,
    how_it_ended,
    hung,
    in_phase,
    writer_of,
)
from dsec.ipc.frames import Crashing, ErrorInfo, Failed, ImportFailed, Phase, Role
from dsec.ipc.segment import CrashRecord
from dsec.report import Death, signal_name

pytestmark = pytest.mark.guarantee("G6")

WORD = Word(Phase.STEP, 1.0, 41)
CRASH = CrashRecord(signal.SIGSEGV, 8, Phase.STEP, 42, 1, 0, 0, 0)
ERROR = ErrorInfo("KeyError", "'x'", "a traceback", "env")


def evidence(**changes: Any) -> Evidence:
    facts: dict[str, Any] = {"signum": 0, "code": 3, "phase": Phase.CONSTRUCT} | changes
    return Evidence("a", Role.ENV, 2, 77, **facts)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGSEGV, -1, "killed by SIGSEGV in step"),
        (0, 3, "left with exit code 3 in step"),
        (64, -1, "killed by SIGRTMAX in step"),
        (40, -1, "killed by signal 40 in step"),
    ],
)
def test_an_end_in_words(number: int, code: int, said: str) -> None:
    assert how_it_ended(number, code, in_phase(Phase.STEP)) == said


def test_where_nothing_was_going_on() -> None:
    assert in_phase(Phase.IDLE) == "while idle"
    assert signal_name(0) == ""


def test_before_it_had_a_progress_word_its_supervisor_knows_the_phase() -> None:
    death = diagnose(evidence())
    assert (death.cause, death.kind) == ("left with exit code 3 in construct", "exit")
    assert (death.exit_code, death.signal, death.seq_last) == (3, 0, -1)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("message", "writer"),
    [
        ("policy segment: no record at 64: mark 0x0", Role.POLICY),
        ("the ring of the reward runner holds what it may not: seq 3 where 4 was due", Role.REWARD),
        ("the ring of the env runner holds what it may not: policy segments aside", Role.ENV),
        ("environment 3 was rewarded by policy", None),
    ],
)
def test_the_writer_of_malformed_bytes_is_named_and_not_their_reader(
    message: str, writer: Role | None
) -> None:
    assert writer_of(message) is writer
    error = ErrorInfo("dsec.errors.CorruptRingError", message)
    death = diagnose(evidence(said={Failed: Failed(int(Phase.IDLE), 7, error)}))
    if writer is None:
        assert death.cause.startswith("raised dsec.errors.CorruptRingError")
    else:
        name = writer.name.lower()
        said = f"could not go on: the {name} runner wrote what it may not: {message}"
        assert death.cause == said


def test_one_that_fails_without_a_word_had_nowhere_to_say_it() -> None:
    """As where user code has closed every descriptor, the control channel's among them."""
    death = diagnose(evidence(code=70, word=WORD))
    assert death.cause.startswith("left with exit code 70 in step, and could not say why: ")
    assert (death.kind, death.seq_last) == ("exit", 41)


def test_its_progress_word_knows_better_where_it_was() -> None:
    death = diagnose(evidence(word=WORD))
    assert (death.cause, death.seq_last) == ("left with exit code 3 in step", 41)
    idle = diagnose(evidence(word=Word(Phase.IDLE, 1.0, 41)))
    assert idle.phase is Phase.CONSTRUCT, "a word that says nothing takes nothing back"


def test_the_crash_record_knows_best() -> None:
    death = diagnose(evidence(signum=signal.SIGSEGV, code=-1, word=WORD, crash=CRASH))
    assert (death.cause, death.seq_last, death.fault_address) == (
        "killed by SIGSEGV in step",
        42,
        "0x8",
    )
    sent = diagnose(evidence(signum=11, code=-1, crash=CRASH._replace(code=0)))
    assert sent.fault_address == "", "a signal that was sent carries no address"


def test_an_exception_is_told_as_it_was_reported() -> None:
    said = {Failed: Failed(Phase.STEP, 43, ERROR)}
    death = diagnose(evidence(code=70, word=WORD, said=said))
    assert (death.kind, death.cause) == ("exception", "raised KeyError in step: 'x'")
    assert (death.seq_last, death.error, death.phase) == (43, ERROR, Phase.STEP)
    odd = diagnose(evidence(said={Failed: Failed(99, 43, ErrorInfo("E", ""))}))
    assert odd.cause == "raised E in construct", "a phase that is none, and no message"


def test_a_module_that_can_not_be_imported_is_named() -> None:
    death = diagnose(evidence(said={ImportFailed: ImportFailed("base", "numpyy", ERROR)}))
    assert (death.kind, death.cause) == ("import", "import of numpyy: 'x'")


def test_a_verdict_of_ours_counts_most() -> None:
    said = {Failed: Failed(Phase.STEP, 43, ERROR)}
    verdict = hung(Phase.RESET, 1.25, 1.0)
    death = diagnose(evidence(signum=9, code=-1, word=WORD, said=said, verdict=verdict))
    assert death.cause == "hung in reset for 1.2 s (deadline 1 s), killed"
    assert (death.kind, death.phase, death.error) == ("hang", Phase.RESET, None)
    plain = diagnose(evidence(word=WORD, verdict=Verdict("protocol", "broke it, killed")))
    assert (plain.kind, plain.phase) == ("protocol", Phase.STEP)


def test_a_name_that_leads_nowhere_is_the_configurations_fault() -> None:
    lost = Death("a", Role.ENV, 0, 1, "x", "exception", error=ErrorInfo("E", "", lookup=True))
    assert blames_the_config(lost, [None, None])


def test_so_is_a_constructor_that_fails_for_all_and_not_for_some() -> None:
    bad = Death("a", Role.ENV, 0, 1, "x", "exception", phase=Phase.CONSTRUCT, error=ERROR)
    stepped = Death("a", Role.ENV, 0, 1, "x", "exception", phase=Phase.STEP, error=ERROR)
    assert blames_the_config(bad, [bad, bad])
    assert not blames_the_config(bad, [bad, None])
    assert not blames_the_config(stepped, [stepped])
    assert not blames_the_config(Death("a", Role.ENV, 0, 1, "x", "import", error=ERROR), [])
    assert not blames_the_config(Death("a", Role.ENV, 0, 1, "x", "signal"), [])


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        (0, "killed by SIGSEGV in step"),
        (4711, "killed by SIGSEGV in step, sent by process 4711"),
        (-1, "killed by SIGSEGV in step, sent by another process"),
    ],
)
def test_a_signal_that_somebody_sent_is_told_as_that(sender: int, said: str) -> None:
    crash = CRASH._replace(sender=sender, code=0 if sender else 1)
    death = diagnose(evidence(signum=signal.SIGSEGV, code=-1, crash=crash))
    assert (death.cause, death.sent) == (said, bool(sender))


def test_a_successor_says_in_its_frame_where_it_was_and_who_killed_it() -> None:
    """It has no outbox before it is resumed; what is written there is its predecessor's."""
    said = {Crashing: Crashing(signal.SIGSEGV, sender=4711, seq=99)}
    facts: dict[str, Any] = {"signum": signal.SIGSEGV, "code": -1, "said": said}
    death = diagnose(evidence(**facts, phase=Phase.REPLAY, word=None, crash=CRASH, wired_at=1e9))
    assert (death.sent, death.seq_last, death.phase) == (True, 99, Phase.REPLAY)
    assert death.cause == "killed by SIGSEGV in replay, sent by process 4711"
    own = CRASH._replace(sender=0)
    death = diagnose(evidence(**facts, word=None, crash=own))
    assert (death.sent, death.seq_last) == (False, own.seq), "its record says more"

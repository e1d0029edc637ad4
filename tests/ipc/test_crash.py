"""The last gasp: a runner that dies of a fault says how, and still dies of that signal."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.errors import LocalError
from dsec.ipc import crash
from dsec.ipc._ring import ffi, lib
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import Crashing, Phase, Role
from dsec.ipc.ring import KIND_OBS
from dsec.ipc.segment import read_crash
from tests.ipc.rings import Wires, child, payload_of


def fault() -> None:
    """Write to an address where nothing is."""
    ffi.cast("int *", 0x1234567890)[0] = 1


def die(wires: Wires | None, kill: Callable[[], object], control: int = -1) -> tuple[int, str]:
    """Kill a child that armed its handlers; return its exit code and what it wrote to stderr."""
    with tempfile.TemporaryFile() as log:

        def run() -> None:
            os.dup2(log.fileno(), 2)
            faulthandler.enable(file=2)
            crash.arm(control)
            if wires is not None:
                outbox = wires.outbox(Role.ENV)
                crash.attach(outbox)
                outbox.enter(Phase.STEP, 41)
            kill()

        with child(run) as forked:
            code = forked.wait()
        log.seek(0)
        return code, log.read().decode(errors="replace")


@pytest.mark.guarantee("G6")
def test_a_fault_leaves_address_phase_and_stacks() -> None:
    with Wires() as wires:
        ours, theirs = pair()
        heard = Channel(ours)
        assert read_crash(wires.segments[Role.ENV].fd) is None
        code, text = die(wires, fault, theirs.fileno())
        assert code == -signal.SIGSEGV
        record = read_crash(wires.segments[Role.ENV].fd)
        assert record is not None
        assert (record.signal, record.address) == (signal.SIGSEGV, 0x1234567890)
        assert (record.phase, record.seq, record.epoch) == (Phase.STEP, 41, 1)
        assert record.ip
        assert record.time_ns
        assert heard.recv(10.0) == (Crashing(signal.SIGSEGV, seq=41), [])
        heard.close()
        theirs.close()
        assert "fatal signal 11 at address 0x1234567890" in text
        assert "_cffi_backend" in text.split("native stack:")[1], "the native stack"
        assert "in fault" in text, "faulthandler's stack, after ours"


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    "signo",
    [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS],
)
def test_every_fatal_signal_is_recorded_and_kept(signo: signal.Signals) -> None:
    with Wires() as wires:
        code, _ = die(wires, lambda: os.kill(os.getpid(), signo))
        assert code == -signo
        record = read_crash(wires.segments[Role.ENV].fd)
        assert record is not None
        assert (record.signal, record.address, record.seq) == (signo, 0, 41)
        assert record.sender == 0, "itself"


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("seq", [-1, 0, 300, 1 << 40])
def test_who_has_no_outbox_yet_says_in_its_frame_where_it_was(seq: int) -> None:
    """And who sent the signal, by which a step is blamed or not."""
    ours, theirs = pair()
    heard = Channel(ours)

    ready, told = os.pipe()

    def run() -> None:
        crash.arm(theirs.fileno())
        if seq >= 0:
            crash.enter(Phase.REPLAY, seq)
        os.write(told, b".")
        signal.pause()

    with child(run) as forked:
        assert os.read(ready, 1) == b"."
        os.kill(forked.pid, signal.SIGBUS)
        assert forked.wait() == -signal.SIGBUS
    os.close(ready)
    os.close(told)
    assert heard.recv(10.0) == (Crashing(signal.SIGBUS, sender=os.getpid(), seq=seq), [])
    heard.close()
    theirs.close()


@pytest.mark.guarantee("G6")
def test_who_sent_a_signal_is_recorded(tmp_path: Path) -> None:
    """Whoever is killed from outside, by SIGSEGV too, did nothing wrong."""
    sender = tmp_path / "sender"

    def be_killed() -> None:
        line = f"echo $$ > {sender}; exec kill -SEGV {os.getpid()}"
        subprocess.run(["sh", "-c", line], check=True)

    with Wires() as wires:
        assert die(wires, be_killed)[0] == -signal.SIGSEGV
        record = read_crash(wires.segments[Role.ENV].fd)
        assert record is not None
        assert (record.signal, record.address) == (signal.SIGSEGV, 0)
        assert record.sender == int(sender.read_text())


@pytest.mark.guarantee("G6")
def test_abort_and_a_smashed_stack() -> None:
    with Wires() as wires:
        code, text = die(wires, os.abort)
        assert code == -signal.SIGABRT
        assert "abort" in text
        assert die(wires, faulthandler._stack_overflow)[0] == -signal.SIGSEGV
        record = read_crash(wires.segments[Role.ENV].fd)
        assert record is not None
        assert (record.signal, record.phase) == (signal.SIGSEGV, Phase.STEP)


@pytest.mark.guarantee("G6")
def test_before_there_is_an_outbox_the_line_is_all() -> None:
    code, text = die(None, fault)
    assert code == -signal.SIGSEGV
    assert "phase 0, seq 0; native stack" in text


def test_a_closed_outbox_is_not_written_any_more() -> None:
    with Wires() as wires:

        def close_then_fault() -> None:
            outbox = wires.outbox(Role.POLICY)
            crash.attach(outbox)
            outbox.close()
            fault()

        code, _ = die(wires, close_then_fault)
        assert code == -signal.SIGSEGV
        assert read_crash(wires.segments[Role.POLICY].fd) is None


@pytest.mark.parametrize("full", [False, True])
def test_a_channel_that_takes_nothing_does_not_hold_a_crash_up(full: bool) -> None:
    ours, theirs = pair()
    theirs.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while full:
            theirs.send(b"x" * 1000)
    if not full:
        ours.close()
    code, _ = die(None, fault, theirs.fileno())
    assert code == -signal.SIGSEGV
    ours.close()
    theirs.close()


@pytest.mark.guarantee("G6")
def test_what_a_runner_forks_does_not_announce_its_end() -> None:
    ours, theirs = pair()
    heard = Channel(ours)

    def fork() -> None:
        with child(fault) as forked:
            assert forked.wait() == -signal.SIGSEGV

    assert die(None, fork, theirs.fileno())[0] == 0
    assert not heard.pending()
    heard.close()
    theirs.close()


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G6")
def test_a_process_that_a_runner_forks_cannot_speak_for_it() -> None:
    """Neither its crash nor a record of its own gets into the segment of its parent."""

    def fork(run: Callable[[], object]) -> int:
        with child(run) as forked:
            return forked.wait()

    with Wires() as wires:

        def runner() -> None:
            outbox = wires.writer(Role.ENV, Role.POLICY)
            crash.attach(outbox)
            outbox.enter(Phase.STEP, 7)
            at = outbox.claim(8, 1.0)
            view = outbox.buffer
            view[at : at + 8] = b"whole..."

            def spoil() -> None:
                view[at : at + 8] = b"torn!!!!"

            def publish() -> None:
                outbox.commit(99, KIND_OBS, 0, 8)

            assert fork(fault) == -signal.SIGSEGV
            assert fork(spoil) == -signal.SIGSEGV
            assert fork(publish) == 1
            outbox.commit(0, KIND_OBS, 0, 8)

        assert die(None, runner)[0] == 0
        assert read_crash(wires.segments[Role.ENV].fd) is None
        reader = wires.reader(Role.POLICY, Role.ENV)
        assert reader.try_next()
        assert (reader.seq, payload_of(reader)) == (0, b"whole...")
        assert not reader.try_next()


def test_a_closed_outbox_cannot_be_attached() -> None:
    with Wires() as wires:
        outbox = wires.outbox(Role.ENV)
        outbox.close()
        with pytest.raises(LocalError, match="closed"):
            crash.attach(outbox)


@pytest.mark.guarantee("G9")
def test_a_made_up_record_is_read_without_harm() -> None:
    with Wires() as wires:
        wires.poke(Role.ENV, lib.dsec_page_offset(5), b"\x01\0\0\0" + b"\xff" * 100)
        record = read_crash(wires.segments[Role.ENV].fd)
        assert record is not None
        assert record.phase is Phase.IDLE


def test_a_new_incarnation_starts_with_a_clean_record() -> None:
    with Wires() as wires:
        die(wires, fault)
        wires.outbox(Role.ENV)
        assert read_crash(wires.segments[Role.ENV].fd) is None

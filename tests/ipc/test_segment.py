"""Segments: reserved, sealed, read-only for everybody else, and legible after a death."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsec.errors import CorruptRingError, LocalError, MachineError, PeerError
from dsec.ipc import memory, segment
from dsec.ipc._ring import ffi, lib
from dsec.ipc.frames import Phase, Role
from tests.ipc.rings import Wires, child


def test_create_reserves_and_seals() -> None:
    made = segment.create("sealed", Role.ENV, 8192, epoch=7)
    try:
        info = os.fstat(made.fd)
        assert made.size == 4096 + 8192
        assert info.st_size == made.size + segment.OVERFLOW_BYTES, "which takes no memory"
        assert info.st_blocks * 512 < made.size + 4096
        assert info.st_blocks * 512 >= made.size, "the memory is there, not only promised"
        assert fcntl.fcntl(made.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        for resize in (1, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(made.fd, resize)
        with pytest.raises(PermissionError):
            fcntl.fcntl(made.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        segment.check(made.fd, made.size)
    finally:
        made.close()
        made.close()
    assert made.fd == -1


@pytest.mark.parametrize("data_bytes", [1, 2048, 4095, 5000, 12288, 2**33, -4096])
def test_only_powers_of_two_make_a_ring(data_bytes: int) -> None:
    with pytest.raises(LocalError, match="power of two"):
        segment.create("odd", Role.ENV, data_bytes, epoch=1)


def test_a_role_without_a_ring_has_only_the_header_page() -> None:
    with Wires(0) as wires:
        outbox = wires.outbox(Role.RECORDER)
        assert (outbox.capacity, len(outbox.buffer)) == (0, 0)


def test_start_must_be_aligned() -> None:
    with pytest.raises(LocalError, match="multiples of 64"):
        segment.create("odd", Role.ENV, 4096, epoch=1, start=65)


def test_no_memory_is_an_error_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "CAPACITY_MAX", 1 << 60)
    with pytest.raises(MachineError) as caught:
        segment.create("huge", Role.ENV, 1 << 50, epoch=1)
    assert f"{(1 << 50) + 4096:,} bytes" in str(caught.value)
    assert f"{memory.available_bytes():,}"[:3] in str(caught.value)
    assert "ring_slots" in caught.value.remedy


def test_no_descriptor_is_an_error_with_a_remedy() -> None:
    def exhaust() -> None:
        keep = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                keep.append(os.dup(0))
        with pytest.raises(MachineError, match="ulimit -n"):
            segment.create("none left", Role.ENV, 4096, epoch=1)
        with pytest.raises(MachineError, match="ulimit -n"):
            segment.readonly(0)

    with child(exhaust) as forked:
        assert forked.wait() == 0


def test_a_limit_of_file_sizes_is_an_error_with_a_remedy() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(MachineError, match=r"8,192 bytes: File too large.*ulimit -f"):
            segment.create("too large", Role.ENV, 4096, epoch=1)

    with child(limit) as forked:
        assert forked.wait() == 0


@pytest.mark.guarantee("G9")
def test_a_read_only_descriptor_cannot_be_mapped_for_writing() -> None:
    with Wires() as wires:
        made = wires.segments[Role.ENV]
        fd = segment.readonly(made.fd)
        try:
            assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            with pytest.raises(PermissionError):
                mmap.mmap(fd, made.size, prot=mmap.PROT_WRITE)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.pwrite(fd, b"x", 0)
            segment.check(fd, made.size)
            with pytest.raises(TypeError):
                wires.peer(Role.ENV).buffer[0] = 1
        finally:
            os.close(fd)


@pytest.mark.guarantee("G9")
def test_check_refuses_what_is_no_sealed_segment_of_that_size() -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    end, other = os.pipe()
    try:
        os.ftruncate(unsealed, 8192)
        with pytest.raises(PeerError, match="isn't sealed"):
            segment.check(unsealed, 8192)
        with pytest.raises(PeerError, match="8192 bytes was handed over as one of 4096"):
            segment.check(unsealed, 4096)
        with pytest.raises(PeerError, match="no memory file"):
            segment.check(end, 8192)
    finally:
        for fd in (unsealed, end, other):
            os.close(fd)
    with pytest.raises(PeerError, match="no memory file"):
        segment.check(unsealed, 8192)


def test_the_layout_is_what_the_documents_say() -> None:
    assert segment.HEADER_BYTES == 4096
    assert ffi.sizeof("dsec_head") == 32
    offsets = {
        name: ffi.offsetof("dsec_head", name)
        for name in ("position", "seq", "nbytes", "epoch", "kind", "flags", "mark")
    }
    assert offsets == {
        "position": 0,
        "seq": 8,
        "nbytes": 16,
        "epoch": 20,
        "kind": 24,
        "flags": 26,
        "mark": 28,
    }
    record = {
        name: ffi.offsetof("dsec_record", name)
        for name in ("seq", "offset", "nbytes", "epoch", "kind", "flags")
    }
    assert record == {"seq": 0, "offset": 8, "nbytes": 16, "epoch": 20, "kind": 24, "flags": 26}
    assert [lib.dsec_page_offset(i) for i in range(7)] == [128, 256, 384, 512, 1024, 3072, 4096]
    assert [int(role) for role in Role] == [0, 1, 2, 3, 4], "roles are cursor slots"


def test_the_progress_word_says_phase_time_and_seq() -> None:
    with Wires() as wires:
        word = segment.ProgressWord(wires.segments[Role.ENV].fd)
        before = time.monotonic_ns()
        outbox = wires.outbox(Role.ENV)
        assert word.read()[0] is Phase.IDLE
        outbox.enter(Phase.STEP, 2**40)
        phase, since, seq = word.read()
        assert (phase, seq) == (Phase.STEP, 2**40)
        assert before <= since <= time.monotonic_ns()
        outbox.enter(Phase.STEP, 2**40 + 1)
        again = word.read()
        assert again[1] >= since
        assert again[2] == seq + 1
        word.close()
        word.close()
        with pytest.raises(LocalError, match="closed"):
            word.read()


@pytest.mark.guarantee("G9")
def test_a_progress_word_that_is_none_is_the_runners_fault() -> None:
    with Wires() as wires:
        word = segment.ProgressWord(wires.segments[Role.ENV].fd)
        wires.poke(Role.ENV, lib.dsec_page_offset(3), b"\xff" * 16)
        with pytest.raises(CorruptRingError, match="phase 255"):
            word.read()
        word.close()


def test_no_numpy_in_what_the_kernel_imports() -> None:
    code = (
        "import sys, dsec.ipc.segment, dsec.ipc.doorbell, dsec.ipc.ring, dsec.ipc.join, "
        "dsec.ipc.group, dsec.ipc.crash; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_event_loop_in_what_every_runner_imports() -> None:
    code = "import sys, dsec.runners.zygote; assert not {'asyncio', 'ssl'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", ["n" * 400, "\u4e2d" * 200, "\U0001f916" * 100, "a\0b", "\ud800"])
def test_a_name_of_any_length_and_script_makes_a_segment(name: str) -> None:
    made = segment.create(name, Role.REWARD, 4096, epoch=1)
    try:
        target = str(Path(f"/proc/self/fd/{made.fd}").readlink())
        assert target.startswith("/memfd:") and len(target.encode()) <= 249 + 7 + len(" (deleted)")
    finally:
        made.close()

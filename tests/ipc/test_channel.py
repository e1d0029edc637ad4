"""Control channels over real socket pairs: the blocking face, with its descriptors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from dsec.errors import (
    ChannelClosed,
    ChannelTimeout,
    FrameError,
    LocalError,
    MachineError,
)
from dsec.ipc import channel, datagrams, frames
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import FRAME_BYTES_MAX, Drain, Go, Hello
from tests.ipc.wire import (
    close_all,
    descriptors,
    identity,
    is_open,
    memfds,
    no_descriptors_left,
    send_raw,
)

LARGE = Drain("x" * (FRAME_BYTES_MAX - 100))
WAIT_S = 10.0


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    a, b = (Channel(sock) for sock in pair())
    yield a, b
    a.close()
    b.close()


def test_frames_arrive_in_order_with_their_descriptors(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    files = memfds(3)
    want = [identity(fd) for fd in files]
    a.send(Hello(1))
    a.send(Go(True), files)
    close_all(files)
    assert b.recv(WAIT_S) == (Hello(1), [])
    frame, got = b.recv(WAIT_S)
    assert frame == Go(True) and [identity(fd) for fd in got] == want
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in got)
    close_all(got)


def test_sockets_are_close_on_exec_and_closing_twice_is_nothing() -> None:
    a, b = pair()
    assert not a.get_inheritable() and not b.get_inheritable()
    one = Channel(a)
    one.close()
    one.close()
    assert one.fileno() == -1
    for use in (one.pending, lambda: one.send(Hello(1)), lambda: one.recv(0.0), one.arm_sigio):
        with pytest.raises(LocalError, match="closed on this side"):
            use()
    b.close()


def test_sixteen_descriptors_fit_and_seventeen_do_not(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    files = memfds(1) * 17
    with pytest.raises(LocalError, match="17 descriptors"):
        a.send(Hello(1), files)
    a.send(Hello(1), files[:16])
    os.close(files[0])
    got = b.recv(WAIT_S)[1]
    assert len(got) == 16
    close_all(got)


def test_the_largest_frame_fits_without_a_reader(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    a.send(LARGE, timeout_s=0.0)
    assert b.recv(WAIT_S)[0] == LARGE


def test_recv_ends_with_a_timeout(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    with pytest.raises(ChannelTimeout) as caught:
        b.recv(0.01)
    assert isinstance(caught.value, TimeoutError)
    a.send(Hello(1))
    assert b.recv(0.0)[0] == Hello(1)


def test_a_full_channel_drops_or_times_out_and_works_again(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    sent = 0
    while a.try_send(Hello(sent)):
        sent += 1
        assert sent < 100_000
    assert sent > 10
    with pytest.raises(ChannelTimeout, match="Hello: the other end took nothing"):
        a.send(Hello(-1), timeout_s=0.05)
    assert [b.recv(0.0)[0] for _ in range(sent)] == [Hello(i) for i in range(sent)]
    a.send(Hello(-2), timeout_s=0.0)
    assert b.recv(0.0)[0] == Hello(-2) and not b.pending()


def test_send_waits_for_a_reader(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    sent = 0
    while a.try_send(LARGE):
        sent += 1
    reader = threading.Thread(target=lambda: [b.recv(WAIT_S) for _ in range(sent + 1)])
    reader.start()
    a.send(LARGE, timeout_s=WAIT_S)
    reader.join(WAIT_S)
    assert not reader.is_alive() and not b.pending()


def test_what_was_sent_is_read_before_the_end(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    a.send(Hello(1))
    a.close()
    assert b.pending()
    assert b.recv(WAIT_S)[0] == Hello(1)
    assert b.pending()
    with pytest.raises(ChannelClosed):
        b.recv(WAIT_S)
    with pytest.raises(ChannelClosed):
        b.send(Hello(2))
    with pytest.raises(ChannelClosed):
        b.try_send(Hello(2))


@pytest.mark.guarantee("G6")
def test_last_words_are_read_although_the_peer_left_something_unread(
    ends: tuple[Channel, Channel],
) -> None:
    # The kernel then puts ECONNRESET ahead of the frames; a death must keep its cause.
    a, b = ends
    b.send(Drain("unread"))
    a.send(Hello(1))
    a.send(Hello(2))
    a.close()
    assert [b.recv(WAIT_S)[0], b.recv(WAIT_S)[0]] == [Hello(1), Hello(2)]
    with pytest.raises(ChannelClosed):
        b.recv(WAIT_S)


def test_a_reset_seen_by_send_hides_no_frames(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    b.send(Drain("unread"))
    a.send(Hello(1))
    a.close()
    with pytest.raises(ChannelClosed):
        b.send(Hello(9))
    assert b.recv(WAIT_S)[0] == Hello(1)


def test_garbage_is_a_frame_error_and_its_descriptors_are_closed() -> None:
    a, b = pair()
    with a, contextlib.closing(Channel(b)) as reader:
        files = memfds(2)
        send_raw(a, b"\x01garbage", files)
        send_raw(a, bytes(FRAME_BYTES_MAX + 1), files)
        before = descriptors()
        with pytest.raises(FrameError, match="not a control frame"):
            reader.recv(WAIT_S)
        with pytest.raises(FrameError, match="larger than"):
            reader.recv(WAIT_S)
        assert descriptors() == before
        send_raw(a, frames.encode(Hello(3)))
        assert reader.recv(WAIT_S)[0] == Hello(3)
        close_all(files)


def test_too_many_descriptors_from_a_peer_are_refused_and_closed() -> None:
    a, b = pair()
    with a, contextlib.closing(Channel(b)) as reader:
        files = memfds(1) * 40
        send_raw(a, frames.encode(Hello(1)), files)
        before = descriptors()
        with pytest.raises(FrameError, match="more than 16"):
            reader.recv(WAIT_S)
        assert descriptors() == before
        os.close(files[0])


def test_an_empty_datagram_ends_the_stream_and_its_descriptors_are_closed() -> None:
    a, b = pair()
    with a, contextlib.closing(Channel(b)) as reader:
        files = memfds(1)
        send_raw(a, b"", files)
        before = descriptors()
        with pytest.raises(ChannelClosed):
            reader.recv(WAIT_S)
        assert descriptors() == before
        close_all(files)


def test_out_of_descriptors_is_told_on_both_sides(ends: tuple[Channel, Channel]) -> None:
    a, b = ends
    files = memfds(2)
    a.send(Hello(1), files)
    with no_descriptors_left():
        with pytest.raises(FrameError, match="limit of"):
            b.recv(WAIT_S)
        with pytest.raises(MachineError, match="2 more descriptors"):
            pair()
    close_all(files)


def test_an_inherited_descriptor_becomes_a_channel() -> None:
    a, b = pair()
    number = b.detach()
    os.set_inheritable(number, True)
    with contextlib.closing(Channel.from_fd(number)) as taken, a:
        assert taken.fileno() == number and not os.get_inheritable(number)
        send_raw(a, frames.encode(Hello(1)))
        assert taken.recv(WAIT_S)[0] == Hello(1)


def test_descriptors_that_are_no_channel_are_refused_and_left_open() -> None:
    stream = socket.socketpair()
    (file,) = memfds(1)
    for fd in (stream[0].fileno(), file):
        with pytest.raises(LocalError, match="descriptor"):
            Channel.from_fd(fd)
        assert is_open(fd)
    os.close(file)
    for sock in stream:
        sock.close()


def test_sending_a_closed_descriptor_is_our_mistake(ends: tuple[Channel, Channel]) -> None:
    (fd,) = memfds(1)
    os.close(fd)
    with pytest.raises(LocalError, match="can't send"):
        ends[0].send(Hello(1), [fd])


@pytest.mark.parametrize("signum", [signal.SIGIO, signal.SIGRTMIN + 3])
def test_an_arriving_frame_sends_the_signal(ends: tuple[Channel, Channel], signum: int) -> None:
    a, b = ends
    before = signal.getsignal(signum)
    came: list[int] = []
    signal.signal(signum, lambda number, _frame: came.append(number))
    try:
        b.arm_sigio(signum)
        assert not came
        a.send(Hello(1))
        # A signal to oneself is delivered before the system call that caused it returns.
        assert came == [signum]
        assert b.recv(WAIT_S)[0] == Hello(1)
        a.close()
        assert signum in came[1:]
    finally:
        b.close()
        signal.signal(signum, before)


def test_arming_replaces_an_action_that_would_kill(ends: tuple[Channel, Channel]) -> None:
    assert signal.getsignal(signal.SIGIO) == signal.SIG_DFL
    try:
        ends[1].arm_sigio()
        assert callable(signal.getsignal(signal.SIGIO))
        ends[0].send(Hello(1))
        assert ends[1].recv(WAIT_S)[0] == Hello(1)
    finally:
        ends[1].close()
        signal.signal(signal.SIGIO, signal.SIG_DFL)


def test_arming_from_another_thread_is_our_mistake(ends: tuple[Channel, Channel]) -> None:
    raised: list[BaseException] = []

    def arm() -> None:
        try:
            ends[1].arm_sigio()
        except LocalError as error:
            raised.append(error)

    thread = threading.Thread(target=arm)
    thread.start()
    thread.join(WAIT_S)
    assert len(raised) == 1


def test_a_shortage_in_the_kernel_is_waited_out(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    # ETOOMANYREFS needs an unprivileged sender with thousands of descriptors in flight.
    short = [2]

    def sendmsg(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
        if short[0]:
            short[0] -= 1
            raise OSError(errno.ETOOMANYREFS, "Too many references")
        datagrams.sendmsg(sock, data, fds)

    monkeypatch.setattr(channel, "sendmsg", sendmsg)
    a, b = ends
    a.send(Hello(1))
    assert short[0] == 0
    short[0] = 1
    assert not a.try_send(Hello(2))
    assert b.recv(WAIT_S)[0] == Hello(1)

"""The control plane's bytes: whatever comes, it is a message that was meant so, or an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec import errors
from dsec.errors import FrameError, RemotePoolError, VersionMismatch, WrongToken
from dsec.sml.remote import wire
from dsec.sml.remote.handshake import ClientSide, ServerSide
from dsec.sml.remote.wire import DIGEST_BYTES, FRAME_BYTES_MAX, LENGTH, Envelope, Framer

TOKEN = b"t" * 32


def shaken(client: ClientSide, server: ServerSide) -> None:
    challenge = server.challenge(client.hello())
    client.finish(server.welcome(client.answer(challenge)))


def test_both_ends_have_the_same_keys_and_each_session_has_others() -> None:
    keys = []
    for _ in range(2):
        client, server = ClientSide(TOKEN), ServerSide(TOKEN)
        shaken(client, server)
        assert client.keys == server.keys
        keys += [*client.keys]
    assert len(set(keys)) == 4


def test_a_peer_without_the_token_gets_nothing_and_fools_nobody() -> None:
    client, server = ClientSide(b"x" * 32), ServerSide(TOKEN)
    proof = client.answer(server.challenge(client.hello()))
    with pytest.raises(WrongToken):
        server.welcome(proof)
    client, false = ClientSide(TOKEN), ServerSide(b"x" * 32)
    proof = client.answer(false.challenge(client.hello()))
    with pytest.raises(WrongToken):
        client.finish(wire.Proof(proof.digest))  # its own, sent back
    with pytest.raises(WrongToken):
        client.finish(wire.Proof(b""))


def test_another_version_is_named_on_both_sides() -> None:
    with pytest.raises(VersionMismatch, match=r"version 7 .* this host 1"):
        ServerSide(TOKEN).challenge(wire.Hello(7, b"n" * 32))
    with pytest.raises(VersionMismatch, match="version 9"):
        ClientSide(TOKEN).answer(wire.Challenge(9, b"n" * 32))
    with pytest.raises(VersionMismatch, match="version 2"):
        ClientSide(TOKEN).answer(wire.Refused("Whatever", "", version=2))


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_a_frame_error(data: bytes) -> None:
    framer = Framer(b"x")
    if len(data) >= LENGTH.size:
        try:
            framer.length(data[: LENGTH.size])
        except FrameError:
            return
    try:
        framer.unpack(data)
    except FrameError:
        return


@given(st.data())
def test_a_frame_that_was_changed_repeated_or_left_out_is_noticed(data: st.DataObject) -> None:
    out, into = Framer(b"a"), Framer(b"a")
    out.secure(b"k" * 32)
    into.secure(b"k" * 32)
    frames = [out.pack(Envelope(n, wire.Renew(n)))[LENGTH.size :] for n in range(3)]
    what = data.draw(st.sampled_from(["change", "repeat", "leave out", "other way"]))
    assert into.unpack(frames[0]) == Envelope(0, wire.Renew(0))
    if what == "change":
        at = data.draw(st.integers(0, len(frames[1]) - 1))
        bad = bytearray(frames[1])
        bad[at] ^= 1 << data.draw(st.integers(0, 7))
    elif what == "other way":
        other = Framer(b"b")
        other.secure(b"k" * 32)
        other.pack(Envelope(0, wire.Renew(0)))
        bad = bytearray(other.pack(Envelope(1, wire.Renew(1)))[LENGTH.size :])
    else:
        bad = bytearray(frames[0 if what == "repeat" else 2])
    with pytest.raises(FrameError, match="changed on its way"):
        into.unpack(bytes(bad))


def test_frames_have_a_limit_on_both_sides() -> None:
    with pytest.raises(FrameError, match="at most"):
        Framer(b"a").pack(Envelope(0, wire.Ask({"x": "y" * FRAME_BYTES_MAX})))
    with pytest.raises(FrameError, match="at most"):
        Framer(b"a").length(LENGTH.pack(FRAME_BYTES_MAX + 1))
    secured = Framer(b"a")
    secured.secure(b"k")
    assert secured.length(LENGTH.pack(5)) == 5 + DIGEST_BYTES


def test_errors_travel_by_name_and_no_other_class_can_be_had_by_one() -> None:
    for error in (
        errors.PoolFull("no room", "make some"),
        errors.AtomExists("there is one"),
        errors.FencedOut("late"),
        errors.PoolBusy("again"),
    ):
        back = wire.raised(wire.refusal(error))
        assert type(back) is type(error)
        assert str(back) == str(error)
    for name in ("KeyboardInterrupt", "ConfigError", "DsecError", "Diagnostic", "lacks_memory"):
        assert type(wire.raised(wire.Refused(name, "text"))) is RemotePoolError

"""Atoms to bytes and back; every way in which bytes are no atom has its own name."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import re
import struct

import pytest
import xxhash
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import (
    AtomCorrupt,
    AtomError,
    AtomForeign,
    AtomTooNew,
    AtomTooOld,
    AtomTruncated,
    LocalError,
)
from dsec.sml import asa_pb2, codec, generate
from dsec.sml.atom import Atom, Manifest, RewardWindow, Snapshot
from tests.sml.atoms import ATOMS, cartpole_atom, full_atom


def reframed(data: bytes, **changes: int) -> bytes:
    """The same stored bytes under a head with other values, its checksums made to fit."""
    names = ("version", "flags", "length", "stored", "zero", "total")
    values = dict(zip(names, codec._HEAD.unpack_from(data)[1:], strict=True)) | changes
    head = codec._HEAD.pack(codec.MAGIC, *values.values())
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + data[codec.HEAD_BYTES :]


def framed(message: bytes) -> bytes:
    total = xxhash.xxh3_64_intdigest(message)
    return reframed(
        bytes(codec.HEAD_BYTES) + message, version=1, length=len(message), stored=len(message),
        total=total,
    )  # fmt: skip


@given(ATOMS)
def test_an_atom_comes_back_as_it_was(atom: Atom) -> None:
    data = codec.encode(atom)
    assert codec.decode(data) == atom
    assert codec.encode(codec.decode(data)) == data


def test_a_full_atom_comes_back_as_it_was() -> None:
    atom = full_atom()
    assert codec.decode(codec.encode(atom)) == atom
    assert [each.unresolved for each in atom.tools] == [False, True]
    assert atom.rewards is not None
    assert atom.rewards.steps == 2


def test_absent_is_not_the_same_as_empty() -> None:
    bare = Atom(full_atom().manifest)
    empty = Atom(
        bare.manifest, rewards=RewardWindow(0, 0, 0, b""), policy=Snapshot("", b""), tools=()
    )
    assert codec.decode(codec.encode(bare)) == bare
    assert codec.decode(codec.encode(empty)) == empty


def test_atoms_of_version_1_are_read_for_ever() -> None:
    assert codec.decode(bytes.fromhex(GOLDEN)) == full_atom()


def test_an_atom_of_a_cartpole_agent_is_small() -> None:
    assert len(codec.encode(cartpole_atom(7))) <= 20_000
    assert len(codec.encode(cartpole_atom(7, twisters=0))) <= 4_000


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("atom", [full_atom(), cartpole_atom(1)], ids=["small", "cartpole"])
def test_every_truncation_is_named(atom: Atom) -> None:
    data = codec.encode(atom)
    for length in (*range(60), *range(60, len(data), 97), len(data) - 1):
        with pytest.raises(AtomTruncated):
            codec.decode(data[:length])


@pytest.mark.guarantee("G9")
def test_every_flipped_bit_is_named() -> None:
    data = codec.encode(full_atom())
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AtomCorrupt):
            codec.decode(bytes(flipped))


def test_what_follows_an_atom_is_named() -> None:
    with pytest.raises(AtomCorrupt, match="has"):
        codec.decode(codec.encode(full_atom()) + b"x")


def test_older_and_newer_versions_are_named_with_both_numbers() -> None:
    data = codec.encode(full_atom())
    with pytest.raises(AtomTooOld, match="version 0; this reads 1 to 1"):
        codec.decode(reframed(data, version=0))
    with pytest.raises(AtomTooNew, match=r"version 2.*this reads 1 to 1"):
        codec.decode(reframed(data, version=2))
    with pytest.raises(AtomTooNew, match="flags"):
        codec.decode(reframed(data, flags=4))
    assert codec.decode(reframed(data)) == full_atom()


@pytest.mark.parametrize("data", [b"PAR1" + bytes(60), b"\x80\x04K\x01." + bytes(60), bytes(100)])
def test_foreign_bytes_are_named(data: bytes) -> None:
    with pytest.raises(AtomForeign):
        codec.decode(data)


def test_foreign_content_in_a_right_frame_is_named() -> None:
    with pytest.raises(AtomForeign, match="something else"):
        codec.decode(framed(b"\xff\xff\xff"))
    with pytest.raises(AtomForeign, match="manifest"):
        codec.decode(framed(b""))
    message = asa_pb2.Atom()
    message.manifest.uuid = bytes(16)
    message.env.add(faith=77)
    with pytest.raises(AtomForeign, match="77"):
        codec.decode(framed(message.SerializeToString()))
    data = codec.encode(full_atom())
    assert codec._HEAD.unpack_from(data)[2] == 1, "this one is compressed"
    with pytest.raises(AtomForeign, match="holds"):
        codec.decode(reframed(data, length=5))
    with pytest.raises(AtomForeign, match="zstd"):
        noise = framed(b"no zstd at all")
        codec.decode(reframed(noise, flags=1))


@pytest.mark.guarantee("G9")
@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_an_atom_error(data: bytes, in_a_frame: bool) -> None:
    try:
        codec.decode(framed(data) if in_a_frame else data)
    except AtomError:
        return
    raise AssertionError("a manifest with a UUID doesn't come about by chance")


@pytest.mark.guarantee("G9")
@given(ATOMS, st.randoms(use_true_random=False))
def test_damaged_content_in_a_right_frame_never_escapes(atom: Atom, rng: random.Random) -> None:
    message = bytearray(codec._write(atom).SerializeToString())
    for _ in range(rng.randint(1, 4)):
        if message:
            message[rng.randrange(len(message))] = rng.randrange(256)
    with contextlib.suppress(AtomError):
        codec.decode(framed(bytes(message)))


@pytest.mark.parametrize(
    "manifest",
    [
        Manifest(-1, full_atom().manifest.uuid, "a", 0, 0, 0, 0),
        Manifest(1 << 64, full_atom().manifest.uuid, "a", 0, 0, 0, 0),
        Manifest(0, full_atom().manifest.uuid, "a", 1 << 32, 0, 0, 0),
        Manifest(0, full_atom().manifest.uuid, "\ud800", 0, 0, 0, 0),
    ],
)
def test_what_has_no_place_in_an_atom_is_refused(manifest: Manifest) -> None:
    with pytest.raises(LocalError, match="atom"):
        codec.encode(Atom(manifest))


# ------------------------------------------------------------------ the generated code is fresh


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="no grpcio-tools")
def test_the_generated_code_is_what_protoc_makes_of_the_source() -> None:
    text = generate.rendered(generate.compiled())
    assert generate.TARGET.read_text() == text, "python -m dsec.sml.generate"


def test_the_generated_code_has_the_fields_of_the_source() -> None:
    """The same without protoc: names, numbers and reserved ranges, read from the text."""
    source = re.sub(r"//.*", "", generate.SOURCE.read_text())
    file = descriptor_pb2.FileDescriptorProto.FromString(asa_pb2.DESCRIPTOR)
    assert file.package == re.findall(r"package ([\w.]+);", source)[0]
    blocks = re.findall(r"message (\w+) \{\n(.*?)\n\}", source, re.DOTALL)
    assert [name for name, _ in blocks] == [each.name for each in file.message_type]
    for (name, block), message in zip(blocks, file.message_type, strict=True):
        found = [(n, int(number)) for n, number in re.findall(r"(\w+) = (\d+)[; ]", block)]
        assert sorted(found) == sorted((each.name, each.number) for each in message.field), name
        reserved = [(int(a), int(b) + 1) for a, b in re.findall(r"reserved (\d+) to (\d+);", block)]
        assert reserved == [(each.start, each.end) for each in message.reserved_range], name


def test_the_next_number_of_each_message_is_right() -> None:
    """Written above each message, so that nobody takes a number twice."""
    source = generate.SOURCE.read_text()
    file = descriptor_pb2.FileDescriptorProto.FromString(asa_pb2.DESCRIPTOR)
    said = re.findall(r"// Next number: (\d+)\nmessage (\w+)", source)
    largest = {m.name: max(each.number for each in m.field) for m in file.message_type}
    assert {name: int(number) for number, name in said} == {
        name: number + 1 for name, number in largest.items()
    }


GOLDEN = """
44 53 45 43 41 54 4f 4d 01 00 01 00 58 05 00 00 88 01 00 00 00 00 00 00 c3 d4 bb c4 99 5a 70 8c
08 47 e4 d3 34 0b 7f d1 28 b5 2f fd 60 58 04 f5 0b 00 a6 55 53 40 50 49 ac 03 c0 73 66 22 aa 10
29 14 ae aa aa aa 1a fa 36 23 f4 4a 0a c9 0a 0d 61 48 49 89 81 8c 08 ed c0 99 7a 99 d9 d0 46 eb
78 98 e9 8d 3b 02 21 6e 10 14 11 85 84 3c d0 0f 01 b7 51 1a 49 32 43 00 47 00 3e 00 dc 48 8a 3b
f3 06 e5 be 88 ba 2c 33 17 ed f3 12 61 eb 89 c6 c9 9e b9 de ba 73 19 95 e3 b9 21 98 db b7 80 19
0c 26 78 42 17 41 78 0b 54 0d e5 4d 96 df 30 9e 77 c1 75 e8 41 16 59 ad a2 15 2e a6 80 79 6c 03
02 6c 36 98 05 09 2e 6e 93 a0 3e 2a 2d fc 58 c5 62 c8 40 15 44 0e 3c 48 69 2a 28 2a 94 09 4d 22
9b 44 40 48 1e 70 e4 42 1e 8e 86 83 65 60 97 55 55 6a 7a ba 7d d3 56 33 ab 9a 70 a5 a6 af f6 d1
65 04 74 0c 78 aa b9 1c c9 70 33 4b dd cd cd cb 44 b8 cf 74 cf dd 7c 12 c6 00 30 75 3f 3f 0e 78
ef b9 61 bf a4 75 09 ba d7 4e 7c cb c0 1c 0d d4 22 7c db c0 55 f6 79 5b e1 bf f9 6d 85 6b 46 29
bd aa c5 ba 98 eb be 4f 32 bc ec 6f 20 30 3e 27 6e 6d 56 8d ba 8f 39 be d7 f0 ef 20 3c 07 0a 79
d6 a6 a5 51 17 7f dd 07 6e 94 0c 94 74 e0 a5 20 06 52 ca 29 d1 8d 9b 32 cb 7d 12 36 5d e0 de 22
6a 1e 11 00 f0 2e 59 0a de 76 a3 d8 9b 68 51 07 b2 80 7c c1 c0 45 25 01 0d 03 1c aa 36 46 b1 84
67 20 0a 3d 03 0d 68 20 1c d0 39 40 87 0f 10 07
"""

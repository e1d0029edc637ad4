"""An atom to bytes and back. The one file that sees protobuf and zstd.

The bytes are a frame, whose layout never changes, and the message of asa.proto in it, compressed
where that saves something (random state is as good as noise). The frame has checksums of itself and
of what is in it, so every way in which bytes can be no atom has an error of its own:

    bytes  0 magic | 8 version | 10 flags | 12 length of the message | 16 length as stored
          20 zero | 24 xxh3 of what is stored | 32 xxh3 of bytes 0 to 31 | 40 what is stored

Decoding trusts nothing, and reads nothing that could run code.
"""

from __future__ import annotations

import operator
import struct
import threading
import uuid
from typing import Any

import xxhash
import zstandard
from google.protobuf.message import DecodeError

from dsec.errors import (
    AtomCorrupt,
    AtomForeign,
    AtomTooNew,
    AtomTooOld,
    AtomTruncated,
    LocalError,
)
from dsec.sml import asa_pb2
from dsec.sml.atom import (
    Atom,
    Faith,
    Generator,
    JsonScalar,
    Manifest,
    RandomState,
    RewardWindow,
    Role,
    Seed,
    Snapshot,
    ToolCall,
)

VERSION = 1
OLDEST = 1
"""The oldest version that is still read."""
ATOM_BYTES_MAX = 1 << 30

MAGIC = b"DSECATOM"
HEAD_BYTES = 40
_HEAD = struct.Struct("<8sHHIIIQ")
_SUM = struct.Struct("<Q")
_ZSTD = 1
_COMPRESSED_MIN = 512  # bytes below which compressing isn't tried
_ROLES = {int(role): role for role in Role}
_FAITHS = {int(faith): faith for faith in Faith}
_GENERATOR = operator.attrgetter(
    "role", "kind", "where", "engine", "state", "position", "has_spare", "spare_uint", "spare_gauss"
)
_MANIFEST = operator.attrgetter(
    "agent", "agent_rank", "episode", "rollout", "seq", "chain", "config"
)
_FLIPPED_BITS_MAX = 8  # in the magic; more, and it's somebody else's


class _Tools(threading.local):
    """One compressor and decompressor for each thread: they must not be shared."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_tools = _Tools()


def encode(atom: Atom) -> bytes:
    """The bytes of an atom; equal atoms give equal bytes.

    Raises:
        LocalError: a value is outside its range, or the whole is larger than ATOM_BYTES_MAX.
    """
    try:
        message = _write(atom).SerializeToString(deterministic=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalError(f"atom {atom.manifest.id} of {atom.manifest.agent}: {error}") from None
    if len(message) > ATOM_BYTES_MAX:
        raise LocalError(
            f"atom {atom.manifest.id} of {atom.manifest.agent} has {len(message):,} bytes, "
            f"at most {ATOM_BYTES_MAX:,}"
        )
    stored, flags = message, 0
    if len(message) >= _COMPRESSED_MIN:
        smaller = _tools.compressor.compress(message)
        if len(smaller) < len(message) - len(message) // 16:
            stored, flags = smaller, _ZSTD
    head = _HEAD.pack(
        MAGIC, VERSION, flags, len(message), len(stored), 0, xxhash.xxh3_64_intdigest(stored)
    )
    return b"".join((head, _SUM.pack(xxhash.xxh3_64_intdigest(head)), stored))


def decode(data: bytes) -> Atom:
    """The atom of these bytes.

    Raises:
        AtomTruncated: they end too early.
        AtomCorrupt: some of them were changed.
        AtomTooOld, AtomTooNew: of a version that this doesn't read.
        AtomForeign: they never were an atom.
    """
    message = asa_pb2.Atom()
    try:
        message.ParseFromString(_unframe(data))
    except DecodeError as error:
        raise AtomForeign(f"an atom's frame around something else: {error}") from None
    if not message.HasField("manifest") or len(message.manifest.uuid) != 16:
        raise AtomForeign("an atom's frame around a message without a manifest")
    try:
        return _read(message)
    except (ValueError, KeyError) as error:  # a number that no enumeration has
        raise AtomForeign(f"an atom's frame around a message of others: {error}") from None


def _unframe(data: bytes) -> bytes:
    """What is in the frame, proven."""
    magic = data[:8]
    if len(magic) < 8 and MAGIC.startswith(magic):
        raise AtomTruncated(f"{len(data)} bytes: an atom begins with a head of {HEAD_BYTES}")
    if magic != MAGIC:
        flipped = int.from_bytes(magic, "big") ^ int.from_bytes(MAGIC, "big")
        if flipped.bit_count() <= _FLIPPED_BITS_MAX and len(magic) == 8:
            raise AtomCorrupt(f"an atom's first bytes are damaged: {magic!r}")
        raise AtomForeign(f"this is no atom: it begins with {magic!r}")
    if len(data) < HEAD_BYTES:
        raise AtomTruncated(f"{len(data)} bytes: an atom begins with a head of {HEAD_BYTES}")
    _, version, flags, length, stored, _, total = _HEAD.unpack_from(data)
    (proof,) = _SUM.unpack_from(data, _HEAD.size)
    if xxhash.xxh3_64_intdigest(data[: _HEAD.size]) != proof:
        raise AtomCorrupt("an atom's head is damaged: its checksum doesn't fit")
    if version < OLDEST:
        raise AtomTooOld(f"an atom of version {version}; this reads {OLDEST} to {VERSION}")
    if version > VERSION or flags & ~_ZSTD:
        raise AtomTooNew(
            f"an atom of version {version} (flags {flags:#x}); this reads {OLDEST} to {VERSION}. "
            "Update dsec-kernel"
        )
    if len(data) < HEAD_BYTES + stored:
        raise AtomTruncated(f"an atom of {HEAD_BYTES + stored:,} bytes ends after {len(data):,}")
    if len(data) > HEAD_BYTES + stored:
        raise AtomCorrupt(f"an atom of {HEAD_BYTES + stored:,} bytes has {len(data):,}")
    body = data[HEAD_BYTES:]
    if xxhash.xxh3_64_intdigest(body) != total:
        raise AtomCorrupt("an atom's content is damaged: its checksum doesn't fit")
    return _unpacked(body, length) if flags & _ZSTD else body


def _unpacked(body: bytes, length: int) -> bytes:
    """Decompressed; never more than its head and its frame agree on."""
    try:
        said = zstandard.frame_content_size(body)
        if said != length or length > ATOM_BYTES_MAX:
            raise AtomForeign(f"an atom of {length:,} bytes holds {said:,}")
        return _tools.decompressor.decompress(body)
    except zstandard.ZstdError as error:
        raise AtomForeign(f"an atom's frame around no zstd: {error}") from None


def _write(atom: Atom) -> Any:
    message = asa_pb2.Atom()
    m, to = atom.manifest, message.manifest
    to.id, to.uuid, to.agent, to.agent_rank = m.id, m.uuid.bytes, m.agent, m.agent_rank
    to.episode, to.rollout, to.seq = m.episode, m.rollout, m.seq
    to.chain, to.config, to.fork_index = m.chain, m.config, m.fork_index
    if m.parent is not None:
        to.parent = m.parent
    for generator in atom.random.generators:
        _write_generator(generator, message.random.generators.add())
    for name, value in atom.random.flags:
        _write_flag(value, message.random.flags.add(name=name))
    for snapshot in atom.env:
        _write_snapshot(snapshot, message.env.add())
    if (window := atom.rewards) is not None:
        into = message.rewards
        into.SetInParent()
        into.length, into.first_seq, into.num_envs = (
            window.length,
            window.first_seq,
            window.num_envs,
        )
        into.rewards, into.raw = window.rewards, window.raw
        if window.state is not None:
            _write_snapshot(window.state, into.state)
    if atom.policy is not None:
        _write_snapshot(atom.policy, message.policy)
    for call in atom.tools:
        added = message.tools.add(call=call.call, seq=call.seq, tool=call.tool, error=call.error)
        added.arguments, added.idempotent = call.arguments, call.idempotent
        if call.result is not None:
            added.result = call.result
    for name, snapshot in atom.registered:
        _write_snapshot(snapshot, message.registered.add(name=name).state)
    message.observation = atom.observation
    return message


def _write_generator(generator: Generator, to: Any) -> None:
    to.role, to.kind = int(generator.role), generator.kind
    to.where, to.engine = generator.where, generator.engine
    if generator.seed is not None:
        seed = generator.seed
        to.seed.SetInParent()
        to.seed.entropy, to.seed.pool_size = seed.entropy, seed.pool_size
        to.seed.children_spawned = seed.children_spawned
        to.seed.spawn_key.extend(seed.spawn_key)
    if generator.state is not None:
        to.state = generator.state
    to.position, to.has_spare = generator.position, generator.has_spare
    to.spare_uint, to.spare_gauss = generator.spare_uint, generator.spare_gauss


def _write_flag(value: JsonScalar, to: Any) -> None:
    if isinstance(value, bool):
        to.boolean = value
    elif isinstance(value, int):
        to.integer = value
    elif isinstance(value, float):
        to.real = value
    else:
        to.text = value


def _write_snapshot(snapshot: Snapshot, to: Any) -> None:
    to.SetInParent()
    to.codec, to.data, to.faith = snapshot.codec, snapshot.data, int(snapshot.faith)
    to.evidence, to.index = snapshot.evidence, snapshot.index


def _read(message: Any) -> Atom:
    m, state = message.manifest, message.random
    parent = m.parent if m.HasField("parent") else None
    agent, rank, episode, rollout, seq, chain, config = _MANIFEST(m)
    flags, tools, registered = state.flags, message.tools, message.registered
    return Atom(
        Manifest(
            m.id, uuid.UUID(bytes=m.uuid), agent, rank, episode, rollout, seq, chain, config,
            parent, m.fork_index,
        ),
        RandomState(
            tuple([_read_generator(each) for each in state.generators]),
            tuple([(each.name, _read_flag(each)) for each in flags]) if flags else (),
        ),
        tuple([_read_snapshot(each) for each in message.env]),
        _read_window(message.rewards) if message.HasField("rewards") else None,
        _read_snapshot(message.policy) if message.HasField("policy") else None,
        tuple([_read_call(each) for each in tools]) if tools else (),
        tuple([(each.name, _read_snapshot(each.state)) for each in registered])
        if registered
        else (),
        message.observation,
    )  # fmt: skip


def _read_generator(g: Any) -> Generator:
    seed = None
    if g.HasField("seed"):
        s = g.seed
        key = tuple(s.spawn_key) if s.spawn_key else ()
        seed = Seed(s.entropy, key, s.pool_size, s.children_spawned)
    role, kind, where, engine, state, position, spare, spare_uint, spare_gauss = _GENERATOR(g)
    if not state and not g.HasField("state"):
        state = None
    return Generator(
        _ROLES[role], kind, where, engine, seed, state, position, spare, spare_uint, spare_gauss
    )


def _read_flag(flag: Any) -> JsonScalar:
    which = flag.WhichOneof("value")
    if which is None:
        raise ValueError(f"flag {flag.name!r} has no value")
    value: JsonScalar = getattr(flag, which)
    return value


def _read_snapshot(s: Any) -> Snapshot:
    return Snapshot(s.codec, s.data, _FAITHS[s.faith], s.evidence, s.index)


def _read_window(w: Any) -> RewardWindow:
    state = _read_snapshot(w.state) if w.HasField("state") else None
    return RewardWindow(w.length, w.first_seq, w.num_envs, w.rewards, w.raw, state)


def _read_call(c: Any) -> ToolCall:
    result = c.result if c.HasField("result") else None
    return ToolCall(c.call, c.seq, c.tool, c.arguments, result, c.error, c.idempotent)

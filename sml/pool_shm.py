"""The pool in shared memory of this machine: one named segment, one writer, any number of readers.

Owns the seam to the C core (pool.h says how a segment is laid out) and turns its codes into
exceptions. A reader maps the segment read-only and believes nothing it finds. A writer adopts what
an earlier one left: what that had published is there, whole. Knows nothing of what an atom means.

A process of the same user that truncates a segment under a reader ends that reader (SIGBUS): a
named segment can't be sealed. Runners that are not trusted run under a user of their own.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from dsec.errors import (
    AtomAbsent,
    AtomCorrupt,
    AtomExists,
    AtomTooLarge,
    LocalError,
    MachineError,
    PoolBusy,
    PoolCorrupt,
    PoolForeign,
    PoolFull,
    PoolTooNew,
    PoolTooOld,
    PoolTruncated,
    PoolUnfinished,
)
from dsec.sml import named
from dsec.sml._pool import ffi, lib
from dsec.sml.pool import Body, Entry, Label, Marks, Usage

if TYPE_CHECKING:
    from dsec.sml._pool import CData

ATOM_BYTES_TYPICAL = 16 << 10  # by which an index is sized where nobody says how many atoms
METADATA_BYTES = lib.ASA_HEAD + lib.ASA_CELLS_AN_ATOM * lib.ASA_CELL
ID_MAX = (1 << 62) - 1
_BUFFER_BYTES = 64 << 10
_SCAN = 512  # atoms that a list fetches at a time
_WORD = (1 << 32) - 1

_HEADERS = {
    lib.ASA_BAD_MAGIC: (PoolForeign, "this is no pool: it begins with {found:#x}"),
    lib.ASA_BAD_UNFINISHED: (PoolUnfinished, "its maker died, or is at work still"),
    lib.ASA_BAD_OLD: (PoolTooOld, "layout version {found}; this reads {wanted}"),
    lib.ASA_BAD_NEW: (PoolTooNew, "layout version {found}; this reads {wanted}"),
    lib.ASA_BAD_IDENT: (PoolCorrupt, "its header is damaged (sum {found:#x}, not {wanted:#x})"),
    lib.ASA_BAD_SIZE: (PoolTruncated, "it has {found:,} bytes, not {wanted:,}"),
    lib.ASA_BAD_GEOMETRY: (PoolCorrupt, "{found:,} cells don't fit before byte {wanted:,}"),
}
_ATOMS = {
    lib.ASA_BAD_CELL: "cell {cell} leads to {found:#x}, where no atom can be",
    lib.ASA_BAD_LENGTH: "cell {cell} leads to {found:,} bytes where {wanted:,} are left",
    lib.ASA_BAD_GENERATION: "cell {cell} leads to generation {found}, not {wanted}",
    lib.ASA_BAD_SUM: "cell {cell} leads to bytes with sum {found:#x}, not {wanted:#x}",
}


def _unusable(name: str, fault: CData) -> NoReturn:
    kind, text = _HEADERS[fault.what]
    raise kind(f"pool {name}: {text.format(found=fault.found, wanted=fault.wanted)}")


def _entry(found: CData) -> Entry:
    head = found.head
    label = Label(head.id, head.agent, head.episode, head.rollout, head.seq, head.created_s)
    return Entry(label, head.nbytes, found.room, head.generation, Marks(found.marks))


class _Segment:
    """A mapped segment and the reader's half of the interface.

    Attributes:
        name: of the pool.
    """

    def __init__(self, segment: named.Named) -> None:
        self.name = segment.name
        self._segment = segment
        try:
            self._memory = None if segment.size == 0 else segment.map()
        except BaseException:
            segment.close()
            raise
        self._base = ffi.NULL if self._memory is None else self._address()
        self._view: CData = ffi.new("asa_view *")
        self._found = ffi.new("asa_found *")
        self._desk = ffi.new("asa_desk *")
        self._enlarge(_BUFFER_BYTES)

    def _enlarge(self, nbytes: int) -> None:
        self._buffer = ffi.new("uint8_t[]", nbytes)
        self._bytes = memoryview(ffi.buffer(self._buffer))
        self._desk.buffer, self._desk.room = self._buffer, nbytes

    def _address(self) -> CData:
        return ffi.from_buffer("uint8_t[]", self._memory, require_writable=self._segment.owner)

    @property
    def space(self) -> tuple[int, int]:
        """The name space of this pool's UUIDs."""
        return self._view.space[0], self._view.space[1]

    @property
    def mapping(self) -> tuple[int, int]:
        """Address and length of the segment in this process: for who registers it."""
        return int(ffi.cast("uintptr_t", self._base)), self._segment.size

    @property
    def persist(self) -> bool:
        """May it outlive its kernel?"""
        return bool(self._view.flags & lib.ASA_PERSIST)

    @property
    def created_s(self) -> int:
        """When it was made, Unix time."""
        return int(self._view.created_s)

    def get(self, atom_id: int) -> bytes:
        """See PoolReader.get."""
        try:
            found = lib.asa_fetch(self._desk, atom_id)
        except OverflowError:
            found = lib.ASA_ABSENT
        if found == lib.ASA_SMALL:
            self._enlarge(lib.asa_room(self._desk.found.head.nbytes))
            return self.get(atom_id)
        if found < 0:
            self._fail(found, atom_id)
        return self._bytes[:found].tobytes()

    def entry(self, atom_id: int) -> Entry:
        """See PoolReader.entry."""
        try:
            rc = lib.asa_find(self._view, atom_id, self._found)
        except OverflowError:
            rc = lib.ASA_ABSENT
        if rc != lib.ASA_OK:
            self._fail(rc, atom_id)
        return _entry(self._found)

    def entries(self) -> Iterator[Entry]:
        """See PoolReader.entries."""
        if self._memory is None:
            self._fail(lib.ASA_MISUSE, 0)
        cell, found = ffi.new("uint64_t *"), ffi.new("asa_found[]", _SCAN)
        while count := lib.asa_scan(self._view, cell, found, _SCAN):
            yield from [_entry(found[i]) for i in range(count)]

    def usage(self) -> Usage:
        """See PoolReader.usage."""
        entries = list(self.entries())
        return self._usage(
            len(entries), sum(each.nbytes for each in entries), sum(each.room for each in entries)
        )

    def _usage(self, atoms: int, payload: int, room: int) -> Usage:
        view = self._view
        most = view.ncells // lib.ASA_CELLS_AN_ATOM
        return Usage(atoms, most, payload, room, view.grains * lib.ASA_GRAIN, self._segment.size)

    def _fail(self, rc: int, atom_id: int, fault: CData | None = None) -> NoReturn:
        where = f"atom {atom_id} of pool {self.name}"
        if rc == lib.ASA_ABSENT:
            raise AtomAbsent(f"there is no {where}")
        if rc == lib.ASA_BUSY:
            raise PoolBusy(f"{where}: its place was reused under every try")
        if rc == lib.ASA_CORRUPT:
            fault = fault or self._view.fault
            text = _ATOMS[fault.what]
            raise AtomCorrupt(
                f"{where}: " + text.format(cell=fault.cell, found=fault.found, wanted=fault.wanted)
            )
        raise LocalError(f"pool {self.name}: used after close")

    def close(self) -> None:
        """Unmap it and close its descriptor. Idempotent."""
        self._view.base = ffi.NULL
        self._view.ncells = 0
        if self._memory is not None:
            memory, self._memory = self._memory, None
            ffi.release(self._base)
            memory.close()
        self._segment.close()

    def __enter__(self) -> _Segment:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class ShmReader(_Segment):
    """Reads a pool that another process writes.

    Args:
        name: of the pool.

    Raises:
        PoolAbsent: there is none.
        PoolError: it is none that this version can read; the subclass says why.
    """

    def __init__(self, name: str) -> None:
        super().__init__(named.attach(name))
        if lib.asa_view_open(self._view, self._base, self._segment.size) != lib.ASA_OK:
            fault = self._view.fault
            self.close()
            _unusable(name, fault)
        self._desk.view = self._view

    def __enter__(self) -> ShmReader:
        return self

    def owner(self) -> int | None:
        """Process id of the living writer; None if there is none. Only to be printed."""
        return named.owner_of(self._segment)


class ShmPool(_Segment):
    """The writer. Use `create` or `adopt`; as a context manager it is closed, not unlinked.

    Attributes:
        dropped: atoms that were damaged when it was adopted, and were taken out.
    """

    def __init__(self, segment: named.Named, *, verify: bool) -> None:
        super().__init__(segment)
        self._pool = ffi.new("asa_pool *")
        self._meta = ffi.new("asa_head *")
        rc = lib.asa_pool_open(self._pool, self._base, segment.size, int(verify))
        if rc != lib.ASA_OK:
            fault = self._pool.fault
            self.close()
            if rc == lib.ASA_CORRUPT:
                _unusable(segment.name, fault)
            raise MachineError(f"pool {segment.name}: no memory for its bookkeeping", "")
        self._view = self._desk.view = ffi.addressof(self._pool, "view")
        self.dropped = int(self._pool.dropped)

    def __enter__(self) -> ShmPool:
        return self

    @classmethod
    def create(
        cls,
        name: str,
        size_bytes: int,
        *,
        atoms_max: int | None = None,
        persist: bool = False,
        bound: bool = False,
        space: tuple[int, int] | None = None,
    ) -> ShmPool:
        """Make a pool; all its memory is reserved.

        Args:
            name: letters, digits, dots and dashes.
            size_bytes: of the segment; rounded up to pages.
            atoms_max: size of the index, 16 bytes an atom; by default for atoms of 16 KiB.
            persist: may it outlive its kernel? Else dsec-rdma-gc takes it away when that is gone.
            bound: a kernel holds it (named.hold) as long as it lives. If that and the writer are
                gone, and nobody told it to `persist`, whoever starts next takes it away.
            space: name space of its UUIDs, two 64-bit numbers; by default random.

        Raises:
            LocalError: too small for one atom.
            PoolExists, MachineError: see named.create.
        """
        pages = -(-size_bytes // lib.ASA_PAGE)
        atoms = atoms_max or max(64, size_bytes // ATOM_BYTES_TYPICAL)
        least = 2 * lib.ASA_PAGE + atoms * lib.ASA_CELLS_AN_ATOM * lib.ASA_CELL
        if pages * lib.ASA_PAGE < least:
            raise LocalError(
                f"pool {name}: {size_bytes:,} bytes are too few for one atom and an index for "
                f"{atoms:,}: it takes {least:,} (pool.size_mb)"
            )
        segment = named.create(name, pages * lib.ASA_PAGE)
        try:
            memory = segment.map()
            base = ffi.from_buffer("uint8_t[]", memory, require_writable=True)
            words = space or (secrets.randbits(64), secrets.randbits(64))
            flags = (lib.ASA_PERSIST if persist else 0) | (lib.ASA_BOUND if bound else 0)
            now = int(time.time())
            rc = lib.asa_format(
                base, segment.size, atoms, flags, ffi.new("uint64_t[2]", words), now
            )
            ffi.release(base)
            memory.close()
            if rc != lib.ASA_OK:
                raise LocalError(f"pool {name}: can't be {size_bytes:,} bytes for {atoms:,} atoms")
            return cls(segment, verify=False)
        except BaseException:
            if segment.fd < 0:  # closed by the pool that couldn't be opened
                segment = named.adopt(name)
            segment.unlink()
            segment.close()
            raise

    @classmethod
    def adopt(cls, name: str, *, verify: bool = True) -> ShmPool:
        """Become the writer of a pool whose earlier writer is gone.

        Args:
            verify: look at every checksum; what is damaged is taken out and counted in `dropped`.

        Raises:
            PoolAbsent, PoolOwned: see named.adopt.
            PoolError: it is none that this version can use; it isn't touched.
        """
        return cls(named.adopt(name), verify=verify)

    @property
    def epoch(self) -> int:
        """See Pool.epoch."""
        return int(self._view.epoch)

    def put(self, label: Label, body: Body) -> None:
        """See Pool.put."""
        head = self._meta
        if not 0 <= label.id <= ID_MAX:
            raise LocalError(f"an atom's id is from 0 to 2**62 - 1, not {label.id}")
        try:
            head.id, head.seq = label.id, label.seq
            head.agent, head.episode = label.agent, label.episode
            head.rollout, head.created_s = label.rollout, label.created_s
        except OverflowError:
            raise LocalError(f"a number is out of range in {label}") from None
        data = ffi.from_buffer("uint8_t[]", body)
        rc = lib.asa_put(self._pool, head, data, len(data))
        if rc != lib.ASA_OK:
            self._refuse(rc, label.id, len(data))

    def _refuse(self, rc: int, atom_id: int, nbytes: int) -> NoReturn:
        pool, area = f"pool {self.name}", self._view.grains * lib.ASA_GRAIN
        if rc == lib.ASA_EXISTS:
            raise AtomExists(f"{pool} has an atom {atom_id} already")
        if rc == lib.ASA_TOO_LARGE:
            raise AtomTooLarge(
                f"an atom of {nbytes:,} bytes takes more than the whole of {pool}: {area:,} bytes "
                "(pool.size_mb)"
            )
        usage = self.usage()
        if rc == lib.ASA_NO_CELL:
            raise PoolFull(
                f"{pool} holds {usage.atoms:,} atoms, as many as its index was made for",
                "Keep fewer, or make it with a larger atoms_max.",
            )
        if rc == lib.ASA_NO_SPACE:
            free = usage.data_bytes - usage.room_bytes
            raise PoolFull(
                f"{pool} has no place for an atom that takes {lib.asa_room(nbytes):,} bytes: "
                f"{free:,} of {area:,} are free, but in smaller pieces",
                "Keep fewer atoms, or make the pool larger (pool.size_mb).",
            )
        if rc == lib.ASA_NO_MEMORY:
            raise MachineError(f"{pool}: no memory for its bookkeeping", "")
        if nbytes == 0:
            raise LocalError("an atom has at least one byte")
        raise LocalError(f"{pool}: used after close")

    def free(self, atom_id: int) -> None:
        """See Pool.free."""
        self._do(lib.asa_free(self._pool, self._checked(atom_id)), atom_id)

    def mark(self, atom_id: int, marks: Marks) -> None:
        """See Pool.mark."""
        self._do(lib.asa_mark(self._pool, self._checked(atom_id), int(marks)), atom_id)

    def _checked(self, atom_id: int) -> int:
        if not 0 <= atom_id <= ID_MAX:
            raise AtomAbsent(f"there is no atom {atom_id} of pool {self.name}")
        return atom_id

    def _do(self, rc: int, atom_id: int) -> None:
        if rc != lib.ASA_OK:
            self._fail(rc, atom_id, self._pool.fault)

    def lease(self) -> int:
        """See Pool.lease."""
        block = lib.asa_lease(self._pool)
        if block < 0:
            raise LocalError(f"pool {self.name}: closed, or its blocks of ids are used up")
        return int(block)

    def usage(self) -> Usage:
        """See PoolReader.usage; without looking at each atom."""
        pool = self._pool
        return self._usage(pool.live, pool.payload, pool.arena.used * lib.ASA_GRAIN)

    def succeed(self) -> None:
        """Be its next writer, in the same place: as after close and adopt, but the mapping stays,
        which others may be reading."""
        lib.asa_pool_close(self._pool)
        rc = lib.asa_pool_open(self._pool, self._base, self._segment.size, 1)
        if rc != lib.ASA_OK:
            raise LocalError(f"pool {self.name}: used after close, or no memory ({rc})")
        self.dropped = int(self._pool.dropped)

    def unlink(self) -> None:
        """Take its name away; readers keep what they have mapped."""
        self._segment.unlink()

    def close(self) -> None:
        """See PoolReader.close. The segment stays, for whoever adopts it."""
        lib.asa_pool_close(self._pool)
        super().close()

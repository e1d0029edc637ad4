"""Where another host's atoms arrive: slots that it has leased, and the words that say when.

Owns the memory of one writer's slots. Each slot is a mapping of its own; the words of all are
close together on a page apart from data, one for each slot, and have one kind of access: the writer
far away stores them, this process loads them. A slot counts as whole when its word is the
generation that it was leased under and its checksum fits; until then nobody looks at it, so that a
writer that dies in the middle of a WRITE leaves nothing. A generation is never leased twice.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final

from dsec.errors import AtomTorn, LocalError, MachineError, StaleLease
from dsec.sml.pool import Label
from dsec.sml.remote.transport import WORD_BYTES, Access, Region, Transport
from dsec.sml.remote.words import (
    HEAD_BYTES,
    address_of,
    head_of,
    load_word,
    memory_of,
    proven,
)

SLOTS_MAX: Final = 16
ROOM_MIN: Final = 64 << 10
BYTES_MAX: Final = 1 << 30


@dataclass(slots=True)
class Slot:
    """One that is leased.

    Attributes:
        room: bytes that it has.
        generation: it is leased under; what its word has to be.
    """

    number: int
    memory: mmap.mmap
    region: Region
    room: int
    generation: int

    @property
    def word_offset(self) -> int:
        """Of its word."""
        return self.number * WORD_BYTES


class Landing:
    """The slots of one writer.

    Args:
        transport: by which it writes.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._words = mmap.mmap(-1, mmap.PAGESIZE)
        self._words_region: Region | None = None
        self._slots: dict[int, Slot] = {}
        self._generation = 0

    @property
    def words(self) -> Region:
        """The region of the words, once a slot is leased."""
        assert self._words_region is not None, "a slot was leased"
        return self._words_region

    async def lease(self, nbytes: int) -> Slot:
        """A slot for header and body of so many bytes.

        Raises:
            MachineError: as many slots, or bytes, as a writer may have; or no memory.
        """
        if len(self._slots) >= SLOTS_MAX:
            raise MachineError(f"a writer may lease {SLOTS_MAX} slots", "Give some back first")
        room = max(ROOM_MIN, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        if room + sum(each.room for each in self._slots.values()) > BYTES_MAX:
            raise MachineError(
                f"a writer may lease {BYTES_MAX:,} bytes at once; {room:,} more are too many",
                "Make atoms smaller",
            )
        if self._words_region is None:
            self._words_region = await self._register(self._words, mmap.PAGESIZE)
        number = next(n for n in range(SLOTS_MAX) if n not in self._slots)
        try:
            memory = mmap.mmap(-1, room)
        except OSError as error:
            raise MachineError(f"no memory for {room:,} bytes: {error}", "") from None
        try:
            region = await self._register(memory, room)
        except BaseException:
            memory.close()
            raise
        self._generation += 1
        slot = self._slots[number] = Slot(number, memory, region, room, self._generation)
        return slot

    async def give_back(self, number: int) -> None:
        """The writer wants a slot no more; none of its writes there is under way."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            await self._drop(slot)

    def take(self, number: int) -> tuple[Label, memoryview]:
        """What has landed in a slot: whose atom, and its body, which stays there until `renew`.

        Raises:
            StaleLease: no such slot is leased.
            AtomTorn: the word, or the checksum, says that it isn't all there.
        """
        slot = self._slot(number)
        if not self._landed(slot):
            raise AtomTorn(f"slot {number} was not published under generation {slot.generation}")
        return self._proven(slot)

    def renew(self, number: int) -> Slot:
        """Lease the same slot for another atom, under another generation."""
        slot = self._slot(number)
        self._generation += 1
        slot.generation = self._generation
        return slot

    def left(self) -> tuple[list[tuple[Label, bytes]], list[int]]:
        """What a writer that is gone has left: atoms that are whole and were published but not
        taken, and the slots in which it had begun to write one and not come to its end."""
        whole, halves = [], []
        for slot in self._slots.values():
            try:
                label, body = self.take(slot.number)
                whole.append((label, bytes(body)))
            except AtomTorn:
                if head_of(slot.memory[:HEAD_BYTES]).generation == slot.generation & 0xFFFF_FFFF:
                    halves.append(slot.number)
        return whole, halves

    async def close(self) -> None:
        """Take everything away. The writer's connection is closed before."""
        for number in list(self._slots):
            await self.give_back(number)
        if self._words_region is not None:
            region, self._words_region = self._words_region, None
            await self._transport.unregister(region)
        self._words.close()

    # ------------------------------------------------------------ inside

    async def _register(self, memory: mmap.mmap, nbytes: int) -> Region:
        return await self._transport.register(address_of(memory), nbytes, Access.WRITE)

    async def _drop(self, slot: Slot) -> None:
        await self._transport.unregister(slot.region)
        slot.memory.close()

    def _slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            raise StaleLease(f"slot {number} is not leased, or not any more")
        return slot

    def _landed(self, slot: Slot) -> bool:
        return load_word(self.words.address + slot.word_offset) == slot.generation

    def _proven(self, slot: Slot) -> tuple[Label, memoryview]:
        memory = memory_of(slot.region.address, slot.room)
        head = head_of(memory)
        end = HEAD_BYTES + head.nbytes
        if end > slot.room or head.nbytes == 0:
            raise AtomTorn(f"slot {slot.number} holds a header of {head.nbytes:,} bytes")
        if not proven(slot.generation, head.id, memory[:end]):
            raise AtomTorn(f"slot {slot.number} holds bytes that are not what was to be written")
        return head.label, memory[HEAD_BYTES:end]


def slot_bytes(body_bytes: int) -> int:
    """What a body takes in a slot. Raises LocalError: nothing is no atom."""
    if body_bytes < 1:
        raise LocalError("an atom has at least one byte")
    return HEAD_BYTES + body_bytes

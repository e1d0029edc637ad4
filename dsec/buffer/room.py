"""The memory of one trajectory buffer: what it takes, the threshold, and who has to go for it.

Owns the lanes, the arena in which they lie compressed, and the claims of those who hold some of it.
What lanes take is counted when it changes, and never summed up: a push asks for it several times.
"""

from __future__ import annotations

from dsec.buffer import spans
from dsec.buffer.arena import Arena, aligned
from dsec.buffer.figures import Footprint, mib
from dsec.buffer.lane import SEGMENT_BYTES, Claim, Lane, Tiers
from dsec.buffer.planes import Quantization
from dsec.buffer.spans import Span
from dsec.errors import BufferFull, BufferTooLarge
from dsec.ipc.memory import available_bytes

_BLOCK_MIN = 64 << 10
_PAGE = 4096


class Room:
    """Who is in a buffer, and how much of it there is.

    Args:
        threshold: bytes that it never exceeds.
        prealloc: bytes for what is compressed that are taken with the first lane, at most.

    Attributes:
        lanes: by their agents, in the order in which they came.
        claims: what is held.
        arena: None until there is a lane.
    """

    def __init__(self, tiers: Tiers, threshold: int, prealloc: int) -> None:
        self._tiers, self._threshold, self._prealloc = tiers, threshold, prealloc
        self.lanes: dict[str, Lane] = {}
        self.claims: list[Claim] = []
        self.arena: Arena | None = None
        self._fixed = 0
        self._fixed_of: dict[str, int] = {}

    @property
    def fixed(self) -> int:
        """Bytes that the lanes take beside the arena."""
        return self._fixed

    @property
    def taken(self) -> int:
        """Bytes that count against the threshold."""
        return self._fixed + (self.arena.committed if self.arena is not None else 0)

    def count(self, lane: Lane) -> None:
        """Count what a lane takes beside the arena, now that it may be something else."""
        now = lane.fixed_bytes
        self._fixed += now - self._fixed_of.get(lane.agent, 0)
        self._fixed_of[lane.agent] = now

    def held(self, lane: Lane) -> list[Span]:
        """The steps of a lane that are held."""
        if not self.claims:
            return []
        return spans.union(
            span for claim in self.claims for span in claim.steps.get(lane.agent, ())
        )

    def planned(self, lane: Lane) -> Footprint:
        """What a buffer with this lane alone will take."""
        fixed = lane.fixed_bytes
        block = _block(lane)
        most = min(fixed + aligned(lane.worst_bytes(), block) + block, self._threshold)
        ahead = min(self._prealloc, lane.expected_bytes(), max(most - fixed, 0))
        plain = self._tiers.length * (lane.obs.nbytes + lane.action.nbytes)
        return Footprint(fixed, ahead // block * block, most, plain)

    def admit(self, lane: Lane) -> None:
        """Let a new agent in, if there is memory for it.

        Raises:
            BufferTooLarge: there isn't; nothing was allocated.
        """
        size = self.planned(lane)
        if self.arena is None:
            block = _block(lane)
            if size.fixed + block > self._threshold:
                raise BufferTooLarge(
                    f"one agent takes {mib(size.fixed)} before anything is compressed, and blocks "
                    f"of {mib(block)} then, which is more than gc_threshold_mb "
                    f"({mib(self._threshold)}): raise that, or lower max_length, full_steps or "
                    "key_every"
                )
            free = available_bytes()
            if free is not None and size.most > free:
                raise BufferTooLarge(
                    f"the buffer may take {mib(size.most)}, and this machine has {mib(free)} free: "
                    "lower gc_threshold_mb to what there is"
                )
            blocks = (self._threshold - size.fixed) // block
            self.arena = Arena(block, blocks, min(size.preallocated // block, blocks))
        else:
            while self.taken + size.fixed > self._threshold:
                if not self._free_one():
                    raise BufferTooLarge(
                        f"another agent takes {mib(size.fixed)} more, and the buffer has "
                        f"{mib(self.taken)} of {mib(self._threshold)} (gc_threshold_mb) in use"
                    )
        self.lanes[lane.agent] = lane
        self.count(lane)

    def make(self, lane: Lane, how: Quantization) -> None:
        """Do what is due before a step comes in, freeing the oldest where memory lacks.

        Raises:
            BufferFull: there is nothing to free that isn't held.
        """
        arena, first = self.arena, lane.steps - self._tiers.length
        assert arena is not None, "a lane is there"
        if first >= 0 and spans.touches(self.held(lane), first, first):
            raise BufferFull(
                f"step {first} of agent {lane.agent!r} is held, and max_length is "
                f"{self._tiers.length:,}: release the hold, or raise max_length"
            )
        self._fit(arena, SEGMENT_BYTES)
        for store in lane.due():
            coded, cast = store.code(how)
            self._fit(arena, SEGMENT_BYTES + arena.more(coded.nbytes), coded.nbytes)
            place = arena.place(coded.parts, coded.nbytes)
            assert place is not None, "an arena has as many blocks as the threshold"
            store.placed(place, coded, cast)

    def _fit(self, arena: Arena, more: int, chunk: int = 0) -> None:
        """Free what is oldest until so many bytes more are within the threshold.

        Raises:
            BufferFull: there is nothing to free that isn't held.
        """
        while self.taken + more > self._threshold or (chunk and not arena.has_room(chunk)):
            if not self._free_one():
                raise BufferFull(
                    f"the buffer has {mib(self.taken)} of {mib(self._threshold)} "
                    "(gc_threshold_mb) in use and all that could be freed is held: release a hold, "
                    "or raise gc_threshold_mb"
                )
            more = min(more, SEGMENT_BYTES + arena.more(chunk)) if chunk else more

    def _free_one(self) -> bool:
        """Free the chunk that the reward's decay weighs least; whether there was one."""
        oldest: tuple[int, Lane] | None = None
        for lane in self.lanes.values():
            chunk = lane.oldest_chunk(self.held(lane))
            if chunk is not None and (oldest is None or lane.steps - chunk.last > oldest[0]):
                oldest = lane.steps - chunk.last, lane
        if oldest is None:
            return False
        lane = oldest[1]
        held = self.held(lane)
        chunk = lane.oldest_chunk(held)
        assert chunk is not None, "it was there a moment ago"
        lane.give_up(chunk, held)
        return True


def _block(lane: Lane) -> int:
    return aligned(max(lane.largest_chunk(), _BLOCK_MIN), _PAGE)

"""Reading a ring in an asyncio loop: what is awaited is an eventfd, which the ring's writer writes.

For consumers that serve more than one ring, or other descriptors beside it. Runners read with
`Reader.next`, which is faster and knows no loop. No numpy here.
"""

from __future__ import annotations

import asyncio

from dsec.errors import LocalError, RingTimeout
from dsec.ipc.doorbell import Doorbell
from dsec.ipc.ring import Reader
from dsec.ipc.segment import role_name


class AsyncReader:
    """A `Reader` whose `next` is awaited. One task at a time may wait.

    The bell belongs to this reader alone and the caller closes it. Its descriptor goes to the
    writer's process, which passes it on to `Outbox.add_reader`: without that the records are still
    read, and no wake-up comes.

    Attributes:
        ring: the reader; its attributes say what the current record is, and `release` is its.
        bell: the eventfd.
    """

    def __init__(self, ring: Reader, bell: Doorbell) -> None:
        self.ring, self.bell = ring, bell

    async def next(self, timeout_s: float) -> None:
        """Make the next record the current one, waiting for it in the loop.

        Raises:
            RingTimeout: nothing came within the limit.
            CorruptRingError: the writer wrote what it may not; names it.
            LocalError: closed.
        """
        if self.ring.try_next():
            return
        if self.bell.fd < 0:
            raise LocalError("this reader's doorbell was closed")
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.bell.fd, rung.set)
        try:
            async with asyncio.timeout(timeout_s):
                # A ring of the bell says only "look again": an old one may still be in it.
                while self.ring.arm():
                    await rung.wait()
                    rung.clear()
                    self.bell.drain()
        except TimeoutError:
            self.ring.disarm()
            if not self.ring.try_next():  # one may have come with the limit
                writer = role_name(self.ring.peer.role)
                raise RingTimeout(f"timed out waiting for a record on the {writer} ring") from None
            return
        except asyncio.CancelledError:
            self.ring.disarm()
            raise
        finally:
            loop.remove_reader(self.bell.fd)
        self.ring.try_next()

"""What a codec is: bytes out of one object, and back into it or into another constructed alike.

Owns the protocol and the promise only. Whether a codec keeps the promise for a given environment is
not decided by its type: the self-check (selfcheck.py) tries it, and a replay compares again.
"""

from __future__ import annotations

from typing import Protocol


class Codec(Protocol):
    """The state of one object, its wrappers and its random generators included.

    The promise: after `restore(data)` the object does from then on, bit for bit, what the captured
    one did from its `capture()` on. The object is either the captured one, at any later time, or
    one constructed in the same way in a process of the same image. `restore` works in place:
    whoever holds the object, or a bound method of it, keeps a valid reference.
    """

    name: str

    def capture(self) -> bytes:
        """The state now, as bytes. The object is not changed.

        Raises:
            SnapshotError: something in it can't be held; the message names the attribute.
        """

    def restore(self, data: bytes | memoryview) -> None:
        """Put a captured state into the object.

        Raises:
            SnapshotError: these bytes are no state of such an object.
        """

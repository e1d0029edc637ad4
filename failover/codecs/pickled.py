"""The last resort: the whole object as one pickle.

Owns nothing but the way around an object that the attribute plan can't hold and that knows how to
pickle itself. Many environments *claim* to and rebuild themselves from their constructor's
arguments, their state lost without a word; so nobody may use this codec whom the self-check has not
told that it is faithful. What it reads was written by the same role of the same agent; the keeper
has verified its checksum.
"""

from __future__ import annotations

import pickle
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs import tensors
from dsec.failover.codecs.plan import AttributePlan

_MARK = b"dsec pickle 1\0"


class PickleCodec:
    """The object's attributes are taken from an unpickled copy; its identity stays.

    The generators of the process are kept beside it, as in every codec (`globals_too`, as in
    AttributePlan).

    Raises:
        SnapshotError: the object can't be pickled.
    """

    name = "pickle"

    def __init__(self, root: Any, *, globals_too: bool = True) -> None:
        if not hasattr(root, "__dict__"):
            raise SnapshotError("it has no attributes that could be replaced")
        self._root = root
        self._process = AttributePlan(
            None, called="process", natives=tensors.kinds, globals_too=globals_too
        )
        self._dumps()

    def _dumps(self) -> bytes:
        try:
            return pickle.dumps(self._root, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever a class's own __reduce__ raises
            raise SnapshotError(f"it can't be pickled: {error}") from None

    def capture(self) -> bytes:
        """Pickle it.

        Raises:
            SnapshotError: it can't be pickled any more.
        """
        return whole(self._process.capture(), self._dumps())

    def restore(self, data: bytes | memoryview) -> None:
        """Unpickle a copy and take over its attributes.

        Raises:
            SnapshotError: these bytes are no pickle of such an object.
        """
        process, dumped = parts(data)
        copy = loaded(dumped)
        if type(copy) is not type(self._root):
            raise SnapshotError(f"the pickled state is of a {type(copy).__qualname__}")
        self._process.restore(process)
        fields = self._root.__dict__
        fields.clear()
        fields.update(copy.__dict__)


def whole(process: bytes, dumped: bytes) -> bytes:
    """The state, of the process's generators and the pickle."""
    return _MARK + len(process).to_bytes(8, "little") + process + dumped


def parts(data: bytes | memoryview) -> tuple[memoryview, memoryview]:
    """The mirror of `whole`.

    Raises:
        SnapshotError: these bytes are no such state.
    """
    view = memoryview(data)
    start = len(_MARK) + 8
    if view[: len(_MARK)] != _MARK or len(view) < start:
        raise SnapshotError("these bytes are no pickled state")
    end = start + int.from_bytes(view[len(_MARK) : start], "little")
    return view[start:end], view[end:]


def loaded(dumped: memoryview) -> Any:
    """The object of a pickle.

    Raises:
        SnapshotError: it can't be read.
    """
    try:
        return pickle.loads(dumped)
    except Exception as error:
        raise SnapshotError(f"the pickled state can't be read: {error}") from None

"""MuJoCo's model and data as nodes: the integration state, and everything computed from it.

Owns the reading and writing of `mjData`. `mjSTATE_INTEGRATION` is what the next `mj_step` depends
on, the solver's warm start included. It is not enough by itself: environments read positions of
bodies, contact forces and the like *before* they step, and after a step those belong to an earlier
instant than the integrated state. Computing them again gives other numbers. So all computed arrays
of fixed size, which lie in one block of memory, are kept as well. Contacts and constraints are not:
each step makes its own.

The model is part of the program. A fingerprint of it is kept, so that a model that was changed (by
domain randomisation, say) is noticed and never silently mixed with another.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from dsec.errors import SnapshotError
from dsec.failover.codecs.reading import Reader
from dsec.failover.codecs.writing import Kind, Refused, Writer


def _memory(owner: Any, first: Any) -> memoryview:
    """The block of `nbuffer` bytes that begins with the field `first`."""
    block = (ctypes.c_char * owner.nbuffer).from_address(first.ctypes.data)
    return memoryview(block).cast("B")


class Model:
    """An `MjModel`. Content: nothing; its head is a fingerprint."""

    tag = "mjm"

    def __init__(self, mujoco: Any) -> None:
        self._mujoco = mujoco
        self._type = mujoco.MjModel

    def head(self, node: Any, writer: Writer) -> Any:
        """The hash of the model as MuJoCo writes it to a file."""
        if node.nplugin:
            raise Refused("holds a MuJoCo model with plugins, whose state dsec can't read")
        written = np.empty(self._mujoco.mj_sizeModel(node), np.uint8)
        self._mujoco.mj_saveModel(node, None, written)
        return xxhash.xxh3_128_digest(written.data)

    def read(self, node: Any, writer: Writer) -> Any:
        """Nothing."""

    def track(self, node: Any) -> Callable[[Writer], Any]:
        """Look whether the arrays of the model are still what they were."""
        memory = _memory(node, node.qpos0)
        first = xxhash.xxh3_64_intdigest(memory)

        def read(writer: Writer) -> Any:
            if xxhash.xxh3_64_intdigest(memory) != first:
                raise Refused("holds a MuJoCo model that changes while it is used")

        return read

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The model in place, if it is the same."""
        if type(hint) is not self._type:
            raise SnapshotError("the state holds a MuJoCo model, and there is none here")
        if self.head(hint, Writer({})) != head:
            raise SnapshotError("the MuJoCo model here differs from that of the state")
        return hint

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Nothing to fill."""


class Data:
    """An `MjData`. Content: [model, integration state, computed arrays]."""

    tag = "mjd"

    def __init__(self, mujoco: Any) -> None:
        self._mujoco = mujoco
        self._type = mujoco.MjData
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION

    def head(self, node: Any, writer: Writer) -> Any:
        """The sizes of both parts."""
        return [self._mujoco.mj_stateSize(node.model, self._spec), node.nbuffer]

    def read(self, node: Any, writer: Writer) -> Any:
        """Read both."""
        return self.track(node)(writer)

    def track(self, node: Any) -> Callable[[Writer], Any]:
        """The same with everything that doesn't change looked up beforehand."""
        model = node.model
        state = np.empty(self._mujoco.mj_stateSize(model, self._spec))
        memory = _memory(node, node.qpos)
        get, spec = self._mujoco.mj_getState, self._spec

        def read(writer: Writer) -> Any:
            get(model, node, state, spec)
            return [state.tobytes(), memory.tobytes()]

        return read

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The data in place, of the same sizes."""
        if type(hint) is not self._type or self.head(hint, Writer({})) != head:
            raise SnapshotError("the state holds MuJoCo data, and there is none of that form here")
        return hint

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set the state, then what had been computed from an earlier one."""
        state, computed = content
        self._mujoco.mj_setState(node.model, node, np.frombuffer(state, np.float64), self._spec)
        _memory(node, node.qpos)[:] = computed


class Capsule:
    """What MuJoCo's views of its memory rest on. By itself it says nothing: it is no state."""

    tag = "capsule"

    def head(self, node: Any, writer: Writer) -> Any:
        """Never asked for beside an array."""
        raise Refused("holds a capsule, memory of a C library")

    def read(self, node: Any, writer: Writer) -> Any:
        """Nothing."""

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """Never written, never found."""
        raise SnapshotError("the state holds a capsule")

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Nothing."""


def kinds() -> dict[type, Kind]:
    """What this file adds to a plan: nothing unless mujoco has been imported.

    The views that MuJoCo hands out of its memory rest on capsules; a plan may hold such arrays.
    """
    mujoco: Any = sys.modules.get("mujoco")
    if not hasattr(mujoco, "MjData"):
        return {}
    capsule = type(np.random.PCG64(0).capsule)
    return {mujoco.MjModel: Model(mujoco), mujoco.MjData: Data(mujoco), capsule: Capsule()}

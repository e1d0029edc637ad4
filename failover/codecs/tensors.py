"""torch's tensors, their memory and its generators as nodes; modules and optimizers need nothing.

Owns what torch keeps in C. Modules and optimizers are Python objects, whose attributes the plan
walks like any others, so that tied weights stay tied, an optimizer's state stays keyed by the very
parameters, and a hook or a counter on the side is not forgotten, as it would be by `state_dict`.
Tensors that share memory go on sharing it: the memory is a node of its own.

torch is never imported here. On a GPU, or within a computation that still wants its gradient,
nothing can be held, and that is said.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

import numpy as np

from dsec.errors import SnapshotError
from dsec.failover.codecs.containers import read_mapping
from dsec.failover.codecs.reading import MISSING, Reader
from dsec.failover.codecs.writing import (
    ATOM,
    GLOBAL,
    SUBTUPLE,
    VALUE_WRITERS,
    Kind,
    Refused,
    Writer,
)


class Memory:
    """The storage under one or more tensors; one object for each address while it is in use."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.address = storage.data_ptr()
        self.nbytes = storage.nbytes()


class Storage:
    """A `Memory`. Content: its bytes."""

    tag = "tm"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._seen: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()

    def under(self, tensor: Any) -> Memory:
        """The memory of a tensor."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        memory = self._seen.get(address) if address else None
        if memory is None or memory.nbytes != storage.nbytes():
            memory = Memory(storage)
            if address:
                self._seen[address] = memory
        return memory

    def head(self, node: Memory, writer: Writer) -> Any:
        """Its size."""
        return node.nbytes

    def read(self, node: Memory, writer: Writer) -> Any:
        """A copy."""
        return ctypes.string_at(node.address, node.nbytes) if node.nbytes else b""

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The memory in place if it is as large, or else new memory."""
        if type(hint) is Memory and hint.nbytes == head:
            return hint
        return Memory(self._torch.UntypedStorage(head))

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Memory, content: Any, reader: Reader) -> None:
        """Copy back."""
        if len(content) != node.nbytes:
            raise SnapshotError("a tensor's memory is of another size in the state")
        if node.nbytes:
            ctypes.memmove(node.address, content, node.nbytes)


class Tensor:
    """A `torch.Tensor`, `Parameter` or `Buffer`. Content: [memory, grad, attributes]."""

    tag = "t"

    def __init__(self, torch: Any, storage: Storage) -> None:
        self._torch = torch
        self._storage = storage

    def head(self, node: Any, writer: Writer) -> Any:
        """What kind of tensor, and where in its memory."""
        if node.device.type != "cpu":
            raise Refused(f"holds a tensor on {node.device}, out of reach of a snapshot")
        if node.grad_fn is not None:
            raise Refused("holds a tensor that belongs to a computation still to be differentiated")
        if node.layout is not self._torch.strided or node.is_quantized or node.is_inference():
            raise Refused("holds a tensor of an unusual layout (sparse, quantised or of inference)")
        return [
            type(node).__name__,
            str(node.dtype).removeprefix("torch."),
            list(node.shape),
            list(node.stride()),
            node.storage_offset(),
            node.requires_grad,
        ]

    def read(self, node: Any, writer: Writer) -> Any:
        """Its memory, its gradient, and what somebody has hung on it."""
        writer.key = ".grad"
        memory = writer.ref(self._storage.under(node), self._storage)
        extra = vars(node)
        return [
            memory,
            writer.value(node.grad) if node.is_leaf else None,
            read_mapping(extra, writer) if extra else None,
        ]

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The tensor in place if it looks at the same part of the memory in place."""
        name, dtype, shape, stride, offset, requires_grad = head
        is_same = isinstance(hint, self._torch.Tensor) and type(hint).__name__ == name
        fits = is_same and hint.device.type == "cpu" and hint.grad_fn is None
        fits = fits and self.head(hint, Writer({})) == head
        reader.hint(content[0], self._storage.under(hint) if fits else MISSING)
        memory = reader.node(content[0][1])
        if fits and self._storage.under(hint) is memory:
            return hint
        made = self._torch.empty(0, dtype=getattr(self._torch, dtype))
        made.set_(memory.storage, offset, shape, stride)
        if name == "Tensor":
            return made.requires_grad_(requires_grad)
        kind = getattr(self._torch.nn, name)
        return kind(made, requires_grad=requires_grad) if name == "Parameter" else kind(made)

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """Gradient and attributes."""
        _, grad, extra = content
        reader.hint(grad, node.grad if node.is_leaf else MISSING)
        for name, written in zip(*(extra or ((), ())), strict=True):
            reader.hint(written, vars(node).get(name, MISSING))

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set gradient and attributes; the memory is filled by itself."""
        _, grad, extra = content
        if node.is_leaf:
            node.grad = reader.value(grad)
        fields = vars(node)
        made = {
            name: reader.value(written, fields.get(name, MISSING))
            for name, written in zip(*(extra or ((), ())), strict=True)
        }
        fields.clear()
        fields.update(made)


class Generator:
    """A `torch.Generator`, the default one as well. Content: its state."""

    tag = "tg"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def head(self, node: Any, writer: Writer) -> Any:
        """Its device."""
        if node.device.type != "cpu":
            raise Refused(f"holds a generator on {node.device}, out of reach of a snapshot")

    def read(self, node: Any, writer: Writer) -> Any:
        """Its state."""
        return node.get_state().numpy().tobytes()

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """Any will do."""
        is_one = isinstance(hint, self._torch.Generator) and hint.device.type == "cpu"
        return hint if is_one else self._torch.Generator()

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set the state."""
        try:
            node.set_state(self._torch.from_numpy(np.frombuffer(content, np.uint8).copy()))
        except RuntimeError as error:
            raise SnapshotError(f"torch does not take this state of a generator: {error}") from None


def kinds() -> dict[type, Kind]:
    """What this file adds to a plan: nothing unless torch has been imported."""
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "Generator") or not hasattr(torch, "nn"):
        return {}
    VALUE_WRITERS[torch.dtype] = lambda w, v: [GLOBAL, "torch", str(v).removeprefix("torch.")]
    VALUE_WRITERS[torch.device] = lambda w, v: [ATOM, [GLOBAL, "torch", "device"], str(v)]
    VALUE_WRITERS[torch.Size] = lambda w, v: [SUBTUPLE, [GLOBAL, "torch", "Size"], list(v)]
    storage = Storage(torch)
    tensor = Tensor(torch, storage)
    found: dict[type, Kind] = {
        Memory: storage,
        torch.Tensor: tensor,
        torch.nn.Parameter: tensor,
        torch.Generator: Generator(torch),
    }
    if hasattr(torch.nn, "Buffer"):
        found[torch.nn.Buffer] = tensor
    return found

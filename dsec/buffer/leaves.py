"""What is pushed, taken apart into arrays: the shape of an observation or action, and its memory.

Owns the one seam to torch, which is looked for among the loaded modules and never imported: who
gives tensors has imported it. Knows nothing of time.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.errors import LocalError

Array = NDArray[Any]
FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a tree.

    Attributes:
        path: where it is in there, for messages.
        shape, dtype: of the array; what numpy has no dtype for (bfloat16) is held as its bits.
        torch_dtype, device: of the tensor that it is; None and "" for numpy.
        floating: whether it may be quantised.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    torch_dtype: Any = None
    device: str = ""
    floating: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def elsewhere(self) -> bool:
        """Whether it lies in the memory of another device."""
        return self.device not in ("", "cpu")


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor; without torch there are none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def leaf_of(value: Any, path: str) -> Leaf:
    """Describe one array or tensor.

    Raises:
        LocalError: it is neither, nor a number.
    """
    if is_tensor(value):
        if value.layout != sys.modules["torch"].strided:
            raise LocalError(f"{path}: a {value.layout} tensor can't be kept; make it dense first")
        bits = _plain(value[:0] if value.ndim else value.reshape(1)[:0])
        return Leaf(
            path,
            tuple(value.shape),
            bits.cpu().numpy().dtype,
            value.dtype,
            str(value.device),
            value.dtype.is_floating_point and bits.dtype == value.dtype,
        )
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise LocalError(
            f"{path}: expected an array of numbers or a tensor, got "
            f"{type(value).__name__} ({array.dtype})"
        )
    return Leaf(path, array.shape, array.dtype, floating=array.dtype in FLOATS)


def host(value: Any, leaf: Leaf) -> Array:
    """The value in this process's memory, of the leaf's dtype and shape; not always a copy.

    Raises:
        LocalError: it has another shape or dtype, or lies on another device.
    """
    if is_tensor(value):
        if tuple(value.shape) != leaf.shape or value.dtype != leaf.torch_dtype:
            raise _other(leaf, tuple(value.shape), value.dtype)
        return np.asarray(_plain(value.detach()).cpu().contiguous().numpy())
    array = np.asarray(value)
    if leaf.torch_dtype is not None or array.shape != leaf.shape:
        raise _other(leaf, array.shape, array.dtype)
    if array.dtype != leaf.dtype:
        # A Python number has no dtype of its own to be kept.
        if isinstance(value, np.ndarray | np.generic) or not np.can_cast(
            array.dtype, leaf.dtype, "same_kind"
        ):
            raise _other(leaf, array.shape, array.dtype)
        array = array.astype(leaf.dtype)
    return np.ascontiguousarray(array).reshape(leaf.shape)


def given_back(array: Array, leaf: Leaf) -> Any:
    """A batch of the leaf's values as what was pushed: an array, or a tensor on its device."""
    if leaf.torch_dtype is None:
        return array
    torch = sys.modules["torch"]
    tensor = torch.from_numpy(array)
    if tensor.dtype != leaf.torch_dtype:
        tensor = tensor.view(leaf.torch_dtype)
    return tensor.to(leaf.device)


def alongside(array: Array, leaf: Leaf) -> Any:
    """An array of any dtype, as a tensor on the leaf's device if that is one."""
    if leaf.torch_dtype is None:
        return array
    return sys.modules["torch"].from_numpy(array).to(leaf.device)


def joined(columns: Sequence[Any], order: NDArray[np.int64]) -> Any:
    """Rows of several batches as one, in another order."""
    if is_tensor(columns[0]):
        torch = sys.modules["torch"]
        return torch.cat(list(columns))[torch.from_numpy(order).to(columns[0].device)]
    return np.concatenate(columns)[order]


class Recent:
    """The latest observations of one leaf, whole, in the memory that they came in.

    Args:
        places: how many there are.
    """

    def __init__(self, leaf: Leaf, places: int) -> None:
        self._leaf = leaf
        self._places = places
        shape = (places, *leaf.shape)
        self._ring: Any
        if leaf.elsewhere:
            torch = sys.modules["torch"]
            self._ring = torch.zeros(shape, dtype=leaf.torch_dtype, device=leaf.device)
        else:
            self._ring = np.zeros(shape, leaf.dtype)

    @property
    def nbytes(self) -> int:
        return self._places * self._leaf.nbytes

    def checked(self, value: Any) -> Any:
        """What `put` takes, of what was pushed.

        Raises:
            LocalError: it doesn't fit the leaf.
        """
        if not self._leaf.elsewhere:
            return host(value, self._leaf)
        if not is_tensor(value):
            raise _other(self._leaf, np.shape(value), type(value).__name__)
        if tuple(value.shape) != self._leaf.shape or value.dtype != self._leaf.torch_dtype:
            raise _other(self._leaf, tuple(value.shape), value.dtype)
        return value.detach()

    def put(self, step: int, value: Any) -> None:
        """Take in the value of a step, over that of `places` steps before."""
        self._ring[step % self._places] = value

    def host(self, step: int) -> Array:
        """The value of a step in this process's memory."""
        value = self._ring[step % self._places]
        return host(value, self._leaf) if self._leaf.elsewhere else np.asarray(value)

    def fill(self, out: Any, rows: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
        """Copy the values of steps into rows of a batch that `given_back` made."""
        places = steps % self._places
        if self._leaf.elsewhere:
            torch = sys.modules["torch"]
            at, of = (torch.from_numpy(x).to(self._leaf.device) for x in (rows, places))
            out[at] = self._ring[of]
        elif self._leaf.torch_dtype is not None:
            np.asarray(_plain(out).numpy())[rows] = self._ring[places]
        else:
            out[rows] = self._ring[places]


class Tree:
    """The structure of what is pushed: a dict, a tuple or one array, as deep as one likes.

    Attributes:
        leaves: its arrays, in order.
    """

    def __init__(self, example: Any, path: str) -> None:
        """Raises: LocalError: something in it is no array of numbers."""
        self._path = path
        self.leaves = [leaf_of(value, where) for where, value in _walk(example, path)]
        self._shape = _structure(example)

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)

    def parts(self, value: Any) -> list[Any]:
        """The value's leaves.

        Raises:
            LocalError: its structure is another one.
        """
        if _structure(value) != self._shape:
            raise LocalError(
                f"{self._path} has another structure than the first one pushed: "
                f"{_structure(value)}, not {self._shape}"
            )
        return list(_in_order(value, self._shape))

    def build(self, parts: list[Any]) -> Any:
        """A value of this structure, of its leaves."""
        return _build(self._shape, iter(parts))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")
    else:
        yield path, value


def _in_order(value: Any, shape: Any) -> Iterator[Any]:
    """The leaves in the order of the first value pushed: a dict's keys may come in any."""
    if isinstance(shape, dict):
        for key, inner in shape.items():
            yield from _in_order(value[key], inner)
    elif isinstance(shape, tuple):
        for item, inner in zip(value, shape, strict=True):
            yield from _in_order(item, inner)
    else:
        yield value


def _structure(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _structure(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_structure(item) for item in value)
    return "array"


def _build(shape: Any, parts: Iterator[Any]) -> Any:
    if isinstance(shape, dict):
        return {key: _build(item, parts) for key, item in shape.items()}
    if isinstance(shape, tuple):
        return tuple(_build(item, parts) for item in shape)
    return next(parts)


@functools.cache
def _bits_of(dtype: Any) -> Any:
    """The integer dtype that stands for one that numpy doesn't know; None where it does."""
    torch = sys.modules["torch"]
    try:
        torch.empty(0, dtype=dtype).numpy()
    except TypeError:
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return bits[torch.empty(0, dtype=dtype).element_size()]
    return None


def _plain(tensor: Any) -> Any:
    """The tensor, or its bits where numpy doesn't know the dtype."""
    bits = _bits_of(tensor.dtype)
    return tensor if bits is None else tensor.view(bits)


def _other(leaf: Leaf, shape: Any, dtype: Any) -> LocalError:
    wanted = leaf.dtype if leaf.torch_dtype is None else f"{leaf.torch_dtype} on {leaf.device}"
    return LocalError(
        f"{leaf.path}: expected {wanted} {leaf.shape} as the first one pushed, got {dtype} "
        f"{tuple(shape)}"
    )

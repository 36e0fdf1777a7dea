"""Serialization of plain data: numbers, text, collections, tensors; never code.

Loading a pickle runs code that its writer chose, so pickles from a rank are loaded only if the
rank runs the reader's own code. A grader receives values from graded code in this form instead:
MessagePack, in which a tensor is its dtype, its shape and its bytes. A function stays a pickle
that is not loaded (`PickledFunction`); only ranks load it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

__all__ = ["NotPlain", "Opaque", "PickledFunction", "decode", "encode", "is_modest"]

MOST_PIECES, MOST_DEPTH = 100_000, 20  # characters and values, and layers, of a modest value

_TENSOR, _ARRAY, _TUPLE, _SET, _FUNCTION, _OPAQUE = range(1, 7)  # MessagePack's extension types
_KINDS: tuple[type[Any], ...] = (int, float, str, bytes, dict, list)
_ARRAY_KINDS = "biufc"  # kinds of NumPy dtypes: no objects, no text, no dates
_TEXT = {"unicode_errors": "surrogatepass"}  # file names may hold surrogates


class NotPlain(ValueError):
    """The value is not plain data, or the bytes do not encode plain data."""


@dataclass(frozen=True)
class PickledFunction:
    """A function as a pickle that has not been loaded; only ranks load untrusted pickles."""

    pickled: bytes
    buffers: tuple[bytes, ...] = ()

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise TypeError: only a rank can load and call the function."""
        raise TypeError("a pickled function can be called only on a rank, which unpickles it")


@dataclass(frozen=True)
class Opaque:
    """A placeholder for an object that is not plain data: the name of its type."""

    type_name: str


def encode(
    value: Any, convert: Callable[[Any], PickledFunction | Opaque] | None = None
) -> bytes:
    """Encode None, numbers, bool, str, bytes, tensors, arrays, and collections of these.

    Collections are lists, tuples, dicts and sets. `convert` converts any other object; without
    it, other objects raise `NotPlain`. A tensor of any device and layout decodes to a dense tensor
    on the CPU, and a NumPy number to a Python number.
    """

    def as_extension(obj: Any) -> Any:
        try:
            return _as_extension(obj, as_extension)
        except NotPlain:
            if convert is None:
                raise
            return _as_extension(convert(obj), as_extension)

    try:
        return _packed(value, as_extension)
    except NotPlain:
        raise
    except Exception as error:  # noqa: BLE001  msgpack raises many kinds of exceptions
        raise NotPlain(f"{type(error).__name__}: {error}") from None


def is_modest(value: Any) -> bool:
    """Whether a value is small enough to be inspected, compared and printed.

    A tensor, an array or a pickled function counts as one value, whatever its size.
    """
    left, layer = MOST_PIECES, [value]
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for part in layer:
            if isinstance(part, dict):
                inner += [*part.keys(), *part.values()]
            elif isinstance(part, (list, tuple, set)):
                inner += part
            left -= len(part) if isinstance(part, (str, bytes)) else 1
            if left < 0 or len(inner) > left:
                return False
        if not inner:
            return True
        layer = inner
    return False


def decode(data: bytes | bytearray) -> Any:
    """Decode the bytes that `encode` returned.

    Decoding runs no code of the writer, and needs at most a small multiple of the memory of
    `data`. Raises `NotPlain` if the bytes do not encode plain data.
    """
    try:
        return _unpacked(data)
    except Exception as error:  # noqa: BLE001  bytes from an untrusted writer may raise anything
        raise NotPlain(f"{type(error).__name__}: {error}") from None


def _packed(value: Any, default: Callable[[Any], Any]) -> bytes:
    return bytes(msgpack.packb(value, default=default, strict_types=True, **_TEXT))


def _unpacked(data: bytes | bytearray) -> Any:
    return msgpack.unpackb(data, ext_hook=_from_extension, strict_map_key=False, **_TEXT)


# Types that MessagePack lacks --------------------------------------------------------------------


def _as_extension(value: Any, default: Callable[[Any], Any]) -> Any:
    import torch

    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, _packed(list(value), default))
    if isinstance(value, (set, frozenset)):
        return msgpack.ExtType(_SET, _packed(list(value), default))
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in _ARRAY_KINDS:
        return _extension(_ARRAY, value.dtype.name, list(value.shape), value.tobytes())
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if isinstance(value, PickledFunction):
        return _extension(_FUNCTION, value.pickled, list(value.buffers))
    if isinstance(value, Opaque):
        return _extension(_OPAQUE, value.type_name)
    for kind in _KINDS:  # a subclass, an enumeration for instance
        if isinstance(value, kind):
            return kind(value)
    raise NotPlain(f"{type(value).__name__} is not plain data")


def _of_tensor(tensor: Any) -> msgpack.ExtType:
    import torch

    dense = tensor.detach().cpu()
    dense = dense.to_dense() if dense.layout is not torch.strided else dense
    dense = dense.resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # a single element may have any stride
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return _extension(_TENSOR, str(dense.dtype).removeprefix("torch."), list(dense.shape), raw)


def _extension(code: int, *fields: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(fields))


def _from_extension(code: int, data: bytes) -> Any:
    """Decode an extension; any exception means that `data` is not valid for `code`."""
    fields = _unpacked(data)
    if code == _TUPLE:
        return tuple(fields)
    if code == _SET:
        return set(fields)
    if code == _FUNCTION:
        pickled, buffers = fields
        return PickledFunction(bytes(pickled), tuple(map(bytes, buffers)))
    if code == _OPAQUE:
        return Opaque(str(fields[0])[:100])
    name, shape, raw = fields
    if not all(type(size) is int and size >= 0 for size in shape):
        raise NotPlain(f"not a shape: {shape}")
    return (_array if code == _ARRAY else _tensor)(str(name), shape, bytearray(raw))


def _array(name: str, shape: list[int], buffer: bytearray) -> Any:
    dtype = np.dtype(name)
    if dtype.kind not in _ARRAY_KINDS or math.prod(shape) * dtype.itemsize != len(buffer):
        raise NotPlain(f"not an array: {name}{shape}")
    return np.frombuffer(buffer, dtype).reshape(shape)


def _tensor(name: str, shape: list[int], buffer: bytearray) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or math.prod(shape) * dtype.itemsize != len(buffer):
        raise NotPlain(f"not a tensor: {name}{shape}")
    if not buffer:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)

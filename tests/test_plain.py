"""Plain data is decoded as it was encoded, and untrusted bytes run no code."""

from __future__ import annotations

import contextlib
import pickle

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dtlab.ranks.plain import NotPlain, Opaque, PickledFunction, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.sets(st.integers(0, 9) | st.text())
        | st.dictionaries(st.text() | st.integers(-5, 5) | st.tuples(st.text()), inner)
    ),
)


@pytest.mark.slow
@given(PLAIN)
def test_plain_values_are_decoded_unchanged(value: object) -> None:
    back = decode(encode(value))
    assert back == value or "nan" in repr(value)
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T,  # not contiguous
        torch.arange(6).reshape(2, 3)[:1, -1],  # one element, with a stride of three
        torch.tensor(1.5, dtype=torch.bfloat16),  # no dims
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
    ],
)
def test_tensors_are_decoded_unchanged(tensor: torch.Tensor) -> None:
    (back,) = decode(encode([tensor]))
    assert type(back) is torch.Tensor
    assert back.dtype == tensor.dtype and back.shape == tensor.shape
    assert back.tolist() == tensor.tolist()


def test_arrays_and_their_numbers_are_decoded_unchanged() -> None:
    rows, half = decode(encode((np.arange(6).reshape(2, 3), np.float64(0.5))))
    assert rows.dtype == np.int64 and rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert type(half) is float and half == 0.5


def test_other_data_may_be_converted_to_plain_data() -> None:
    def convert(value: object) -> PickledFunction | Opaque:
        function = PickledFunction(b"bytes", (b"more",))
        return function if callable(value) else Opaque(type(value).__name__)

    assert decode(encode({"a": (print, [object()])}, convert)) == {
        "a": (PickledFunction(b"bytes", (b"more",)), [Opaque("object")])
    }
    with pytest.raises(TypeError, match="called only on a rank"):
        PickledFunction(b"")()


@pytest.mark.parametrize("value", [object(), print, {1: 2}.items(), 2**70, np.array([object()])])
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(NotPlain):
        encode(value)


def _tensor_of(dtype: object, shape: object, raw: bytes) -> bytes:
    body = msgpack.packb((dtype, shape, raw))
    return bytes(msgpack.packb(msgpack.ExtType(1, body)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pickle.dumps(1),
        b"\x91" * 100_000,  # nested deeper than any stack
        b"\xdd\xff\xff\xff\xff",  # claims four billion elements
        _tensor_of("float32", [2**40], b""),
        _tensor_of("float32", [-1], b"1234"),
        _tensor_of("float32", [2], b"1234"),
        _tensor_of("load", [1], b"1234"),
        _tensor_of("__class__", [1], b"1234"),
        _tensor_of("float32", 7, b"1234"),
        msgpack.packb(msgpack.ExtType(2, msgpack.packb(("object", [1], b"12345678")))),
        msgpack.packb(msgpack.ExtType(9, b"")),
    ],
)
def test_untrusted_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(NotPlain):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(NotPlain):
        decode(data)

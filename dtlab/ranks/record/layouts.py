"""Sizes and layouts of an operation's tensors: refuses those with which gloo computes wrong.

gloo takes the elements of a tensor from memory one after the other. Where a tensor has gaps, as a
column of a matrix does, or lies in memory in another order, as a transposed matrix does, some of
its operations give wrong numbers without an error. The table below was measured with PyTorch 2.13:

    all_reduce, reduce, broadcast        wrong with gaps; right if all ranks have the same order
    reduce_scatter_tensor, its input     right if all ranks have the same order
    reduce_scatter of a list             wrong in another order, its output also with gaps
    scatter; output of all_to_all_single wrong with gaps and in another order
    all_gather, gather, all_to_all       right: PyTorch copies the tensors
    send, recv                           PyTorch refuses such tensors, as NCCL does everywhere

Nothing is copied here, because the learner's program must be right under torchrun too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

__all__ = ["Extra", "inspector", "unchecked_layouts"]

Inspector = Callable[[tuple[Any, ...], Any], "Extra | None"]


class Extra(NamedTuple):
    """What else the members of a group must agree on.

    `words` describe the tensors instead of shape and dtype, and must be equal on all ranks.
    `sizes` are those of an all-to-all: elements of a row (0 if rows do not matter), then the
    elements that this rank sends to each member, then those that it expects from each. If all are
    equal, `each` has one of them instead.
    """

    words: str = ""
    each: int = -1
    sizes: tuple[int, ...] = ()


def inspector(name: str) -> Inspector | None:
    """The function that looks at the arguments of a c10d operator and its group; None if no need.

    It raises ValueError for what gives wrong numbers on this rank alone, but not in the context
    `unchecked_layouts`.
    """
    inspect = _INSPECTORS.get(name)
    if inspect is None:
        return None
    return lambda args, group: None if _unchecked else inspect(args, group)


_unchecked: list[None] = []  # an entry for each context `unchecked_layouts` that has begun


@contextmanager
def unchecked_layouts() -> Iterator[None]:
    """Let gloo compute with the tensors as they are in this context, to see what goes wrong."""
    _unchecked.append(None)
    try:
        yield
    finally:
        _unchecked.pop()


# ------------------------------------------------------------------ order in memory


def _in_place(name: str) -> Inspector:
    def inspect(args: tuple[Any, ...], group: Any) -> Extra | None:
        tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        odd = list(_not_contiguous(tensors))
        if not odd or group.size() == 1:
            return None
        for tensor in odd:
            if not _is_dense(tensor):
                raise ValueError(_has_gaps(name, "tensor", tensor))
        return Extra(", ".join(map(_with_order, tensors)))

    return inspect


def _reduced_input(args: tuple[Any, ...], group: Any) -> Extra | None:
    """Look at the input of reduce_scatter_tensor, which gloo copies, and then adds in memory."""
    tensors = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    if group.size() == 1 or not any(map(_is_permuted, _not_contiguous(tensors))):
        return None
    return Extra(", ".join(map(_with_order, tensors)))


def _reduce_scatter_list(args: tuple[Any, ...], group: Any) -> Extra | None:
    outputs, (inputs, *_) = args[0], args[1]
    if group.size() > 1:
        for tensor in _not_contiguous(outputs):
            raise ValueError(_has_gaps("reduce_scatter", "output", tensor))
        for tensor in filter(_is_permuted, _not_contiguous(inputs)):
            raise ValueError(_has_gaps("reduce_scatter", "input", tensor))
    if len({tensor.shape for tensor in inputs}) == 1:
        return None
    return Extra(", ".join(map(_in_words, inputs)))  # each rank gets a result of another size


def _scatter(args: tuple[Any, ...], group: Any) -> Extra | None:
    del group
    for tensor in _not_contiguous(args[0]):
        raise ValueError(_has_gaps("scatter", "output", tensor))
    for inputs in args[1]:
        for tensor in _not_contiguous(inputs):
            raise ValueError(_has_gaps("scatter", "input", tensor))
    return None


def _not_contiguous(tensors: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors on the CPU whose elements do not follow each other in memory."""
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_contiguous():
            yield tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a piece of memory, in any order."""
    expected = 1
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in sizes if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _is_permuted(tensor: torch.Tensor) -> bool:
    """Whether a copy of the tensor, as PyTorch makes it, has another order in memory."""
    return not torch.empty_like(tensor, device="meta").is_contiguous()


def _with_order(tensor: torch.Tensor) -> str:
    copy = torch.empty_like(tensor, device="meta")
    if copy.is_contiguous():
        return _in_words(tensor)
    return f"{_in_words(tensor)} with strides {tuple(copy.stride())}"


def _in_words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _has_gaps(name: str, role: str, tensor: torch.Tensor) -> str:
    """What is wrong with a tensor that is not contiguous, and what to write."""
    back = " and copy the result back with x.copy_(y)" if role != "input" else ""
    return (
        f"the {role} of {name} is not contiguous: its shape is {tuple(tensor.shape)}, but in "
        f"memory its strides are {tuple(tensor.stride())}, as in a column, a slice or a "
        "transposed matrix. With gloo the result would be wrong, and NCCL refuses such a tensor. "
        f"Pass a contiguous copy, y = x.contiguous(),{back}.".replace(",.", ".")
    )


# ------------------------------------------------------------------ sizes by rank


def _all_to_all_single(args: tuple[Any, ...], group: Any) -> Extra | None:
    output, given, gets, sends = args[0], args[1], args[3], args[4]
    for tensor in _not_contiguous([output]):
        raise ValueError(_has_gaps("all_to_all_single", "output", tensor))
    count = group.size()
    if not sends and not gets:
        fits = given.numel() == output.numel() and given.numel() % count == 0
        return Extra(each=given.numel() // count) if fits else None  # PyTorch says what is wrong
    rows = []
    for tensor, splits, role in (given, sends, "input"), (output, gets, "output"):
        height = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if height % count:
                return None
            rows.append([height // count] * count)
            continue
        _check_splits(splits, height, role, count)
        rows.append([*splits])
    sent, expected = rows
    width, wanted = (_width(tensor) for tensor in (given, output))
    own = group.rank()
    if width == wanted and sent[own] != expected[own]:
        raise ValueError(
            f"this rank sends {_rows(sent[own])} to itself in all_to_all_single, but expects "
            f"{_rows(expected[own])} from itself: number {own} of input_split_sizes and number "
            f"{own} of output_split_sizes must be equal."
        )
    row = width if width == wanted else 0
    return Extra(sizes=(row, *(n * width for n in sent), *(n * wanted for n in expected)))


def _check_splits(splits: Sequence[int], height: int, role: str, count: int) -> None:
    name = f"{role}_split_sizes of all_to_all_single"
    if len(splits) != count:
        raise ValueError(
            f"{name} has length {len(splits)}, but the group has {count} ranks: it needs one "
            "number for each rank."
        )
    if sum(splits) != height:
        raise ValueError(
            f"{name} is {[*splits]}, which makes {_rows(sum(splits))} in all, but the {role} has "
            f"{_rows(height)}."
        )


def _all_to_all_list(args: tuple[Any, ...], group: Any) -> Extra | None:
    outputs, inputs = args[0], args[1]
    if len(outputs) != group.size() or len(inputs) != group.size():
        return None
    return Extra(sizes=(0, *(x.numel() for x in inputs), *(x.numel() for x in outputs)))


def _width(tensor: torch.Tensor) -> int:
    """The elements of a row."""
    return tensor[0].numel() if tensor.dim() and len(tensor) else 1


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


_INSPECTORS: dict[str, Inspector] = {
    "allreduce_": _in_place("all_reduce"),
    "reduce_": _in_place("reduce"),
    "broadcast_": _in_place("broadcast"),
    "_reduce_scatter_base_": _reduced_input,
    "reduce_scatter_tensor_coalesced_": _reduced_input,
    "reduce_scatter_": _reduce_scatter_list,
    "scatter_": _scatter,
    "alltoall_base_": _all_to_all_single,
    "alltoall_": _all_to_all_list,
}

"""Compares a value from a rank with the right one, and says in words what is wrong with it.

    ""                                                      equal up to rounding
    "has the shape [3, 4], not [4, 3]. {hint}"
    "is the sum over the ranks. Divide it by their number."   a known mistake gives this value
    "holds rank 0's piece in elements 32 to 63. {hint}"      values of another source stand there
    "is off by up to 0.3. {hint}"

`difference` is the only comparison of values in the parts. Each result continues a sentence: a
part puts the name of the value before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.checks.words import Explanation, mistake_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NEAR", "Known", "close", "difference", "of_others", "pieces_of", "same"]

NEAR = 1e-3  # relative to an element; rounding errors are about 1e-6
_OF_LARGEST = 1e-2  # times the relative tolerance, of the largest element, for small elements
_TINY = 1e-12
_ENOUGH = 3  # elements in a row that are equal, or all: then they are another source's values

Known = Mapping[str, Any]
"""What the values of known mistakes are: `{"is twice the sum": value}`.

A value is a tensor or a number, or a function without arguments that computes it if it is needed,
or a list of these. In a pair `(value, advice)`, this advice takes the place of the hint. A fact
that is an `Explanation` is kept as its mistake.
"""


def close(
    got: Tensor,
    wanted: Tensor,
    near: float = NEAR,
    scale: float | None = None,
    start: Tensor | None = None,
) -> bool:
    """Whether two tensors of the same shape are equal up to rounding; dtypes may differ.

    Allowed are `near` times an element, and a hundredth of that of `scale`, by default the
    largest finite element of `wanted`. With `near=0`, the values must be equal. With `start`,
    where a training began, the whole difference may be `near` times the distance to `wanted`.
    """
    if start is None:
        return bool(_fits(got, wanted, near, scale).all())
    return bool(_off(got, wanted, start) < near)  # not if it is NaN


def _fits(got: Tensor, wanted: Tensor, near: float, scale: float | None = None) -> Tensor:
    import torch

    if not near:
        return got == wanted
    first, second = got.detach().double(), wanted.detach().double()
    if scale is None:
        scale = float(second[second.isfinite()].abs().max()) if second.isfinite().any() else 0.0
    return torch.isclose(first, second, rtol=near, atol=near * _OF_LARGEST * scale + _TINY)


def _off(got: Tensor, wanted: Tensor, start: Tensor) -> float:
    """The distance from `got` to `wanted`, as a share of that from `start` to `wanted`."""
    way = float((wanted.double() - start.double()).norm())
    return float((got.double() - wanted.double()).norm()) / max(way, _TINY)


def same(got: Any, other: Any, dtype: bool = False) -> bool:
    """Whether two values are equal to the last bit; with `dtype`, tensors of one dtype only.

    It says what has changed, what was copied and what was exchanged. Results are compared with the
    right ones by `difference`.
    """
    import torch

    if isinstance(got, torch.Tensor) and isinstance(other, torch.Tensor):
        return (not dtype or got.dtype == other.dtype) and got.equal(other)
    return type(got) is type(other) and bool(got == other)


def difference(
    got: Any,
    wanted: Tensor | float,
    known: Known | None = None,
    sources: Mapping[str, Tensor] | None = None,
    *,
    hint: str = "",
    form: str | None = None,
    not_finite: str = "",
    near: float = NEAR,
    scale: float | None = None,
    start: Tensor | None = None,
    parts: Sequence[tuple[str, int]] = (),
) -> str:
    """Says how `got` differs from `wanted`, as the rest of a sentence; empty if it does not.

    If a known mistake gives this value, the result is an `Explanation` that keeps the mistake. It
    ends with the mistake's own advice, if it has any, otherwise with `hint`; with `form`, if it is
    given, for another type or shape; with `not_finite` for NaN or infinity where there should be
    numbers. `sources` are values that may stand in a wrong place, by their names: "rank 2's
    piece", "its old values". Places are element numbers of the flat tensor; `parts` are the names
    and the numbers of elements of what it consists of. For `near`, `scale` and `start`, see
    `close`.
    """
    import torch

    if not isinstance(wanted, torch.Tensor):
        return _number_differs(got, wanted, known or {}, hint, near)
    if not isinstance(got, torch.Tensor):
        what = f"is {'None' if got is None else f'a {type(got).__name__}'}, not a tensor"
        return _sentence(what, hint if form is None else form)
    same_shape = got.shape == wanted.shape
    if same_shape and close(got, wanted, near, scale, start):
        return ""
    for fact, other, advice in _computed(known or {}, hint):
        if got.shape == other.shape and close(got, other, near, scale, start):
            return Explanation(_sentence(fact, advice), mistake_of(fact) or fact)
    if not same_shape:
        shapes = f"has the shape {list(got.shape)}, not {list(wanted.shape)}"
        return _sentence(shapes, hint if form is None else form)
    if not got.isfinite().all() and wanted.isfinite().all():
        fact = "contains NaN" if got.isnan().any() else "contains infinity"
        return Explanation(_sentence(fact, not_finite or hint), fact)
    if start is not None:
        return _sentence(_moved(got, wanted, start), hint)
    fits = _fits(got, wanted, near, scale).flatten()
    begin = int((~fits).nonzero()[0])
    wrong = got.detach().flatten()[begin:]
    wrong = wrong[: int(fits[begin:].int().argmax()) or len(wrong)]
    if found := _held(wrong, sources or {}, near):
        name, count = found
        flat = " of the flattened tensor" * (got.dim() > 1)
        fact = f"holds {name} {_places(begin, count, parts)}{flat}"
        fact += ": nothing arrived there" * (name == "zeros" and bool(sources))
        return Explanation(_sentence(fact, hint), f"holds {mistake_of(name) or name}")
    off = float((got.detach().double() - wanted.detach().double()).abs().max())
    where = f", first in {_names(begin, begin + 1, parts)[0]}" if parts else ""
    return _sentence(f"is off by up to {off:.2g}{where}", hint)


def _moved(got: Tensor, wanted: Tensor, start: Tensor) -> str:
    if got.equal(start):
        return "has not changed since the start"
    return f"is off by {_off(got, wanted, start):.1%} of the distance that it should have moved"


def _number_differs(got: Any, wanted: float, known: Known, hint: str, near: float) -> str:
    import torch

    if isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if isinstance(got, bool) or not isinstance(got, int | float):
        what = f"is {'None' if got is None else f'a {type(got).__name__}'}, not a number"
        return _sentence(what, hint)
    if _equal(got, wanted, near):
        return ""
    shown = f"is {got:.4g}, not {wanted:.4g}"
    for fact, other, advice in _computed(known, hint):
        if _equal(got, other, near):
            message = f"{shown}. That {_sentence(fact, advice)}"
            return Explanation(message, mistake_of(fact) or fact)
    return _sentence(shown, hint)


def _equal(got: float, wanted: float, near: float) -> bool:
    return math.isclose(got, wanted, rel_tol=near, abs_tol=_TINY)


def _computed(known: Known, hint: str) -> Iterator[tuple[str, Any, str]]:
    """The fact, the value and the advice of each known mistake."""
    for fact, value in known.items():
        value, advice = value if isinstance(value, tuple) else (value, hint)
        for one in value if isinstance(value, list) else [value]:
            yield fact, one() if callable(one) else one, advice


def _sentence(fact: str, advice: str) -> str:
    return f"{fact}{'' if fact.endswith(('.', '?')) else '.'} {advice}".rstrip()


def _held(wrong: Tensor, sources: Mapping[str, Tensor], near: float) -> tuple[str, int] | None:
    """The name of the source whose values stand in the first wrong elements, and their number."""
    import torch

    found = [("zeros", _prefix(wrong == 0))]
    for name, source in sources.items():
        values = source.detach().flatten().double()
        places = torch.isclose(values, wrong[0].double(), rtol=near or 1e-9, atol=0.0)
        for place in places.nonzero()[:, 0].tolist():
            count = min(len(wrong), len(values) - place)
            same = _fits(wrong[:count], values[place : place + count], near or 1e-9)
            found.append((name, _prefix(same)))
    name, count = max(found, key=lambda each: each[1])
    return (name, count) if count >= min(_ENOUGH, len(wrong)) else None


def _prefix(fits: Tensor) -> int:
    """The number of leading elements that are True."""
    return int(fits.int().cumprod(0).sum())


def _places(begin: int, count: int, parts: Sequence[tuple[str, int]]) -> str:
    """The numbers of elements, and the parts in which they are."""
    end = begin + count
    last = f" to {end - 1}" if count > 1 else ""
    where = f"in element{'s' * (count > 1)} {begin}{last}"
    names = _names(begin, end, parts)
    if not names:
        return where
    return f"{where} ({names[0] if len(names) == 1 else f'{names[0]} to {names[-1]}'})"


def _names(begin: int, end: int, parts: Sequence[tuple[str, int]]) -> list[str]:
    """The parts in which these elements are."""
    starts = [sum(size for _, size in parts[:number]) for number in range(len(parts))]
    return [
        name
        for (name, size), start in zip(parts, starts, strict=True)
        if start < end and start + size > begin
    ]


def pieces_of(pieces: Sequence[Tensor], what: str = "piece") -> dict[str, Tensor]:
    """Sources: what each rank has, by name, and the sum over all ranks if there are several."""
    sources: dict[str, Tensor] = {
        Explanation(f"rank {rank}'s {what}", f"another rank's {what}"): piece
        for rank, piece in enumerate(pieces)
    }
    if len(pieces) > 1:
        sources[f"the sum of all ranks' {what}s"] = sum(pieces[1:], pieces[0])
    return sources


def of_others(pieces: Mapping[int, Tensor], advice: str, what: str = "the piece") -> Known:
    """Known mistakes: a rank has what belongs to another one. `pieces` are those of all ranks."""
    return {
        Explanation(f"is {what} of rank {rank}", f"is {what} of another rank"): (piece, advice)
        for rank, piece in pieces.items()
    }

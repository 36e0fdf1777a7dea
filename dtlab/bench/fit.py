"""The link behind the times of a collective: its closed form, read backwards.

Every closed form of `dtlab.predict` is linear in a and 1/B, t = A a + C(S)/B: 2(N-1) a and
2(N-1)/N S/B for a ring all-reduce. So t/A against C(S)/A is a line from which `fit_link` tells the
link. NCCL and gloo choose among several algorithms; for a built-in collective the form is the one
that `dtlab.predict` and the emulated interconnect take for it, so that they give the times back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import dtlab.predict as predict
from dtlab.predict import Link, fit_link

if TYPE_CHECKING:
    from dtlab.bench.results import Measurement

__all__ = ["fitted", "misfit"]

Form = Callable[[float, int, Link], float]


def _message(nbytes: float, ranks: int, link: Link) -> float:
    return link.seconds(nbytes) if ranks > 1 else 0.0


_BY_COLLECTIVE: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "all_reduce": predict.ring_all_reduce_seconds,
        "reduce_scatter": predict.reduce_scatter_seconds,
        "all_gather": predict.all_gather_seconds,
        "broadcast": predict.broadcast_seconds,
        "all_to_all": predict.all_to_all_seconds,
        "send_recv": _message,
        "send_recv_between_nodes": _message,
    }
)
_BY_IMPLEMENTATION: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "naive_all_reduce": predict.naive_all_reduce_seconds,
        "tree_all_reduce": predict.tree_all_reduce_seconds,
        "recursive_doubling_all_reduce": predict.recursive_doubling_all_reduce_seconds,
        "halving_doubling_all_reduce": predict.halving_doubling_all_reduce_seconds,
        "tree_broadcast": predict.tree_broadcast_seconds,
    }
)


def _form(collective: str, implementation: str) -> Form:
    return _BY_IMPLEMENTATION.get(implementation, _BY_COLLECTIVE[collective])


def misfit(
    collective: str, implementation: str, curve: Sequence[Measurement], link: Link
) -> float:
    """How far the closed form with this link is from the times: the median of relative errors."""
    form = _form(collective, implementation)
    told = [form(float(one.bytes), one.world_size, link) for one in curve]
    return median(abs(each / one.seconds - 1) for each, one in zip(told, curve, strict=True))


def fitted(collective: str, implementation: str, curve: Sequence[Measurement]) -> Link | None:
    """The link that explains a curve best; None where none can be told from it."""
    form = _form(collective, implementation)
    ranks = curve[0].world_size
    latencies = form(0.0, ranks, Link(1.0, 1.0))
    if latencies == 0:
        return None
    carried = [form(float(one.bytes), ranks, Link(0.0, 1.0)) / latencies for one in curve]
    try:
        return fit_link(carried, [one.seconds / latencies for one in curve])
    except ValueError:  # a single size, or times that do not grow
        return None

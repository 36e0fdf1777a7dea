"""Benchmark results: one `Measurement` for each size, tables, JSON, and links fitted to them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import dtlab.predict as predict
from dtlab.bench.names import BETWEEN_NODES, BUILT_IN
from dtlab.errors import DtlabError
from dtlab.predict import Link, algorithm_bandwidth, bus_factor, fit_link
from dtlab.show.words import byte_words, list_words, time_words

if TYPE_CHECKING:
    from dtlab.show import Figure

__all__ = ["Measurement", "Results", "fitted", "heading", "misfit", "paste", "table"]

_FORMAT: Final = "dtlab bench 1"


@dataclass(frozen=True)
class Measurement:
    """How long one collective took at one size.

    `bytes` is what nccl-tests calls the size: the whole tensor on one rank, which is the input of
    a reduce-scatter, the output of an all-gather, and what one rank sends in an all-to-all.
    `seconds` is the median of samples, each the time of the slowest rank. `wrong` counts elements
    that differed from the expected ones, over all ranks; None where nobody looked.
    """

    collective: str
    implementation: str
    backend: str
    world_size: int
    bytes: int
    seconds: float
    wrong: int | None = None

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes/s as the caller sees it: S/t."""
        return algorithm_bandwidth(float(self.bytes), self.seconds)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes/s as one rank's link sees it: S/t times nccl-tests' factor; 0 for one rank."""
        operation = "send" if self.collective.startswith("send_recv") else self.collective
        return bus_factor(operation, self.world_size) * self.algorithm_bandwidth


@dataclass
class Results:
    """What was measured, in the order in which it was; shows itself as a table.

    `stopped` says that it was interrupted. `left_out` are sizes, in bytes, that were asked for and
    have no room in memory.
    """

    measurements: list[Measurement]
    ranks_per_node: int
    stopped: bool = False
    left_out: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.table()

    @property
    def wrong(self) -> list[Measurement]:
        """Those whose result was not the expected one."""
        return [one for one in self.measurements if one.wrong]

    def curves(self) -> dict[tuple[str, str], list[Measurement]]:
        """The measurements by (collective, implementation), from the smallest size on."""
        found: dict[tuple[str, str], list[Measurement]] = {}
        for one in self.measurements:
            found.setdefault((one.collective, one.implementation), []).append(one)
        return {key: sorted(curve, key=lambda one: one.bytes) for key, curve in found.items()}

    def table(self) -> str:
        """A table for each collective: time, algorithm and bus bandwidth, built-in and ours."""
        return table(self)

    def links(self) -> dict[tuple[str, str], Link]:
        """The `Link` that explains each curve best, by (collective, implementation).

        A collective's link is the one with which its closed form in `dtlab.predict` comes nearest
        to the times. Curves from which no link can be told (one size, one rank, times that do not
        grow with the size) are not in it.
        """
        links = {key: fitted(*key, curve) for key, curve in self.curves().items()}
        return {key: link for key, link in links.items() if link is not None}

    def paste(self) -> str:
        """The links as Python that `dtlab.predict` and `dtlab.Cluster` take."""
        return paste(self)

    def figure(self) -> Figure:
        """Bus bandwidth against size, built-in and ours. Raises DtlabError if there is none."""
        from dtlab.show import bus_bandwidths

        panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        notes: dict[str, str] = {}
        for (collective, implementation), curve in self.curves().items():
            ours = implementation != BUILT_IN
            points = [one for one in curve if one.bus_bandwidth > 0]
            if not points:
                continue
            pair = [float(one.bytes) for one in points], [one.bus_bandwidth for one in points]
            panels.setdefault(collective, {})["ours" if ours else BUILT_IN] = pair
            if ours:
                notes[collective] = implementation
        if not panels:
            raise DtlabError("there is no bus bandwidth to draw: a rank on its own sends nothing.")
        return bus_bandwidths(panels, title=heading(self), notes=notes)

    def to_json(self) -> str:
        """All of it as JSON: bytes, seconds and bytes/s."""
        links = [
            {"collective": key[0], "implementation": key[1], **asdict(link)}
            for key, link in self.links().items()
        ]
        content = {
            "format": _FORMAT,
            "dtype": "float32",
            "ranks_per_node": self.ranks_per_node,
            "stopped": self.stopped,
            "left_out": self.left_out,
            "measurements": [_as_plain(one) for one in self.measurements],
            "links": links,
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Results:
        """What `to_json` wrote. Raises DtlabError for any other text."""
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            rows = [_from_plain(row) for row in content["measurements"]]
            return cls(rows, content["ranks_per_node"], content["stopped"], content["left_out"])
        except (ValueError, TypeError, KeyError) as error:
            raise DtlabError(f"this is not what dtlab bench --json writes: {error!r}") from error

    def save_figure(self, path: Path) -> None:
        """The figure as a file; the end of its name, .png or .svg, says which kind."""
        self.figure().savefig(path, dpi=192)


def _as_plain(one: Measurement) -> dict[str, Any]:
    derived: Mapping[str, float] = {
        "algorithm_bandwidth": one.algorithm_bandwidth, "bus_bandwidth": one.bus_bandwidth,
    }  # fmt: skip
    return {**asdict(one), **derived}


def _from_plain(row: Mapping[str, Any]) -> Measurement:
    names: Sequence[str] = list(Measurement.__dataclass_fields__)
    return Measurement(**{name: row[name] for name in names})


# The link behind the times of a collective: its closed form, read backwards ----------------------
#
# Every closed form of `dtlab.predict` is linear in a and 1/B, t = A a + C(S)/B: 2(N-1) a and
# 2(N-1)/N S/B for a ring all-reduce. So t/A against C(S)/A is a line, from which `fit_link` tells
# the link. NCCL and gloo choose among several algorithms; for a built-in collective the form is
# the one that `dtlab.predict` and the emulated interconnect take, so they give the times back.

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


# The results as text: a table for each collective, and links as Python to paste ------------------

MOST_OFF = 0.3  # of a time, by which the median may be off for a link to be worth pasting

_BYTES: Final = {  # what a size counts, as in nccl-tests
    "all_reduce": "the tensor of one rank",
    "reduce_scatter": "the input of one rank",
    "all_gather": "the output of one rank",
    "broadcast": "the tensor",
    "all_to_all": "what one rank sends, its own chunk too",
    "send_recv": "one message; half of a round trip between ranks 0 and 1",
    BETWEEN_NODES: "one message; half of a round trip between two nodes",
}
_SIZE, _COLUMNS = 8, ("time", "algbw", "busbw")
_WIDTHS: Final = (8, 11, 11)


def heading(results: Results) -> str:
    """What was measured, in one line."""
    if not results.measurements:
        return "Collectives"
    first = results.measurements[0]
    nodes = first.world_size // results.ranks_per_node
    where = f", {nodes} nodes" if nodes > 1 else ""
    ranks = "1 rank" if first.world_size == 1 else f"{first.world_size} ranks"
    return f"Collectives, {ranks} on {first.backend}{where}"


def table(results: Results) -> str:
    """A table for each collective, and what there is to be said of all of them."""
    names = dict.fromkeys(one.collective for one in results.measurements)
    blocks = [_block(results, name) for name in names]
    head = _wrapped(
        f"{heading(results)}, float32. Times are medians of the slowest rank; algbw is size / "
        "time, and busbw is algbw x nccl-tests' factor: what the link of one rank carries."
    )
    parts = [head, *blocks, *_remarks(results)]
    return "\n\n".join(parts)


def _block(results: Results, collective: str) -> str:
    curves = {
        implementation: {one.bytes: one for one in curve}
        for (name, implementation), curve in results.curves().items()
        if name == collective
    }
    sizes = sorted({size for curve in curves.values() for size in curve})
    checked = any(one.wrong for curve in curves.values() for one in curve.values())
    width = sum(_WIDTHS) + (7 if checked else 0)
    both = BUILT_IN in curves and len(curves) == 2
    above = "".join(f"  {name:>{width}}" for name in curves)
    below = f"{'size':>{_SIZE}}" + f"  {_titles(checked)}" * len(curves)
    lines = [f"{collective}   (size: {_BYTES[collective]})", " " * _SIZE + above,
             below + ("  ours/built-in" if both else "")]  # fmt: skip
    for size in sizes:
        row = [curve.get(size) for curve in curves.values()]
        cells = "".join(f"  {_cells(one, checked)}" for one in row)
        lines.append(f"{byte_words(size):>{_SIZE}}{cells}{_ratio(row) if both else ''}".rstrip())
    return "\n".join(lines)


def _titles(checked: bool) -> str:
    names = "".join(f"{name:>{width}}" for name, width in zip(_COLUMNS, _WIDTHS, strict=True))
    return names + (f"{'wrong':>7}" if checked else "")


def _cells(one: Measurement | None, checked: bool) -> str:
    if one is None:
        return " " * (sum(_WIDTHS) + (7 if checked else 0))
    numbers = one.algorithm_bandwidth, one.bus_bandwidth
    words = [time_words(one.seconds), *(f"{_rough(number)}/s" for number in numbers)]
    cells = "".join(f"{word:>{width}}" for word, width in zip(words, _WIDTHS, strict=True))
    return cells + (f"{'-' if one.wrong is None else one.wrong:>7}" if checked else "")


def _rough(count: float) -> str:
    """Bytes in words, three digits below a kilobyte too."""
    return byte_words(count if count >= 1e3 else round(count))


def _ratio(row: Sequence[Measurement | None]) -> str:
    first, second = row
    if first is None or second is None:
        return ""
    built_in, ours = (first, second) if first.implementation == BUILT_IN else (second, first)
    return f"{ours.seconds / built_in.seconds:15.2f}"


def _remarks(results: Results) -> list[str]:
    """What is wrong, and what is missing."""
    remarks = []
    if results.wrong:
        one = results.wrong[0]
        others = len(results.wrong) - 1
        more = f", and {others} more" if others else ""
        remarks.append(
            f"WRONG RESULTS: {one.implementation} of {one.collective} at {byte_words(one.bytes)}, "
            f"{one.wrong} elements{more}. A time of what is wrong means nothing: mend it first."
        )
    elif results.measurements and all(one.wrong == 0 for one in results.measurements):
        remarks.append("Every result was compared with the expected one and is right.")
    if results.stopped:
        remarks.append("Stopped: this is what was measured so far.")
    if results.left_out:
        sizes = list_words([byte_words(size) for size in results.left_out])
        remarks.append(f"Left out: {sizes}. They need more than half of the memory that is free.")
    return [_wrapped(remark) for remark in remarks]


def paste(results: Results) -> str:
    """The links as Python: those of messages as a cluster, and below it those of collectives.

    A link that does not explain its times stands there as a comment.
    """
    links, curves = results.links(), results.curves()
    inside = links.get(("send_recv", BUILT_IN))
    between = links.get((BETWEEN_NODES, BUILT_IN))
    lines = [f"from dtlab import {'Cluster, ' if inside or between else ''}Link", ""]
    if inside or between:
        first = results.measurements[0]
        nodes = first.world_size // results.ranks_per_node
        arguments = [f"nodes={nodes}", f"gpus_per_node={results.ranks_per_node}"]
        arguments += [f"intra={_link(inside)}"] if inside else []
        arguments += [f"inter={_link(between)}"] if between else []
        lines += ["cluster = Cluster(", *(f"    {each}," for each in arguments), ")"]
    lines.append("links = {  # with which the closed forms come nearest to the times")
    for key, curve in curves.items():
        name, link = f'("{key[0]}", "{key[1]}")', links.get(key)
        if link is None:
            lines.append(f"    # {name}: these times tell no link")
            continue
        off = misfit(*key, curve, link)
        mark, last = ("# ", ", so no link explains them") if off > MOST_OFF else ("", "")
        if len(curve) <= 2:
            last = ", from two sizes alone"
        lines.append(f"    {mark}{name}: {_link(link)},  # median error {100 * off:.0f} %{last}")
    return "\n".join([*lines, "}"])


def _link(link: Link) -> str:
    """A link with three digits, in microseconds and GB/s: a second run would not repeat more."""
    latency, bandwidth = _scaled(link.latency, -6), _scaled(link.bandwidth, 9)
    return f"Link(latency={latency}, bandwidth={bandwidth})"


def _scaled(value: float, power: int) -> str:
    """`0.000205` as `205e-6`."""
    digits = f"{value / 10.0**power:.3g}"
    return "0.0" if value == 0 else f"{value:.3g}" if "e" in digits else f"{digits}e{power}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 99)

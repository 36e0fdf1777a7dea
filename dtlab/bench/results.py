"""Benchmark results: one `Measurement` for each size, with tables, JSON, and fitted links."""

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
    """The time of one collective at one size.

    `bytes` is the size as nccl-tests defines it: the whole tensor on one rank, which is the input
    of a reduce-scatter, the output of an all-gather, and the input of one rank in an all-to-all.
    `seconds` is the median of samples, each the time of the slowest rank. `wrong` counts elements
    that differ from the expected ones, over all ranks; None if the result was not checked.
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
        """Algorithm bandwidth as nccl-tests defines it, in bytes/s: `bytes / seconds`."""
        return algorithm_bandwidth(float(self.bytes), self.seconds)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes/s on a rank's link: algorithm bandwidth x nccl-tests' factor; 0 for one rank."""
        operation = "send" if self.collective.startswith("send_recv") else self.collective
        return bus_factor(operation, self.world_size) * self.algorithm_bandwidth


@dataclass
class Results:
    """All measurements, in the order in which they were taken; displayed as a table.

    `stopped` is True if the benchmark was interrupted. `left_out` are requested sizes, in bytes,
    that do not fit in memory.
    """

    measurements: list[Measurement]
    ranks_per_node: int
    stopped: bool = False
    left_out: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.table()

    @property
    def wrong(self) -> list[Measurement]:
        """The measurements with a wrong result."""
        return [each for each in self.measurements if each.wrong]

    def curves(self) -> dict[tuple[str, str], list[Measurement]]:
        """Return the measurements by (collective, implementation), in order of size."""
        curves: dict[tuple[str, str], list[Measurement]] = {}
        for each in self.measurements:
            curves.setdefault((each.collective, each.implementation), []).append(each)
        return {key: sorted(curve, key=lambda each: each.bytes) for key, curve in curves.items()}

    def table(self) -> str:
        """Return a table per collective: time and bandwidths, for built-in and our functions."""
        return table(self)

    def links(self) -> dict[tuple[str, str], Link]:
        """Return the `Link` that fits each curve best, by (collective, implementation).

        With this link, the collective's closed form in `dtlab.predict` is closest to the measured
        times. Curves that determine no link are left out: those with one size, with one rank, or
        with times that do not grow with the size.
        """
        links = {key: fitted(*key, curve) for key, curve in self.curves().items()}
        return {key: link for key, link in links.items() if link is not None}

    def paste(self) -> str:
        """Return the links as Python code for `dtlab.predict` and `dtlab.Cluster`."""
        return paste(self)

    def figure(self) -> Figure:
        """Plot bus bandwidth against message size, for the built-in collectives and for dtlab's.

        Raises DtlabError if only one rank was measured.
        """
        from dtlab.show import bus_bandwidths

        panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        notes: dict[str, str] = {}
        for (collective, implementation), curve in self.curves().items():
            ours = implementation != BUILT_IN
            points = [each for each in curve if each.bus_bandwidth > 0]
            if not points:
                continue
            pair = [float(each.bytes) for each in points], [each.bus_bandwidth for each in points]
            panels.setdefault(collective, {})["ours" if ours else BUILT_IN] = pair
            if ours:
                notes[collective] = implementation
        if not panels:
            raise DtlabError("there is no bus bandwidth to draw: a single rank sends nothing.")
        return bus_bandwidths(panels, title=heading(self), notes=notes)

    def to_json(self) -> str:
        """Return all results as JSON, in bytes, seconds and bytes/s."""
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
            "measurements": [_as_plain(each) for each in self.measurements],
            "links": links,
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Parse the output of `to_json`. Raises DtlabError for any other text."""
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            rows = [_from_plain(row) for row in content["measurements"]]
            return cls(rows, content["ranks_per_node"], content["stopped"], content["left_out"])
        except (ValueError, TypeError, KeyError) as error:
            raise DtlabError(
                f"this text is not what dtlab bench --json writes: {error!r}"
            ) from error

    def save_figure(self, path: Path) -> None:
        """Save the figure; the end of the file's name, .png or .svg, determines the format."""
        self.figure().savefig(path, dpi=192)


def _as_plain(row: Measurement) -> dict[str, Any]:
    derived: Mapping[str, float] = {
        "algorithm_bandwidth": row.algorithm_bandwidth, "bus_bandwidth": row.bus_bandwidth,
    }  # fmt: skip
    return {**asdict(row), **derived}


def _from_plain(row: Mapping[str, Any]) -> Measurement:
    names: Sequence[str] = list(Measurement.__dataclass_fields__)
    return Measurement(**{name: row[name] for name in names})


# Fitting a link to the times of a collective, with the closed form of `dtlab.predict` ------------
#
# Every closed form of `dtlab.predict` for the time t is linear in the latency a and in 1/B, where
# B is the bandwidth: t = A a + C/B. For a ring all-reduce of S bytes on N ranks, A is 2(N-1) and C
# is 2(N-1)/N S. So t/A is a linear function of C/A, to which `fit_link` fits the link. NCCL and
# gloo choose among several algorithms. For a built-in collective we use the form that
# `dtlab.predict` and the emulated interconnect use, so that they reproduce the times.

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
    """Return the median relative error of the closed form with this link."""
    form = _form(collective, implementation)
    predicted = [form(float(each.bytes), each.world_size, link) for each in curve]
    return median(abs(p / each.seconds - 1) for p, each in zip(predicted, curve, strict=True))


def fitted(collective: str, implementation: str, curve: Sequence[Measurement]) -> Link | None:
    """Return the link that fits a curve best; None if the curve determines no link."""
    form = _form(collective, implementation)
    ranks = curve[0].world_size
    latencies = form(0.0, ranks, Link(1.0, 1.0))
    if latencies == 0:
        return None
    carried = [form(float(each.bytes), ranks, Link(0.0, 1.0)) / latencies for each in curve]
    try:
        return fit_link(carried, [each.seconds / latencies for each in curve])
    except ValueError:  # a single size, or times that do not grow
        return None


# The results as text: a table for each collective, and links as Python to paste ------------------

MOST_OFF = 0.3  # largest median relative error with which a link is worth pasting

_BYTES: Final = {  # the meaning of a size, as in nccl-tests
    "all_reduce": "the tensor of one rank",
    "reduce_scatter": "the input of one rank",
    "all_gather": "the output of one rank",
    "broadcast": "the tensor",
    "all_to_all": "the input of one rank, with the chunk that it keeps",
    "send_recv": "one message; the time is half of a round trip between ranks 0 and 1",
    BETWEEN_NODES: "one message; the time is half of a round trip between two nodes",
}
_SIZE, _COLUMNS = 8, ("time", "algbw", "busbw")
_WIDTHS: Final = (8, 11, 11)


def heading(results: Results) -> str:
    """Return one line that says on what the collectives were measured."""
    if not results.measurements:
        return "Collectives"
    first = results.measurements[0]
    nodes = first.world_size // results.ranks_per_node
    where = f", {nodes} nodes" if nodes > 1 else ""
    ranks = "1 rank" if first.world_size == 1 else f"{first.world_size} ranks"
    return f"Collectives, {ranks} on {first.backend}{where}"


def table(results: Results) -> str:
    """Return a table for each collective, followed by remarks on all of them."""
    names = dict.fromkeys(each.collective for each in results.measurements)
    blocks = [_block(results, name) for name in names]
    head = _wrapped(
        f"{heading(results)}, float32. Times are medians for the slowest rank. algbw is size / "
        "time; busbw is algbw x nccl-tests' factor, the bandwidth used on the link of one rank."
    )
    parts = [head, *blocks, *_remarks(results)]
    return "\n\n".join(parts)


def _block(results: Results, collective: str) -> str:
    curves = {
        implementation: {each.bytes: each for each in curve}
        for (name, implementation), curve in results.curves().items()
        if name == collective
    }
    sizes = sorted({size for curve in curves.values() for size in curve})
    checked = any(each.wrong for curve in curves.values() for each in curve.values())
    width = sum(_WIDTHS) + (7 if checked else 0)
    both = BUILT_IN in curves and len(curves) == 2
    above = "".join(f"  {name:>{width}}" for name in curves)
    below = f"{'size':>{_SIZE}}" + f"  {_titles(checked)}" * len(curves)
    lines = [f"{collective}   (size: {_BYTES[collective]})", " " * _SIZE + above,
             below + ("  ours/built-in" if both else "")]  # fmt: skip
    for size in sizes:
        row = [curve.get(size) for curve in curves.values()]
        cells = "".join(f"  {_cells(each, checked)}" for each in row)
        lines.append(f"{byte_words(size):>{_SIZE}}{cells}{_ratio(row) if both else ''}".rstrip())
    return "\n".join(lines)


def _titles(checked: bool) -> str:
    names = "".join(f"{name:>{width}}" for name, width in zip(_COLUMNS, _WIDTHS, strict=True))
    return names + (f"{'wrong':>7}" if checked else "")


def _cells(measurement: Measurement | None, checked: bool) -> str:
    if measurement is None:
        return " " * (sum(_WIDTHS) + (7 if checked else 0))
    numbers = measurement.algorithm_bandwidth, measurement.bus_bandwidth
    words = [time_words(measurement.seconds), *(f"{_rough(number)}/s" for number in numbers)]
    cells = "".join(f"{word:>{width}}" for word, width in zip(words, _WIDTHS, strict=True))
    return cells + (
        f"{'-' if measurement.wrong is None else measurement.wrong:>7}" if checked else ""
    )


def _rough(count: float) -> str:
    """Format bytes; round numbers below a kilobyte, so that they have at most three digits."""
    return byte_words(count if count >= 1e3 else round(count))


def _ratio(row: Sequence[Measurement | None]) -> str:
    first, second = row
    if first is None or second is None:
        return ""
    built_in, ours = (first, second) if first.implementation == BUILT_IN else (second, first)
    return f"{ours.seconds / built_in.seconds:15.2f}"


def _remarks(results: Results) -> list[str]:
    """Return remarks on wrong results and on sizes that are missing."""
    remarks = []
    if results.wrong:
        bad = results.wrong[0]
        others = len(results.wrong) - 1
        more = f", and {others} more" if others else ""
        remarks.append(
            f"WRONG RESULTS: {bad.implementation} of {bad.collective} at {byte_words(bad.bytes)}, "
            f"{bad.wrong} elements{more}. The time of a wrong result means nothing: fix it first."
        )
    elif results.measurements and all(each.wrong == 0 for each in results.measurements):
        remarks.append("Every result was compared with the expected one and is right.")
    if results.stopped:
        remarks.append("Stopped: these are the measurements so far.")
    if results.left_out:
        sizes = list_words([byte_words(size) for size in results.left_out])
        remarks.append(f"Left out: {sizes}. They need more than half of the free memory.")
    return [_wrapped(remark) for remark in remarks]


def paste(results: Results) -> str:
    """Return the links as Python: a cluster with the links of messages, then a dict of all links.

    A link that does not fit its times is commented out.
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
    lines.append("links = {  # with these links the closed forms fit the times best")
    for key, curve in curves.items():
        name, link = f'("{key[0]}", "{key[1]}")', links.get(key)
        if link is None:
            lines.append(f"    # {name}: these times determine no link")
            continue
        off = misfit(*key, curve, link)
        mark, last = ("# ", ", so no link fits the times") if off > MOST_OFF else ("", "")
        if len(curve) <= 2:
            last = ", from only two sizes"
        lines.append(f"    {mark}{name}: {_link(link)},  # median error {100 * off:.0f} %{last}")
    return "\n".join([*lines, "}"])


def _link(link: Link) -> str:
    """Format a link in µs and GB/s, with three digits: more would not be reproducible."""
    latency, bandwidth = _scaled(link.latency, -6), _scaled(link.bandwidth, 9)
    return f"Link(latency={latency}, bandwidth={bandwidth})"


def _scaled(value: float, power: int) -> str:
    """Format a number with a given power of ten: `0.000205` as `205e-6`."""
    digits = f"{value / 10.0**power:.3g}"
    return "0.0" if value == 0 else f"{value:.3g}" if "e" in digits else f"{digits}e{power}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 99)

"""Results of a benchmark: measurements as tables, JSON and a figure, and the links that fit them.

A link is fitted with the closed form of `dtlab.predict`. Every closed form for the time t is
linear in the latency a and in 1/B, where B is the bandwidth: t = A a + C/B. For a ring all-reduce
of S bytes on N ranks, A is 2(N-1) and C is 2(N-1)/N S. So t/A is a linear function of C/A, to
which `fit_link` fits the link. NCCL and gloo choose among several algorithms. For a built-in
collective we use the form of the emulated interconnect, so that it reproduces the times.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import dtlab.predict as predict
from dtlab.errors import DtlabError
from dtlab.predict import Cluster, Link, algorithm_bandwidth, bus_factor, fit_link
from dtlab.show.words import byte_words, list_words, time_words

if TYPE_CHECKING:
    from dtlab.show import Figure

__all__ = ["BETWEEN_NODES", "BUILT_IN", "COLLECTIVES", "Measurement", "Results", "misfit"]

BETWEEN_NODES: Final = "send_recv_between_nodes"  # in addition to send_recv on several nodes
BUILT_IN: Final = "built-in"  # the implementation of torch.distributed
_SIZE_IS: Final = {  # the meaning of a measurement's size, as in nccl-tests
    "all_reduce": "the tensor of one rank",
    "reduce_scatter": "the input of one rank",
    "all_gather": "the output of one rank",
    "broadcast": "the tensor",
    "all_to_all": "the input of one rank, with the chunk that it keeps",
    "send_recv": "one message; the time is half of a round trip between ranks 0 and 1",
    BETWEEN_NODES: "one message; the time is half of a round trip between two nodes",
}
COLLECTIVES: Final = tuple(name for name in _SIZE_IS if name != BETWEEN_NODES)

_FORMAT: Final = "dtlab bench 1"
_MOST_OFF: Final = 0.3  # largest median relative error with which a link is worth pasting


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

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.measurements[0].world_size // self.ranks_per_node

    def curves(self) -> dict[tuple[str, str], list[Measurement]]:
        """Return the measurements by (collective, implementation), in order of size."""
        curves: dict[tuple[str, str], list[Measurement]] = {}
        for each in self.measurements:
            curves.setdefault((each.collective, each.implementation), []).append(each)
        return {key: sorted(curve, key=lambda each: each.bytes) for key, curve in curves.items()}

    def links(self) -> dict[tuple[str, str], Link]:
        """Return the `Link` that fits each curve best, by (collective, implementation).

        With this link, the collective's closed form in `dtlab.predict` is closest to the measured
        times. Curves that determine no link are left out: those with one size, with one rank, or
        with times that do not grow with the size.
        """
        links = {key: _fitted(*key, curve) for key, curve in self.curves().items()}
        return {key: link for key, link in links.items() if link is not None}

    def heading(self) -> str:
        """Return one line that says on what the collectives were measured."""
        if not self.measurements:
            return "Collectives"
        first = self.measurements[0]
        where = f", {self.nodes} nodes" if self.nodes > 1 else ""
        ranks = "1 rank" if first.world_size == 1 else f"{first.world_size} ranks"
        return f"Collectives, {ranks} on {first.backend}{where}"

    def table(self) -> str:
        """Return a table per collective: time and bandwidths, for built-in and our functions."""
        head = (
            f"{self.heading()}, float32. Times are medians for the slowest rank. algbw is size / "
            "time; busbw is algbw x nccl-tests' factor, the bandwidth used on the link of one "
            "rank."
        )
        panels: dict[str, dict[str, list[Measurement]]] = {}
        for (collective, implementation), curve in self.curves().items():
            panels.setdefault(collective, {})[implementation] = curve
        tables = [_table(collective, curves) for collective, curves in panels.items()]
        remarks = [textwrap.fill(remark, 99) for remark in self._remarks()]
        return "\n\n".join([textwrap.fill(head, 99), *tables, *remarks])

    def _remarks(self) -> list[str]:
        """Return remarks on wrong results and on sizes that are missing."""
        remarks = []
        if self.wrong:
            bad, *others = self.wrong
            more = f", and {len(others)} more" if others else ""
            remarks.append(
                f"WRONG RESULTS: {bad.implementation} of {bad.collective} at "
                f"{byte_words(bad.bytes)}, {bad.wrong} elements{more}. The time of a wrong result "
                "means nothing: fix it first."
            )
        elif self.measurements and all(each.wrong == 0 for each in self.measurements):
            remarks.append("Every result was compared with the expected one and is right.")
        if self.stopped:
            remarks.append("Stopped: these are the measurements so far.")
        if self.left_out:
            sizes = list_words([byte_words(size) for size in self.left_out])
            remarks.append(f"Left out: {sizes}. They need more than half of the free memory.")
        return remarks

    def paste(self) -> str:
        """Return the links as Python code for `dtlab.predict` and `dtlab.Cluster`.

        The code makes a cluster with the links of messages, and a dict of all links. A link that
        does not fit its times is commented out.
        """
        curves, links = self.curves(), self.links()
        errors = {key: misfit(*key, curves[key], link) for key, link in links.items()}
        fitting = {key: link for key, link in links.items() if errors[key] <= _MOST_OFF}
        inside = fitting.get(("send_recv", BUILT_IN))
        between = fitting.get((BETWEEN_NODES, BUILT_IN))
        lines = [f"from dtlab import {'Cluster, ' if inside or between else ''}Link", ""]
        if inside or between:
            lines += ["cluster = Cluster(", f"    nodes={self.nodes},"]
            lines += [f"    gpus_per_node={self.ranks_per_node},"]
            lines += [f"    intra={_link_code(inside)},"] if inside else []
            lines += [f"    inter={_link_code(between)},"] if between else []
            lines += [")"]
        lines += ["links = {  # with these links the closed forms fit the times best"]
        for key, curve in curves.items():
            name = f'("{key[0]}", "{key[1]}")'
            if key not in links:
                lines.append(f"    # {name}: these times determine no link")
                continue
            remark = "" if key in fitting else ", so no link fits the times"
            if len(curve) <= 2:
                remark = ", from only two sizes"
            lines.append(
                f"    {'' if key in fitting else '# '}{name}: {_link_code(links[key])},"
                f"  # median error {100 * errors[key]:.0f} %{remark}"
            )
        return "\n".join([*lines, "}"])

    def figure(self) -> Figure:
        """Plot bus bandwidth against message size, for the built-in collectives and for dtlab's.

        Raises DtlabError if only one rank was measured.
        """
        from dtlab.show import bus_bandwidths

        if not any(each.bus_bandwidth for each in self.measurements):
            raise DtlabError("there is no bus bandwidth to draw: a single rank sends nothing.")
        panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
        notes: dict[str, str] = {}
        for (collective, implementation), curve in self.curves().items():
            name = BUILT_IN if implementation == BUILT_IN else "ours"
            points = [float(each.bytes) for each in curve], [each.bus_bandwidth for each in curve]
            panels.setdefault(collective, {})[name] = points
            if name == "ours":
                notes[collective] = implementation
        return bus_bandwidths(panels, title=self.heading(), notes=notes)

    def save_figure(self, path: Path) -> None:
        """Save the figure; the end of the file's name, .png or .svg, determines the format."""
        self.figure().savefig(path, dpi=192)

    def to_json(self) -> str:
        """Return all results as JSON, in bytes, seconds and bytes/s."""
        derived = "algorithm_bandwidth", "bus_bandwidth"
        rows = [
            {**asdict(each), **{name: getattr(each, name) for name in derived}}
            for each in self.measurements
        ]
        links = [
            {"collective": collective, "implementation": implementation, **asdict(link)}
            for (collective, implementation), link in self.links().items()
        ]
        content = {
            "format": _FORMAT,
            "dtype": "float32",
            "ranks_per_node": self.ranks_per_node,
            "stopped": self.stopped,
            "left_out": self.left_out,
            "measurements": rows,
            "links": links,
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Results:
        """Parse the output of `to_json`. Raises DtlabError for any other text."""
        names = [each.name for each in fields(Measurement)]
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            rows = [
                Measurement(**{name: row[name] for name in names})
                for row in content["measurements"]
            ]
            return cls(rows, content["ranks_per_node"], content["stopped"], content["left_out"])
        except (ValueError, TypeError, KeyError) as error:
            raise DtlabError(
                f"this text is not what dtlab bench --json writes: {error!r}"
            ) from error


# Fitting a link to the times of a collective -----------------------------------------------------

_FORMS: Final = {  # of our functions; those that are not here use the form of the built-in one
    "naive_all_reduce": predict.naive_all_reduce_seconds,
    "tree_all_reduce": predict.tree_all_reduce_seconds,
    "recursive_doubling_all_reduce": predict.recursive_doubling_all_reduce_seconds,
    "halving_doubling_all_reduce": predict.halving_doubling_all_reduce_seconds,
    "tree_broadcast": predict.tree_broadcast_seconds,
}


def _predicted(
    collective: str, implementation: str, nbytes: float, ranks: int, link: Link
) -> float:
    """Return the seconds of the closed form with this link; 0 for one rank."""
    if implementation in _FORMS:
        return _FORMS[implementation](nbytes, ranks, link)
    if collective.startswith("send_recv"):
        return link.seconds(nbytes)
    return predict.collective_seconds(collective, nbytes, Cluster(1, ranks, intra=link))


def misfit(
    collective: str, implementation: str, curve: Sequence[Measurement], link: Link
) -> float:
    """Return the median relative error of the closed form with this link."""
    key = collective, implementation
    predicted = [_predicted(*key, float(each.bytes), each.world_size, link) for each in curve]
    return median(abs(p / each.seconds - 1) for p, each in zip(predicted, curve, strict=True))


def _fitted(collective: str, implementation: str, curve: Sequence[Measurement]) -> Link | None:
    """Return the link that fits a curve best; None if the curve determines no link."""
    key, ranks = (collective, implementation), curve[0].world_size
    latencies = _predicted(*key, 0.0, ranks, Link(1.0, 1.0))  # A
    if latencies == 0:
        return None
    carried = [_predicted(*key, float(each.bytes), ranks, Link(0.0, 1.0)) for each in curve]  # C
    try:
        return fit_link(
            [each / latencies for each in carried], [each.seconds / latencies for each in curve]
        )
    except ValueError:  # a single size, or times that do not grow
        return None


def _link_code(link: Link) -> str:
    """Format a link in µs and GB/s, with three digits: more would not be reproducible."""
    latency, bandwidth = _scaled(link.latency, -6), _scaled(link.bandwidth, 9)
    return f"Link(latency={latency}, bandwidth={bandwidth})"


def _scaled(value: float, power: int) -> str:
    """Format a number with a given power of ten: `0.000205` as `205e-6`."""
    digits = f"{value / 10.0**power:.3g}"
    return "0.0" if value == 0 else f"{value:.3g}" if "e" in digits else f"{digits}e{power}"


# The table of one collective ---------------------------------------------------------------------


def _table(collective: str, curves: dict[str, list[Measurement]]) -> str:
    """Return the table of one collective, with columns for each implementation."""
    rows: dict[int, dict[str, Measurement]] = {}
    for implementation, curve in curves.items():
        for each in curve:
            rows.setdefault(each.bytes, {})[implementation] = each
    some_wrong = any(each.wrong for curve in curves.values() for each in curve)
    cells = "  {:>8}{:>11}{:>11}" + ("{:>7}" if some_wrong else "")
    width = len(cells.format("", "", "", ""))
    ours = [name for name in curves if name != BUILT_IN]
    with_ratio = len(curves) == 2 and len(ours) == 1
    names = "".join(f"{name:>{width}}" for name in curves)
    titles = cells.format("time", "algbw", "busbw", "wrong") * len(curves)
    lines = [
        f"{collective}   (size: {_SIZE_IS[collective]})",
        f"{'':8}{names}",
        f"{'size':>8}{titles}{'  ours/built-in' if with_ratio else ''}",
    ]
    for size, row in sorted(rows.items()):
        line = f"{byte_words(size):>8}"
        line += "".join(cells.format(*_words(row.get(name))) for name in curves)
        if with_ratio and len(row) == 2:
            line += f"{row[ours[0]].seconds / row[BUILT_IN].seconds:15.2f}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _words(measurement: Measurement | None) -> list[str]:
    """Return the cells of a measurement: time, both bandwidths, number of wrong elements."""
    if measurement is None:
        return [""] * 4
    speeds = [
        byte_words(speed if speed >= 1e3 else round(speed)) + "/s"  # at most three digits
        for speed in (measurement.algorithm_bandwidth, measurement.bus_bandwidth)
    ]
    wrong = "-" if measurement.wrong is None else str(measurement.wrong)
    return [time_words(measurement.seconds), *speeds, wrong]

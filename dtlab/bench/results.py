"""What came of a bench: one `Measurement` for each size, and what follows from all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dtlab.bench import report
from dtlab.bench.fit import fitted
from dtlab.bench.names import BUILT_IN
from dtlab.errors import DtlabError
from dtlab.predict import Link, algorithm_bandwidth, bus_factor

if TYPE_CHECKING:
    from dtlab.show import Figure

__all__ = ["Measurement", "Results"]

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
        return report.table(self)

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
        return report.paste(self)

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
        return bus_bandwidths(panels, title=report.heading(self), notes=notes)

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

"""The results as text: a table for each collective, and links as Python to paste."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dtlab.bench.fit import misfit
from dtlab.bench.names import BETWEEN_NODES, BUILT_IN
from dtlab.predict import Link
from dtlab.show.words import byte_words, list_words, time_words

if TYPE_CHECKING:
    from dtlab.bench.results import Measurement, Results

__all__ = ["heading", "paste", "table"]

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
    """Three digits, for more would not come back in a second run; in microseconds and GB/s."""
    latency, bandwidth = _scaled(link.latency, -6), _scaled(link.bandwidth, 9)
    return f"Link(latency={latency}, bandwidth={bandwidth})"


def _scaled(value: float, power: int) -> str:
    """`0.000205` as `205e-6`."""
    digits = f"{value / 10.0**power:.3g}"
    return "0.0" if value == 0 else f"{value:.3g}" if "e" in digits else f"{digits}e{power}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 99)

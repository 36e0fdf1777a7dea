"""Layout of a trace in lanes, one for each rank. Arithmetic only.

lane of a rank   strip     the rank's program: compute spans, and waiting for an operation
                 track 0   operations from issue to completion;
                 track 1   operations that overlap in time are placed on separate tracks
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from dtlab.show.drawing.style import Role, role_of
from dtlab.show.notebook import place_words
from dtlab.show.words import byte_words, rank_words, time_words

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = [
    "STRIP",
    "Bar",
    "Lane",
    "Message",
    "folded",
    "hatches",
    "lanes",
    "look_of",
    "merged",
    "messages",
    "without",
]

Shade = Literal["send", "receive", "collective", "span", "waiting"]

Stretch = tuple[float, float]

STRIP = -1
_NO_COMPUTE: Final[tuple[Role, ...]] = ("idle", "communication")


@dataclass(frozen=True)
class Bar:
    """One rectangle on a track of its rank's lane: an event, or a period of waiting.

    `track` is `STRIP` or counts from 0; `depth` is the number of spans that enclose this one.
    Times are in seconds. `group` names the ranks of a collective if the trace has several groups.
    """

    rank: int
    start: float
    end: float
    role: Role
    shade: Shade
    label: str
    track: int
    depth: int = 0
    bytes: int = 0
    peer: int | None = None
    tag: int = 0
    group: str = ""
    place: tuple[str, int] | None = None  # file and line of the call, if known

    @property
    def words(self) -> str:
        """The label, the number of bytes, the times and the call's line, as lines of text."""
        times = f"{time_words(self.start) if self.start else 0} to {time_words(self.end)}"
        size = [byte_words(self.bytes)] if self.bytes else []
        where = [place_words(*self.place)] if self.place else []
        return "\n".join([self.label, ", ".join([*size, times]), *where])


@dataclass
class Lane:
    """All bars of one rank, in order of their start, and its name."""

    rank: int
    name: str
    bars: list[Bar] = field(default_factory=list)
    tracks: int = 0

    @property
    def operations(self) -> Counter[str]:
        """How often each operation was issued, counted per group if there are several groups."""
        issued = [bar for bar in self.bars if bar.track != STRIP]
        return Counter(
            f"{bar.label.split(' ')[0]}{bar.group and f' among {bar.group}'}" for bar in issued
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes passed to point-to-point sends."""
        return sum(bar.bytes for bar in self.bars if bar.shade == "send")

    @property
    def waiting(self) -> float:
        """Seconds in which the program waited for an operation."""
        return sum(bar.end - bar.start for bar in self.bars if bar.shade == "waiting")

    @property
    def computing(self) -> float:
        """Seconds inside compute spans, without the time spent waiting or moving data."""
        apart = [(bar.start, bar.end) for bar in self._program if bar.role in _NO_COMPUTE]
        spans = [(bar.start, bar.end) for bar in self._program if bar.role not in _NO_COMPUTE]
        return sum(end - start for start, end in without(spans, apart))

    @property
    def communicating(self) -> float:
        """Seconds inside spans that move data."""
        moves = ((b.start, b.end) for b in self._program if b.role == "communication")
        return sum(end - start for start, end in merged(moves))

    @property
    def _program(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.track == STRIP]


@dataclass(frozen=True)
class Message:
    """A send and its matching receive."""

    send: Bar
    receive: Bar


def lanes(events: Iterable[Event], names: Sequence[str] = ()) -> list[Lane]:
    """Return one lane for each rank that has events, in order of rank; `names` are by rank."""
    by_rank: dict[int, list[Event]] = defaultdict(list)
    groups = set()
    for event in events:
        by_rank[event.rank].append(event)
        if _is_collective(event):
            groups.add(_members(event))
    several = len(groups) > 1
    return [
        _lane(rank, names[rank] if names else f"rank {rank}", by_rank[rank], several)
        for rank in sorted(by_rank)
    ]


def folded(drawn: Sequence[Lane]) -> list[Lane]:
    """Keep the first of the lanes with the same spans and operations; its name lists their ranks.

    Peers, groups and times may differ. Lanes that send messages to each other are all kept.
    """
    alike: dict[tuple[Any, ...], list[Lane]] = {}
    for lane in drawn:
        spans = tuple(bar.label for bar in lane.bars if bar.shade == "span")
        issued = Counter(
            (bar.label.split(" ")[0], bar.bytes) for bar in lane.bars if bar.track != STRIP
        )
        alike.setdefault((spans, frozenset(issued.items())), []).append(lane)
    kept = []
    for group in alike.values():
        ranks = {lane.rank for lane in group}
        if len(group) == 1 or any(
            bar.shade == "send" and bar.peer in ranks for lane in group for bar in lane.bars
        ):
            kept += group
        else:
            kept.append(replace(group[0], name=f"ranks\n{rank_words(ranks)}"))
    return sorted(kept, key=lambda lane: lane.rank)


def _is_collective(event: Event) -> bool:
    return event.kind == "comm" and event.name not in ("send", "recv")


def _members(event: Event) -> tuple[int, ...]:
    """Return the ranks of a collective's group."""
    return tuple(sorted(event.extra.get("group") or {event.rank, *event.peers}))


def _lane(rank: int, name: str, events: Sequence[Event], several: bool) -> Lane:
    """Place spans and waits on the strip, and each operation on the first free track."""
    spans = [e for e in events if e.kind == "compute" and e.extra.get("busy", True)]
    operations = sorted((e for e in events if e.kind == "comm"), key=lambda event: event.start)
    lane = Lane(rank, name, bars=_program(rank, spans, _waits(operations, spans)))
    free_from: list[float] = []
    lane.bars += [_operation(each, _track(free_from, each), several) for each in operations]
    lane.tracks = len(free_from)
    return lane


def _program(rank: int, spans: Sequence[Event], waits: Sequence[Stretch]) -> list[Bar]:
    """Return the bars of the strip; a bar inside a span is one level deeper than that span.

    `dtlab.compute` inside a span has no bar: the span says what is computed.
    """
    bars = [_span(span) for span in spans]
    bars += [Bar(rank, *wait, "idle", "waiting", "waiting", STRIP) for wait in waits]
    bars.sort(key=lambda bar: (bar.start, -bar.end))
    open_until: list[float] = []
    for number, bar in enumerate(bars):
        open_until = [end for end in open_until if end > bar.start]
        bars[number] = replace(bar, depth=len(open_until))
        if bar.shade == "span":
            open_until.append(bar.end)
    return [bar for bar in bars if not bar.depth or (bar.shade, bar.label) != ("span", "compute")]


def _track(free_from: list[float], event: Event) -> int:
    """Find the first track that is free when the event starts, and reserve it."""
    for track, free in enumerate(free_from):
        if free <= event.start:
            free_from[track] = event.end
            return track
    free_from.append(event.end)
    return len(free_from) - 1


def _span(event: Event) -> Bar:
    number = next((event.extra[key] for key in ("microbatch", "step") if key in event.extra), "")
    label = f"{event.name} {number}".strip()
    role = role_of(event.kind, event.extra.get("phase", event.name))
    return Bar(event.rank, event.start, event.end, role, "span", label, STRIP)


def _operation(event: Event, track: int, several: bool) -> Bar:
    """Return the bar of an operation; a collective is labelled with its group if `several`."""
    shade: Shade = "collective"
    group = rank_words(_members(event)) if several and _is_collective(event) else ""
    label = f"{event.name} {group}".strip()
    peer = next(iter(event.peers), None)
    if event.name == "send":
        shade, label = "send", f"send → {peer}"
    elif event.name == "recv":
        shade, label = "receive", f"recv ← {'any' if peer is None else peer}"
    return Bar(
        event.rank, event.start, event.end, "communication", shade, label, track,
        bytes=event.bytes, peer=peer, tag=event.extra.get("tag", 0), group=group,
        place=(event.extra["file"], event.extra["line"]) if event.extra.get("line") else None,
    )  # fmt: skip


def _waits(operations: Sequence[Event], spans: Sequence[Event]) -> list[Stretch]:
    """Return the periods in which the rank's program waited for an operation.

    An operation without recorded waiting, as in a prediction, counts as waiting from issue to
    completion, except during compute spans. So does a wait of a thread beside the program.
    """
    recorded: list[Stretch] = []
    beside = [(e.start, e.end) for e in operations if "blocked" not in e.extra]
    for event in operations:
        own_thread = event.extra.get("thread", 0)
        (beside if own_thread else recorded).extend(event.extra.get("blocked", ()))
    return merged([*recorded, *without(beside, [(span.start, span.end) for span in spans])])


def messages(drawn: Sequence[Lane]) -> list[Message]:
    """Pair sends with their receives, in order, for each pair of ranks and each tag."""
    sends, receives = _queues(drawn, "send"), _queues(drawn, "receive")
    return [
        Message(send, receive)
        for (src, dst, tag), queue in sends.items()
        for send, receive in zip(queue, receives.get((dst, src, tag), ()), strict=False)
    ]


def _queues(drawn: Sequence[Lane], shade: Shade) -> dict[tuple[int, int, int], list[Bar]]:
    """Collect all sends or all receives, by rank, peer and tag."""
    queues: dict[tuple[int, int, int], list[Bar]] = defaultdict(list)
    for bar in (bar for lane in drawn for bar in lane.bars):
        if bar.shade == shade and bar.peer is not None:
            queues[bar.rank, bar.peer, bar.tag].append(bar)
    return queues


def merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Merge intervals that touch or overlap; return the result in order."""
    result: list[Stretch] = []
    for start, end in sorted(stretches):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return result


def without(stretches: Iterable[Stretch], taken: Iterable[Stretch]) -> list[Stretch]:
    """Return the parts of `stretches` that lie outside `taken`, merged."""
    left: list[Stretch] = []
    holes, number = merged(taken), 0
    for start, end in merged(stretches):
        while number < len(holes) and holes[number][1] <= start:
            number += 1
        for hole_start, hole_end in islice(holes, number, None):
            if hole_start >= end:
                break
            left.append((start, hole_start))
            start = hole_end
        left.append((start, end))
    return [(start, end) for start, end in left if end > start]


# Hatches that distinguish collectives of one colour; a collective has one hatch in all figures ---
#
#     all_reduce [    ]   reduce_scatter [....]   all_gather [\\\]   all_to_all [xxxx]

_WAITING: Final = "//////"
_COLLECTIVES: Final[Mapping[str, str]] = {
    "all_reduce": "",
    "all_gather": "\\\\\\\\",
    "reduce_scatter": "....",
    "all_to_all": "xxxx",
    "broadcast": "||||",
    "reduce": "----",
    "gather": "++++",
    "scatter": "oo",
}
_OTHER: Final = "**"


def hatches(drawn: Sequence[Lane]) -> dict[str, str]:
    """Return the hatch of waiting, and of each collective if the lanes have several kinds."""
    names = {_name(bar) for lane in drawn for bar in lane.bars if bar.shade == "collective"}
    known = [*(name for name in _COLLECTIVES if name in names), *sorted(names - set(_COLLECTIVES))]
    marks = {name: _COLLECTIVES.get(name, _OTHER) for name in known} if len(names) > 1 else {}
    return marks | {"waiting": _WAITING}


def look_of(bar: Bar, marks: Mapping[str, str]) -> str:
    """Return the look of a bar: its shade, or the collective's name if that has a hatch."""
    return _name(bar) if bar.shade == "collective" and _name(bar) in marks else bar.shade


def _name(bar: Bar) -> str:
    return bar.label.split(" ")[0]

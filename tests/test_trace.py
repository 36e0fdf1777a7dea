"""The type alone: built from events, no ranks anywhere."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtlab.profiling.own_files import events_of
from dtlab.trace import Event, Records, Trace, set_span_sink, span


def send(rank: int, peer: int, start: float, end: float, size: int = 8, **extra: object) -> Event:
    return Event(rank, "comm", "send", (peer,), size, start, end, extra)


def recv(rank: int, peer: int, start: float, end: float, size: int = 8, **extra: object) -> Event:
    return Event(rank, "comm", "recv", (peer,), size, start, end, extra)


def collective(rank: int, world: int, start: float, end: float, name: str = "all_reduce") -> Event:
    peers = tuple(other for other in range(world) if other != rank)
    return Event(rank, "comm", name, peers, 100, start, end)


def compute(rank: int, start: float, end: float, name: str = "forward", **extra: object) -> Event:
    return Event(rank, "compute", name, (), 0, start, end, extra)


def ring(world: int, chunk: int = 10) -> Trace:
    events = []
    for turn in range(2 * (world - 1)):
        for rank in range(world):
            right, left = (rank + 1) % world, (rank - 1) % world
            events += [send(rank, right, turn, turn + 1, chunk)]
            events += [recv(rank, left, turn, turn + 1, chunk)]
    return Trace.from_events(events, world_size=world)


def test_trace_imports_no_torch() -> None:
    code = "import dtlab.trace, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_events_come_in_order_and_in_seconds_from_the_first() -> None:
    trace = Trace([compute(1, 12.0, 13.0), send(0, 1, 11.0, 12.0, blocked=[(11.5, 12.0)])])
    first, second = trace.events
    assert (first.rank, first.start, first.end) == (0, 0.0, 1.0)
    assert first.extra["blocked"] == [(0.5, 1.0)]
    assert (second.name, second.start, second.end) == ("forward", 1.0, 2.0)
    assert trace.events[-1] == second
    assert trace.events[:1] == [first]
    assert trace.duration == 2.0
    with pytest.raises(IndexError):
        trace.events[2]


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_ring_has_its_rounds_bytes_and_neighbours(world: int) -> None:
    trace = ring(world)
    for rank in range(world):
        assert trace.rounds(rank) == trace.sends(rank) == 2 * (world - 1)
        assert trace.bytes_sent(rank) == 2 * (world - 1) * 10
        assert trace.peers(rank) == {(rank + 1) % world, (rank - 1) % world}
    assert trace.bytes_sent() == [2 * (world - 1) * 10] * world
    assert trace.ops() == Counter(send=2 * world * (world - 1), recv=2 * world * (world - 1))


def test_a_collective_shows_in_ops_and_not_among_messages() -> None:
    trace = Trace(collective(rank, 3, 0.0, 1.0) for rank in range(3))
    assert trace.ops(1) == Counter(all_reduce=1)
    assert trace.ops() == Counter(all_reduce=3)
    assert trace.peers(1) == set()
    assert trace.bytes_sent() == [0, 0, 0]
    assert trace.events[0].peers == (1, 2)


def test_wire_is_none_where_it_is_unknown() -> None:
    assert Trace([compute(1, 0, 1)]).bytes_wire() == [None, None]
    trace = Trace([compute(0, 0, 1)], wire=[7, None])
    assert trace.bytes_wire() == [7, None]
    assert trace.bytes_wire(0) == 7


def test_an_empty_trace_answers_everything() -> None:
    trace = Trace(world_size=2)
    assert len(trace.events) == 0
    assert trace.duration == 0.0
    assert trace.bytes_sent() == [0, 0]
    assert trace.ops() == Counter()
    assert (trace.busy(1), trace.exposed_comm(1), trace.idle(1)) == (0.0, 0.0, 0.0)
    assert Trace().bytes_sent() == []
    assert Trace.from_records([]).ops() == Counter()


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="ranks 0 to 1"):
        ring(2).busy(2)
    with pytest.raises(ValueError, match="There is no rank -1"):
        ring(2).ops(-1)


def test_waiting_for_a_late_sender_is_idle_and_the_message_exposed() -> None:
    """The picture in `trace/analysis.py`, with A to E at 0, 2, 4, 6 and 8."""
    trace = Trace([
        compute(0, 0, 2), recv(0, 1, 2, 6), compute(0, 6, 8),
        compute(1, 0, 4), send(1, 0, 4, 6), compute(1, 6, 8),
    ])  # fmt: skip
    assert (trace.busy(0), trace.idle(0), trace.exposed_comm(0)) == (4.0, 2.0, 2.0)
    assert (trace.busy(1), trace.idle(1), trace.exposed_comm(1)) == (6.0, 0.0, 2.0)


def test_a_collective_is_under_way_when_the_last_has_come() -> None:
    trace = Trace([collective(0, 3, 0, 5), collective(1, 3, 1, 5), collective(2, 3, 3, 5)])
    assert [trace.exposed_comm(rank) for rank in range(3)] == [2.0, 2.0, 2.0]
    assert [trace.idle(rank) for rank in range(3)] == [3.0, 3.0, 3.0]


def test_the_k_th_meets_the_k_th_and_tags_are_kept_apart() -> None:
    trace = Trace([
        recv(0, 1, 0, 3), recv(0, 1, 3, 6), recv(0, 1, 6, 9, tag=1),
        send(1, 0, 2, 3), send(1, 0, 4, 6, tag=1), send(1, 0, 5, 6),
    ])  # fmt: skip
    assert trace.exposed_comm(0) == pytest.approx((3 - 2) + (6 - 5) + (9 - 6))


@pytest.mark.parametrize(
    "events",
    [
        [recv(0, 1, 0, 4)],  # rank 1 failed, or never sent
        [collective(0, 3, 0, 4), collective(1, 3, 2, 4)],  # rank 2 failed
        [collective(0, 2, 0, 4), collective(1, 2, 2, 4, "broadcast")],  # do not fit
    ],
)
def test_a_message_without_a_match_is_exposed_in_full(events: list[Event]) -> None:
    assert Trace(events).exposed_comm(0) == 4.0


def test_a_send_that_was_buffered_did_not_wait_for_the_receiver() -> None:
    trace = Trace([send(0, 1, 0, 1), recv(1, 0, 5, 6)])
    assert trace.exposed_comm(0) == 1.0


def test_overlapped_communication_is_not_exposed() -> None:
    trace = Trace([
        collective(0, 2, 0, 4), collective(1, 2, 0, 4),
        compute(0, 1, 3), compute(1, 0, 5),
    ])  # fmt: skip
    assert (trace.busy(0), trace.exposed_comm(0), trace.idle(0)) == (2.0, 2.0, 1.0)
    assert (trace.busy(1), trace.exposed_comm(1), trace.idle(1)) == (5.0, 0.0, 0.0)


def test_nested_spans_count_once_and_blocked_time_inside_one_is_not_busy() -> None:
    wait = send(0, 1, 1, 4, blocked=[(2, 4)])
    trace = Trace([compute(0, 0, 6), compute(0, 1, 5, "inner"), wait, recv(1, 0, 0, 4)])
    assert (trace.busy(0), trace.exposed_comm(0), trace.idle(0)) == (4.0, 2.0, 0.0)


def test_another_thread_computes_while_one_is_blocked() -> None:
    wait = send(0, 1, 1, 4, blocked=[(2, 4)])
    trace = Trace([compute(0, 0, 6), compute(0, 3, 5, thread=1), wait, recv(1, 0, 0, 4)])
    assert (trace.busy(0), trace.exposed_comm(0)) == (5.0, 1.0)


times = st.integers(0, 40).map(lambda n: n / 4)


@st.composite
def random_events(draw: st.DrawFn) -> list[Event]:
    world = draw(st.integers(1, 4))
    events = []
    for _ in range(draw(st.integers(1, 14))):
        rank = draw(st.integers(0, world - 1))
        start, end = sorted((draw(times), draw(times)))
        extra: dict[str, object] = {"thread": draw(st.integers(0, 1))}
        if draw(st.booleans()):
            extra["blocked"] = [(start, (start + end) / 2)]
        kind = draw(st.sampled_from(["compute", "send", "recv", "all_reduce", "barrier"]))
        if kind == "compute":
            events.append(compute(rank, start, end, **extra))
        elif kind in ("send", "recv"):
            peer = draw(st.integers(0, world - 1))
            events.append(Event(rank, "comm", kind, (peer,), 4, start, end, extra))
        else:
            events.append(collective(rank, world, start, end, kind))
    return events


@pytest.mark.slow
@settings(max_examples=150)
@given(random_events())
def test_the_three_parts_add_up_and_agree_with_counting(events: list[Event]) -> None:
    trace = Trace(events)
    for rank in range(trace.world_size):
        parts = (trace.busy(rank), trace.exposed_comm(rank), trace.idle(rank))
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(trace.duration)
        assert trace.busy(rank) == pytest.approx(_busy_by_counting(trace, rank))


def _busy_by_counting(trace: Trace, rank: int, step: float = 1 / 16) -> float:
    """Looks at the middle of each tick, with the definition in `Trace.busy` word by word."""
    mine = [event for event in trace.events if event.rank == rank]

    def covers(pairs: object, at: float) -> bool:
        return any(start <= at < end for start, end in pairs)  # type: ignore[attr-defined]

    def busy(at: float) -> bool:
        for thread in (0, 1):
            own = [event for event in mine if event.extra.get("thread", 0) == thread]
            spans = [(e.start, e.end) for e in own if e.kind == "compute"]
            stuck = [pair for e in own if e.kind == "comm" for pair in e.extra.get("blocked", ())]
            if covers(spans, at) and not covers(stuck, at):
                return True
        return False

    ticks = round(trace.duration / step)
    return step * sum(busy((tick + 0.5) * step) for tick in range(ticks))


def test_chrome_has_a_process_per_rank_an_arrow_per_message_and_no_overlap(
    tmp_path: Path,
) -> None:
    trace = ring(3)
    path = tmp_path / "trace.json"
    trace.to_chrome(path)
    entries = json.loads(path.read_text())["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in entries if e["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    slices = [e for e in entries if e["ph"] == "X"]
    assert len(slices) == len(trace.events)
    assert Counter(e["ph"] for e in entries if e["name"] == "message") == {"s": 12, "f": 12}
    for row in {(e["pid"], e["tid"]) for e in slices}:
        spans = sorted(
            (e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == row
        )
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


def test_chrome_arrows_go_forward_to_a_receive_that_was_posted_long_before(tmp_path: Path) -> None:
    trace = Trace.from_events([send(0, 1, 99.5, 100.0), recv(1, 0, 0.0, 100.0)])
    trace.to_chrome(tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    sent, received = (entry["ts"] for entry in entries if entry["name"] == "message")
    assert sent < received < 100e6


def test_a_chrome_file_has_all_of_the_trace(tmp_path: Path) -> None:
    trace = Trace([
        recv(0, 1, 10.0, 13.5, blocked=[(11.0, 11.5), (12.0, 13.5)], tag=3, group=(0, 1)),
        send(1, 0, 12.0, 13.0, 64), collective(2, 3, 14.0, 15.0),
        compute(1, 10.5, 11.0, microbatch=2, thread=1),
    ])  # fmt: skip
    trace.to_chrome(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["dtlab"] == {"world_size": 3, "emulated": "", "wire": [None] * 3}
    events, notes = events_of(content["traceEvents"], "trace.json")
    assert not notes
    times = [(event.start, event.end) for event in events]
    assert times == [pytest.approx((event.start, event.end)) for event in trace.events]
    blocked = events[0].extra.pop("blocked")
    assert blocked == [pytest.approx(pair) for pair in trace.events[0].extra["blocked"]]
    for read, written in zip(events, trace.events, strict=True):
        assert replace(read, start=0, end=0) == replace(
            written, start=0, end=0,
            extra={key: value for key, value in written.extra.items() if key != "blocked"},
        )  # fmt: skip


def test_a_trace_can_be_pickled() -> None:
    trace = ring(3)
    assert trace.busy(0) == 0.0
    again = pickle.loads(pickle.dumps(trace))
    assert list(again.events) == list(trace.events)
    assert again.exposed_comm(1) == trace.exposed_comm(1)


def test_records_of_some_ranks_make_a_trace() -> None:
    comm = np.array([[0, 0, 1, 5, 16, 0, 1_000, 2_000, 0, 0, 3]])
    one = Records(
        0, 3, comm, np.array([[0, 1_500, 2_000, 0]]), np.array([[1, 500, 900, 2]]),
        [{"microbatch": 3}], ["send", "forward"], [("0", (0, 1, 2))], [("float32", 4)], ["a.py"],
    )  # fmt: skip
    trace = Trace.from_records([one, Records(2, 3)], wire=[99, None, 5])
    assert trace.world_size == 3
    span_, message = trace.events
    assert (span_.name, span_.kind, span_.extra) == ("forward", "compute", {
        "microbatch": 3, "thread": 2,
    })  # fmt: skip
    assert message.start == pytest.approx(500e-9)
    assert message.extra.pop("blocked")[0] == pytest.approx((1e-6, 1.5e-6))  # type: ignore[attr-defined]
    assert message.extra | {"blocked": []} == {
        "group": (0, 1, 2), "group_name": "0", "tag": 5, "dtype": "float32", "numel": 4,
        "file": "a.py", "line": 3, "blocked": [],
    }  # fmt: skip
    assert trace.bytes_sent() == [16, 0, 0]
    assert trace.bytes_wire() == [99, None, 5]


class _Sink:
    def __init__(self) -> None:
        self.begun = 0
        self.taken: list[tuple[str, dict[str, object]]] = []

    def begin_span(self) -> None:
        self.begun += 1

    def add_span(self, name: str, extra: dict[str, object], start: int, end: int) -> None:
        assert start <= end
        self.taken.append((name, extra))


def test_a_span_goes_to_the_sink_or_nowhere() -> None:
    with span("lost"):
        pass
    sink = _Sink()
    set_span_sink(sink)
    try:
        with pytest.raises(ZeroDivisionError), span("outer", name="x"), span("inner"):
            raise ZeroDivisionError
    finally:
        set_span_sink(None)
    with span("lost too"):
        pass
    assert sink.begun == 2
    assert sink.taken == [("inner", {}), ("outer", {"name": "x"})]


def test_a_part_of_a_trace_is_what_began_within_a_span() -> None:
    events = [
        Event(rank, kind, name, (), 0, start + rank, end + rank)
        for rank in (0, 1)
        for kind, name, start, end in (
            ("comm", "barrier", 0.0, 1.0),
            ("compute", "step 1", 1.0, 3.0),
            ("compute", "backward", 1.5, 2.0),
            ("comm", "all_reduce", 2.0, 4.0),
            ("compute", "step 2", 3.0, 5.0),
            ("compute", "backward", 3.5, 4.5),
        )
    ]
    trace = Trace(events, world_size=3)
    trace.emulated = "slow links"
    part = trace.during("step 1")
    assert [(e.rank, e.name, e.start) for e in part.events] == [
        (0, "backward", 0.0), (0, "all_reduce", 0.5), (1, "backward", 1.0), (1, "all_reduce", 1.5),
    ]  # fmt: skip
    assert (part.world_size, part.emulated) == (3, "slow links")
    with pytest.raises(ValueError, match=r"No rank has a span 'step 3'. Spans: backward, step 1"):
        trace.during("step 3")

"""`dtlab.show`: the parts of its figures, their places, and the alt texts.

Structure is tested, never pixels: which bars there are, from when to when, in which colour.
"""

from __future__ import annotations

import html
import itertools
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle

from dtlab import collectives, launch
from dtlab.errors import Waiting
from dtlab.predict.communication import Link
from dtlab.show import (
    COLOURS,
    Figure,
    collective_table,
    cost_curves,
    crossover,
    ring,
    ring_timeline,
    timeline,
    tree,
)
from dtlab.show.drawing.labels import Obstacles, Upright, places
from dtlab.show.drawing.lanes import STRIP, lanes, merged, messages, without
from dtlab.show.drawing.style import INK, MUTED, PALETTE, SHEET, edge, role_of
from dtlab.show.figures import rounds, waits
from dtlab.show.figures.costs import ALL_REDUCES, fastest
from dtlab.show.figures.rounds import EMPTY
from dtlab.show.figures.table import contributors
from dtlab.show.words import byte_words, list_words, rank_words, time_words
from dtlab.trace import Event, Trace
from tests.drawn import check_layout

LESSON = Path(__file__).parent.parent / "notebooks" / "01_ranks_and_collectives.ipynb"


def message(src: int, dst: int, start: float, end: float, size: int = 1000) -> list[Event]:
    """A send and its receive; the receiver waits for all of it."""
    return [
        Event(src, "comm", "send", (dst,), size, start, end, {"tag": 0, "blocked": []}),
        Event(
            dst, "comm", "recv", (src,), size, start, end, {"tag": 0, "blocked": [(start, end)]}
        ),
    ]


def training_step() -> Trace:
    """One rank's step: forward, backward with two all-reduces under it, optimizer."""
    reduce = {"blocked": []}
    waited = {"blocked": [(0.007, 0.009)]}
    return Trace(
        [
            Event(0, "compute", "forward", (), 0, 0.0, 0.003, {"microbatch": 2}),
            Event(0, "compute", "backward", (), 0, 0.003, 0.007),
            Event(0, "comm", "all_reduce", (1,), 4000, 0.004, 0.008, reduce),
            Event(0, "comm", "all_reduce", (1,), 4000, 0.005, 0.009, waited),
            Event(0, "compute", "optimizer", (), 0, 0.009, 0.010),
        ]
    )


def bars(figure: Figure) -> dict[str, list[tuple[float, float, float, float]]]:
    """The boxes of each group of a timeline, as (start, end, low, high), by the group's name."""
    found = {}
    for collection in figure.axes[0].collections:
        if isinstance(collection, PolyCollection) and collection.get_gid():
            boxes = [path.get_extents() for path in collection.get_paths()]
            found[collection.get_gid()] = [(b.x0, b.x1, b.y0, b.y1) for b in boxes]
    return found


def fills(figure: Figure) -> dict[str, str]:
    """The colour of each group of bars."""
    return {
        collection.get_gid(): to_hex(collection.get_facecolor()[0])
        for collection in figure.axes[0].collections
        if collection.get_gid()
    }


def texts(figure: Figure) -> set[str]:
    """Everything written on a figure."""
    on_axes = (text.get_text() for axes in figure.axes for text in axes.texts)
    return {*on_axes, *(text.get_text() for text in figure.texts)}


def patches(figure: Figure, kind: type, gid: str) -> list[Any]:
    """All patches of a kind whose name matches a pattern."""
    on_axes = [patch for axes in figure.axes for patch in axes.patches]
    return [p for p in on_axes if isinstance(p, kind) and re.fullmatch(gid, p.get_gid() or "")]


def groups(figure: Figure, gid: str) -> dict[str, list[str]]:
    """The colours of the cells of each artist whose name matches a pattern, by that name."""
    return {
        collection.get_gid(): [to_hex(colour) for colour in collection.get_facecolors()]
        for axes in figure.axes
        for collection in axes.collections
        if re.fullmatch(gid, collection.get_gid() or "")
    }


# ------------------------------------------------------------------------------ timeline


def test_bars_lie_where_the_events_are() -> None:
    drawn = bars(timeline(training_step()))
    assert {name: [box[:2] for box in boxes] for name, boxes in drawn.items()} == {
        "rank 0 forward span": [pytest.approx((0.0, 0.003))],
        "rank 0 backward span": [pytest.approx((0.003, 0.007))],
        "rank 0 optimizer span": [pytest.approx((0.009, 0.010))],
        "rank 0 idle waiting": [pytest.approx((0.007, 0.009))],
        "rank 0 communication collective": [
            pytest.approx((0.004, 0.008)),
            pytest.approx((0.005, 0.009)),
        ],
    }


def test_every_rank_has_a_lane_from_top_to_bottom() -> None:
    trace = Trace([event for src in range(3) for event in message(src, (src + 1) % 3, 0, 1)])
    figure = timeline(trace)
    boxes = bars(figure)
    heights = [boxes[f"rank {rank} communication send"][0][2] for rank in range(3)]
    assert heights == sorted(heights, reverse=True)
    assert {"rank 0", "rank 1", "rank 2"} <= texts(figure)


def pipelines(count: int, batches: int) -> Trace:
    """As many pipelines of two ranks: rank r sends to rank r + count, at slightly other times."""
    events = []
    for rank in range(count):
        for batch in range(batches):
            start = batch + rank / 100
            events.append(Event(rank, "compute", f"forward {batch}", (), 0, start, start + 0.5))
            events += message(rank, rank + count, start + 0.5, start + 0.6)
    return Trace(events)


def test_in_a_tall_timeline_ranks_that_do_alike_share_a_lane() -> None:
    figure = timeline(pipelines(8, 3))
    assert {"ranks\n0-7", "ranks\n8-15"} <= texts(figure)
    assert figure.get_size_inches()[1] < 3
    assert "Ranks 0-7: issued 3 send" in figure.alt_text
    assert {"rank 0", "rank 3"} <= texts(timeline(pipelines(2, 3)))  # it fits on a screen


def test_ranks_that_send_to_each_other_keep_their_lanes() -> None:
    """Their order in time is what a pipeline or a ring shows."""
    ring = [event for src in range(16) for event in message(src, (src + 1) % 16, src, src + 1)]
    assert {f"rank {rank}" for rank in range(16)} <= texts(timeline(Trace(ring)))


@pytest.mark.parametrize("count", [2, 5, 40])
def test_overlapping_operations_do_not_hide_each_other(count: int) -> None:
    extra = {"blocked": []}
    events = [
        Event(0, "comm", "all_reduce", (1,), 8, 0.1 * i, 100.0 + i, extra) for i in range(count)
    ]
    boxes = bars(timeline(Trace(events)))["rank 0 communication collective"]
    assert len(boxes) == count
    for (_, _, low, high), (_, _, other_low, other_high) in itertools.combinations(boxes, 2):
        assert high <= other_low or other_high <= low


def test_operations_one_after_the_other_share_a_track() -> None:
    events = [event for i in range(6) for event in message(0, 1, i, i + 0.9)]
    assert [lane.tracks for lane in lanes(Trace(events).events)] == [1, 1]


def test_waiting_is_hatched_and_apart_from_the_transfer() -> None:
    figure = timeline(Trace(message(0, 1, 0, 1)))
    drawn = bars(figure)
    (hatched,) = patches(figure, PathPatch, ".*hatch")
    assert hatched.get_hatch()
    assert hatched.get_gid() == "rank 1 idle waiting hatch"
    assert "rank 0 idle waiting" not in drawn
    waiting, transfer = (
        drawn[f"rank 1 {name}"][0] for name in ("idle waiting", "communication receive")
    )
    assert waiting[2] >= transfer[3]


def test_the_name_of_an_inner_span_does_not_cover_that_of_the_outer() -> None:
    inner = [Event(0, "compute", "aten::linear", (), 0, 0.1, 9.9, {"phase": "forward"})]
    outer = [Event(0, "compute", "forward", (), 0, 0.0, 10.0, {"annotation": True})]
    texts = [text.get_text() for text in timeline(Trace(inner + outer)).axes[0].texts]
    assert "forward" in texts and "aten::linear" not in texts


def test_marks_are_not_drawn_and_a_phase_gives_the_colour() -> None:
    kernel = Event(0, "compute", "sgemm", (), 0, 2.0, 4.0, {"phase": "backward"})
    mark = Event(0, "compute", "step", (), 0, 0.0, 9.0, {"busy": False})
    (lane,) = lanes([mark, kernel])
    assert [(bar.label, bar.role) for bar in lane.bars] == [("sgemm", "backward")]


def test_nested_spans_and_waits_inside_them_stay_visible() -> None:
    trace = Trace(
        [
            Event(0, "compute", "forward", (), 0, 0, 10),
            Event(0, "compute", "attention", (), 0, 2, 6),
            Event(0, "comm", "all_reduce", (1,), 8, 3, 4, {"blocked": [(3, 4)]}),
        ]
    )
    (lane,) = lanes(trace.events)
    depth = {bar.label: bar.depth for bar in lane.bars if bar.track == STRIP}
    assert depth == {"forward": 0, "attention": 1, "waiting": 2}
    assert lane.computing == pytest.approx(trace.busy(0)) == pytest.approx(9)
    tops = {name: boxes[0][3] for name, boxes in bars(timeline(trace)).items()}
    assert tops["rank 0 forward span"] > tops["rank 0 compute span"] > tops["rank 0 idle waiting"]


def test_a_second_thread_waits_only_while_the_program_does_not_compute() -> None:
    events = [
        Event(0, "compute", "backward", (), 0, 0, 3),
        Event(0, "comm", "all_reduce", (1,), 8, 1, 5, {"blocked": [(1, 5)], "thread": 1}),
    ]
    (lane,) = lanes(events)
    assert [(bar.start, bar.end) for bar in lane.bars if bar.shade == "waiting"] == [(3, 5)]


def test_a_prediction_waits_wherever_it_does_not_compute() -> None:
    trace = Trace.from_events(
        [
            Event(0, "compute", "backward", (), 0, 0, 2),
            Event(0, "comm", "all_reduce", (1,), 8, 1, 5),
        ]
    )
    (lane,) = lanes(trace.events)
    waits = [(bar.start, bar.end) for bar in lane.bars if bar.shade == "waiting"]
    assert waits == [(2, 5)]
    assert lane.waiting == 3
    assert lane.computing == trace.busy(0) == 2


def test_arrows_join_each_send_to_the_receive_that_took_it() -> None:
    events = message(0, 1, 0, 2) + message(0, 1, 1, 4) + message(1, 0, 2, 3)
    pairs = messages(lanes(Trace(events).events))
    joined = {(p.send.rank, p.receive.rank, p.send.start, p.receive.end) for p in pairs}
    assert joined == {(0, 1, 0, 2), (0, 1, 1, 4), (1, 0, 2, 3)}
    assert len(patches(timeline(Trace(events)), FancyArrowPatch, r"message \d \d")) == 3
    assert not patches(timeline(Trace(events), arrows=False), FancyArrowPatch, r"message.*")


def test_many_messages_have_no_arrows_by_default() -> None:
    trace = Trace([event for i in range(60) for event in message(0, 1, i, i + 1)])
    assert not patches(timeline(trace), FancyArrowPatch, r"message.*")
    assert len(patches(timeline(trace, arrows=True), FancyArrowPatch, r"message.*")) == 60


def test_sends_and_receives_without_a_partner_are_drawn_all_the_same() -> None:
    lonely = [
        Event(0, "comm", "send", (1,), 8, 0, 1),
        Event(1, "comm", "recv", (), 8, 0, 1),
        Event(2, "comm", "recv", (0,), 8, 0, 1, {"tag": 7}),
    ]
    figure = timeline(Trace(lonely))
    assert not patches(figure, FancyArrowPatch, r"message.*")
    assert "recv ← any" in texts(figure)


def test_alt_text_of_a_timeline_has_the_numbers_of_this_trace() -> None:
    alt_text = timeline(Trace(message(0, 1, 0, 0.0125, 2_500_000))).alt_text
    assert alt_text == (
        "Timeline of 2 ranks: 2 lanes over 12.5 ms. "
        "Rank 0: issued 1 send, 2.50 MB in sends. "
        "Rank 1: issued 1 recv, 12.5 ms waiting."
    )


def test_title_and_units_are_on_the_figure() -> None:
    figure = timeline(training_step(), title="One step")
    assert "One step" in texts(figure)
    assert figure.alt_text.startswith("One step: 1 lane over 10.0 ms.")
    assert figure.axes[0].get_xlabel() == "ms since the first event"
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["0", "2", "4", "6", "8", "10"]
    assert {"forward", "backward", "optimizer", "collective", "waiting"} <= texts(figure)
    assert "send" not in texts(figure)
    assert "forward 2" in texts(figure)


def test_compute_inside_a_span_has_no_separate_bar_or_name() -> None:
    events = [Event(0, "compute", name, (), 0, start, end, {})
              for name, start, end in (("backward", 0.0, 0.02), ("compute", 0.0, 0.019),
                                       ("compute", 0.02, 0.04))]  # fmt: skip
    figure = timeline(Trace(events))
    assert {name: len(boxes) for name, boxes in bars(figure).items()} == {
        "rank 0 backward span": 1,
        "rank 0 compute span": 1,  # the one outside
    }
    assert "40.0 ms compute" in texts(figure)


def test_a_timeline_says_on_itself_that_links_were_emulated() -> None:
    trace = training_step()
    assert "emulated" not in timeline(trace).alt_text
    trace.emulated = "4 GPUs, 25 GB/s"
    figure = timeline(trace, title="A step", note="batch 32")
    assert "emulated: 4 GPUs, 25 GB/s; batch 32" in texts(figure)
    assert figure.alt_text.startswith("A step (emulated: 4 GPUs, 25 GB/s; batch 32): 1 lane")


def in_group(rank: int, group: tuple[int, ...], start: float, end: float) -> Event:
    """An all-reduce of a rank with those of its group."""
    others = tuple(each for each in group if each != rank)
    extra = {"group": group, "blocked": []}
    return Event(rank, "comm", "all_reduce", others, 8, start, end, extra)


def test_collectives_of_several_groups_say_whose_they_are() -> None:
    events = [in_group(rank, (0, 2), 0, 5) for rank in (0, 2)]
    events += [in_group(rank, (1, 3), 0, 5) for rank in (1, 3)]
    events += [in_group(rank, (0, 1, 2, 3), 5.0, 5.2) for rank in range(4)]
    figure = timeline(Trace(events))
    assert {"all_reduce 0,2", "all_reduce 1,3", "collective, with its ranks"} <= texts(figure)
    assert "0-3" in texts(figure)  # where there is little room the ranks alone
    assert "Rank 3: issued 1 all_reduce among 0-3 and 1 all_reduce among 1,3" in figure.alt_text


def test_collectives_of_one_group_do_not_repeat_its_ranks() -> None:
    figure = timeline(Trace([in_group(rank, (0, 1), time, time + 1)
                             for rank in (0, 1) for time in (0, 2)]))  # fmt: skip
    assert {"all_reduce", "collective"} <= texts(figure)
    assert "Rank 0: issued 2 all_reduce." in figure.alt_text


def test_collectives_of_several_kinds_have_different_hatches() -> None:
    names = ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "my_own")
    events = [
        Event(0, "comm", name, (1,), 8, i, i + 0.5, {"blocked": []})
        for i, name in enumerate(names)
    ]
    figure = timeline(Trace(events))
    assert set(names) <= texts(figure)
    assert "collective" not in texts(figure)
    marks = [
        patch.get_hatch()
        for name in names[1:]
        for patch in patches(figure, PathPatch, f"rank 0 communication {name} hatch")
    ]
    assert len(set(marks)) == len(names) - 1
    alone = timeline(Trace(events[1:2]))
    assert "collective" in texts(alone)
    assert not patches(alone, PathPatch, ".*hatch")


def test_a_prediction_tells_groups_apart_by_their_peers() -> None:
    pairs = ((0, 1), (1, 0), (2, 3), (3, 2))
    events = [Event(rank, "comm", "all_gather", (peer,), 8, 0, 1) for rank, peer in pairs]
    assert {"all_gather 0,1", "all_gather 2,3"} <= texts(timeline(Trace(events)))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), ""),
        ((3,), "3"),
        ((2, 0), "0,2"),
        ((0, 1), "0,1"),
        (range(4), "0-3"),
        ((0, 1, 2, 5), "0-2,5"),
        (range(0, 8, 2), "0,2,4,6"),
        (range(0, 16, 2), "0,2,…,14"),
    ],
)
def test_ranks_are_named_in_few_letters(ranks: tuple[int, ...], words: str) -> None:
    assert rank_words(ranks) == words


def test_a_trace_without_events_says_so() -> None:
    figure = timeline(Trace())
    assert "Nothing was recorded." in texts(figure)
    assert "Nothing was recorded." in figure.alt_text
    assert_not_blank(figure)


@pytest.mark.slow
def test_many_events_are_drawn_in_reasonable_time() -> None:
    trace = Trace([event for i in range(5000) for event in message(i % 4, (i + 1) % 4, i, i + 2)])
    begun = time.process_time()  # on a busy machine, other programs take most of the time
    assert_not_blank(timeline(trace))
    assert time.process_time() - begun < 5


# ---------------------------------------------------------------------------------- ring


def picture(done: list[rounds.Round]) -> list[str]:
    """Rounds as the docstring of `rounds` draws them, without the blanks."""
    return [
        f"{each.title}"
        + "".join(
            f" rank {rank}: " + " ".join("".join(map(str, sorted(copy))) for copy in row)
            for rank, row in enumerate(each.held)
        )
        for each in done
    ]


def test_the_pictures_in_the_docstring_are_what_a_ring_and_a_tree_do() -> None:
    assert rounds.__doc__ is not None
    lines = [" ".join(line.split()) for line in rounds.__doc__.splitlines() if "rank 0:" in line]
    assert lines == picture(rounds.ring_rounds(3)) + picture(rounds.tree_rounds(4))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_a_ring_ends_with_every_sum_everywhere(num_ranks: int) -> None:
    done = rounds.ring_rounds(num_ranks)
    all_ranks = frozenset(range(num_ranks))
    assert len(done) == 2 * (num_ranks - 1) + 1
    assert {chunk for row in done[-1].held for chunk in row} == {all_ranks}
    halfway = done[num_ranks - 1].held
    assert [halfway[rank][rank] for rank in range(num_ranks)] == [all_ranks] * num_ranks
    for each in done[1:]:
        assert {(move.src, move.dst) for move in each.moves} == {
            (rank, (rank + 1) % num_ranks) for rank in range(num_ranks)
        }


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_a_ring_shows_what_each_copy_holds_and_what_travels(num_ranks: int) -> None:
    done = rounds.ring_rounds(num_ranks)
    for step in {0, 1, num_ranks, len(done) - 1}:
        each = done[step]
        figure = ring(num_ranks, step)
        drawn = groups(figure, r"rank \d cells")
        filled = {
            f"rank {rank} cells": [
                source in each.held[rank][chunk]
                for chunk, source in itertools.product(range(num_ranks), repeat=2)
            ]
            for rank in range(num_ranks)
        }
        assert {
            gid: [colour != EMPTY.lower() for colour in colours] for gid, colours in drawn.items()
        } == filled
        arrows = patches(figure, FancyArrowPatch, r"move \d \d \d")
        assert {arrow.get_gid() for arrow in arrows} == {
            f"move {move.src} {move.dst} {move.chunk}" for move in each.moves
        }


def test_the_lesson_counts_rounds_as_the_picture_does() -> None:
    cells = nbformat.read(LESSON, as_version=4).cells
    lesson = "\n".join(cell.source for cell in cells)
    assert r"\text{sent} = r-k \pmod N" in lesson
    assert "sending = dist.isend(chunks[(rank - k) % n]" in lesson
    for each in rounds.ring_rounds(4)[1:4]:
        assert {move.chunk - (move.src - each.number) % 4 for move in each.moves} == {0}


def test_copies_get_darker_with_each_contribution() -> None:
    cells = groups(ring(4, 3), "rank 0 cells")["rank 0 cells"]
    held = rounds.ring_rounds(4)[3].held[0]
    by_count = sorted((len(held[chunk]), sum(linear(cells[4 * chunk]))) for chunk in range(4))
    assert [count for count, _ in by_count] == [1, 2, 3, 4]
    brightness = [bright for _, bright in by_count]
    assert brightness == sorted(brightness, reverse=True)


def test_without_a_step_every_round_has_a_panel() -> None:
    figure = ring(4)
    headings = {words for words in texts(figure) if ", round " in words}
    assert headings == {
        f"{phase}, round {number} of 3"
        for phase in ("reduce-scatter", "all-gather")
        for number in (1, 2, 3)
    }
    assert len(patches(figure, FancyArrowPatch, r"move.*")) == 6 * 4


def test_alt_text_of_a_ring_names_messages_and_complete_chunks() -> None:
    one = ring(3, 2).alt_text
    assert "Ring all-reduce, reduce-scatter, round 2 of 2." in one
    assert "Rank 0 sent chunk 1 to rank 1" in one
    assert "3 of 9 copies hold the full sum" in one
    everything = ring(4).alt_text
    assert "4 after reduce-scatter 3, 8 after all-gather 1" in everything
    assert "16 after all-gather 3" in everything


@pytest.mark.parametrize(("num_ranks", "step"), [(0, None), (9, 0), (4, 7), (4, -1), (1, 1)])
def test_a_ring_that_does_not_exist_is_refused(num_ranks: int, step: int | None) -> None:
    with pytest.raises(ValueError, match=r"ring"):
        ring(num_ranks, step)


# ---------------------------------------------------------------------------------- tree


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "broadcast"])
def test_a_tree_ends_as_it_should(num_ranks: int, operation: rounds.TreeOperation) -> None:
    done = rounds.tree_rounds(num_ranks, operation)
    last = [copy for (copy,) in done[-1].held]
    all_ranks = frozenset(range(num_ranks))
    if operation == "broadcast":
        assert last == [frozenset({0})] * num_ranks
    else:
        assert last[0] == all_ranks
        assert operation == "reduce" or last == [all_ranks] * num_ranks
    depth = (num_ranks - 1).bit_length()
    assert len(done) == 1 + depth * (2 if operation == "all_reduce" else 1)
    for each in done:  # a rank is in one message of a round
        ranks = [rank for move in each.moves for rank in (move.src, move.dst)]
        assert len(ranks) == len(set(ranks))


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_timeline_of_a_real_ring_shows_its_chunks_in_two_halves(num_ranks: int) -> None:
    def summed() -> None:
        import torch

        collectives.ring_all_reduce(torch.ones(600))

    figure = ring_timeline(launch(summed, world_size=num_ranks).trace)
    bars = patches(figure, Rectangle, r"rank \d chunk .*")
    shown: dict[int, list[tuple[str, str]]] = {rank: [] for rank in range(num_ranks)}
    for bar in bars:
        _, rank, _, name = bar.get_gid().split(" ", 3)
        shown[int(rank)].append((name, to_hex(bar.get_facecolor())))
    colours: dict[str, set[str]] = {}
    for rank, found in shown.items():
        moves = [m for each in rounds.ring_rounds(num_ranks) for m in each.moves if m.dst == rank]
        complete = [""] * (num_ranks - 1) + [" complete"] * (num_ranks - 1)
        wanted = [f"{m.chunk}{more}" for m, more in zip(moves, complete, strict=True)]
        assert [name for name, _ in found] == wanted
        for name, colour in found:
            colours.setdefault(name, set()).add(colour)
    assert {len(each) for each in colours.values()} == {1}  # a chunk has one colour on all ranks
    assert len(set.union(*colours.values())) == 2 * num_ranks
    hops = patches(figure, FancyArrowPatch, r"hop \d \d")
    assert len(hops) == 2 * (num_ranks - 1)  # arrows follow one chunk only
    for bar in bars:
        rank = int(bar.get_gid().split()[1])
        border = lines(figure)["halves"].get_xdata()[2 * rank]
        middle = bar.get_x() + bar.get_width() / 2
        assert (middle > border) == bar.get_gid().endswith("complete") or not bar.get_width()
    check_layout(figure)


def test_the_timeline_of_a_ring_refuses_another_trace() -> None:
    for events in (message(0, 1, 0, 1), message(0, 1, 0, 1) + message(1, 0, 0, 1), []):
        with pytest.raises(ValueError, match="draws one ring all-reduce of 2 to 8 ranks"):
            ring_timeline(Trace(events))


@pytest.mark.parametrize("num_ranks", [4, 5])
def test_the_messages_of_a_tree_are_those_of_the_real_one(num_ranks: int) -> None:
    def summed() -> None:
        import torch

        collectives.tree_all_reduce(torch.ones(3))

    events = launch(summed, world_size=num_ranks).trace.events
    sent = sorted((e.rank, e.peers[0]) for e in events if e.name == "send")
    moves = [move for each in rounds.tree_rounds(num_ranks) for move in each.moves]
    assert sent == sorted((move.src, move.dst) for move in moves)


@pytest.mark.parametrize("num_ranks", [2, 5, 8])
def test_a_tree_shows_what_each_rank_holds_and_what_travels(num_ranks: int) -> None:
    done = rounds.tree_rounds(num_ranks)
    figure = tree(num_ranks)
    assert {
        gid: [colour != EMPTY.lower() for colour in colours]
        for gid, colours in groups(figure, r"round \d rank \d cells").items()
    } == {
        f"round {row} rank {rank} cells": [source in copy for source in range(num_ranks)]
        for row, each in enumerate(done)
        for rank, (copy,) in enumerate(each.held)
    }
    arrows = patches(figure, FancyArrowPatch, r"round \d move \d \d")
    assert {arrow.get_gid() for arrow in arrows} == {
        f"round {row} move {move.src} {move.dst}"
        for row, each in enumerate(done)
        for move in each.moves
    }


def test_a_step_of_a_tree_is_emphasised_and_later_ones_are_empty() -> None:
    figure = tree(8, 2)
    assert {gid.split()[1] for gid in groups(figure, r"round \d rank 0 cells")} == {"0", "1", "2"}
    arrows = patches(figure, FancyArrowPatch, r"round .*")
    strength = {arrow.get_gid(): arrow.get_alpha() for arrow in arrows}
    assert {gid for gid, alpha in strength.items() if alpha == 1} == {
        "round 2 move 2 0",
        "round 2 move 6 4",
    }
    received = patches(figure, Rectangle, r"round .* received")
    assert {box.get_gid() for box in received} == {
        "round 2 rank 0 received",
        "round 2 rank 4 received",
    }
    assert len(patches(figure, object, r"round 6 rank \d")) == 8  # type: ignore[arg-type]


def test_alt_text_of_a_tree_names_senders_and_receivers() -> None:
    assert tree(4).alt_text == (
        "Tree all-reduce among 4 ranks. Reduce 1: rank 1 sends to rank 0 and rank 3 sends to "
        "rank 2. Reduce 2: rank 2 sends to rank 0. Broadcast 1: rank 0 sends to rank 2. "
        "Broadcast 2: rank 0 sends to rank 1 and rank 2 sends to rank 3. "
        "Then every rank holds the values of all 4 ranks."
    )
    assert tree(4, 1, operation="broadcast").alt_text == (
        "Broadcast among 4 ranks: broadcast, round 1 of 2. Broadcast 1: rank 0 sends to rank 2. "
        "Whose values each rank then holds: rank 0: 0; rank 1: nothing; rank 2: 0; "
        "rank 3: nothing."
    )


@pytest.mark.parametrize(("num_ranks", "step"), [(0, None), (9, 0), (4, 5), (4, -1), (1, 1)])
def test_a_tree_that_does_not_exist_is_refused(num_ranks: int, step: int | None) -> None:
    with pytest.raises(ValueError, match="tree"):
        tree(num_ranks, step)
    with pytest.raises(ValueError, match=r"'all_reduce', 'reduce', 'broadcast', not 'gather'"):
        tree(4, operation="gather")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------- table


def labelled(num_ranks: int, count: int) -> list[list[int]]:
    return [[(i + 1) * 10**rank for i in range(count)] for rank in range(num_ranks)]


def test_the_picture_in_the_docstring_is_an_all_reduce() -> None:
    from dtlab.show.figures import table as table_figure

    assert table_figure.__doc__ is not None
    drawn = [
        [int(word) for word in line.replace("rank", "", 1).split() if word.isdigit()][1:]
        for line in table_figure.__doc__.splitlines()
        if line.strip().startswith("rank ")
    ]
    before = labelled(3, 2)
    assert drawn == [[*row, 111, 222] for row in before]


def test_digits_tell_whose_an_element_is() -> None:
    assert [contributors(number) for number in (0, 7, 20, 3001, 111)] == [
        [], [0], [1], [0, 3], [0, 1, 2],
    ]  # fmt: skip


@pytest.mark.parametrize("num_ranks", [1, 3, 8])
def test_a_table_shows_every_element_with_its_number_and_colours(num_ranks: int) -> None:
    before = labelled(num_ranks, 2)
    after = [[sum(column) for column in zip(*before, strict=True)]] * num_ranks
    figure = collective_table("all_reduce", before, after)
    strips = groups(figure, r"(before|after) rank \d element \d strips")
    assert len(strips) == 2 * num_ranks * 2
    for (side, rows), rank, place in itertools.product(
        (("before", before), ("after", after)), range(num_ranks), range(2)
    ):
        number = rows[rank][place]
        assert str(number) in texts(figure)
        drawn = strips[f"{side} rank {rank} element {place} strips"]
        whose = contributors(number)
        assert [colour in {c.lower() for c in PALETTE} for colour in drawn] == [
            source in whose for source in range(num_ranks)
        ]
        assert all(drawn[source] == PALETTE[source].lower() for source in whose)


def test_a_wide_table_puts_after_below_before_and_keeps_its_size() -> None:
    before = labelled(4, 4)
    everything = [number for row in before for number in row]
    wide = collective_table("all_gather", before, [everything] * 4)
    narrow = collective_table("all_to_all", before, [[row[r] for row in before] for r in range(4)])
    boxes = {
        figure: {box.get_gid(): box for box in patches(figure, Rectangle, r"(before|after) .*")}
        for figure in (wide, narrow)
    }
    assert wide.get_size_inches()[0] < 9.9  # as much as a page shows without making it smaller
    last = boxes[wide]["after rank 3 element 15"]
    assert last.get_x() + last.get_width() < wide.get_size_inches()[0]
    for figure, side_by_side in ((wide, False), (narrow, True)):
        first, second = (boxes[figure][f"{side} rank 0 element 0"] for side in ("before", "after"))
        assert (first.get_y() == second.get_y()) is side_by_side
        assert (first.get_x() == second.get_x()) is not side_by_side
    low = boxes[wide]["before rank 3 element 0"].get_y()
    assert boxes[wide]["after rank 0 element 0"].get_y() + 0.36 < low


@pytest.mark.slow
def test_a_table_takes_what_ranks_return() -> None:
    def gathered() -> tuple[object, object]:
        import torch
        import torch.distributed as dist

        mine = torch.tensor([10.0 ** dist.get_rank()])
        everything = torch.zeros(dist.get_world_size())
        dist.all_gather_into_tensor(everything, mine)
        return mine, everything

    before, after = zip(*launch(gathered, world_size=3).values, strict=True)
    assert collective_table("all_gather", before, after).alt_text == (
        "all_gather among 3 ranks. Before: rank 0 holds 1 from rank 0; rank 1 holds 10 from "
        "rank 1; rank 2 holds 100 from rank 2. "
        "After: every rank holds 1, 10 and 100 from ranks 0, 1 and 2."
    )


def test_ranks_that_hold_nothing_say_so() -> None:
    figure = collective_table("scatter", [[1, 2], None], [[1], [2]])
    assert "nothing" in texts(figure)
    assert "rank 1 holds nothing" in figure.alt_text
    zeros = collective_table("broadcast", [[5], [0]], [[5], [5]])
    assert "rank 1 holds zeros" in zeros.alt_text


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([[1]] * 9, [[1]] * 9, "1 to 8 ranks"),
        ([[1], [10]], [[11]], "as many before as after"),
        ([[1], [0.5]], [[1], [1]], "rank 1 holds 0.5"),
        ([[1], [10]], [[-1], [1]], "rank 0 holds -1"),
        ([[1], [10]], [[100], [1]], "whole numbers from 0 to 99"),
    ],
)
def test_numbers_that_tell_nothing_are_refused(before: list, after: list, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        collective_table("all_reduce", before, after)


# --------------------------------------------------------------------------------- costs


def lines(figure: Figure) -> dict[str, object]:
    """The curves and marks of a figure by name."""
    return {line.get_gid(): line for axes in figure.axes for line in axes.lines if line.get_gid()}


def test_measured_emulated_and_predicted_look_different() -> None:
    curve = ([1e3, 1e6], [1e-3, 2e-3])
    figure = cost_curves({"ring": curve}, emulated={"ring": curve}, predicted={"ring": curve})
    drawn = lines(figure)
    full, hollow = drawn["measured ring"], drawn["emulated ring"]
    assert drawn["predicted ring"].get_linestyle() == "-"
    assert drawn["predicted ring"].get_marker() == "None"
    assert full.get_linestyle() == hollow.get_linestyle() == "None"
    assert full.get_markerfacecolor() != hollow.get_markerfacecolor() == SHEET
    assert list(full.get_xdata()) == curve[0]
    assert list(full.get_ydata()) == curve[1]
    assert {"measured", "emulated", "predicted", "ring"} <= texts(figure)
    alone = lines(cost_curves({"gloo": curve}))["measured gloo"]
    assert alone.get_linestyle() == "-"


def look(line: object) -> tuple[object, ...]:
    """What a reader compares between a curve and its sample in the key."""
    return (
        line.get_color(), line._dash_pattern, line.get_linewidth(), line.get_marker(),
        line.get_markerfacecolor(),
    )  # fmt: skip


def test_the_key_shows_each_curve_as_it_is_drawn() -> None:
    curve = ([1e3, 1e6], [1e-3, 2e-3])
    chart = {"ring": curve, "recursive doubling": curve}
    for kind in ("measured", "emulated"):
        drawn = lines(cost_curves(**{kind: chart}))
        for name in chart:
            line, sample = drawn[f"{kind} {name}"], drawn[f"key {name}"]
            assert look(line)[:3] == look(sample)[:3]
            assert look(line)[3:] == look(drawn[f"key {kind} {name}"])[3:]
    drawn = lines(cost_curves(chart, emulated=chart, predicted=chart))
    for name in chart:
        assert look(drawn[f"predicted {name}"]) == look(drawn[f"key {name}"])
        for kind in ("measured", "emulated"):
            assert look(drawn[f"{kind} {name}"]) == look(drawn[f"key {kind} {name}"])
    drawn = lines(crossover(4))
    assert look(drawn["predicted tree"]) == look(drawn["key tree"])


def test_an_axis_has_at_least_three_numbers() -> None:
    for last in (1.8e-3, 5e-3, 5e-2, 5):
        figure = cost_curves({"ring": ([1e3, 1e6], [1e-3, last])})
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert sum(label != "" for label in labels) >= 3, labels


def test_the_name_of_the_last_winner_is_next_to_its_band_if_it_does_not_fit() -> None:
    sizes = [1e3, 1e6, 1.2e6]
    curves = {"server": (sizes, [1, 2, 9]), "recursive doubling": (sizes, [5, 5, 5])}
    figure = cost_curves(emulated=curves)
    (label,) = [text for text in figure.axes[0].texts if text.get_text() == "recursive doubling"]
    assert label.get_ha() == "left"
    assert label.xy[0] == 1.2e6


def test_measured_times_alone_mark_no_border() -> None:
    curves = {"server": ([1e3, 1e6], [1, 9]), "ring": ([1e3, 1e6], [5, 5])}
    assert "crossover" in lines(cost_curves(emulated=curves))
    measured = cost_curves(measured=curves)
    assert "crossover" not in lines(measured)
    assert "Fastest" not in measured.alt_text
    assert "fastest" not in texts(measured)


def test_an_algorithm_keeps_its_look_in_every_figure() -> None:
    curve = ([1e3, 1e6], [1e-3, 2e-3])
    charts = cost_curves({"gloo": curve, "ring": curve}), crossover(4)
    looks = [lines(charts[0])["measured ring"], lines(charts[1])["predicted ring"]]
    assert looks[0].get_color() == looks[1].get_color()
    assert lines(charts[0])["measured gloo"].get_color() != looks[0].get_color()
    colours = {line.get_color() for gid, line in lines(charts[1]).items() if "predicted" in gid}
    dashes = {str(line._dash_pattern) for gid, line in lines(charts[1]).items() if "pred" in gid}
    assert len(colours) == len(dashes) == len(ALL_REDUCES)


def test_the_crossover_is_where_the_formulas_meet() -> None:
    """3a + 3S/B against 6a + 7/4 S/B on eight ranks: S = 12/5 aB."""
    a, bandwidth = 5e-6, 50e9
    figure = crossover(8, a, bandwidth)
    place = lines(figure)["crossover"].get_xdata()[0]
    assert place == pytest.approx(12 / 5 * a * bandwidth, rel=0.005)
    assert figure.alt_text == (
        "All-reduce among 8 ranks, links of 5.00 µs and 50.0 GB/s: predicted time against size. "
        "Fastest, as predicted: recursive doubling from 100 B and halving-doubling from 600 kB, "
        "up to 10.0 GB."
    )


@pytest.mark.parametrize("num_ranks", [2, 3, 6, 8, 100])
@pytest.mark.parametrize("algorithms", [tuple(ALL_REDUCES), ("central server", "ring", "tree")])
def test_the_fastest_is_the_fastest(num_ranks: int, algorithms: tuple[str, ...]) -> None:
    link = Link(3e-5, 1.25e9)
    sizes = np.geomspace(1e2, 1e10, 161)
    curves = {name: (sizes, ALL_REDUCES[name](sizes, num_ranks, link)) for name in algorithms}
    winners = fastest(curves)
    assert winners[0].start == 1e2
    assert winners[-1].end == 1e10
    for winner, after in itertools.pairwise(winners):
        assert winner.end == after.start
    for winner in winners:
        size = (winner.start * winner.end) ** 0.5
        times = {name: ALL_REDUCES[name](size, num_ranks, link) for name in algorithms}
        assert times[winner.name] == pytest.approx(min(times.values()))


def labels(figure: Figure) -> dict[str, tuple[float, float, float]]:
    """Left and right end of the words next to vertical lines, as drawn, and the line's place."""
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    found = {}
    for text in axes.texts:
        if (text.get_gid() or "").startswith("label"):
            box = text.get_window_extent()
            found[text.get_text()] = (box.x0, box.x1, box.y0)
    return found


def upright(figure: Figure) -> list[tuple[float, float, float]]:
    """The places and the ends of vertical lines, in pixels."""
    axes = figure.axes[0]
    named = [line for line in axes.lines if line.get_gid() in ("crossover", "size")]
    boxes = [line.get_window_extent() for line in named]
    return [(box.x0, box.y0, box.y1) for box in boxes]


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 8, 12, 64, 96, 1024])
@pytest.mark.parametrize(
    "algorithms", [tuple(ALL_REDUCES), ("ring", "recursive doubling"), ("ring",)]
)
def test_labels_of_sizes_lie_on_no_line_and_on_no_other_label(
    num_ranks: int, algorithms: tuple[str, ...]
) -> None:
    borders = [line.get_xdata()[0] for gid, line in lines(crossover(num_ranks)).items()
               if gid == "crossover"]  # fmt: skip
    near = [border * factor for border in borders for factor in (0.4, 0.8, 0.99, 1.01, 1.2, 3)]
    for size in [1e2, 1e10, *near]:
        figure = crossover(num_ranks, size=size, algorithms=algorithms)
        found, places = labels(figure), upright(figure)
        right_end = figure.axes[0].get_window_extent().x1
        for words, (left, right, low) in found.items():
            crossed = [
                x for x, y0, y1 in places if left < x < right and y0 < low + 10 and y1 > low
            ]
            assert not crossed, (size, words)
            assert right < right_end
            for other, (other_left, other_right, other_low) in found.items():
                beside = right < other_left or other_right < left
                assert other == words or beside or abs(low - other_low) > 10


def test_a_label_is_on_the_other_side_of_its_line_if_another_line_is_near() -> None:
    marks = [Upright(1.0, "600 kB", "bottom"), Upright(1.3, "1.00 MB", "bottom")]
    left, right = places(marks, Obstacles(6, 3, []))
    assert left.left < 1.0 - 0.3
    assert right.left > 1.3
    assert left.bottom == right.bottom < 0.2


def test_lines_leave_room_for_the_labels_at_their_other_end() -> None:
    marks = [Upright(1.0, "600 kB", "bottom"), Upright(1.3, "1.00 MB", "top")]
    border, cursor = places(marks, Obstacles(6, 3, []))
    assert border.bottom + 0.14 < marks[1].reach(3)[0]
    assert cursor.bottom > marks[0].reach(3)[1]
    assert (border.left, cursor.left) == pytest.approx((1.05, 1.35))
    assert marks[0].reach(3)[0] == 0
    assert marks[1].reach(3)[1] == 3


def test_a_label_keeps_off_curves() -> None:
    curve = np.array([[0.0, 6.0], [0.1, 0.1]])
    (free,) = places([Upright(1.0, "600 kB", "bottom")], Obstacles(6, 3, [curve]))
    assert free.bottom > 0.13


@pytest.mark.parametrize("num_ranks", [2, 6, 64, 1024])
@pytest.mark.parametrize("algorithms", [tuple(ALL_REDUCES), ("ring", "recursive doubling")])
def test_every_border_of_the_fastest_is_marked(
    num_ranks: int, algorithms: tuple[str, ...]
) -> None:
    sizes = np.geomspace(1e2, 1e10, 20_001)
    for link in (Link(5e-7, 9e11), Link(5e-6, 5e10), Link(1e-3, 1.25e8)):
        times = [ALL_REDUCES[name](sizes, num_ranks, link) for name in algorithms]
        changes = sizes[1:][np.diff(np.argmin(np.round(times, 15), axis=0)) != 0]
        figure = crossover(num_ranks, link.latency, link.bandwidth, algorithms=algorithms)
        marked = [line.get_xdata()[0] for line in figure.axes[0].lines
                  if line.get_gid() == "crossover"]  # fmt: skip
        assert marked == pytest.approx(list(changes), rel=0.002)


def test_a_crossover_of_no_algorithm_says_so() -> None:
    figure = crossover(8, size=1e6, algorithms=[])
    assert "No algorithm is chosen." in texts(figure)
    assert figure.alt_text.endswith("predicted time against size. No algorithm is chosen.")
    assert_not_blank(figure)


def test_without_a_choice_no_algorithm_is_the_fastest() -> None:
    one = (np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    other = (np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    assert fastest({"a": one}) == fastest({"a": one, "b": other}) == []
    assert "crossover" not in lines(cost_curves({"a": one}))


def test_a_marked_size_has_the_times_of_all_algorithms() -> None:
    figure = crossover(4, 1e-5, 1e9, size=4e6, slowdown=10)
    assert lines(figure)["size"].get_xdata()[0] == 4e6
    ring_seconds = 10 * (6 * 1e-5 + 1.5 * 4e6 / 1e9)
    assert lines(figure)["size ring"].get_ydata()[0] == pytest.approx(ring_seconds)
    assert time_words(ring_seconds) in texts(figure)
    assert f"ring {time_words(ring_seconds)}" in figure.alt_text
    assert "slowed down 10 times" in figure.alt_text


def test_sizes_may_come_in_any_order() -> None:
    figure = cost_curves({"ring": ([3e3, 1e3, 2e3], [3.0, 1.0, 2.0])}, note="loopback")
    assert list(lines(figure)["measured ring"].get_xdata()) == [1e3, 2e3, 3e3]
    assert "loopback" in texts(figure)
    assert figure.alt_text == (
        "Time against size (loopback), logarithmic axes. "
        "Measured: ring from 1.00 s at 1.00 kB to 3.00 s at 3.00 kB."
    )


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({}, "nothing to draw"),
        ({"ring": ([1, 2], [1])}, "2 sizes and 1 times"),
        ({"ring": ([], [])}, "0 sizes"),
        ({"ring": ([0, 1], [1, 1])}, "above 0"),
        ({f"number {i}": ([1], [1]) for i in range(7)}, "room for 6 algorithms, not for 7"),
    ],
)
def test_curves_that_cannot_be_drawn_are_refused(measured: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cost_curves(measured)


@pytest.mark.parametrize(
    "arguments",
    [{"num_ranks": 1}, {"latency": -1}, {"bandwidth": 0}, {"slowdown": 0}, {"algorithms": ["x"]}],
)
def test_a_crossover_that_cannot_be_is_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"crossover|link"):
        crossover(**arguments)


# --------------------------------------------------------------------------------- style

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def linear(colour: str) -> np.ndarray:
    """A colour in linear RGB, 0 to 1."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB in CIE L*a*b*, where distances are about as large as they look."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
         [0.0193339, 0.1191920, 0.9503041]]
    )  # fmt: skip
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_both_axes_of_time_against_size_have_a_title() -> None:
    for figure in (cost_curves(measured={"a message": ([1e3, 1e6], [1e-4, 1e-3])}), crossover()):
        assert figure.axes[0].get_xlabel() == "size of the tensor"
        assert figure.axes[0].get_ylabel() == "time"


@pytest.mark.parametrize("vision", VISIONS)
def test_colour_blind_readers_can_distinguish_the_palette(vision: str) -> None:
    seen = [lab(VISIONS[vision] @ linear(colour)) for colour in PALETTE]
    for one, other in itertools.combinations(range(len(PALETTE)), 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)


@pytest.mark.parametrize("vision", VISIONS)
def test_colour_blind_readers_can_distinguish_roles(vision: str) -> None:
    seen = {role: lab(VISIONS[vision] @ linear(colour)) for role, colour in COLOURS.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)


def test_text_and_outlines_have_enough_contrast() -> None:
    assert contrast(INK, SHEET) > 7
    assert contrast(MUTED, SHEET) > 4.5
    for colour in COLOURS.values():
        assert contrast(edge(colour), SHEET) > 3
    for colour in PALETTE[:6]:
        assert contrast(colour, SHEET) > 3


def test_a_colour_means_the_same_in_every_figure() -> None:
    step = fills(timeline(training_step()))
    pair = fills(timeline(Trace(message(0, 1, 0, 1))))
    for role in ("forward", "backward", "optimizer"):
        assert step[f"rank 0 {role} span"] == COLOURS[role].lower()
    assert step["rank 0 idle waiting"] == COLOURS["idle"].lower()
    assert pair["rank 1 idle waiting"] == COLOURS["idle"].lower()
    assert pair["rank 0 communication send"] == COLOURS["communication"].lower()
    (arrow, *_) = patches(ring(4, 1), FancyArrowPatch, r"move.*")
    assert to_hex(arrow.get_edgecolor()) == COLOURS["communication"].lower()


@pytest.mark.parametrize(
    ("names", "shown"),
    [(("input", "read"), "read"), (("input", "read", "decode"), "other compute")],
)
def test_the_legend_names_the_only_other_span(names: tuple[str, ...], shown: str) -> None:
    spans = [Event(0, "compute", name, (), 0, k, k + 1.0) for k, name in enumerate(names)]
    legend = {text.get_text() for axes in timeline(Trace(spans)).axes for text in axes.texts}
    assert {"input", shown} <= legend
    assert ("other compute" in legend) == (shown == "other compute")


def test_roles_follow_from_names() -> None:
    assert role_of("compute", "Forward") == "forward"
    assert role_of("compute", "backward_input") == "backward"
    assert role_of("compute", "optimizer.step") == "optimizer"
    assert role_of("compute", "input") == "input"
    assert role_of("compute", "data loading") == "compute"
    assert role_of("comm", "all_reduce") == "communication"


# ------------------------------------------------------------------------------- display


def assert_not_blank(figure: Figure) -> None:
    """Check that the picture is not blank and has the size of its sheet."""
    from io import BytesIO

    from matplotlib.image import imread

    picture = imread(BytesIO(figure.to_png()))
    assert picture.std() > 0.01
    width, height = figure.get_size_inches()
    assert picture.shape[:2] == pytest.approx((192 * height, 192 * width), abs=2)


def test_waits_draws_the_circle_of_ranks_that_wait() -> None:
    circle = waits([Waiting(rank, "recv", ((rank + 1) % 3,)) for rank in range(3)], 3)
    assert arrows_in(circle) == {(0, 1), (1, 2), (2, 0)}
    assert circle.alt_text.endswith("rank 2 waits in recv for rank 0.")


def test_waits_leaves_out_ranks_in_the_same_collective() -> None:
    mixed = [Waiting(rank, "all_reduce", others) for rank, others in ((0, (1, 2)), (1, (0, 2)))]
    assert arrows_in(waits([*mixed, Waiting(2, "compute")], 3)) == {(0, 2), (1, 2)}
    assert arrows_in(waits(mixed, 4)) == {(0, 2), (1, 2)}
    words = [text.get_text() for text in waits(mixed, 3).axes[0].texts]
    assert words == ["0", "all_reduce", "1", "all_reduce", "2", "returned"]


def arrows_in(figure: Figure) -> set[tuple[int, int]]:
    """Pairs of a rank that waits, and the rank that it waits for."""
    ids = [str(patch.get_gid()) for patch in figure.axes[0].patches]
    found = [re.fullmatch(r"rank (\d+) waits for rank (\d+)", name) for name in ids]
    return {(int(each[1]), int(each[2])) for each in found if each}


CURVE = ([1e3, 1e6], [1e-3, 2e-3])
SOME_OF_EACH = {
    "ring": lambda: ring(4),
    "one step of a ring": lambda: ring(5, 2),
    "one rank": lambda: ring(1),
    "tree": lambda: tree(),
    "tree of one": lambda: tree(1),
    "start of a broadcast": lambda: tree(5, 0, operation="broadcast"),
    "timeline": lambda: timeline(training_step(), note="a note"),
    "waits": lambda: waits([Waiting(0, "recv", (1,)), Waiting(1, "compute")], 2),
    "table": lambda: collective_table("reduce_scatter", labelled(2, 2), [[11], [22]]),
    "wide table": lambda: collective_table("all_gather", labelled(8, 1), [[1, 10**7]] * 8),
    "costs": lambda: cost_curves({"recursive doubling": CURVE}, predicted={"gloo": CURVE}),
    "crossover": lambda: crossover(1000, size=1e6, slowdown=1000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_OF_EACH)
def test_pictures_are_not_blank_and_have_words(name: str) -> None:
    figure = SOME_OF_EACH[name]()
    assert_not_blank(figure)
    assert len(figure.alt_text) > 60
    (title,) = [text for text in figure.texts if text.get_gid() == "title"]
    assert figure.alt_text.startswith(title.get_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_OF_EACH)
def test_nothing_is_written_beyond_the_sheet(name: str) -> None:
    figure = SOME_OF_EACH[name]()
    FigureCanvasAgg(figure).draw()
    sheet = figure.bbox
    for text in (*figure.texts, *(text for axes in figure.axes for text in axes.texts)):
        box = text.get_window_extent()
        assert sheet.x0 <= box.x0 <= box.x1 <= sheet.x1, text.get_text()
        assert sheet.y0 <= box.y0 <= box.y1 <= sheet.y1, text.get_text()


def test_a_notebook_gets_an_image_with_its_alt_text() -> None:
    figure = timeline(Trace(message(0, 1, 0, 1)), title='5 > 4 & "quoted"')
    data, _ = figure._repr_mimebundle_()
    assert data["text/plain"] == figure.alt_text
    assert f'<img alt="{html.escape(figure.alt_text)}"' in data["text/html"]
    assert data["image/png"] in data["text/html"]


def hints(figure: Figure) -> dict[str, tuple[float, ...]]:
    """The boxes over a figure in percent (left, top, width, height), by their words."""
    found = re.findall(r'<i title="([^"]*)" style="([^"]*)"', figure.to_html())
    return {html.unescape(words): tuple(map(float, re.findall(r":([-0-9.]+)%", style)))
            for words, style in found}  # fmt: skip


def test_the_mouse_finds_bytes_times_and_line_of_each_bar() -> None:
    extra = {"blocked": [], "file": __file__, "line": 3}
    send = Event(0, "comm", "send", (1,), 4_000_000, 0.5, 1.0, extra)
    figure = timeline(Trace([*message(0, 1, 0, 1), send]))
    words = "rank 0: send → 1\n4.00 MB, 500 ms to 1.00 s\n"
    (found,) = [each for each in hints(figure) if each.startswith(words)]
    assert "test_figures.py, line 3:   Structure is tested" in found
    left, top, width, height = hints(figure)[found]
    axes = figure.axes[0].get_position()
    assert left + width == pytest.approx(100 * axes.x1, abs=0.1)
    assert width == pytest.approx(50 * axes.width, abs=0.1)
    assert 100 * (1 - axes.y1) <= top < top + height <= 100 * (1 - axes.y0)
    assert "rank 1: waiting\n0 to 1.00 s" in hints(figure)
    assert not hints(timeline(Trace([e for i in range(400) for e in message(0, 1, i, i + 1)])))


def test_a_dark_page_dims_a_figure_and_its_text_stays_readable() -> None:
    page = ring(2, 0).to_html()
    assert 'body[data-jp-theme-light="false"]' in page and 'class="dtlab-figure"' in page
    (share,) = map(float, re.findall(r"brightness\(([0-9.]+)\)", page))
    sheet, ink, muted = (to_hex([share * part for part in to_rgb(each)])
                         for each in (SHEET, INK, MUTED))  # fmt: skip
    assert contrast(sheet, "#FFFFFF") > 1.5  # no longer white
    assert contrast(sheet, ink) > 7
    assert contrast(sheet, muted) > 4.5


@pytest.mark.slow
def test_pyplot_and_torch_are_not_needed() -> None:
    program = (
        "import sys, dtlab.show as s; s.ring(4)._repr_mimebundle_();"
        "from dtlab.trace import Trace; s.timeline(Trace()); s.crossover(); s.tree();"
        "assert 'ipywidgets' not in sys.modules;"
        "assert 'matplotlib.pyplot' not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("pyplot", ["", "import matplotlib.pyplot as plt\n"])
def test_a_figure_as_last_expression_is_shown_once(pyplot: str) -> None:
    import nbformat
    from nbclient import NotebookClient

    code = f"{pyplot}from dtlab.show import ring\nring(4, 1)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "execute_result"
    assert "rank 3 sent chunk 2 to rank 0" in output.data["text/html"]


# --------------------------------------------------------------------------------- words


def test_numbers_have_the_unit_that_suits() -> None:
    values = (2.5, 0.0123, 0.000456, 0.0)
    assert [time_words(v) for v in values] == ["2.50 s", "12.3 ms", "456 µs", "0.00 µs"]
    counts = (12, 4096, 6_291_456, 140e9)
    assert [byte_words(v) for v in counts] == ["12 B", "4.10 kB", "6.29 MB", "140 GB"]
    assert [list_words(x) for x in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]


def test_stretches() -> None:
    assert merged([(3, 4), (0, 1), (1, 2), (0.5, 0.6)]) == [(0, 2), (3, 4)]
    assert without([(0, 10)], [(-1, 1), (3, 4), (9, 12)]) == [(1, 3), (4, 9)]
    assert without([(0, 1), (5, 6)], [(0, 9)]) == []
    assert without([(0, 1), (5, 6)], []) == [(0, 1), (5, 6)]

"""Figures of unit 00: the decision tree, scaling, and their explorers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dtlab.predict.strategy import choose
from dtlab.predict.strategy.decision import TREE, Leaf
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.lines import scaling_chart
from dtlab.show.figures.strategy import decision_tree
from dtlab.show.widgets.decision import explore_decision

JOBS = {
    "zero3": choose(40e9, 80e9, 2e9, num_gpus=16),
    "data": choose(1e9, 80e9, num_gpus=8, hours=19 * 24, deadline_hours=5 * 24),
    "one_gpu": choose(2e8, 80e9, 5e9, hours=2),
    "split_sample": choose(50e6, 80e9, 300e9, num_gpus=8),
    "context_parallel": choose(300e9, 80e9, 60e9, num_gpus=64),
    "too_few": choose(40e9, 80e9, 2e9, num_gpus=8),
}


def texts(figure: Figure, start: str) -> dict[str, Any]:
    """The texts on a figure whose id begins so, by the rest of it."""
    return _by_id([text for axes in figure.axes for text in axes.texts], start)


def lines(figure: Figure, start: str) -> dict[str, Any]:
    return _by_id([line for axes in figure.axes for line in axes.lines], start)


def _by_id(artists: list[Any], start: str) -> dict[str, Any]:
    named = {each.get_gid(): each for each in artists if each.get_gid()}
    return {name[len(start) :]: each for name, each in named.items() if name.startswith(start)}


# ------------------------------------------------------------------------- the decision tree


def test_every_node_of_the_tree_is_on_it_once_and_in_its_words() -> None:
    figure = decision_tree()
    for id, node in TREE.items():
        if isinstance(node, Leaf):
            assert texts(figure, "leaf ")[id].get_text() == node.strategy
        else:
            assert texts(figure, "question ")[id].get_text() == node.text
    assert lines(figure, "branch ").keys() == TREE.keys() - {"replica"}
    assert not texts(figure, "step ")
    assert "13 questions and 14 strategies" in figure.alt_text


@pytest.mark.slow
@pytest.mark.parametrize("id", JOBS)
def test_the_way_of_a_choice_is_lit_and_no_other(id: str) -> None:
    choice, figure = JOBS[id], decision_tree(JOBS[id])
    assert choice.leaf.id == id
    way = {step.question.id for step in choice.path}
    branches = lines(figure, "branch ")
    wide = {name for name, branch in branches.items() if branch.get_linewidth() > 2}
    assert wide == (way | {id}) - {"replica"}
    bold = {name for name, text in texts(figure, "question ").items()
            if text.get_weight() == "bold"}  # fmt: skip
    assert bold == way
    assert [name for name, text in texts(figure, "leaf ").items()
            if text.get_weight() == "bold"] == [id]  # fmt: skip
    assert texts(figure, "step ").keys() == way


@pytest.mark.parametrize("id", JOBS)
def test_numbers_are_next_to_their_questions_and_the_decisive_one_is_marked(id: str) -> None:
    choice, figure = JOBS[id], decision_tree(JOBS[id])
    told = texts(figure, "step ")
    for step in choice.path:
        words = told[step.question.id].get_text()
        assert words.startswith("not known") or step.numbers[0] in words
        assert ("decided it" in words) == (step is choice.because)
    assert figure.texts[1].get_text() == f"because {choice.because}"
    assert all(step.question.text in figure.alt_text for step in choice.path)
    assert str(choice.because) in figure.alt_text


@pytest.mark.slow
def test_rows_do_not_lie_on_each_other_and_words_stay_on_the_sheet() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for choice in (None, *JOBS.values()):
        figure = decision_tree(choice)
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in texts(figure, "").values()]
        assert all(box.x0 > 0 and box.x1 < figure.bbox.width for box in boxes)
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[number + 1 :])


# -------------------------------------------------------------------------------- explorers


@pytest.mark.proof
@pytest.mark.slow
def test_facts_that_move_light_another_way() -> None:
    explorer = explore_decision()
    assert "ZeRO stage 3" in explorer.figure.alt_text
    explorer.controls["num_params"].field.value = "200 million"
    assert explorer.figure.alt_text.startswith("Data parallelism")
    explorer.controls["hours"].field.value = "2 hours"
    assert explorer.figure.alt_text.startswith("One GPU")
    explorer.controls["hours"].field.value = "19 days"
    assert explorer.controls["hours"].value == 456
    explorer.controls["activation_bytes"].field.value = "300 GB"
    assert explorer.figure.alt_text.startswith("Context or domain parallelism")


@pytest.mark.slow
def test_tokens_decide_between_stage_3_and_three_dimensions() -> None:
    explorer = explore_decision()
    explorer.controls["tokens_per_gpu"].field.value = "256"
    assert explorer.figure.alt_text.startswith("Pipeline parallelism")  # 16 GPUs, 48 blocks
    explorer.controls["num_gpus"].field.value = "32"
    assert explorer.figure.alt_text.startswith("Pipeline parallelism")
    explorer.controls["num_blocks"].field.value = "24"
    assert explorer.figure.alt_text.startswith("Data x tensor x pipeline parallelism")


@pytest.mark.slow
def test_numbers_of_parameters_are_read_as_they_are_written() -> None:
    dial = explore_decision().controls["num_params"]
    for words, count in {"1.5 billion": 1.5e9, "200 Million": 2e8, "3e9": 3e9}.items():
        dial.field.value = words
        assert (dial.value, dial.complaint.value) == (count, "")
    dial.field.value = "7 million million"
    assert "is not understood" in dial.complaint.value


# ---------------------------------------------------------------------------------- scaling

TIMES = {1: 8.0, 2: 4.0, 4: 4.0, 8: 16.0}


def points(figure: Figure, name: str) -> list[tuple[float, float]]:
    line = lines(figure, "")[name]
    return [tuple(pair) for pair in np.asarray(line.get_xydata()).tolist()]


def test_what_is_drawn_is_the_speedup() -> None:
    figure = scaling_chart({"job": TIMES})
    assert points(figure, "measured job") == [(1, 1), (2, 2), (4, 2), (8, 0.5)]
    assert points(figure, "predicted ideal: N times") == [(n, n) for n in (1, 2, 4, 8)]
    assert "job, measured: 1 on 1, 2 on 2, 2 on 4, 0.5 on 8" in figure.alt_text


def test_in_weak_scaling_n_ranks_do_n_times_the_work() -> None:
    figure = scaling_chart(emulated={"job": TIMES}, weak=["job"])
    assert points(figure, "emulated job") == [(1, 1), (2, 4), (4, 8), (8, 4)]
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "efficiency on 8: 50 %" in words
    assert "the batch grows" in words


def test_marks_have_a_line_of_their_own_only_without_a_prediction() -> None:
    alone = scaling_chart({"job": TIMES})
    beside = scaling_chart({"job": TIMES}, predicted={"job": TIMES})
    assert lines(alone, "")["measured job"].get_linestyle() != "None"
    assert lines(beside, "")["measured job"].get_linestyle() == "None"
    assert lines(beside, "")["predicted job"].get_linestyle() != "None"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({}, "nothing to draw"),
        ({"job": {2: 1.0}}, "no time on one rank"),
        ({"job": {1: 1.0, 2: 0.0}}, "must be above 0"),
        ({str(n): TIMES for n in range(6)}, "room for 6 curves"),
    ],
)
def test_a_chart_that_cannot_be_is_refused(times: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scaling_chart(times)

"""Figures of memory: bars against a GPU, the staircase, and the explorer; and in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from dtlab.predict.hardware import CARDS
from dtlab.predict.memory import POLICIES, model_states, smallest_world_size
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.memory import (
    PIECES,
    count_words,
    memory_bar,
    memory_bars,
    staircase,
    zero_stages,
)
from dtlab.show.figures.overlap import gather_and_free
from dtlab.show.widgets.memory import explore_memory
from tests.drawn import boxes, check_layout, lines, texts

KINDS = ("parameters", "gradients", "optimizer state")

# --------------------------------------------------------------------------------- bars


def widths(figure: Figure, piece: str) -> list[float]:
    return [each.get_width() for each in boxes(figure, piece)]


@pytest.mark.parametrize("policy", POLICIES)
def test_bars_are_the_model_states_on_one_scale(policy: str) -> None:
    figure = memory_bar(7e9, 2, 8, policy, budget=80e9)
    found = [widths(figure, piece) for piece in KINDS]
    scale = found[0][0] / (7e9 * POLICIES[policy].parts[0])
    for stage in range(4):
        states = model_states(7e9, stage, 8, policy)
        wanted = states.parameters, states.gradients, states.optimizer
        got = [each[stage] / scale for each in found]
        assert got == pytest.approx(wanted, rel=1e-6)
    (line,) = [each for each in lines(figure).items() if each[0] == "budget"]
    left = min(each.get_x() for each in boxes(figure, "parameters"))
    assert (line[1].get_xdata()[0] - left) / scale == pytest.approx(80e9)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize(("ranks", "activations", "gathered"), [(1, 0, 0), (16, 9e9, 2e9)])
def test_it_says_whether_it_fits_and_on_how_many_gpus(
    stage: int, ranks: int, activations: float, gathered: float
) -> None:
    figure = memory_bar(13e9, stage, ranks, "mixed", budget=80e9, activation_bytes=activations,
                        gathered_bytes=gathered)  # fmt: skip
    said = [each for each in texts(figure) if each.startswith(("fits", "too large"))]
    assert len(said) == 4
    for each, words in enumerate(said):
        rest = activations + (gathered if each == 3 else 0)
        fewest = smallest_world_size(13e9, each, 80e9, "mixed", activation_bytes=rest)
        total = model_states(13e9, each, ranks, "mixed").total + rest
        if fewest is None:
            assert words == "fits on no number of GPUs"
            assert total > 80e9
        else:
            assert words.split(": ")[1].startswith(f"{fewest} GPU")
            assert words.startswith("fits") == (total <= 80e9)
    assert (f"ZeRO stage {stage}:" in figure.alt_text) and (f"stage {stage}: " in figure.alt_text)
    assert len(widths(figure, "activations")) == (4 if activations else 0)
    assert len(widths(figure, "gathered block")) == (1 if gathered else 0)


def test_a_bar_that_is_far_too_long_is_cut_off_with_a_note() -> None:
    figure = memory_bar(175e9, 3, 64, "mixed", budget=CARDS["H100 SXM"])
    assert {"» 2800 GB", "longer bars are cut off here »"} <= set(texts(figure))
    assert "longer bars are cut off here »" not in texts(memory_bar())
    assert "43.8 GB" in texts(figure)
    ends = [each.get_x() + each.get_width() for piece in KINDS for each in boxes(figure, piece)]
    assert max(ends) < 7.1
    assert "H100 SXM" in figure.alt_text


def test_a_users_bars_and_words() -> None:
    figure = memory_bars({"before": {"parameters": 3e6, "caches": 5e6}, "after": {}}, 7e6,
                         title="Mine", verdicts={"after": "nothing is left"})  # fmt: skip
    assert {"does not fit", "nothing is left", "8.00 MB", "7 MB"} <= set(texts(figure))
    assert len(widths(figure, "caches")) == 1
    assert "before: 8.00 MB (parameters 3.00 MB, caches 5.00 MB), does not fit" in figure.alt_text


def test_does_not_fit_is_written_darker_than_fits() -> None:
    figure = memory_bars({"a": {"caches": 9e9}, "b": {"caches": 1e9}}, 7e9, title="Mine")
    dark = {
        text.get_text(): sum(to_rgb(text.get_color()))
        for axes in figure.axes
        for text in axes.texts
    }
    assert dark["does not fit"] < dark["fits"]


def test_a_short_piece_has_its_number_alone() -> None:
    figure = memory_bars({"a": {"gradients": 7e9, "parameters": 63e9}}, 80e9, title="Mine")
    assert {"7.00", "63.0 GB"} <= set(texts(figure))
    figure = memory_bars({"a": {"gradients": 999e6, "parameters": 9e9}}, 12e9, title="Mine")
    assert "999" not in texts(figure)  # which would be MB


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"stage": 4}, "stage must be 0"),
        ({"world_size": 0}, "world_size"),
        ({"policy": "fp8"}, "policy must be one of"),
        ({"budget": -1.0}, "budget"),
        ({"budget": 0}, "bytes above 0"),
        ({"activation_bytes": -1.0}, "activation_bytes"),
        ({"gathered_bytes": float("nan")}, "gathered_bytes"),
    ],
)
def test_memory_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        memory_bar(**wrong)


def test_no_bars_and_bytes_below_0_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        memory_bars({}, 1e9, title="Mine")
    with pytest.raises(ValueError, match="caches of 'before'"):
        memory_bars({"before": {"caches": -1}}, 1e9, title="Mine")


@pytest.mark.parametrize(
    ("count", "words"), [(7e9, "7 billion"), (1.3e6, "1.3 million"), (175e9, "175 billion"),
                         (1e12, "1 trillion"), (2500, "2.5 thousand"), (12, "12")],
)  # fmt: skip
def test_counts_in_words(count: float, words: str) -> None:
    assert count_words(count) == words


# --------------------------------------------------------------------------------- stairs

MOMENTS = ["forward 0", "forward 1", "backward 1", "backward 0", "step", "forward 0"]
RISING = [{"parameters": 4e6, "gradients": 1e6 * n, "rest": 5e5} for n in range(6)]
FLAT = [{"parameters": 1e6, "optimizer state": 2e6}] * 6


def heights(figure: Figure, gid: str) -> Sequence[float]:
    heights: Sequence[float] = lines(figure)[gid].get_ydata()
    return heights


def test_stairs_are_the_sums_and_pieces_lie_on_each_other() -> None:
    figure = staircase({"one": RISING, "two": FLAT}, MOMENTS, levels={"two": 3e6}, note="by hand")
    sums = [4.5e6 + 1e6 * n for n in range(6)]
    assert list(heights(figure, "total one")) == [*sums, sums[-1]]
    assert list(heights(figure, "total two")) == [3e6] * 7
    assert set(heights(figure, "level two")) == {3e6}
    assert "level one" not in lines(figure)
    filled = {each.get_gid(): each for axes in figure.axes for each in axes.collections}
    corners: Any = filled["rest one"].get_paths()[0].vertices
    assert corners[:, 1].max() == 9.5e6
    assert "one: at most 9.50 MB, in forward 0" in figure.alt_text
    assert "two: at most 3.00 MB" in figure.alt_text and "predicted 3.00 MB" in figure.alt_text
    letters = [text.get_text() for axes in figure.axes for text in axes.texts
               if (text.get_gid() or "").startswith("phase")]  # fmt: skip
    assert letters == ["F", "B", "S", "F"] * 2
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


@pytest.mark.parametrize(
    ("held", "moments", "words"),
    [
        ({}, MOMENTS, "1 to 5 panels"),
        ({"one": []}, [], "a moment at least"),
        ({"one": FLAT[:3]}, MOMENTS, "3 values for 6 moments"),
        ({str(n): FLAT for n in range(6)}, MOMENTS, "not 6"),
    ],
)
def test_stairs_that_cannot_be_are_refused(held: Any, moments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        staircase(held, moments)


# --------------------------------------------------------------------------------- display

SOME_OF_EACH: dict[str, Callable[..., Figure]] = {
    "bar": memory_bar,
    "bar, everything": lambda: memory_bar(7.5e9, 3, 64, activation_bytes=12e9,
                                          gathered_bytes=0.8e9),
    "bar, cut off": lambda: memory_bar(1e12, 0, 1, budget=CARDS["A100 SXM 80 GB"]),
    "bar, tiny": lambda: memory_bar(1e6, 1, 4096, "half_only", budget=80e9),
    "bars, long names": lambda: memory_bars(
        {name: dict.fromkeys(PIECES, 3e9) for name in POLICIES}, 80e9, title="All"
    ),
    "stages": zero_stages,
    "stages, eight ranks": lambda: zero_stages(8),
    "gather and free": gather_and_free,
    "gather and free, eight layers": lambda: gather_and_free(8, prefetch=False),
    "stairs": lambda: staircase({"stage 0": RISING, "stage 3": FLAT}, MOMENTS),
    "stairs, many": lambda: staircase(
        {f"stage {n}": RISING * 3 for n in range(4)}, MOMENTS * 3, levels={"stage 0": 1e7}
    ),
}  # fmt: skip


def test_each_stage_divides_one_piece_more_and_each_rank_holds_another_part() -> None:
    figure = zero_stages(4)
    for divided_stages, piece in enumerate(list(PIECES)[:3], 1):
        held = boxes(figure, f"{piece} held")
        assert len(held) == 4 * 4  # one box on each rank at each stage
        whole = max(box.get_width() for box in held)
        shards = [box for box in held if box.get_width() < 0.3 * whole]
        assert len(shards) == 4 * divided_stages
        assert len({round(box.get_x(), 3) for box in shards}) == 4
    with pytest.raises(ValueError, match="2 to 8 ranks"):
        zero_stages(1)


def test_a_layer_is_gathered_before_it_computes_and_prefetch_shortens_the_step() -> None:
    ends = []
    for prefetch, most in ((True, 2), (False, 1)):
        figure = gather_and_free(4, prefetch=prefetch)
        assert f"at most {most} whole" in figure.alt_text
        for layer in range(4):
            whole = boxes(figure, f"whole {layer}")
            assert len(whole) == 2
            first, second = whole
            assert first.get_x() + first.get_width() < second.get_x()  # freed in between
            for band in whole:
                inside = [
                    box
                    for name in ("gather", "forward", "backward")
                    for box in boxes(figure, name)
                    if box.get_y() > band.get_y()
                    and box.get_y() < band.get_y() + band.get_height()
                    and band.get_x() <= box.get_x() < band.get_x() + band.get_width()
                ]
                gather, compute = sorted(inside, key=lambda box: box.get_x())[-2:]
                assert gather.get_gid() == "gather"
                assert compute.get_x() >= gather.get_x() + gather.get_width()
        ends.append(max(box.get_x() for box in boxes(figure, "reduce")))
    assert ends[0] < ends[1]
    with pytest.raises(ValueError, match="2 to 8 layers"):
        gather_and_free(1)


def placed(figure: Figure) -> list[Any]:
    FigureCanvasAgg(figure).draw()
    found = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    return found + [axes.title for axes in figure.axes if axes.axison]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_OF_EACH)
def test_figures_have_a_title_and_words_that_lie_apart(name: str) -> None:
    check_layout(SOME_OF_EACH[name]())


@pytest.mark.slow
def test_the_explorer_draws_what_its_controls_say() -> None:
    explorer = explore_memory()
    assert explorer.figure.alt_text == memory_bar(7e9, 1, 8, "mixed").alt_text
    set_to = {"num_params": 175 * 10**9, "world_size": 64, "stage": "3", "policy": "fp32",
              "activation_bytes": 5e9, "card": "H200 SXM"}  # fmt: skip
    for name, value in set_to.items():
        explorer.controls[name].value = value
    wanted = memory_bar(175e9, 3, 64, "fp32", budget=CARDS["H200 SXM"], activation_bytes=5e9)
    assert explorer.figure.alt_text == wanted.alt_text
    for typed, count in (("13 B", 13 * 10**9), ("70 billion", 70 * 10**9), ("7e9", 7 * 10**9)):
        explorer.controls["num_params"].field.value = typed
        assert explorer.controls["num_params"].value == count
    explorer.controls["num_params"].field.value = "0.5"
    assert "not a whole number" in explorer.controls["num_params"].complaint.value


def test_the_explorer_starts_with_the_given_values() -> None:
    explorer = explore_memory(70e9, 3, 32, "half_only")
    assert explorer.figure.alt_text == memory_bar(70e9, 3, 32, "half_only").alt_text


@pytest.mark.slow
def test_a_drag_of_the_slider_draws_one_figure() -> None:
    """The explorer needs at most twice the time of one call that makes the same picture."""
    explorer = explore_memory(7.5e9, 3, 64)
    dragged, called = [], []
    for ranks in (8, 16, 32, 64, 128, 256):
        started = time.process_time()
        explorer.controls["world_size"].value = ranks
        dragged.append(time.process_time() - started)
        started = time.process_time()
        memory_bar(7.5e9, 3, ranks).to_png()
        called.append(time.process_time() - started)
    assert min(dragged) < 2 * min(called)

"""Figures of ceilings and of the wire: their parts and alt texts."""

from __future__ import annotations

import html

import pytest
from matplotlib.patches import Rectangle

from dtlab.predict import CARDS, Card, Link, ring_all_reduce_seconds
from dtlab.show import Figure, ceiling_ladder, explore_wire, roofline, wire_step
from tests.drawn import boxes, check_layout, lines, texts

POINTS = {"DDP": ("network", 6000.0), "element-wise": ("HBM", 0.5)}
PLATEAU = {"matrix product": ("HBM", 1365.0)}


def test_a_ladder_has_a_rung_for_each_level_and_says_when_arithmetic_is_the_limit() -> None:
    figure = ceiling_ladder()
    widths = [
        rung.get_width()
        for name in ("arithmetic", "shared memory", "HBM", "NVLink", "network")
        for rung in boxes(figure, name)
        if isinstance(rung, Rectangle)
    ]
    assert len(widths) == 5
    assert widths == sorted(widths, reverse=True)
    # 989e12 / 3.35e12, / 450e9, / 50e9
    assert {"295", "2,198", "19,780", "450 GB/s"} <= set(texts(figure))
    assert "NVLink 450 GB/s, arithmetic is the limit from 2,198 FLOPs per byte on" in (
        figure.alt_text
    )


def test_the_network_of_a_ladder_can_be_chosen() -> None:
    figure = ceiling_ladder(CARDS["A100 SXM 80 GB"], Link(30e-6, 1.25e9))
    assert {"1.25 GB/s", f"{312e12 / 1.25e9:,.0f}"} <= set(texts(figure))


def test_a_point_lies_on_the_roof_of_its_level() -> None:
    figure = roofline(POINTS)
    drawn = lines(figure)
    assert max(drawn["predicted network"].get_ydata()) == pytest.approx(989e12)
    for name, (level, intensity) in POINTS.items():
        point = drawn[f"place {level}"]
        at = {"DDP": 6000 * 50e9, "element-wise": 0.5 * 3.35e12}[name]
        assert (point.get_xdata()[0], point.get_ydata()[0]) == (intensity, at)
    assert "DDP, over network: 6,000 FLOPs per byte allow 300 TFLOP/s, 30 % of the peak" in (
        figure.alt_text
    )


def test_a_step_has_the_times_of_the_formulas() -> None:
    figure = wire_step(50e9, 8, 1e4, 2, False, latency=0, parameters=1e9, utilisation=0.5)
    computes = 6 * 1e9 * 1e4 / (0.5 * 989e12)
    travels = ring_all_reduce_seconds(2e9, 8, Link(0, 50e9))
    assert f"compute {1e3 * computes:.0f} ms, all-reduces {1e3 * travels:.1f} ms (" in (
        figure.alt_text
    )
    faster = 8 * computes / (computes + travels)
    assert lines(figure)["place speed-up"].get_ydata()[0] == pytest.approx(faster)
    assert f"{faster:.3g} times one GPU: the wire is the wall" in figure.alt_text
    assert boxes(figure, "bucket 0")[0].get_width() == pytest.approx(travels)


def test_overlap_hides_the_wire_from_enough_tokens_on() -> None:
    few, many = (wire_step(tokens=count, latency=0).alt_text for count in (2048, 2**16))
    assert "the wire is the wall" in few
    assert "compute is the wall" in many
    apart = wire_step(tokens=2**14, overlaps=False), wire_step(tokens=2**14)
    speeds = [lines(each)["place speed-up"].get_ydata()[0] for each in apart]
    assert speeds[1] > 1.2 * speeds[0]


def test_the_note_of_a_step_says_how_much_of_the_all_reduces_is_latency() -> None:
    # 40 layers of 50 MB fill a bucket each; 126 latencies of 5 us in each all-reduce
    assert "all-reduces 104 ms (25.2 ms latency in 40 buckets)" in wire_step().alt_text
    # without overlap there is one bucket
    assert "(630 µs latency in 1 bucket)" in wire_step(overlaps=False).alt_text


def test_the_dials_of_the_wire_start_at_the_values_of_the_figure() -> None:
    explorer = explore_wire()
    assert explorer.figure.alt_text == wire_step().alt_text
    explorer.controls["overlaps"].value = False
    assert "no overlap" in explorer.figure.alt_text
    explorer.controls["bytes_per_gradient"].value = 4
    assert explorer.figure.alt_text == wire_step(bytes_per_gradient=4, overlaps=False).alt_text
    assert html.escape(explorer.figure.alt_text) in explorer.widget.children[-1].value


@pytest.mark.slow
@pytest.mark.parametrize(
    "figure",
    [ceiling_ladder(), roofline(POINTS | PLATEAU), roofline(), wire_step(),
     wire_step(1.25e9, 1024, 256, 4), wire_step(900e9, 2, 2**20, 0.5, False)],
)  # fmt: skip
def test_words_do_not_overlap(figure: Figure) -> None:
    check_layout(figure)


def test_impossible_input_is_named() -> None:
    bare = Card("a card", 80 * 10**9)
    for draw in (ceiling_ladder, roofline):
        with pytest.raises(ValueError, match=f"{draw.__name__}: the bf16 peak"):
            draw(card=bare)
    with pytest.raises(ValueError, match="has shared memory, HBM, NVLink, network; not 'PCIe'"):
        roofline({"copy": ("PCIe", 1.0)})
    for wrong in ({"num_gpus": 1}, {"tokens": 0}, {"bytes_per_gradient": -1}):
        with pytest.raises(ValueError, match="wire_step: give two GPUs or more"):
            wire_step(**wrong)  # type: ignore[arg-type]

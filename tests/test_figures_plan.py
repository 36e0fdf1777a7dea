"""Figures of meshes and plans, and the explorer: what they say, and how large they get."""

from __future__ import annotations

from collections import Counter

import pytest
from matplotlib.colors import to_hex

from dtlab.predict.hardware import LINKS, Cluster
from dtlab.predict.plan import Plan, Search, Transformer, evaluate, search
from dtlab.show import explore_mesh, mesh_figure, plan_chart, plan_table, ways_to_split
from dtlab.show.drawing.style import PALETTE, Figure
from tests.drawn import check_layout

MODEL = Transformer(8, 256, 8, 1000, 128)
CLUSTER = Cluster(2, 4, LINKS["NVLink 3"], LINKS["InfiniBand HDR"])


def names(figure: Figure) -> list[str]:
    """The names of all artists."""
    drawn = (artist.get_gid() for axes in figure.axes for artist in axes.get_children())
    return [name for name in drawn if name]


def found(memory: float = 1e9) -> Search:
    return search(MODEL, CLUSTER, 16, card="A100 SXM 80 GB", memory=memory)


def test_a_mesh_has_every_rank_and_a_line_for_every_group() -> None:
    figure = mesh_figure({"data": 2, "pipeline": 2, "tensor": 4}, gpus_per_node=8)
    assert {f"rank {rank}" for rank in range(16)} <= set(names(figure))
    groups = [gid for gid in names(figure) if "group" in gid]
    assert len(groups) == 16 / 2 + 16 / 2 + 16 / 4
    assert "tensor of 4, over the node's link" in figure.alt_text
    assert "data of 2, over the network" in figure.alt_text
    check_layout(figure)


def test_a_long_axis_is_cut_short_but_keeps_its_last_rank() -> None:
    figure = mesh_figure({"data": 16, "pipeline": 8, "tensor": 8})
    assert {"rank 0", "rank 7", "rank 1023"} <= set(names(figure))
    assert figure.get_size_inches()[0] < 13


@pytest.mark.parametrize("sizes", [{}, {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 0}])
def test_a_wrong_mesh_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="one to three axes"):
        mesh_figure(sizes)


def test_the_table_has_the_best_plans_and_all_reasons() -> None:
    plans = found()
    table = plan_table(plans, 3)
    check_layout(table)
    words = table.alt_text
    assert f"1. {plans.best(1)[0]}" in words
    assert all(reason in words for reason in plans.rejected)


def test_the_chart_rings_the_fastest_and_what_is_marked() -> None:
    one = evaluate(MODEL, CLUSTER, 16, Plan(data=8), card="A100 SXM 80 GB", memory=1e9)
    figure = plan_chart(found(), marked={"data alone": one})
    assert {"fastest", "data alone"} <= set(names(figure))
    assert f"data alone: {one}" in figure.alt_text


def test_a_search_without_a_plan_is_an_error_not_a_figure() -> None:
    alone = Transformer(1, 8, 1, 10, 7)  # seven tokens, one layer, one head: only data ranks
    with pytest.raises(ValueError, match="no plan can run"):
        plan_chart(search(alone, Cluster(1, 8), 3))
    assert plan_table(search(MODEL, CLUSTER, 16, memory=1.0)).alt_text


def test_the_explorer_says_why_a_plan_cannot_run() -> None:
    explorer = explore_mesh()
    assert "s a step" in explorer.figure.texts[0].get_text()
    explorer.controls["tensor"].value = 1024
    explorer.controls["pipeline"].value = 4
    assert "It cannot run: the plan uses 4,096 GPUs, but" in explorer.figure.alt_text
    explorer.controls["tensor"].value, explorer.controls["pipeline"].value = 2, 1
    assert "This plan does not fit" in explorer.figure.texts[0].get_text()


def test_three_ways_to_split_show_what_each_rank_has() -> None:
    figure = ways_to_split()
    squares = figure.axes[0].patches
    colours = Counter(to_hex(each.get_facecolor()) for each in squares)
    # data: 16 cells and a piece of the batch; tensor, pipeline: 4 cells each, and a grey batch
    assert [colours[to_hex(colour)] for colour in PALETTE[:4]] == [16 + 1 + 4 + 4] * 4
    assert len(squares) == 4 * 25 + 8
    for words in ("data parallelism: a rank has the whole model", "tensor", "pipeline"):
        assert words in figure.alt_text

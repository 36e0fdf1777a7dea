"""Lesson 10: what its cells compute agrees with the formulas that its text prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dtlab
from dtlab.predict import CARDS, LINKS, gpt_flops, in_gb, ring_all_reduce_seconds
from dtlab.predict.memory import (
    activation_bytes,
    first_stage_activation_bytes,
    gpt_parameters,
    model_states,
)
from dtlab.predict.plan import Plan, Transformer, evaluate

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "10_three_dimensions.ipynb"


def cell(name: str) -> str:
    """The source of a cell of the lesson."""
    cells = {one["id"]: one for one in json.loads(NOTEBOOK.read_text())["cells"]}
    return "".join(cells[name]["source"])


def test_the_predicted_difference_is_that_of_nineteen_rings() -> None:
    source = cell("measured-run").partition("measured =")[0]
    slow, fast = LINKS["InfiniBand HDR"], LINKS["NVLink 3"]
    nodes = dtlab.Cluster(nodes=2, gpus_per_node=2, intra=fast, inter=slow, slowdown=1000)
    names: dict[str, Any] = {
        "two_nodes": nodes,
        "ring_all_reduce_seconds": ring_all_reduce_seconds,
    }
    exec(source, names)
    waits = 2 * (slow.latency - fast.latency)
    moves = 16 * 64 * 64 * 4 * (1 / slow.bandwidth - 1 / fast.bandwidth)
    assert names["predicted"] == pytest.approx(19 * 1000 * (waits + moves))


def test_the_published_rate_counts_the_operations_of_the_papers_formula() -> None:
    names: dict[str, Any] = {
        "dtlab": dtlab,
        "LINKS": LINKS,
        "Transformer": Transformer,
        "Plan": Plan,
        "evaluate": evaluate,
        "gpt_flops": gpt_flops,
    }
    exec(cell("published-run"), names)
    row = names["ROWS"]["1.7 B"]
    model = Transformer(24, 2304, 24, 51200, 2048, fused_attention=False, dropout=True)
    cluster = dtlab.Cluster(4, 8, LINKS["NVLink 3"], LINKS["InfiniBand HDR"])
    found = [
        evaluate(
            model,
            cluster,
            512,
            Plan(1, 1, 1, 32, 0, micro, "1f1b", 1, "full"),
            card="A100 SXM 80 GB",
            efficiency=0.5,
        )
        for micro in (1, 2, 4, 8)
    ]
    seconds = min(each.step_seconds for each in found if not each.reason)
    # Narayanan et al. 2021, equation (3)
    flops = 96 * 512 * 2048 * 24 * 2304**2 * (1 + 2048 / (6 * 2304) + 51200 / (16 * 24 * 2304))
    assert names["reached"](row, 0.5) == pytest.approx(flops / seconds / 32 / 1e12, rel=1e-9)


def test_the_budget_is_named_as_it_is_used() -> None:
    memory = CARDS["A100 SXM 80 GB"].memory
    assert memory == 80 * 2**30
    assert in_gb(memory) == "85.9 GB"
    assert "of 80 GB as" not in cell("memory")
    assert "2**30" in cell("activations-run")
    assert "80e9" not in cell("strategy-run")
    assert "CARDS[" in cell("strategy-run")


def test_full_recomputation_keeps_the_inputs_of_a_ranks_own_tokens() -> None:
    share = -(-gpt_parameters(96, 12288, 51200, 2048) // 64)
    names: dict[str, Any] = {
        "activation_bytes": activation_bytes,
        "first_stage_activation_bytes": first_stage_activation_bytes,
        "model_states": model_states,
        "share": share,
        "in_gb": in_gb,
        "CARDS": CARDS,
    }
    exec(cell("activations-run"), names)
    # 2sbh/t for each of 96 layers; the pipeline's first stage keeps as many (section 4.2.3)
    assert 96 * names["full"] == 96 * 2 * 2048 * 12288 / 8
    assert names["kept"] == pytest.approx(96 * 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288) / 8)


def test_metas_axes_fit_with_full_recomputation() -> None:
    """Section 7: a rank keeps the inputs of 8 layers, 16 microbatches in flight, over 8 ranks."""
    names: dict[str, Any] = {"STAGES": []}
    exec(cell("llama-run").partition("for gpus")[0].partition("STAGES")[0], names)
    model = Transformer(sequence_length=8192, **names["LLAMA"])
    cluster = dtlab.Cluster(2048, 8, LINKS["NVLink 4"], LINKS["InfiniBand NDR"])
    plan = Plan(8, 1, 16, 128, 1, 1, "1f1b", 1, "full", sequence_parallel=True)
    found = evaluate(model, cluster, 2048, plan, policy="mixed_fp32_grads")
    inputs = 16 * 8 * 2 * 8192 * 16384 / 8
    again = activation_bytes(8192, 1, 16384, 128, 8, True, "none", False, True, kv_heads=8,
                             mlp_size=53248, gated=True)  # fmt: skip
    assert found.memory["activations"] == inputs + again
    assert found.reason == ""

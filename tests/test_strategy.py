"""The decision tree: its shape, known jobs, and that nothing is recommended that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dtlab.predict.hardware import CARDS, Card
from dtlab.predict.memory import POLICIES, model_states, smallest_world_size
from dtlab.predict.strategy import Choice, choose
from dtlab.predict.strategy.decision import FACTS, ROOT, TREE, Leaf, Question, tree_words, walk
from dtlab.training.activation import checkpoint_every, peak_bytes
from dtlab.training.transformer_layer import TransformerLayer

GB = 1e9
LEAVES = {name: node for name, node in TREE.items() if isinstance(node, Leaf)}
QUESTIONS = {name: node for name, node in TREE.items() if isinstance(node, Question)}


# ----------------------------------------------------------------------------- known jobs


def test_a_resnet_that_takes_a_week() -> None:
    states = model_states(25_557_032, 0, 1, "fp32").total
    found = choose(25_557_032, 80e9, 12e9 - states, policy="fp32", hours=7 * 24)
    assert found.strategy == "data parallelism"
    assert str(found.because) == "the time on one GPU, 168 hours, is more than the time " \
                                 "available, 24 hours"  # fmt: skip
    assert found.bytes_per_gpu == 12e9
    assert [each.name for each in found.cheaper] == ["bf16"]  # memory is not what is missing


def test_a_transformer_of_40_billion_parameters() -> None:
    found = choose(40e9, 80e9, 2e9, num_gpus=16)
    assert found.leaf.id == "zero3"
    assert str(found.because) == "a whole replica with its activations, 642 GB, is more than " \
                                 "the budget of a GPU, 80 GB"  # fmt: skip
    assert found.bytes_per_gpu == 42e9
    assert found.gpus_to_fit == smallest_world_size(40e9, 3, 80e9, "mixed", activation_bytes=2e9)
    one_node = choose(40e9, 80e9, 2e9, num_gpus=8)  # 80 GB of states on each, and no room
    assert one_node.leaf.id == "too_few" and one_node.bytes_per_gpu is None
    assert one_node.gpus_to_fit == 9
    assert choose(40e9, 80e9, num_gpus=8).bytes_per_gpu == 80e9  # exactly full


def test_a_model_of_200_million_parameters_that_trains_in_two_hours() -> None:
    found = choose(200e6, 80e9, 5e9, hours=2)
    assert found.strategy == "one GPU"
    assert str(found.because) == "the time on one GPU, 2 hours, is not more than the time " \
                                 "available, 24 hours"  # fmt: skip
    assert found.cheaper == ()


def test_nineteen_days_due_in_five() -> None:
    def on(gpus: int) -> Choice:
        return choose(1e9, 80e9, num_gpus=gpus, hours=19 * 24, deadline_hours=5 * 24)

    assert on(4).strategy == on(8).strategy == "data parallelism"
    assert (on(4).efficiency, on(8).efficiency) == (0.95, 0.475)
    assert on(3).strategy == on(1).strategy == "more GPUs"
    assert str(on(3).because) == "the fewest GPUs that could meet the deadline, 4 GPUs, " \
                                 "is more than the number of GPUs, 3 GPUs"  # fmt: skip
    assert choose(1e9, 80e9, num_gpus=1, hours=19 * 24).strategy == "more GPUs"


def test_no_more_is_shared_out_than_it_takes() -> None:
    found = [choose(size, 80e9, num_gpus=64).leaf.id for size in (5e9, 6e9, 30e9, 40e9, 300e9)]
    assert found == ["one_gpu", "zero1", "zero2", "zero3", "zero3"]
    assert choose(6e9, 80e9, num_gpus=1).leaf.id == "too_few"


def test_320_gb_need_no_second_node() -> None:
    assert choose(20e9, 80e9, num_gpus=8).leaf.id == "zero2"
    assert choose(20e9, 80e9, num_gpus=8).bytes_per_gpu == 75e9
    assert choose(20e9, 80e9, 30e9, num_gpus=8).leaf.id == "zero3"


def test_a_sample_that_is_too_large_is_split() -> None:
    volume = choose(50e6, 80e9, 300e9, num_gpus=8)
    assert volume.leaf.id == "split_sample"
    assert volume.bytes_per_gpu == 0.8e9 + 37.5e9
    assert str(volume.because) == "the activations of one microbatch, 300 GB, is more than the " \
                                  "budget of a GPU, 80 GB"  # fmt: skip
    assert choose(20e9, 80e9, 300e9, num_gpus=8).leaf.id == "split_and_shard"
    assert choose(20e9, 80e9, 700e9, num_gpus=8).leaf.id == "too_few_for_sample"


def test_activations_and_states_are_shared_inside_the_node() -> None:
    found = choose(70e9, 80e9, 70e9, num_gpus=64)
    assert found.leaf.id == "tensor_parallel"
    assert found.bytes_per_gpu == 16 * 70e9 / 64 + 70e9 / 8
    assert choose(300e9, 80e9, 60e9, num_gpus=64).leaf.id == "context_parallel"
    gathered = choose(70e9, 80e9, 60e9, num_gpus=64, block_params=2e9)
    assert gathered.leaf.id == "tensor_parallel"  # 17.5 + 60 fit, but not with two more blocks
    assert gathered.facts["stage3_bytes"] == 77.5e9 + 2e9 * (2 * 2 + 2)


def test_few_tokens_do_not_hide_the_traffic_of_stage_3() -> None:
    def leaf(tokens: float | None, card: str | None) -> str:
        known = None if card is None else CARDS[card]
        job = choose(175e9, 80e9, 10e9, num_gpus=1024, num_blocks=96, tokens_per_gpu=tokens,
                     card=known)  # fmt: skip
        return job.leaf.id

    assert leaf(2048, "H100 SXM") == "three_d"
    unknown_depth = choose(175e9, 80e9, 10e9, num_gpus=1024, tokens_per_gpu=2048,
                           card=CARDS["H100 SXM"])  # fmt: skip
    assert unknown_depth.leaf.id == "pipeline"  # no number of blocks rules it out
    assert "for each GPU?   not known" in unknown_depth.tree
    deep = choose(175e9, 80e9, 10e9, num_gpus=64, num_blocks=96, tokens_per_gpu=512,
                  card=CARDS["H100 SXM"])  # fmt: skip
    assert deep.leaf.id == "pipeline"
    assert deep.bytes_per_gpu == 175e9 * 16 / 64 + 10e9
    assert leaf(32768, "H100 SXM") == "zero3"
    assert leaf(None, "H100 SXM") == leaf(2048, None) == "zero3"  # not known: no objection
    facts = choose(175e9, 80e9, num_gpus=64, tokens_per_gpu=1, card=CARDS["H100 SXM"]).facts
    traffic = 6 * 175e9 * 63 / 64 / 50e9  # seconds, for two bytes of each of three passes
    compute = 6 * 175e9 / 989e12  # seconds for one token
    assert facts["break_even_tokens"] == pytest.approx(traffic / compute)
    node = choose(30e9, 80e9, 9e9, num_gpus=8, tokens_per_gpu=1, card=CARDS["H100 SXM"]).facts
    assert node["break_even_tokens"] == pytest.approx(989e12 / 450e9 * 7 / 8)
    unknown = Card("another", 80 * 10**9)
    assert choose(175e9, 80e9, num_gpus=64, tokens_per_gpu=1, card=unknown).leaf.id == "zero3"


# ----------------------------------------------------------------------------- what is cheaper


def test_each_cheaper_measure_has_its_saving() -> None:
    found = choose(10e9, 80e9, 40e9, policy="fp32", microbatch_size=4, num_blocks=64)
    brings = {each.name: each.brings for each in found.cheaper}
    assert brings == pytest.approx({
        "gradient accumulation": 30e9,
        "activation checkpointing": 40e9 * (1 - (32 + 40) / 1280),  # of 64 x 20 inputs
        "bf16": 20e9,  # of activations: 16 bytes of state stay 16
        "LoRA": 160e9 - 40e9 - 1.6e9,
        "offload": 80e9,
        "a bigger GPU": 0.9 * 288e9 - 80e9,
    })  # fmt: skip
    assert list(brings) == [
        "gradient accumulation", "activation checkpointing", "bf16", "LoRA", "offload",
        "a bigger GPU",
    ]  # fmt: skip
    # 200 GB must become 80
    assert {each.name for each in found.cheaper if each.enough} == {"a bigger GPU"}


def checkpointing(num_blocks: int) -> tuple[str, float]:
    """What `choose` says on checkpointing this many blocks, and the share that it saves."""
    found = choose(10e9, 80e9, 40e9, num_blocks=num_blocks).cheaper
    measure = next(each for each in found if each.name == "activation checkpointing")
    return measure.how, measure.brings / 40e9


@pytest.mark.parametrize(
    ("num_blocks", "every"),
    [(2, "each one"), (16, "each one"), (39, "each one"), (41, "one in 2"), (119, "one in 2"),
     (121, "one in 3")],
)  # fmt: skip
def test_each_block_is_recomputed_alone_below_forty_blocks(num_blocks: int, every: str) -> None:
    how, saved = checkpointing(num_blocks)
    assert how.startswith(f"With {num_blocks} blocks, save the input of {every}, and recompute")
    share = {k: (num_blocks / k + 20 * k) / (20 * num_blocks) for k in range(1, num_blocks + 1)}
    assert saved == pytest.approx(1 - min(share.values()))


def test_measured_peaks_of_twelve_blocks_are_least_if_each_is_recomputed_alone() -> None:
    blocks = nn.Sequential(*[TransformerLayer(64, 4, dropout=0.0) for _ in range(12)])
    x = torch.randn(4, 32, 64)
    peaks = {k: peak_bytes(checkpoint_every(blocks, k), x) for k in (1, 2, 3, 4, 6, 12)}
    assert min(peaks, key=peaks.__getitem__) == 1
    assert "each one" in checkpointing(12)[0]
    saved = 1 - peaks[1] / peaks[12]  # 12: nothing is recomputed
    assert saved == pytest.approx(checkpointing(12)[1], abs=0.07)


def test_enough_is_enough() -> None:
    almost = choose(4e9, 80e9, 20e9, num_blocks=16)  # 84 GB
    assert {each.name for each in almost.cheaper if each.enough} == {
        "activation checkpointing", "LoRA", "offload", "a bigger GPU",
    }  # fmt: skip
    card = almost.cheaper[-1]
    assert str(card) == "a bigger GPU: Use H200 SXM, 150.8 GB, of which 90 % count as free " \
                        "for tensors. Gain: up to 55.68 GB, which may be enough."  # fmt: skip
    assert "bf16" not in {each.name for each in almost.cheaper}  # it is there already
    fp32_gradients = choose(8e9, 80e9, policy="mixed_fp32_grads").cheaper
    assert {each.name: each.brings for each in fp32_gradients}["bf16"] == 16e9


# ----------------------------------------------------------------------------- the tree


def test_it_is_a_tree() -> None:
    children = [child for node in QUESTIONS.values() for child in (node.yes, node.no)]
    assert sorted([ROOT, *children]) == sorted(TREE)  # each node but the root is one's child
    for node in QUESTIONS.values():
        assert FACTS[node.fact][1] == FACTS[node.limit][1]  # the same unit
        assert node.text.endswith("?")


def ways(node: str = ROOT, asked: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The questions on the way to each leaf."""
    here = TREE[node]
    if isinstance(here, Leaf):
        return {node: asked}
    return ways(here.yes, (*asked, node)) | ways(here.no, (*asked, node))


def test_a_leaf_names_a_question_on_its_way() -> None:
    for name, asked in ways().items():
        leaf = LEAVES[name]
        assert leaf.because in asked
        assert leaf.needs is None or leaf.needs in FACTS


def test_it_prints_as_it_is_walked() -> None:
    found = choose(200e6, 80e9, 5e9, hours=2)
    assert found.tree.splitlines()[:4] == [
        "Does a whole replica fit on a GPU?   8.2 GB <= 80 GB",
        "├─ yes: Is one GPU fast enough?   2 hours <= 24 hours",
        "│  ├─ yes: one GPU   <--",
        "│  └─ no: Are there enough GPUs to finish in time?",
    ]
    blank = tree_words().splitlines()
    assert len(blank) == len(TREE) == len(found.tree.splitlines())
    assert not any("<--" in line or "GB" in line for line in blank)
    for each in blank:
        assert any(each.endswith(getattr(node, "text", None) or node.strategy)  # type: ignore[union-attr]
                   for node in TREE.values())  # fmt: skip
    assert "fast enough?   not known" in choose(200e6, 80e9).tree


def test_the_docstring_shows_what_is_printed() -> None:
    shown = [line.strip() for line in (tree_words.__doc__ or "").splitlines()[2:5]]
    first = choose(40e9, 80e9, 2e9, num_gpus=16).tree.splitlines()[:3]
    assert shown == first


def test_a_choice_prints_its_strategy_and_reason() -> None:
    lines = str(choose(40e9, 80e9, 2e9, num_gpus=16)).splitlines()
    assert lines[0] == "ZeRO stage 3 (FSDP) (42 GB on each GPU)"
    assert lines[1].startswith("Because a whole replica with its activations, 642 GB, is more")
    assert lines[3] == "Cheaper, so try these first:"
    assert lines[4] == (
        "  activation checkpointing: Save the input of each block only, and recompute the block "
        "in backward. It costs one more forward pass. Gain: up to 1.9 GB."
    )
    known = choose(200e6, 80e9)  # the hours are not known
    assert known.because.question.id == "replica"
    assert str(choose(5e9, 80e9 - 1).because).endswith(
        "80,000,000,000 bytes, is more than the budget of a GPU, 79,999,999,999 bytes"
    )


# ----------------------------------------------------------------------------- any job

JOBS = st.fixed_dictionaries(
    {
        "num_params": st.integers(1, 10**12),
        "budget_bytes": st.integers(1, 3 * 10**11),
        "activation_bytes": st.integers(0, 10**12),
        "policy": st.sampled_from(sorted(POLICIES)),
        "num_gpus": st.integers(1, 5000),
        "gpus_per_node": st.sampled_from([1, 4, 8]),
        "hours": st.none() | st.floats(0.1, 1e5),
        "deadline_hours": st.none() | st.floats(0.1, 1e5),
        "block_params": st.sampled_from([0, 10**6, 10**9]),
        "tokens_per_gpu": st.none() | st.floats(1, 1e6),
        "card": st.none() | st.sampled_from(list(CARDS.values())),
    }
)
SHARED = {  # leaf: stage, and among how many GPUs the activations of a microbatch are shared
    "one_gpu": (0, "one"), "data": (0, "one"), "more_gpus": (0, "one"),
    "zero1": (1, "one"), "zero2": (2, "one"), "zero3": (3, "one"),
    "pipeline": (3, "one"), "three_d": (3, "node"), "tensor_parallel": (3, "node"),
    "context_parallel": (3, "all"), "split_and_shard": (3, "all"), "split_sample": (0, "all"),
}  # fmt: skip
FITS = [(0, "one"), (1, "one"), (2, "one"), (3, "one"), (3, "node"), (0, "all"), (3, "all")]


def held(job: dict[str, Any], stage: int, shared: str) -> float:
    """Bytes on one GPU, without the blocks that stage 3 gathers."""
    gpus, node = job["num_gpus"], job["gpus_per_node"]
    inside = gpus if gpus <= node else math.gcd(gpus, node)
    among = {"one": 1, "node": inside, "all": gpus}[shared]
    states = model_states(job["num_params"], stage, gpus, job["policy"]).total
    return states + job["activation_bytes"] / among


def test_every_leaf_is_held_to_the_memory_functions() -> None:
    nothing = {name for name, leaf in LEAVES.items() if leaf.needs is None}
    assert SHARED.keys() | nothing == LEAVES.keys() and not SHARED.keys() & nothing


@given(JOBS)
def test_what_is_recommended_fits(job: dict[str, Any]) -> None:
    found, budget = choose(**job), job["budget_bytes"]
    if found.bytes_per_gpu is None:
        assert held(job, 3, "all") + _gathered(job) > budget
        return
    assert found.bytes_per_gpu <= budget
    bytes_without_blocks = held(job, *SHARED[found.leaf.id])
    extra = _gathered(job) if SHARED[found.leaf.id][0] == 3 else 0
    slack = 1 + 1e-12
    assert bytes_without_blocks <= found.bytes_per_gpu * slack
    assert found.bytes_per_gpu <= (bytes_without_blocks + extra) * slack


def _gathered(job: dict[str, Any]) -> float:
    policy = POLICIES[job["policy"]]
    return float(job["block_params"] * (2 * policy.weights + policy.gradients))


@given(JOBS)
def test_nothing_is_sharded_where_a_replica_fits(job: dict[str, Any]) -> None:
    found = choose(**job)
    fits = held(job, 0, "one") <= job["budget_bytes"]
    assert (found.leaf.id in ("one_gpu", "data", "more_gpus")) == fits
    if found.leaf.id == "data":
        assert job["num_gpus"] > 1
        limit = job["deadline_hours"] or 24
        assert job["hours"] > limit
        best = job["hours"] / job["num_gpus"]
        assert job["deadline_hours"] is None or best <= limit * (1 + 1e-9)
    if found.leaf.id == "one_gpu":
        assert job["hours"] is None or job["hours"] <= (job["deadline_hours"] or 24)


@given(JOBS)
def test_the_least_sharding_that_fits_is_taken(job: dict[str, Any]) -> None:
    found = choose(**job)
    if found.leaf.id in ("zero1", "zero2", "zero3"):
        stage = int(found.leaf.id[-1])
        for less in range(stage):
            assert held(job, less, "one") > job["budget_bytes"]
    if found.leaf.id == "split_sample":
        assert job["activation_bytes"] > job["budget_bytes"]


@pytest.mark.slow
@given(JOBS)
def test_a_larger_budget_never_needs_more_sharding(job: dict[str, Any]) -> None:
    order = ["one_gpu", "zero1", "zero2", "zero3"]
    job |= {"hours": None, "tokens_per_gpu": None, "activation_bytes": 0, "block_params": 0}
    small = choose(**job)
    large = choose(**job | {"budget_bytes": 2 * job["budget_bytes"]})
    if small.bytes_per_gpu is not None:
        assert order.index(large.leaf.id) <= order.index(small.leaf.id)


@given(JOBS)
def test_the_path_is_the_tree_s(job: dict[str, Any]) -> None:
    found = choose(**job)
    assert walk(found.facts)[1] is found.leaf
    nodes = [step.question.id for step in found.path] + [found.leaf.id]
    assert nodes[0] == ROOT
    for step, after in zip(found.path, nodes[1:], strict=True):
        assert after == (step.question.yes if step.holds else step.question.no)
    assert found.because.question.id in nodes
    assert found.because.known
    assert str(found) and found.tree.count("<--") == 1


# ----------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: choose(0, 80e9), "num_params must be a whole number"),
        (lambda: choose(1, -1), "budget_bytes must be 0 bytes or more"),
        (lambda: choose(1, float("nan")), "budget_bytes must"),
        (lambda: choose(1, 80e9, -1), "activation_bytes must"),
        (lambda: choose(1, 80e9, policy="bf16"), "policy must be one of fp32, mixed"),
        (lambda: choose(1, 80e9, num_gpus=0), "num_gpus must be a whole number of 1 or more"),
        (lambda: choose(1, 80e9, gpus_per_node=0), "gpus_per_node must"),
        (lambda: choose(1, 80e9, hours=0), "hours must be a time above 0, or None"),
        (lambda: choose(1, 80e9, deadline_hours=math.inf), "deadline_hours must be a time"),
        (lambda: choose(1, 80e9, microbatch_size=0), "microbatch_size must"),
        (lambda: choose(1, 80e9, num_blocks=0), "num_blocks must"),
        (lambda: choose(1, 80e9, block_params=-1), "block_params must"),
        (lambda: choose(1, 80e9, tokens_per_gpu=0), "tokens_per_gpu must be a number above 0"),
    ],
)
def test_impossible_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

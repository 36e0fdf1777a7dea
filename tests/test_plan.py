"""The planner: against a plain loop, against the closed forms, and against published runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dtlab.predict import LINKS, bubble, ring_all_reduce_seconds, simulate
from dtlab.predict.hardware import CARDS, Cluster
from dtlab.predict.memory import activation_bytes, gpt_flops, gpt_parameters, model_states
from dtlab.predict.plan import RECOMPUTE, SCHEDULES, Plan, Transformer, evaluate, search
from dtlab.predict.plan.pipeline import Work, pipeline_seconds
from dtlab.predict.simulate import Costs
from dtlab.schedules import gpipe, interleaved, one_f_one_b, zb_h1

A100, H100 = "A100 SXM 80 GB", "H100 SXM"
LLAMA = Transformer(
    126, 16384, 128, 128256, 8192, mlp_size=53248, kv_heads=8, gated=True
)  # Llama 3 405B (2024), Table 3


def every_plan(gpus: int, batch: int) -> Iterator[Plan]:
    """All combinations of all sizes that multiply to `gpus`, legal or not, by plain loops."""
    sizes = [each for each in range(1, gpus + 1) if gpus % each == 0]
    for axes in itertools.product(sizes, repeat=4):
        if np.prod(axes) != gpus:
            continue
        for micro in range(1, batch + 1):
            for schedule, chunks in SCHEDULES:
                for zero, recompute in itertools.product(range(4), RECOMPUTE):
                    for shared in (False, True):
                        yield Plan(*axes, zero, micro, schedule, chunks, recompute, shared)


def drawn_problem(draw: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A small model on a small cluster, with a budget that some plans keep and others do not."""
    heads = draw.choice([1, 2, 3, 4, 6])
    keys = draw.choice([each for each in range(1, heads + 1) if heads % each == 0])
    model = Transformer(
        draw.randint(1, 9), heads * draw.choice([8, 24]), heads, draw.choice([50, 384]),
        draw.choice([8, 12, 32]), mlp_size=draw.choice([None, 48]), kv_heads=keys,
        gated=draw.random() < 0.5, fused_attention=draw.random() < 0.5,
        dropout=draw.random() < 0.5,
    )  # fmt: skip
    nodes, per_node = draw.choice([(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (1, 6), (2, 3), (2, 4)])
    cluster = Cluster(nodes, per_node, LINKS["NVLink 4"], LINKS["10 Gb Ethernet"])
    params = 16 * model.num_params
    options = {
        "memory": params * draw.choice([0.1, 0.4, 1.2, 10.0]),
        "efficiency": draw.choice([0.1, 1e-4, 1e-6]),
        "policy": draw.choice(["mixed", "fp32", "mixed_fp32_grads"]),
        "card": draw.choice([A100, H100]),
    }
    return (model, cluster, draw.randint(1, 6)), options


@pytest.mark.parametrize(
    "seed",
    [pytest.param(k, marks=[] if k < 12 else pytest.mark.proof) for k in range(200)],
)
def test_the_search_agrees_with_a_plain_loop(seed: int) -> None:
    (model, cluster, batch), options = drawn_problem(random.Random(seed))
    found = search(model, cluster, batch, **options)
    estimates = [
        evaluate(model, cluster, batch, plan, **options)
        for plan in every_plan(cluster.size, batch)
    ]
    running = sorted(
        (each for each in estimates if not each.reason),
        key=lambda each: (each.step_seconds, each.bytes),
    )
    assert len(found) == len(running)
    best = found.best(len(running))
    assert [each.step_seconds for each in best] == pytest.approx(
        [each.step_seconds for each in running], rel=1e-9
    )
    assert {each.plan for each in best} == {each.plan for each in running}
    nbytes, seconds, fits = found.points()
    for row in range(0, len(fits), 7):
        one = evaluate(model, cluster, batch, found.plan_at(row), **options)
        assert (nbytes[row], seconds[row]) == pytest.approx((one.bytes, one.step_seconds))
        assert bool(fits[row]) == (not one.reason)


# The parts of an estimate, each against its own closed form --------------------------------------


def test_parameters_and_flops_are_those_of_the_papers() -> None:
    model = Transformer(24, 2304, 24, 51200, 2048, fused_attention=False)
    assert model.num_params == gpt_parameters(24, 2304, 51200, 2048)
    assert model.step_flops(512) == gpt_flops(24, 2304, 51200, 2048, 512)
    assert LLAMA.num_params == pytest.approx(405e9, rel=0.01)


def test_one_gpu_holds_states_activations_and_logits_and_computes_everything() -> None:
    model = Transformer(4, 64, 4, 100, 16, fused_attention=False, dropout=True)
    one = evaluate(model, Cluster(1, 1), 6, Plan(microbatch=2), card=A100, efficiency=0.5)
    states = model_states(model.num_params, 0, 1, "mixed")
    assert one.memory["optimizer state"] == states.optimizer
    assert one.memory["activations"] == 4 * activation_bytes(16, 2, 64, 4)
    assert one.memory["logits"] == 6 * 2 * 16 * 100
    assert one.step_seconds == pytest.approx(
        gpt_flops(4, 64, 100, 16, 6) / (0.5 * CARDS[A100].bf16_flops)  # type: ignore[operator]
    )
    assert one.mfu == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("plan", "schedule"),
    [
        (Plan(pipeline=4, schedule="1f1b"), one_f_one_b(4, 8)),
        (Plan(pipeline=4, schedule="zb_h1"), zb_h1(4, 8)),
        (Plan(pipeline=4, schedule="interleaved", chunks=2), interleaved(4, 8, 2)),
    ],
)
def test_the_bubble_is_the_one_of_the_simulator(plan: Plan, schedule: Any) -> None:
    # The head is one token of one class, so that all stages take equally long.
    model = Transformer(8, 256, 4, 1, 64)
    found = evaluate(model, Cluster(1, 4), 8, plan, card=A100)
    chunks = plan.chunks
    weights = 2 * model.layer_weights / model.layer_flops  # the share of FLOPs that W has, too
    trace = simulate(schedule, Costs(forward=1 / chunks, backward_input=(2 - weights) / chunks,
                                     backward_weight=weights / chunks))  # fmt: skip
    busy = found.seconds["compute"] + found.seconds["uneven stages"]
    share = found.seconds["pipeline bubble"] / (busy + found.seconds["pipeline bubble"])
    assert share == pytest.approx(bubble(trace), rel=0.01)


GENERATORS = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb_h1": zb_h1}


def simulated(stages: Sequence[Work], schedule: str, ranks: int, m: int, message: float) -> float:
    """The simulator's seconds of a step, for the work of each pipeline stage, in order."""
    chunks = len(stages) // ranks
    order = interleaved(ranks, m, chunks) if chunks > 1 else GENERATORS[schedule](ranks, m)
    columns = [list(each) for each in zip(*stages, strict=True)]
    return max(event.end for event in simulate(order, Costs(*columns, message)).events
               if event.kind == "compute")  # fmt: skip


def test_messages_count_only_as_far_as_they_are_exposed() -> None:
    work = Work(0.020, 0.020, 0.020)  # backward: 40 ms
    # All 2(m + p - 1) messages of 10 ms would make 880 ms.
    wanted = {"gpipe": 0.720, "1f1b": 0.820, "zb_h1": 0.660}
    for schedule, seconds in wanted.items():
        found = pipeline_seconds(schedule, 4, 8, 1, work, work, 0.010)
        assert float(found) == pytest.approx(seconds)
        assert simulated([work] * 4, schedule, 4, 8, 0.010) == pytest.approx(seconds)


def drawn_pipeline(draw: random.Random) -> tuple[tuple[Any, ...], Plan, str]:
    """A small model, a cluster and a batch, a plan with a pipeline, and its kind of schedule."""
    schedule, chunks = draw.choice(SCHEDULES[:5])
    p, t, d = draw.randint(2, 6), draw.choice([1, 2]), draw.choice([1, 2])
    micro, many = draw.choice([1, 2]), draw.randint(1, 12)
    many = p * (1 + many // 4) if chunks > 1 else many
    depth = draw.randint(1, 3)
    model = Transformer(
        p * chunks * depth - draw.choice([0, 0, 1]) * (depth > 1), draw.choice([256, 1024]), 4,
        draw.choice([100, 2000, 20000]), draw.choice([64, 1024]), gated=draw.random() < 0.5,
        fused_attention=draw.random() < 0.5,
    )  # fmt: skip
    inter = draw.choice(["NVLink 4", "InfiniBand NDR", "InfiniBand NDR", "100 Gb Ethernet"])
    cluster = Cluster(p * d, t, LINKS["NVLink 4"], LINKS[inter])
    plan = Plan(t, 1, p, d, d - 1, micro, schedule, chunks, draw.choice(["none", "full"]))
    return (model, cluster, micro * d * many), plan, "interleaved" if chunks > 1 else schedule


def stages_of(model: Transformer, cluster: Cluster, plan: Plan) -> tuple[list[Work], float]:
    """The work of each stage of a plan in order, and the seconds of a message, from FLOPs."""
    tokens, t = plan.microbatch * model.sequence_length, plan.tensor
    flops = 0.5 * CARDS[H100].bf16_flops * t  # type: ignore[operator]
    linear = 2 * tokens * model.layer_weights / flops
    attention = (2 if model.fused_attention else 4) * tokens * model.sequence_length
    attention = attention * model.hidden_size / flops
    head = 2 * tokens * model.hidden_size * model.vocab_size / flops
    hidden = 2 * tokens * model.hidden_size  # bytes
    reduces = 2 * ring_all_reduce_seconds(hidden, t, cluster.intra)
    forward = linear + attention + reduces
    again = forward if plan.recompute == "full" else 0.0
    inputs = linear + 2 * attention + reduces + again
    count = plan.pipeline * plan.chunks
    each = -(-model.num_layers // count)
    layers = [each] * (count - 1) + [each - (each * count - model.num_layers)]
    stages = [Work(n * forward, n * inputs, n * linear) for n in layers]
    stages[-1] = Work(*(one + head for one in stages[-1]))
    return stages, cluster.inter.seconds(hidden / t)


WITHIN = {  # the largest difference; long: a message takes longer than the forward of a stage
    "gpipe": 1e-9, "1f1b": 0.01, "zb_h1": 0.1, "interleaved": 0.05, "interleaved, long": 0.2,
}  # fmt: skip


def test_two_hundred_pipelines_take_as_long_as_in_the_simulator() -> None:
    draw, far = random.Random(0), dict.fromkeys(WITHIN, 0.0)
    for _ in range(200):
        (model, cluster, batch), plan, kind = drawn_pipeline(draw)
        found = evaluate(model, cluster, batch, plan, memory=1e15)
        assert not found.reason, found.reason
        assert min(found.seconds["pipeline bubble"], found.seconds["pipeline messages"]) > -1e-12
        stages, message = stages_of(model, cluster, plan)
        many = batch // (plan.data * plan.microbatch)
        seconds = simulated(stages, plan.schedule, plan.pipeline, many, message)
        planned = found.step_seconds - found.seconds["data parallelism"]
        kind += ", long" * (kind == "interleaved" and message > stages[0].forward)
        far[kind] = max(far[kind], abs(planned / seconds - 1))
    assert all(far[kind] <= WITHIN[kind] for kind in far), far


def test_each_rejected_plan_has_its_reason() -> None:
    model, cluster = Transformer(6, 48, 6, 100, 8, kv_heads=3), Cluster(2, 4)
    found = search(model, cluster, 4, memory=1e6)
    reasons = {
        "divide 6 heads": Plan(tensor=4, data=2),
        "heads of keys and values": Plan(tensor=2, data=4),
        "2 x 8 context ranks": Plan(context=8),
        "8 pipeline stages cannot share 6 layers": Plan(pipeline=8),
        "8 data ranks do not divide a batch of 4": Plan(data=8),
        "uses 4 GPUs, but the cluster has 8": Plan(data=4),
        "microbatches of 3": Plan(data=4, pipeline=2, microbatch=3),
        "per GPU, but each GPU has 0.001 GB": Plan(data=4, pipeline=2),
    }
    for reason, plan in reasons.items():
        assert reason in found.why_not(plan)
    assert sum(found.rejected.values()) + len(found) == found.count


def test_all_reasons_are_given_that_do_not_follow_from_another_one() -> None:
    model, cluster = Transformer(6, 48, 6, 100, 8, kv_heads=3), Cluster(2, 4)

    def reasons(plan: Plan) -> list[str]:
        found = evaluate(model, cluster, 4, plan, memory=1e6)
        assert found.reason == (found.reasons or [""])[0]
        return found.reasons

    assert reasons(Plan(tensor=4, data=3, zero=1, chunks=2)) == [
        "the plan uses 12 GPUs, but the cluster has 8",
        "4 tensor ranks do not divide 6 heads",
        "3 data ranks do not divide a batch of 4",
        "chunks belong to the interleaved schedule",
    ]
    odd: Any = {"tensor": 2.0, "zero": 4}
    assert reasons(Plan(**odd, pipeline=7, data=8, microbatch=3)) == [
        "tensor must be a whole number of 1 or more, not 2.0",
        "zero must be one of 0, 1, 2, 3, not 4",
        "7 pipeline stages cannot share 6 layers",
        "8 data ranks do not divide a batch of 4",
    ]
    (memory,) = reasons(Plan(data=4, pipeline=2))
    assert "per GPU, but each GPU has 0.001 GB" in memory


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"card": "H900"}, "card must be one of A100"),
        ({"efficiency": 1.5}, "efficiency must be a fraction"),
        ({"memory": -1}, "memory"),
        ({"policy": "int3"}, "policy"),
    ],
)
def test_bad_arguments_are_explained(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        search(Transformer(2, 8, 2, 10, 8), Cluster(), 4, **wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"data": 0}, "data must be a whole number of 1 or more, not 0"),
        ({"data": 2.0}, "data must be a whole number of 1 or more, not 2.0"),
        ({"chunks": 0}, "chunks must be a whole number"),
        ({"zero": 4}, "zero must be one of 0, 1, 2, 3, not 4"),
        ({"schedule": "2f2b"}, "schedule must be one of 1f1b, gpipe, interleaved, zb_h1"),
    ],
)
def test_a_plan_with_an_impossible_value_cannot_run(wrong: dict[str, Any], words: str) -> None:
    found = evaluate(Transformer(2, 8, 2, 10, 8), Cluster(), 4, Plan(**wrong))
    assert words in found.reason
    assert not found.seconds


def test_plans_within_a_ratio_of_the_fastest() -> None:
    (model, cluster, batch), options = drawn_problem(random.Random(6))
    found = search(model, cluster, batch, **options)
    every = found.best(len(found))
    near = [one for one in every if one.step_seconds <= 1.2 * every[0].step_seconds]
    assert 1 < len(near) < len(every)
    assert found.within(1.2) == near


# Published runs ---------------------------------------------------------------------------------

MEGATRON = [  # Narayanan et al. 2021, Table 1: layers, hidden, heads, t, p, GPUs, batch, TFLOP/s
    (24, 2304, 24, 1, 1, 32, 512, 137),
    (48, 8192, 64, 8, 2, 512, 1536, 138),
    (80, 12288, 96, 8, 8, 1536, 2304, 148),
]


def achieved(row: tuple[int, ...], efficiency: float) -> float:
    """TFLOP/s per GPU as the paper counts them, with recomputation, by the best such plan."""
    layers, hidden, heads, tensor, pipeline, gpus, batch, _ = row
    model = Transformer(layers, hidden, heads, 51200, 2048, fused_attention=False, dropout=True)
    cluster = Cluster(gpus // 8, 8, LINKS["NVLink 3"], LINKS["InfiniBand HDR"])
    data = gpus // tensor // pipeline
    plans = [
        Plan(tensor, 1, pipeline, data, 0, micro, schedule, chunks, "full")
        for micro in (1, 2, 4, 8)
        for schedule, chunks in SCHEDULES
        if schedule in ("1f1b", "interleaved")
    ]
    found = [
        evaluate(model, cluster, batch, plan, card=A100, efficiency=efficiency, policy="mixed")
        for plan in plans
    ]
    seconds = min(each.step_seconds for each in found if not each.reason)
    return gpt_flops(layers, hidden, 51200, 2048, batch, "full") / seconds / gpus / 1e12


def test_one_kernel_efficiency_predicts_megatrons_other_rows() -> None:
    # The only number that is fitted is the efficiency of the kernels, on the smallest model.
    low, high = 0.1, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if achieved(MEGATRON[0], middle) < 137 else (low, middle)
    errors = [achieved(row, low) / row[-1] - 1 for row in MEGATRON]
    assert errors[0] == pytest.approx(0, abs=0.001)
    assert max(map(abs, errors)) < 0.2, errors


@pytest.mark.parametrize(
    ("gpus", "sequence", "batch", "plan"),
    [
        (8192, 8192, 2048, Plan(8, 1, 16, 64)),
        (16384, 8192, 2048, Plan(8, 1, 16, 128)),
        (16384, 131072, 128, Plan(8, 16, 16, 8)),
    ],
)
def test_llamas_plans_are_legal(gpus: int, sequence: int, batch: int, plan: Plan) -> None:
    model = replace(LLAMA, sequence_length=sequence)
    cluster = Cluster(gpus // 8, 8, LINKS["NVLink 4"], LINKS["InfiniBand NDR"])
    found = evaluate(model, cluster, batch, plan, memory=1e12)
    assert found.reason == ""


def test_sixteen_thousand_gpus_are_planned_in_three_seconds() -> None:
    cluster = Cluster(2048, 8, LINKS["NVLink 4"], LINKS["InfiniBand NDR"])
    import time

    begin = time.process_time()
    found = search(LLAMA, cluster, 2048)
    assert time.process_time() - begin < 3
    assert len(found) > 1000

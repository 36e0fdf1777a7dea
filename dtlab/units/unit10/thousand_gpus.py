"""10/thousand_gpus: compute the bytes that each of 1,024 GPUs holds, and correct an estimate.

Rajbhandari et al. 2020, "ZeRO", section 3.1 (model states in mixed precision); Korthikanti et al.
2022, "Reducing Activation Recomputation in Large Transformer Models", Table 2 and section 4.2.3
(activations); Narayanan et al. 2021, Table 1 (shapes of models).
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number
from dtlab.predict.transformer import (
    Recompute,
    activation_bytes,
    first_stage_activation_bytes,
)

_SHAPES: Final = {  # billions of parameters: layers, hidden size, heads
    39.1: (48, 8192, 64),
    76.1: (60, 10240, 80),
    145.6: (80, 12288, 96),
    174.6: (96, 12288, 96),
    310.1: (96, 16384, 128),
}
_SETUPS: Final = {
    "plain": "no ZeRO, nothing recomputed",
    "zero_1": "ZeRO-1, nothing recomputed",
    "selective": "no ZeRO, selective recomputation",
    "both": "ZeRO-1 and selective recomputation",
}
_LOOK_AGAIN: Final = "look at `{}` again: add the states and the activations of that plan."


def _draw(draw: Random) -> Values:
    fitting = draw.choice((1, 2, 3))  # of the four setups
    while True:
        billions, tensor = draw.choice(list(_SHAPES)), draw.choice((4, 8))
        layers, hidden, heads = _SHAPES[billions]
        pipeline = draw.choice([stages for stages in (4, 8, 16, 32) if layers % stages == 0])
        given: dict[str, Any] = {
            "billions": billions,
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "tensor": tensor,
            "pipeline": pipeline,
            "data": 1024 // (tensor * pipeline),
            "tokens": draw.choice((1024, 2048, 4096)),
            "micro": draw.choice((1, 2, 4)),
            "norms": draw.choice(("with", "without")),
        }
        left = [80 - total for total in _totals(given).values()]
        is_claim = (billions, tensor, pipeline) == (174.6, 8, 8)
        if sum(room > 0 for room in left) == fitting and min(map(abs, left)) > 2 and not is_claim:
            return given


def _layer(given: Values, with_norms: bool) -> list[float]:
    """MB that one layer keeps of one microbatch, without and with selective recomputation."""
    s, b, h, a, t = (given[name] for name in ("tokens", "micro", "hidden", "heads", "tensor"))
    kinds: tuple[Recompute, ...] = "none", "selective"
    return [activation_bytes(s, b, h, a, t, with_norms, kind) / 1e6 for kind in kinds]


def _first_stage(given: Values) -> list[float]:
    """GB of activations on the first stage under 1F1B, without and with recomputation."""
    return [
        first_stage_activation_bytes(layer, given["layers"], given["pipeline"]) / 1e3
        for layer in _layer(given, given["norms"] == "with")
    ]


def _states(given: Values) -> list[float]:
    """GB of model states on a GPU, without and with ZeRO-1."""
    share = given["billions"] / (given["tensor"] * given["pipeline"])
    return [16 * share, 4 * share + 12 * share / given["data"]]


def _totals(given: Values) -> dict[str, float]:
    """GB on a GPU of the first stage, by setup."""
    (whole, sharded), (kept, less) = _states(given), _first_stage(given)
    totals = whole + kept, sharded + kept, whole + less, sharded + less
    return dict(zip(_SETUPS, totals, strict=True))


_QUESTIONS = asked(
    _draw,
    [
        ("your model", "{billions} billion parameters, {layers} layers, h = {hidden}"),
        ("attention", "{heads} heads, s = {tokens} tokens, not fused; dropout"),
        ("your mesh", "tensor x pipeline x data = {tensor} x {pipeline} x {data}"),
        ("sequence parallelism", "{norms} Megatron's sequence parallelism"),
        ("a step", "1536 sequences, in microbatches of {micro}, under 1F1B"),
        ("precision", "weights and gradients 16 bits; master copy and Adam's moments fp32"),
    ],
    number(
        "states",
        "model states on one GPU without ZeRO: [weights, gradients, master copy, moments]",
        "[2 * share, 2 * share, 4 * share, 8 * share]",
        "Which part of the parameters does one GPU have? Multiply by the bytes of each kind.",
        {
            "[each * pipeline for each in answer]": "this divides by the tensor ranks only. Which "
            "layers does a pipeline stage have?",
            "[each / data for each in answer]": "this divides by all 1,024 GPUs. What do two data "
            "ranks hold in common without ZeRO?",
            "[2 * share, 2 * share, 4 * share, 4 * share]": "Adam has two moments, and each is in "
            "fp32.",
        },
        unit="GB",
    ),
    number(
        "zero_1",
        "all model states on one GPU with ZeRO-1 over the data axis",
        "sharded",
        "Which kinds does ZeRO-1 shard, and among which ranks?",
        {
            "16 * share": "this is without ZeRO.",
            "16 * share / data": "this shards all kinds, as stage 3 of ZeRO does.",
            "2 * share + 14 * share / data": "this shards gradients too, as stage 2 does.",
            "8 * share + 8 * share / data": "this keeps the master copy whole. To which kind of "
            "state does it belong?",
            "4 * share + 12 * share / 1024": "this shards among all 1,024 GPUs. Which of them "
            "hold the same parameters?",
        },
        unit="GB",
    ),
    number(
        "layer",
        "activations that one layer keeps of one microbatch on one GPU: [nothing recomputed, "
        "selective recomputation]",
        "layer(given, norms == 'with')",
        "Which tensors of a layer do the tensor ranks divide? Also those of norms and dropout?",
        {
            "layer(given, norms != 'with')": "this is right for the other choice of sequence "
            "parallelism. What does yours do with norms and dropout?",
            "layer({**given, 'tensor': 1}, False)": "this is one GPU alone. What do the tensor "
            "ranks share?",
            "answer[::-1]": "write the one with nothing recomputed first.",
        },
        unit="MB",
    ),
    number(
        "first_stage",
        "activations on a GPU of the first pipeline stage: [nothing recomputed, selective]",
        "first_stage(given)",
        "Multiply by the layers of one stage, and the microbatches that stage 0 has in flight.",
        {
            "[each / pipeline for each in answer]": "this is one microbatch. How many does the "
            "first stage have in flight before its first backward pass?",
            "[each * pipeline for each in answer]": "these are p microbatches of all layers. "
            "Which layers does the first stage have?",
            "[each / pipeline * 1536 / data / micro for each in answer]": "these are all "
            "microbatches of a step, as under GPipe.",
            "[each * (pipeline - 1) / pipeline for each in answer]": "these are the forward "
            "passes of the warm-up. One more comes before the first backward pass.",
        },
        unit="GB",
    ),
    choices(
        "fits",
        "the plans that fit on a GPU of 80e9 bytes, counting states and activations only",
        _SETUPS,
        formula("frozenset(name for name, total in totals(given).items() if total <= 80)"),
        "Add one of your two totals of states to one of your two totals of activations.",
        {name: _LOOK_AGAIN.format(name) for name in _SETUPS},
        points=2,
    ),
    choices(
        "forgot",
        "a text plans GPT-3 (175 billion parameters) on 8 x 8 x 16 GPUs: 5.4 GB of weights, 16.2 "
        "GB of optimizer state and 40 GB of activations on each, so it fits in 80 GB. Take the "
        "activations as given, and your precision. What is wrong?",
        {
            "weights": "weights of 16 bits take twice as much",
            "gradients": "there are no gradients",
            "optimizer": "the optimizer state has no room for master copy and moments in fp32",
            "data": "the weights must also be divided by the 16 data ranks",
            "sum": "the three numbers add up to more than 80 GB",
        },
        {"gradients", "optimizer"},
        "Divide each number by the parameters of one GPU: how many bytes per parameter?",
        {
            "weights": "look at `weights` again: how many bytes per parameter are 5.4 GB?",
            "gradients": "look at `gradients` again: what does a backward pass leave behind?",
            "optimizer": "look at `optimizer` again: how many bytes per parameter is it?",
            "data": "look at `data` again: do the data ranks share weights in this plan?",
            "sum": "look at `sum` again: add them up.",
        },
    ),
    number(
        "correct",
        "what that plan takes on each GPU with the same activations: [without ZeRO, with ZeRO-1 "
        "over its 16 data ranks]",
        "[16 * gpt3 + 40, 4 * gpt3 + 12 * gpt3 / 16 + 40]",
        "Add up all states of 175/64 billion parameters, and the activations.",
        {
            "[each - 40 for each in answer]": "these are the states. Add the activations.",
            "[14 * gpt3 + 40, 2 * gpt3 + 12 * gpt3 / 16 + 40]": "this still has no gradients.",
            "[12 * gpt3 + 40, 4 * gpt3 + 8 * gpt3 / 16 + 40]": "this has no master copy.",
            "[4 * gpt3 + 6 * gpt3 + 40, 4 * gpt3 + 6 * gpt3 / 16 + 40]": "this adds gradients "
            "only. How many bytes per parameter is the optimizer state?",
            "[16 * gpt3 + 40, gpt3 + 40]": "the second one shards all kinds, as stage 3 does.",
        },
        unit="GB",
    ),
    where={
        "first_stage": _first_stage,
        "layer": _layer,
        "totals": _totals,
        "share": "billions / (tensor * pipeline)",  # billions of parameters on one GPU
        "sharded": "4 * share + 12 * share / data",
        "gpt3": "175 / 64",
    },
)

PART = Part("10/thousand_gpus", 1, "What each of 1,024 GPUs holds", 10, 3, _QUESTIONS)

"""09/utilisation: what "half of the time" and "40 % utilisation" mean, MFU, and what a run costs.

Narayanan et al. 2021: GPT-3's batch of 1536 sequences of 2048 tokens; Chowdhery et al. 2022: MFU.
"""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number


def _draw(draw: Random) -> Values:
    peak, size = draw.choice((312, 989)), draw.choice((7, 13, 34))
    cards = draw.choice((64, 128, 256))
    rate = draw.uniform(0.28, 0.48) * cards * peak * 1e12 / (6e9 * size)
    return {
        "billions": draw.choice((130, 150, 175, 200)),
        "gpus": draw.choice((64, 128)),
        "node": draw.choice((100, 200, 400)),
        "reached": draw.choice((120, 130, 140, 150)),
        "idle": draw.choice((90, 120, 150, 180)),
        "work": draw.choice((60, 70, 80)),
        "nccl": draw.choice((20, 30, 40)),
        "peak": peak,
        "sparse": 624 if peak == 312 else 1979,
        "size": size,
        "cards": cards,
        "rate": round(rate, -2),
        "trillions": draw.choice((1, 1.4, 2)),
        "price": draw.choice((1.5, 2, 2.5, 3)),
    }


_QUESTIONS = asked(
    _draw,
    [
        ("for `half`, `share`", "a model of {billions} billion parameters on {gpus} GPUs, 8 to a "
         "node, {reached} TFLOP/s reached on each; {node} GB/s between nodes, per node and one "
         "way; gradients of 2 bytes; sequences of 2048 tokens"),
        ("for `shown`", "a step: {idle} ms without a kernel while the next batch is read, "
         "{work} ms of computing, {nccl} ms of NCCL kernels with nothing beside them"),
        ("for `mfu`, `cost`", "a model of {size} billion parameters; {cards} GPUs process "
         "{rate:.0f} tokens per second together; peak {peak} TFLOP/s dense, {sparse} with "
         "sparsity"),
        ("for `cost`", "{trillions} trillion tokens; {price} dollars per GPU hour"),
    ],
    number(
        "half",
        "a text claims that half of the time of a training step is communication. With how many "
        "sequences in the whole batch would that be true of this model, if its gradients take one "
        "ring all-reduce over all GPUs, the ring crosses between nodes at the full bandwidth of a "
        "node, and nothing overlaps?",
        "half",
        "How long is the all-reduce? For how many sequences do all GPUs together compute as long?",
        {
            "half / gpus": "this is for one GPU. The batch is divided over all of them.",
            "half * (gpus - 8) / (gpus - 1)": "this is for a ring with one member per node. How "
            "many members has a ring over all GPUs?",
            "half / 2 * gpus / (gpus - 1)": "in a ring each GPU sends almost twice the bytes.",
            "3 * half": "this counts forward alone: 2 operations per parameter and token of 6.",
            "2048 * half": "these are tokens. A sequence has 2048 of them.",
        },
        unit="sequences",
    ),
    number(
        "share",
        "GPT-3's batch has 1536 sequences. Which share of the step is communication then?",
        "100 / (1 + 1536 / half)",
        "The all-reduce takes as long as before, and computing grows with the batch.",
        {
            "50": "this is the text's claim, for its small batch.",
            "100 / (1 + 1536 * gpus / half)": "1536 sequences are the batch of all GPUs together.",
            "100 / (1 + half / 1536)": "this is the share of computing.",
        },
        unit="%",
    ),
    choice(
        "low",
        "nvidia-smi shows 40 % utilisation on every GPU of a job. What do you look at first?",
        {
            "network": "the network: ranks wait for the all-reduce in NCCL",
            "straggler": "a slow rank, for which the other ranks wait in NCCL",
            "input": "the input and the CPU: the GPU has no kernel to run",
            "batch": "the matrices: kernels too small to use the whole GPU",
        },
        "input",
        "What counts as busy: a kernel that runs, or one that computes?",
        {
            "network": "a kernel that waits in NCCL runs, and counts as busy: close to 100 %.",
            "straggler": "ranks that wait in NCCL for a slow one show close to 100 %.",
            "batch": "while a small kernel runs, the GPU counts as busy, however little it uses.",
        },
    ),
    number(
        "shown",
        "the job of `shown`: [the utilisation that nvidia-smi shows, the share of the step in "
        "which the GPU computes]",
        "[100 * (work + nccl) / step, 100 * work / step]",
        "For the first, count the time in which any kernel runs.",
        {
            "[100 * work / step, 100 * work / step]": "an NCCL kernel counts as busy while it "
            "waits.",
            "[100 * (work + nccl) / step, 100 * (work + nccl) / step]": "NCCL does not compute "
            "the model.",
            "answer[::-1]": "write what nvidia-smi shows first.",
        },
        unit="%",
    ),
    number(
        "mfu",
        "the model FLOPs utilisation of that run",
        "mfu",
        "Operations per second of the model, over the dense peak of all GPUs.",
        {
            "mfu / 3": "this counts forward alone.",
            "mfu * peak / sparse": "the model is dense: compare it with the dense peak.",
            "mfu * cards": "the tokens are those of all GPUs, so divide by all their peaks.",
            "mfu * 4 / 3": "this counts recomputed operations too. MFU does not.",
        },
        unit="%",
    ),
    number(
        "cost",
        "what all tokens take: [GPU hours, dollars]",
        "[hours * cards, hours * cards * price]",
        "How many hours does the run take? And for how many GPUs do you pay?",
        {
            "[hours, hours * price]": "these are hours of the run. You pay for every GPU.",
            "[hours * cards / 24, hours * cards * price / 24]": "these are GPU days.",
            "[hours * cards, hours * price]": "the price is that of one GPU hour.",
        },
    ),
    where={
        # 2(N-1)/N x 2 bytes over GB/s, times the operations/s of all GPUs, over 6 x 2048
        "half": "4 * (gpus - 1) / gpus / (node * 1e9) * gpus * reached * 1e12 / (6 * 2048)",
        "step": "idle + work + nccl",
        "mfu": "100 * 6e9 * size * rate / (cards * peak * 1e12)",
        "hours": "trillions * 1e12 / rate / 3600",
    },
)  # fmt: skip

PART = Part("09/utilisation", 1, "Half of the time, 40 % busy", 9, 2, _QUESTIONS)

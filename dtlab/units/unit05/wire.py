"""05/wire: how much each rank sends in a step by ZeRO stage, with gradient accumulation.

In one pass round a ring each rank sends (N-1)/N of all elements. Rajbhandari et al. 2020, "ZeRO",
section 7, count it as 1.
"""

from __future__ import annotations

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, choice, number

_NO_FACTOR = "the paper counts this way. On a ring of N ranks each rank sends (N-1)/N of it."

QUESTIONS = asked(
    {
        "parameters": [tenths / 10 for tenths in range(12, 400)],  # billions
        "ranks": (3, 4, 6, 8, 12, 16),
        "count": (3, 4, 5, 6, 8),
    },
    [
        ("your model", "{parameters:g} billion parameters"),
        ("N, ranks", "{ranks}"),
        ("k, microbatches of a step", "{count}"),
    ],
    number(
        "ddp",
        "DDP with `no_sync` in all microbatches but the last, its all-reduce on a ring",
        "2 * ring",
        "An all-reduce is a reduce-scatter and an all-gather. How often does it run in a step?",
        {
            "2 * parameters": _NO_FACTOR,
            "ring": "this is half of an all-reduce.",
            "2 * k * ring": "`no_sync` skips the all-reduce in all microbatches but one.",
        },
        unit="billion elements",
    ),
    number(
        "stage_1",
        "stage 1, as a list of two: as in the paper, with gradients reduced to their owners "
        "once in a step; then DDP with ZeroRedundancyOptimizer and `no_sync`",
        "[2 * ring, 3 * ring]",
        "The second all-reduces gradients, and then sends the new weights to all ranks.",
        {
            "[2 * ring, 2 * ring]": "DDP's all-reduce gives all ranks all gradients.",
            "[3 * ring, 3 * ring]": "in the paper only the owner receives its gradients.",
            "[ring, 2 * ring]": "owners must send the weights that they have updated.",
        },
        unit="billion elements",
        points=2,
    ),
    number(
        "stage_2",
        "stage 2",
        "(k + 1) * ring",
        "Which gradients does a rank keep between microbatches? What is sent after the step?",
        {
            "2 * ring": "a rank has no memory to accumulate gradients that it does not own.",
            "2 * k * ring": "weights change once in a step, and are sent once.",
            "(k + 1) * parameters": _NO_FACTOR,
        },
        unit="billion elements",
    ),
    number(
        "stage_3",
        "stage 3, blocks freed after the forward pass",
        "3 * k * ring",
        "Count one microbatch first: a block is gathered for its forward pass, freed, and "
        "gathered again for backward; then its gradients are reduce-scattered. How many passes "
        "are that? Which of them can wait for the last microbatch?",
        {
            "(k + 2) * ring": "weights do not stay from one microbatch to the next.",
            "2 * k * ring": "this gathers in the forward pass only. What does backward need?",
            "3 * ring": "this is one microbatch. Nothing of it can wait for the last one.",
            "(2 * k + 1) * ring": "this would keep whole gradients until the last microbatch.",
            "3 * k * parameters": _NO_FACTOR,
        },
        unit="billion elements",
    ),
    number(
        "kept",
        "stage 3 under `fully_shard(reshard_after_forward=False)`: blocks stay until backward",
        "2 * k * ring",
        "Take your `stage_3`. Which all-gather is no longer needed?",
        {
            "3 * k * ring": "with that setting the weights are still whole in backward.",
            "(k + 1) * ring": "weights are gathered again in each microbatch's forward.",
        },
        unit="billion elements",
    ),
    number(
        "gigabytes",
        "stage 3 in GB, weights gathered in bf16 and gradients reduced in fp32",
        "(2 * 2 + 4) * k * ring",
        "In your `stage_3`, weights are sent with 2 bytes per element, and gradients with 4.",
        {
            "3 * k * ring": "those are billions of elements: how many bytes has each?",
            "2 * 2 * k * ring": "this is only one kind: both weights and gradients are sent.",
            "(2 * 2 + 2) * k * ring": "this sends gradients in 16 bits.",
            "(2 * 4 + 4) * k * ring": "this gathers weights in fp32.",
            "(2 * 4 + 2) * k * ring": "this exchanges the two dtypes.",
        },
        unit="GB",
    ),
    choice(
        "each",
        "how much stage 3 sends per microbatch as k grows",
        {
            "grows": "it grows with k",
            "same": "it does not depend on k",
            "falls": "it falls with k",
        },
        "same",
        "Divide your `stage_3` by k.",
        {
            "falls": "this holds for stages 0 and 1, which accumulate first and send once.",
            "grows": "a step sends more. Does each of its microbatches?",
        },
    ),
    where={
        "k": "count",
        "ring": "parameters * (ranks - 1) / ranks",  # billions of elements per rank in one pass
    },
)

PART = Part("05/wire", 1, "What a rank sends", 7, 2, QUESTIONS)

"""05/wire: what each rank sends in a step, by stage, with accumulation.

Once round a ring is (N-1)/N of all elements. Rajbhandari et al. 2020, "ZeRO", section 7, count it
as 1.
"""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.questions.declared import asked, choice, number

_NO_FACTOR = "the paper counts so. On a ring of N ranks each sends (N-1)/N of it."

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
        "An all-reduce is a reduce-scatter and an all-gather. How often is it made in a step?",
        {
            "2 * parameters": _NO_FACTOR,
            "ring": "this is half of an all-reduce.",
            "2 * k * ring": "`no_sync` leaves it out in all microbatches but one.",
        },
        unit="billion elements",
    ),
    number(
        "stage_1",
        "stage 1, as a list of two: as the paper has it, gradients reduced to their owners "
        "once in a step; then DDP with ZeroRedundancyOptimizer and `no_sync`",
        "[2 * ring, 3 * ring]",
        "The second one all-reduces gradients, and then has new weights to hand round.",
        {
            "[2 * ring, 2 * ring]": "DDP's all-reduce gives all ranks all gradients.",
            "[3 * ring, 3 * ring]": "in the paper an owner alone gets its gradients.",
            "[ring, 2 * ring]": "the weights that an owner has stepped have to get to the others.",
        },
        unit="billion elements",
        points=2,
    ),
    number(
        "stage_2",
        "stage 2",
        "(k + 1) * ring",
        "Whose gradients may a rank keep between microbatches? What goes round after the step?",
        {
            "2 * ring": "a rank has no room to add up what is not its own.",
            "2 * k * ring": "weights change once in a step, and go round once.",
            "(k + 1) * parameters": _NO_FACTOR,
        },
        unit="billion elements",
    ),
    number(
        "stage_3",
        "stage 3, blocks freed after the forward pass",
        "3 * k * ring",
        "Count one microbatch first: a block is whole for its forward, freed, and whole for "
        "its backward; then its gradients go to their owners. How often does something go "
        "round, (N-1)/N of it from each rank? What of that can wait for the last microbatch?",
        {
            "(k + 2) * ring": "weights do not stay from one microbatch to the next.",
            "2 * k * ring": "this gathers in the forward pass only. What does backward need?",
            "3 * ring": "this is one microbatch. What of it can wait for the last?",
            "(2 * k + 1) * ring": "gradients once in a step: who would hold them until then?",
            "3 * k * parameters": _NO_FACTOR,
        },
        unit="billion elements",
    ),
    number(
        "kept",
        "stage 3 under `fully_shard(reshard_after_forward=False)`: blocks stay until backward",
        "2 * k * ring",
        "Take your `stage_3`. Which gathering falls away?",
        {
            "3 * k * ring": "with that setting backward finds the weights still there.",
            "(k + 1) * ring": "weights are gathered again in each microbatch's forward.",
        },
        unit="billion elements",
    ),
    number(
        "gigabytes",
        "stage 3 in GB, weights gathered in bf16 and gradients reduced in fp32",
        "(2 * 2 + 4) * k * ring",
        "In your `stage_3`, weights go round at 2 bytes for each element, and gradients at 4.",
        {
            "3 * k * ring": "those are billions of elements: how many bytes has each?",
            "2 * 2 * k * ring": "this is one kind alone: weights go round, and gradients too.",
            "(2 * 2 + 2) * k * ring": "this sends gradients in 16 bits.",
            "(2 * 4 + 4) * k * ring": "this gathers weights in fp32.",
            "(2 * 4 + 2) * k * ring": "this has them the other way round.",
        },
        unit="GB",
    ),
    choice(
        "each",
        "what stage 3 sends for one microbatch, when k is larger",
        {
            "grows": "it grows with k",
            "same": "it does not depend on k",
            "falls": "it falls with k",
        },
        "same",
        "Divide your `stage_3` by k.",
        {
            "falls": "so it is at stages 0 and 1, which add up first and send once.",
            "grows": "a step sends more. And each microbatch of it?",
        },
    ),
    where={
        "k": "count",
        "ring": "parameters * (ranks - 1) / ranks",  # what a rank sends when all go round once
    },
)

PART = Part("05/wire", 1, "What is sent", 7, 2, QUESTIONS)

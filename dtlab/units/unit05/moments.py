"""05/moments: which weights a rank holds at each moment of a step under ZeRO stage 3."""

from __future__ import annotations

from random import Random
from typing import Final

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, number

_EVENTS: Final = (
    "its weights are gathered for the first time",
    "its forward pass computes",
    "its weights are freed for the first time",
    "its weights are gathered for the second time",
    "its backward pass computes",
    "its gradients are reduce-scattered",
    "the optimizer steps",
)


def _draw(draw: Random) -> Values:
    names = list(range(1, len(_EVENTS) + 1))
    draw.shuffle(names)
    return {
        "names": names,  # the number of each event
        "layers": draw.choice((16, 20, 24, 30, 32, 40)),
        "block": draw.randrange(40, 300, 5),  # millions of parameters
        "ranks": draw.choice((4, 8, 16)),
        "count": draw.choice((2, 3, 4, 6)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    by_number = sorted(zip(given["names"], _EVENTS, strict=True))
    return [
        ("your model", f"{given['layers']} blocks of {given['block']} million parameters"),
        ("your step", f"{given['ranks']} ranks, {given['count']} microbatches"),
        *((f"event {number}", event) for number, event in by_number),
    ]


QUESTIONS = asked(
    _draw,
    _rows,
    number(
        "order",
        "the numbers of the events, in the order in which they happen to one block in a step of "
        "one microbatch, as a list",
        "names",
        "A block needs its weights to compute, and a rank frees them as soon as possible.",
        {
            "in_order(0, 1, 3, 2, 4, 5, 6)": "here weights are gathered while they are still "
            "whole. All later blocks run between the forward and backward pass of a block.",
            "in_order(0, 1, 2, 3, 4, 6, 5)": "the step needs gradients averaged over all ranks.",
            "in_order(0, 1, 2, 4, 3, 5, 6)": "backward computes the gradient of a layer's input "
            "from its weights.",
        },
        exact=True,
        points=2,
    ),
    number(
        "calls",
        "the all-gathers and the reduce-scatters that a rank takes part in during your step, "
        "as a list of two, if every block is freed after its forward pass",
        "[2 * layers * count, layers * count]",
        "How many of each does one block need in one microbatch?",
        {
            "[layers * count, layers * count]": "backward needs the weights too.",
            "[2 * layers, layers]": "this is one microbatch. None of it can wait for the last.",
            "[2 * layers * count, layers]": "this would keep the whole gradients of all blocks "
            "until the last microbatch.",
        },
        exact=True,
    ),
    number(
        "weights",
        "the 16-bit weights that a rank holds, shard and gathered blocks, as a list of four: "
        "between two steps; while a block computes and nothing is prefetched; while a block "
        "computes and the next one is being gathered; between forward and backward, all "
        "blocks freed",
        "held(0, 1, 2, 0)",
        "A rank always holds its own shard. How many whole blocks does it hold in addition?",
        {
            "[0, whole, 2 * whole, 0]": "these leave out the rank's own shard.",
            "held(0, 1, 1, 0)": "the prefetched block takes memory as well.",
            "held(0, layers, layers, layers)": "a rank never has all blocks at once.",
            "held(0, 1, 2, 1)": "by then the last block has been freed as well.",
        },
        unit="MB",
        points=2,
    ),
    number(
        "one_block",
        "the largest size of gathered weights without a wrap policy: the model is one block",
        "layers * whole",
        "Which weights must be gathered before the first operation of the forward pass?",
        {
            "whole": "this is one of the blocks that a policy would make.",
            "2 * whole": "this is two of the blocks that a policy would make.",
            "shard": "this is a rank's own shard, not the gathered weights.",
        },
        unit="MB",
    ),
    choices(
        "claims",
        "which of these claims hold",
        {
            "everything": "stage 3 divides all bytes that a rank holds",
            "forward": "stage 3 gathers weights in the forward pass only",
            "again": "stage 3 gathers the weights of a block again in each microbatch",
            "whole": "at stage 2 each rank has all weights at all times",
            "samples": "at stage 3 each rank computes a part of every layer for all samples",
            "own": "at stages 1 to 3 a rank's optimizer steps on its own part of the parameters",
        },
        {"again", "whole", "own"},
        "Check each claim at each moment of the step.",
        {
            "everything": "look at `everything` again: does stage 3 divide activations?",
            "forward": "look at `forward` again: which weights are there when backward begins?",
            "samples": "look at `samples` again: that is tensor parallelism.",
            "again": "look at `again` again: which weights are left after backward?",
            "whole": "look at `whole` again: what does stage 2 divide, and what not?",
            "own": "look at `own` again: what is divided from stage 1 on?",
        },
    ),
    where={
        "in_order": "lambda *places: [names[place] for place in places]",
        "whole": "2 * block",  # MB of a block in 16 bits
        "shard": "whole * layers / ranks",
        "held": "lambda *blocks: [shard + gathered * whole for gathered in blocks]",
    },
)

PART = Part("05/moments", 1, "What a rank holds, and when", 7, 3, QUESTIONS)

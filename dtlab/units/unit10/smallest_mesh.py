"""10/smallest_mesh: find the smallest mesh that holds a model, and its bubble on a cluster.

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", sections 2.2, 2.3 and 3.1: tensor parallelism up to the GPUs of a node, pipeline
stages across nodes, data parallelism for the rest.
"""

from __future__ import annotations

from math import ceil, floor
from random import Random
from typing import Any

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    while True:
        given: dict[str, Any] = {
            "weights": draw.randrange(160, 900, 10),  # GB
            "room": draw.randrange(48, 68, 2),  # GB
            "layers": draw.choice((72, 80, 96, 120)),
            "micro": draw.choice((2, 4)),
        }
        stages = _stages(given)
        given["count"] = stages * draw.choice((2, 4, 6, 8))
        given["gpus"] = 8 * stages * draw.choice((6, 10, 12, 16, 24))
        if 3 <= stages <= 16 and given["gpus"] <= 2048:
            return given


def _stages(given: Values) -> int:
    """The fewest stages with equally many layers that hold the states, on 8 GPUs each."""
    least = ceil(given["weights"] / given["room"])  # 8 bytes for each byte of weights, on 8 GPUs
    return next(p for p in range(least, given["layers"] + 1) if given["layers"] % p == 0)


_QUESTIONS = asked(
    _draw,
    [
        ("your model", "{layers} layers; its 16-bit weights take {weights} GB"),
        ("one GPU", "80 GB (80e9 bytes), of which {room} GB are for model states"),
        ("precision", "weights and gradients 16 bits; master copy and Adam's moments fp32"),
        ("your cluster", "{gpus} GPUs, 8 in a node"),
        ("a step of one pipeline", "{count} microbatches of {micro} sequences, 1F1B"),
    ],
    number(
        "weights",
        "the fewest GPUs that hold the weights alone, in all of their 80 GB",
        "ceil(weights / 80)",
        "Divide the bytes of the weights by those of one GPU, and round up.",
        {
            "floor(weights / 80)": "these are full, and a part of the weights is left over.",
            "ceil(weights / 160)": "this has one byte per parameter.",
            "ceil(8 * weights / 80)": "this is for training. What does this question count?",
        },
        unit="GPUs",
        exact=True,
    ),
    number(
        "training",
        "the fewest GPUs that hold all model states, sharded evenly, in {room} GB of each",
        "fewest",
        "How many bytes per parameter are the weights, and how many are all model states?",
        {
            "ceil(4 * weights / room)": "this has 8 bytes per parameter. What is in fp32?",
            "ceil(8 * weights / 80)": "this fills the GPUs. Where do activations go?",
            "ceil(16 * weights / room)": "this mistakes bytes of weights for parameters.",
            "ceil(2 * weights / room)": "these are weights and gradients. What does the optimizer "
            "keep?",
        },
        unit="GPUs",
        exact=True,
    ),
    number(
        "mesh",
        "the mesh of one replica, [tensor, pipeline]: one axis fills a node, the other goes "
        "across the fewest nodes that hold the states; all stages have equally many layers",
        "[8, stages]",
        "Which axis sends more? For the other one, look for a divisor of the layers.",
        {
            "[stages, 8]": "here tensor parallelism goes across nodes. Which of the two sends "
            "more?",
            "[fewest, 1]": "here all-reduces of every layer go across nodes.",
            "[1, fewest]": "here each GPU is a pipeline stage. What does that do to the bubble?",
            "[8, ceil(fewest / 8)]": "so many stages hold the states. Do they divide the layers?",
        },
        exact=True,
        points=2,
    ),
    number(
        "ratio",
        "elements that a GPU of a middle stage sends in the ring all-reduces of tensor "
        "parallelism, divided by those that it sends to its two neighbours (b x s x h to each), "
        "for one microbatch, forward and backward",
        "4 * held * (tensor - 1) / tensor",
        "Multiply the all-reduces per layer, forward and backward, by what one of them sends and "
        "by your layers.",
        {
            "answer / 2": "half of it: did you count the all-reduces of backward, and that an "
            "all-reduce is a reduce-scatter and an all-gather?",
            "answer / held": "this is one layer. How many does a stage have?",
            "answer * stages": "these are all layers. A stage has only its own layers.",
            "2 * held": "this is b x s x h elements per all-reduce. What does a ring send?",
            "answer * 2": "an activation goes to one neighbour, a gradient to the other.",
        },
        unit="times",
    ),
    number(
        "replicas",
        "the data-parallel replicas that your cluster then has room for",
        "replicas",
        "How many GPUs does one replica take?",
        {
            "gpus / 8": "these are nodes. A replica takes several.",
            "gpus / stages": "this divides by the stages. How many GPUs does each have?",
            "gpus": "a replica takes more than one GPU.",
        },
        unit="replicas",
        exact=True,
    ),
    number(
        "batch",
        "the global batch of a step",
        "micro * count * replicas",
        "Which ranks have different samples, and which work on the same ones together?",
        {
            "micro * count * gpus": "this multiplies by all GPUs. Which of them work on the same "
            "samples?",
            "micro * count": "this is the batch of one replica.",
            "micro * replicas": "this is one microbatch of each replica.",
            "micro * count * replicas * stages": "the stages of one pipeline work on the same "
            "samples.",
        },
        unit="sequences",
        exact=True,
    ),
    number(
        "bubble",
        "the share of the step's total time for which a stage of that plan is idle",
        "100 * (stages - 1) / (count + stages - 1)",
        "For how many microbatches does a stage compute, and for how many more is it idle?",
        {
            "100 * (stages - 1) / count": "this divides by the ideal time.",
            "100 * stages / (count + stages)": "one too many: how many stages are before the last "
            "one?",
            "100 * (8 * stages - 1) / (count + 8 * stages - 1)": "this has a stage on each GPU. "
            "The GPUs of a node compute one stage together.",
            "100 * count / (count + stages - 1)": "this is the share in which a stage computes.",
        },
        unit="%",
    ),
    number(
        "doubled",
        "the same share if your cluster has twice as many GPUs, with the same global batch, "
        "microbatches of the same size and the same mesh of one replica",
        "100 * (stages - 1) / (count / 2 + stages - 1)",
        "Twice as many replicas share the batch. How many microbatches does each get?",
        {
            "100 * (stages - 1) / (count + stages - 1)": "this is as before. Do more replicas "
            "leave each one as many microbatches?",
            "100 * (stages - 1) / (2 * count + stages - 1)": "this has twice as many "
            "microbatches. The batch stays the same.",
            "100 * (stages - 1) / (count / 2)": "this divides by the ideal time.",
            "200 * (stages - 1) / (count + stages - 1)": "the idle time stays the same. What "
            "about the total?",
        },
        unit="%",
    ),
    where={
        "ceil": ceil,
        "floor": floor,
        "stages_of": _stages,
        "fewest": "ceil(8 * weights / room)",  # GPUs
        "tensor": "8",
        "stages": "stages_of(given)",
        "held": "layers // stages",  # layers of one stage
        "replicas": "gpus // (8 * stages)",
    },
)

PART = Part(
    "10/smallest_mesh", 1, "The smallest mesh", 10, 2, _QUESTIONS, short_path="1 to 4"
)

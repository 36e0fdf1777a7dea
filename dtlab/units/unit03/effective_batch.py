"""03/effective_batch: compute the effective batch of three runs, and the steps in an epoch."""

from __future__ import annotations

from functools import partial
from math import ceil
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, number


def _draw(draw: Random) -> Values:
    copies, degree = draw.choice((4, 8)), draw.choice((2, 4))
    micro, count = draw.choice((2, 4, 8)), draw.randint(3, 7)
    rounds = count * draw.randint(50, 99) + draw.randint(1, count - 1)
    return {
        "a": {"micro": draw.choice((2, 4, 8)), "count": draw.choice((4, 8, 16))},
        "b": {"gpus": draw.choice((4, 8, 16)), "micro": draw.choice((16, 32, 64))},
        "c": {"gpus": copies * degree, "degree": degree, "micro": micro, "count": count},
        "samples": copies * micro * rounds,
        "wanted": copies * micro * draw.randint(count + 1, 12),
    }


_samples = partial(number, unit="samples", exact=True)
_count = partial(number, exact=True)

PART = Part(
    "03/effective_batch",
    1,
    "The effective batch",
    6,
    1,
    asked(
        _draw,
        [
            ("run A", "1 GPU; microbatches of {a[micro]} samples, {a[count]} of them in a step"),
            (
                "run B",
                "{b[gpus]} GPUs, a copy of the model on each; microbatches of {b[micro]} samples, "
                "one in a step",
            ),
            (
                "run C",
                "{c[gpus]} GPUs, tensor-parallel degree {c[degree]}; microbatches of {c[micro]} "
                "samples, {c[count]} of them in a step",
            ),
            ("data set of run C", "{samples} samples"),
        ],
        _samples(
            "accumulated",
            "the effective batch of run A",
            "a['micro'] * a['count']",
            "How many samples contribute to one step of the optimizer?",
            {
                "a['micro']": "this is one microbatch. The optimizer steps after several.",
                "a['count']": "this counts microbatches. Each of them has several samples.",
                "a['micro'] + a['count']": "this adds samples to microbatches.",
            },
        ),
        _samples(
            "data_parallel",
            "the effective batch of run B",
            "b['gpus'] * b['micro']",
            "Gradients are averaged over the GPUs before the step. How many samples is that?",
            {
                "b['micro']": "this is the batch of one GPU. The step uses the gradients of all.",
                "b['micro'] / b['gpus']": "this splits a microbatch among the GPUs. Each GPU has "
                "a whole one.",
                "b['micro'] + b['gpus']": "this adds GPUs to samples.",
            },
        ),
        _samples(
            "tensor_parallel",
            "the effective batch of run C",
            "copies * micro * count",
            "How many copies of the model are there, and how many samples does each take per "
            "step?",
            {
                "gpus * micro * count": "this counts every GPU as a copy of the model. GPUs that "
                "share one copy process the same samples.",
                "micro * count": "this is the batch of one copy. How many copies are there?",
                "c['degree'] * micro * count": "this multiplies by the GPUs of one copy. They "
                "process the same samples.",
                "copies * micro": "this is one microbatch of each copy. A step takes several.",
            },
        ),
        _count(
            "micro_batches",
            "how many microbatches per step give run C an effective batch of {wanted} samples",
            "wanted // (copies * micro)",
            "How many samples do all copies take together, in one microbatch each?",
            {
                "wanted / micro": "this is right for one copy of the model. There are more.",
                "wanted / (gpus * micro)": "this counts every GPU as a copy of the model.",
                "wanted / copies": "each copy takes this many samples. In how many parts?",
            },
        ),
        _count(
            "steps",
            "optimizer steps of run C in an epoch; the last one may have fewer microbatches",
            "steps",
            "Divide the data set by the effective batch of run C.",
            {
                "rounds // count": "this leaves samples over at the end. They need a step too.",
                "rounds / count": "this is not a whole number. The samples left over get a step.",
                "rounds": "these are the microbatches of one copy. How many of them make a step?",
                "ceil(samples / (gpus * micro * count))": "this takes an effective batch in which "
                "every GPU counts as a copy of the model.",
            },
        ),
        _count(
            "all_reduces",
            "all-reduces of gradients in which a GPU takes part in that epoch, without `no_sync`",
            "rounds",
            "What does every backward pass do, without `no_sync`?",
            {
                "steps": "this would be right if gradients were averaged once per step.",
                "steps * count": "this counts the last step like the others. It has fewer.",
                "samples // micro": "this counts the microbatches of all copies. An all-reduce "
                "covers one of each copy.",
            },
        ),
        _count(
            "no_sync",
            "the same number, with all microbatches of a step except the last inside `no_sync`",
            "steps",
            "Which backward passes average gradients, and how many of those are there?",
            {
                "rounds": "this is the number without `no_sync`.",
                "rounds - steps": "these are the passes inside `no_sync`, which send nothing.",
                "rounds // count": "what about the short step at the end of the epoch?",
            },
        ),
        where={  # of run C
            "ceil": ceil,
            "gpus": "c['gpus']",
            "micro": "c['micro']",
            "count": "c['count']",
            "copies": "gpus // c['degree']",
            "rounds": "samples // (copies * micro)",  # microbatches of each copy in an epoch
            "steps": "ceil(rounds / count)",
        },
    ),
)

"""00/eight_gpus: predict what a job gains when it moves from one GPU to eight."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, formula, number

_JOBS = (  # ms of compute, MB of gradients, us of latency, GB/s
    (240, 100, 100, 25),
    (320, 200, 100, 50),
    (40, 200, 60, 12.5),
    (64, 400, 100, 25),
    (8, 1, 200, 12.5),
    (12, 2, 300, 12.5),
)
_SHORTER = "another part of the step takes longer."


def _draw(draw: Random) -> Values:
    batch = draw.choice((32, 64, 96, 128))
    compute, megabytes, latency, bandwidth = draw.choice(_JOBS)
    return {
        "batch": batch,
        "samples": 8 * batch * draw.choice((25, 40, 60, 75)),
        "compute": compute * draw.choice((3, 4, 5)) // 4,
        "megabytes": megabytes,
        "latency": latency,
        "bandwidth": bandwidth,
        "rate": draw.choice((5e-4, 1e-3, 2e-3, 4e-3)),
    }


PART = Part(
    "00/eight_gpus",
    2,
    "From one GPU to eight",
    10,
    1,
    asked(
        _draw,
        [
            ("a step on one GPU", "a batch of {batch}, {compute} ms of compute"),
            ("gradients of the model", "{megabytes} MB"),
            ("links between eight GPUs", "{latency} us, {bandwidth:g} GB/s one way"),
            ("an epoch", "{samples} samples"),
            ("the optimizer on one GPU", "SGD with momentum, learning rate {rate:g}"),
        ],
        number(
            "effective",
            "the samples in a step if each of eight GPUs has a batch of {batch}",
            "8 * batch",
            "Each step uses an averaged gradient. Over how many samples is it averaged?",
            {
                "batch": "this is the batch of one GPU. All eight average their gradients.",
                "batch / 8": "the batch is not divided here: each GPU has a whole one.",
            },
            exact=True,
        ),
        number(
            "steps",
            "the number of these steps in an epoch",
            "samples / batch / 8",
            "How many samples do all GPUs together process in one step?",
            {
                "8 * answer": "this is the number of steps on one GPU.",
                "samples / 8": "these are the samples of one GPU. How many are in a step?",
            },
            unit="steps",
            exact=True,
        ),
        number(
            "strong",
            "the time of a step if eight GPUs divide the batch of one GPU",
            "compute / 8 + ring",
            "A step is the compute of one GPU's share, and then a ring all-reduce on eight GPUs.",
            {
                "compute / 8": "the gradients are not averaged yet.",
                "compute + ring": "here each GPU computes an eighth of the batch.",
                "compute / 8 + ring - fixed": "each message of the ring also takes the latency.",
                "compute / 8 + megabytes / bandwidth": "this is one message with all gradients.",
            },
            unit="ms",
        ),
        number(
            "weak",
            "the time of a step if each of eight GPUs has a batch of {batch}",
            "compute + ring",
            "How long does one GPU compute now? The gradients are as large as before.",
            {
                "compute": "the gradients are not averaged yet.",
                "compute / 8 + ring": "this is the step with one batch, divided over eight GPUs.",
                "compute + 8 * ring": "gradients do not grow with the batch.",
            },
            unit="ms",
        ),
        number(
            "efficiency",
            "the efficiency of eight GPUs, each with a batch of {batch}",
            "100 * compute / (compute + ring)",
            "Eight GPUs process eight times the samples. How long would that take ideally?",
            {
                "answer / 8": "the work is not divided here. Each GPU does as much as one alone.",
                "10000 / answer": "this is upside down.",
                "100 - answer": "this is the part of the step that the all-reduce takes.",
            },
            unit="%",
        ),
        number(
            "rate",
            "the learning rate of eight GPUs, each with a batch of {batch}, by the linear rule",
            "8 * rate",
            "The rule multiplies the learning rate by the same factor as the batch.",
            {
                "rate": "this is the rate for the batch of one GPU.",
                "8 ** 0.5 * rate": "this is the square-root rule, which is used with Adam.",
                "rate / 8": "a larger batch allows larger steps, not smaller ones.",
            },
        ),
        choice(
            "warmup",
            "why training begins with a small rate and raises it to this one over some steps",
            {
                "early": "early gradients change much from step to step, so large steps diverge",
                "noise": "early gradients are noisier than those of a small batch",
                "links": "the first all-reduces take longer, until connections exist",
            },
            "early",
            "What would a step eight times as long do while the weights are still random?",
            {
                "noise": "the mean over eight times the samples has less noise, not more.",
                "links": "a warm-up changes no message; it is about where a step leads.",
            },
        ),
        choice(
            "lever",
            "the tenfold improvement that shortens the step with the divided batch most",
            {"compute": "the GPUs", "latency": "the latency", "bandwidth": "the bandwidth"},
            formula("max(parts, key=parts.get)"),
            "The step has three parts. Which of them is the longest?",
            {formula(f"sorted(parts, key=parts.get)[{n}]"): _SHORTER for n in (0, 1)},
        ),
        where={
            "fixed": "14 * latency / 1000",  # ms: a ring of eight sends 14 messages in a row
            "sent": "14 / 8 * megabytes / bandwidth",  # ms
            "ring": "fixed + sent",
            "parts": "{'compute': compute / 8, 'latency': fixed, 'bandwidth': sent}",
        },
    ),
    short_path="1 to 4",
)

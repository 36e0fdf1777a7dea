"""03/scaled_rate: compute the learning rate for k times the batch, and explain its rule."""

from __future__ import annotations

from math import sqrt
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number


def _draw(draw: Random) -> Values:
    times, base_batch = draw.choice((4, 9, 16)), draw.choice((32, 64, 128, 256))
    # The warm-up is short, so that a line one step off differs by more than rounding an answer.
    epochs, steps = draw.choice(((2, 5), (2, 8), (2, 10), (3, 4), (3, 5), (3, 8), (5, 4)))
    warmup = epochs * steps
    parts = draw.choice([parts for parts in (4, 5) if warmup % parts == 0])
    return {
        "base_batch": base_batch,
        "batch": times * base_batch,
        "sgd_rate": draw.choice((0.02, 0.05, 0.1, 0.2)),
        "adam_rate": draw.choice((1e-4, 2e-4, 3e-4, 5e-4, 1e-3)),
        "images": times * base_batch * steps,
        "epochs": epochs,
        "step": warmup // parts * draw.randrange(1, parts),
    }


_ARGUMENTS = {
    "steps": "k small steps on about the same slope go as far as a large one",
    "noise": "the noise in each update stays as large as it was",
    "variance": "the gradient has 1/k of its variance, and the rate makes up for that",
    "slope": "the gradient is 1/k as long, and the rate makes up for that",
}
_NOT_SHORTER = "the mean over more samples loses noise, and the rest of it keeps its length."

PART = Part(
    "03/scaled_rate",
    1,
    "The rate for k times the batch",
    7,
    2,
    asked(
        _draw,
        [
            ("small batch", "{base_batch} images"),
            ("rate of SGD with it", "{sgd_rate}"),
            ("rate of Adam with it", "{adam_rate:g}"),
            ("large batch", "{batch} images"),
            ("gradient noise scale", "far above both batches"),
            ("an epoch", "{images} images"),
            ("warm-up with the large batch", "{epochs} epochs"),
            *((f'argument "{name}"', text) for name, text in _ARGUMENTS.items()),
        ],
        number(
            "sgd",
            "the learning rate for SGD with the large batch, by the rule of Goyal et al.",
            "full",
            "How many steps with the small batch does one step with the large batch replace?",
            {
                "sqrt(k) * rate": "this is the other rule. One step should go as far as k did.",
                "rate": "with 1/k of the steps, the weights move only 1/k as far.",
                "rate / k": "an epoch has fewer steps now, and this makes them shorter, too.",
            },
        ),
        number(
            "adam",
            "the learning rate for Adam with the large batch, by the rule of Malladi et al.",
            "sqrt(k) * adam_rate",
            "Adam divides by the length of gradients. If they are mostly noise, that length "
            "falls with the batch, so the signal counts more already.",
            {
                "k * adam_rate": "this is the rule for SGD. Adam divides by the length of noisy "
                "gradients, which is smaller with the larger batch.",
                "adam_rate": "dividing by the length of gradients makes up for only a part of k.",
                "sqrt(k) * rate": "this starts from the rate of SGD.",
            },
        ),
        choice(
            "linear_because",
            "the argument behind the rule of Goyal et al.",
            _ARGUMENTS,
            "steps",
            "Write down the weights after k small steps, and after a large one.",
            {
                "noise": "how does the noise of an update change with k under this rule?",
                "variance": "texts often say so. But noise is the root of a variance: another "
                "rate would leave it unchanged.",
                "slope": _NOT_SHORTER,
            },
            explained=True,
        ),
        choice(
            "sqrt_because",
            "the argument from which texts derive the square root of k for SGD as well",
            _ARGUMENTS,
            "noise",
            "How large is the noise in a mean over k times the samples? Multiply it by the rate.",
            {
                "steps": "that needs k times the rate. With the root of k, a step goes less far.",
                "variance": "making up for 1/k takes k. Where would a root come from?",
                "slope": _NOT_SHORTER,
            },
            explained=True,
        ),
        number(
            "warmup_steps",
            "the number of steps in the warm-up with the large batch",
            "warmup",
            "Each image is seen once in an epoch. How many steps is that?",
            {
                "k * warmup": "this is right for the small batch.",
                "images / batch": "this is one epoch. How many are there in the warm-up?",
                "images * epochs": "these are images. A step takes a batch of them.",
            },
            unit="steps",
            exact=True,
        ),
        number(
            "rate_at",
            "the learning rate of SGD in step {step} of the warm-up: a straight line from 1/k of "
            "`sgd` in step 0 to `sgd` in the first step after the warm-up",
            "rate + rise * step / warmup",
            "Where does the line begin, where does it end, and what part of it is done?",
            {
                "full * step / warmup": "this line begins at 0. Where does this one begin?",
                "rate + full * step / warmup": "this rises by all of `sgd`, and ends above it. "
                "The line does not begin at 0, so it rises by less.",
                "rate + rate * step / warmup": "this rises to twice the rate of the small "
                "batch. Where does the line end?",
                "full - rise * step / warmup": "this line goes down.",
                "rate + rise * step / (warmup - 1)": "this line reaches `sgd` in the last step of "
                "the warm-up already.",
                "rate + rise * (step + 1) / warmup": "steps count from 0: in step 0 the line has "
                "not risen yet.",
                "rate": "this is step 0.",
                "full": "this is the rate after the warm-up.",
            },
            points=2,
        ),
        where={
            "sqrt": sqrt,
            "k": "batch / base_batch",
            "rate": "sgd_rate",
            "full": "k * rate",
            "rise": "full - rate",  # from the first step of the warm-up to the one after it
            "warmup": "epochs * images / batch",
        },
    ),
)

"""The values of 03/scaled_rate: the rate for k times the batch, why, and the way up to it."""

from __future__ import annotations

from math import sqrt
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Question, Questions, Values
from dtlab.grading.questions.numbers import number

__all__ = ["PART"]


def _draw(draw: Random) -> Values:
    times, base_batch = draw.choice((4, 9, 16)), draw.choice((32, 64, 128, 256))
    # So short a warm-up that a line which is a step off is off by more than a rounded answer.
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


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("small batch", f"{given['base_batch']} images"),
        ("rate of SGD with it", f"{given['sgd_rate']}"),
        ("rate of Adam with it", f"{given['adam_rate']:.4f}".rstrip("0")),
        ("large batch", f"{given['batch']} images"),
        ("gradient noise scale", "far above both batches"),
        ("an epoch", f"{given['images']} images"),
        ("warm-up with the large batch", f"{given['epochs']} epochs"),
        *((f'argument "{name}"', text) for name, text in _ARGUMENTS.items()),
    ]


def _times(given: Values) -> float:
    """The k of the rules."""
    return float(given["batch"]) / float(given["base_batch"])


def _full(given: Values) -> float:
    return _times(given) * float(given["sgd_rate"])


def _epoch(given: Values) -> float:
    """Steps of an epoch with the large batch."""
    return float(given["images"]) / float(given["batch"])


def _warmup(given: Values) -> float:
    return float(given["epochs"]) * _epoch(given)


def _way(given: Values) -> float:
    """The part of the warm-up that is done at the step asked for."""
    return float(given["step"]) / _warmup(given)


def _rate_at(given: Values) -> float:
    return float(given["sgd_rate"]) + (_full(given) - float(given["sgd_rate"])) * _way(given)


_ARGUMENTS = {
    "steps": "k small steps on about the same slope go as far as a large one",
    "noise": "the noise in each update stays as large as it was",
    "variance": "the gradient has 1/k of its variance, and the rate makes up for that",
    "slope": "the gradient is 1/k as long, and the rate makes up for that",
}
_NOT_SHORTER = "the mean over more samples loses noise, and nothing else of its length."

SCALED_RATE = Questions(
    _draw,
    _rows,
    (
        number(
            "sgd",
            "the learning rate for SGD with the large batch, by the rule of Goyal et al.",
            _full,
            "How many steps with the small batch does one with the large batch stand for?",
            (
                lambda given: sqrt(_times(given)) * given["sgd_rate"],
                "this is the other rule. Goyal et al. want one step to go as far as k did.",
            ),
            (
                lambda given: given["sgd_rate"],
                "with the same rate and a k-th of the steps, the weights get a k-th as far.",
            ),
            (
                lambda given: given["sgd_rate"] / _times(given),
                "there are fewer steps to an epoch now, and this makes them shorter.",
            ),
        ),
        number(
            "adam",
            "the learning rate for Adam with the large batch, by the rule of Malladi et al.",
            lambda given: sqrt(_times(given)) * given["adam_rate"],
            "Adam divides by the length of gradients, and where these are mostly noise, it has "
            "become less. So what signal there is counts more already.",
            (
                lambda given: _times(given) * given["adam_rate"],
                "this is the rule for SGD. Adam divides by the length of noisy gradients, which "
                "has become less with the larger batch.",
            ),
            (
                lambda given: given["adam_rate"],
                "to divide by the length of gradients makes up for a part of k only.",
            ),
            (
                lambda given: sqrt(_times(given)) * given["sgd_rate"],
                "this starts from the rate of SGD.",
            ),
        ),
        Question(
            "linear_because",
            1,
            "the argument behind the rule of Goyal et al.",
            Choice(
                _ARGUMENTS,
                "steps",
                (
                    Mistake("noise", "how does the noise of an update go with k under this rule?"),
                    Mistake(
                        "variance",
                        "texts often say so. But noise is the root of a variance: to keep it as "
                        "large as it was, another rate would do.",
                    ),
                    Mistake("slope", _NOT_SHORTER),
                ),
                "Write down the weights after k small steps, and after a large one.",
                explained=True,
            ),
        ),
        Question(
            "sqrt_because",
            1,
            "the argument by which texts come to the square root of k for SGD as well",
            Choice(
                _ARGUMENTS,
                "noise",
                (
                    Mistake("steps", "that takes k times the rate. A root of k goes less far."),
                    Mistake("variance", "to make up for 1/k takes k. Where does a root come in?"),
                    Mistake("slope", _NOT_SHORTER),
                ),
                "How large is the noise in a mean over k times the samples? And times the rate?",
                explained=True,
            ),
        ),
        number(
            "warmup_steps",
            "the number of steps in the warm-up with the large batch",
            _warmup,
            "Each image is seen once in an epoch. How many steps is that?",
            (
                lambda given: _times(given) * _warmup(given),
                "so many it would be with the small batch.",
            ),
            (_epoch, "this is one epoch. How many are there in the warm-up?"),
            (
                lambda given: given["images"] * given["epochs"],
                "these are images. A step takes a batch of them.",
            ),
            unit="steps",
            exact=True,
        ),
        number(
            "rate_at",
            "the learning rate of SGD in step {step} of the warm-up: a straight line from 1/k of "
            "`sgd` in step 0 to `sgd` in the first step after the warm-up",
            _rate_at,
            "Where does the line begin, where does it end, and what part of the way is done?",
            (
                lambda given: _full(given) * _way(given),
                "this line begins at 0. Where does this one begin?",
            ),
            (
                lambda given: given["sgd_rate"] + _full(given) * _way(given),
                "this goes up by all of `sgd`, and ends above it. The way is shorter: it does not "
                "begin at 0.",
            ),
            (
                lambda given: given["sgd_rate"] * (1 + _way(given)),
                "this goes up to twice the rate of the small batch. Where does the line end?",
            ),
            (
                lambda given: _full(given) - (_full(given) - given["sgd_rate"]) * _way(given),
                "this goes down the line.",
            ),
            (
                lambda given: given["sgd_rate"]
                + (_full(given) - given["sgd_rate"]) * given["step"] / (_warmup(given) - 1),
                "this line is at `sgd` in the last step of the warm-up already.",
            ),
            (
                lambda given: given["sgd_rate"]
                + (_full(given) - given["sgd_rate"]) * (given["step"] + 1) / _warmup(given),
                "steps count from 0: in step 0 nothing of the way is done.",
            ),
            (lambda given: given["sgd_rate"], "this is step 0."),
            (_full, "this is the rate after the warm-up."),
            points=2,
        ),
    ),
)

PART = Part("03/scaled_rate", 1, "The rate for k times the batch", 7, 2, SCALED_RATE)

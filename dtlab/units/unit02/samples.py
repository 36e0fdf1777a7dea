"""The values of 02/samples: how PyTorch's DistributedSampler deals a data set out to ranks."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random
from typing import Any

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choice, Mistake, Number, Question, Questions, Values

__all__ = ["PART"]


def _draw(draw: Random) -> Values:
    ranks = draw.choice((4, 6, 8))
    size = ranks * draw.randint(12, 30) + draw.randint(1, ranks - 1)
    return {
        "samples": size,
        "ranks": ranks,
        "rank": draw.randrange(1, ranks - 1),
        "batch": draw.choice((5, 6, 7, 8)),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    return [
        ("samples", f"{given['samples']}, numbered from 0"),
        ("ranks", str(given["ranks"])),
        ("your rank", str(given["rank"])),
        ("batch size of each rank", str(given["batch"])),
    ]


def _per_rank(given: Values) -> int:
    return -(-int(given["samples"]) // int(given["ranks"]))  # rounded up


def _left(given: Values) -> int:
    """What does not divide."""
    return int(given["samples"] % given["ranks"])


def _numbers(
    name: str, prompt: str, right: Callable[[Values], Any], hint: str,
    *mistakes: tuple[Callable[[Values], Any], str],
) -> Question:  # fmt: skip
    known = tuple(Mistake(wrong, why) for wrong, why in mistakes)
    return Question(name, 1, prompt, Number(right, known, hint, tolerance=0))


def _first_three(given: Values) -> list[int]:
    return [given["rank"] + turn * given["ranks"] for turn in range(3)]


SAMPLES = Questions(
    _draw,
    _rows,
    (
        _numbers(
            "per_rank",
            "how many samples each rank gets in an epoch",
            _per_rank,
            "All ranks have to make as many steps, so all get as many samples.",
            (
                lambda given: given["samples"] // given["ranks"],
                "this leaves samples over. Unless it is told to drop them, the sampler fills up.",
            ),
            (lambda given: given["samples"], "this is all of them, on every rank."),
            (
                lambda given: ceil(given["samples"] / given["batch"]),
                "this divides by the batch size. Asked for are samples of a rank.",
            ),
        ),
        _numbers(
            "repeated",
            "how many samples are handed out twice, so that all ranks get as many",
            lambda given: _per_rank(given) * given["ranks"] - given["samples"],
            "Multiply what each rank gets by the number of ranks.",
            (
                _left,
                "this is what is over when you divide. How many are missing for another round?",
            ),
            (lambda given: 0, "the number of samples does not divide by the number of ranks."),
        ),
        _numbers(
            "first_three",
            "the first three samples of your rank, with shuffle=False",
            _first_three,
            "Samples are dealt out like cards: one to each rank, and round again.",
            (
                lambda given: [given["rank"] * _per_rank(given) + turn for turn in range(3)],
                "these lie side by side, as in a block for each rank. The sampler deals out one "
                "sample to each rank in turn.",
            ),
            (
                lambda given: [given["rank"] + turn for turn in range(3)],
                "the one after your first belongs to the rank after yours.",
            ),
            (
                lambda given: [one + 1 for one in _first_three(given)],
                "these are those of the rank after yours: samples and ranks count from 0.",
            ),
        ),
        _numbers(
            "steps",
            "how many steps an epoch has, where the DataLoader keeps the last, smaller batch",
            lambda given: ceil(_per_rank(given) / given["batch"]),
            "A rank cuts its own samples into batches.",
            (
                lambda given: _per_rank(given) // given["batch"],
                "this drops the last batch. Keep it, although it is smaller.",
            ),
            (
                lambda given: ceil(given["samples"] / given["batch"]),
                "this is so for one process. A rank has its own samples only.",
            ),
        ),
        _numbers(
            "dropped",
            "how many samples nobody sees in an epoch, with drop_last=True in the sampler",
            _left,
            "Each rank gets as many whole rounds as there are.",
            (
                lambda given: _per_rank(given) * given["ranks"] - given["samples"],
                "so many would be repeated without drop_last.",
            ),
            (lambda given: 0, "a part of a round is left over. With drop_last nobody gets it."),
        ),
        Question(
            "forgotten",
            1,
            "shuffle=True, and set_epoch is never called: what does your rank see in epoch 2?",
            Choice(
                {
                    "the same": "what it saw in epoch 1, in the same order",
                    "reordered": "what it saw in epoch 1, in another order",
                    "others": "other samples than in epoch 1",
                    "sorted": "samples in the order of their numbers",
                },
                "the same",
                (
                    Mistake("reordered", "what would the new order be drawn from?"),
                    Mistake("others", "this is what set_epoch is there for."),
                    Mistake("sorted", "it does shuffle: from its seed and the epoch, which is 0."),
                ),
                "The order is drawn from the sampler's seed and its epoch.",
            ),
        ),
    ),
)

PART = Part("02/samples", 1, "Who sees which samples", 6, 1, SAMPLES)

"""02/samples: predict how PyTorch's DistributedSampler distributes a data set over ranks."""

from __future__ import annotations

from math import ceil
from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number


def _draw(draw: Random) -> Values:
    ranks = draw.choice((4, 6, 8))
    size = ranks * draw.randint(12, 30) + draw.randint(1, ranks - 1)
    return {
        "samples": size,
        "ranks": ranks,
        "rank": draw.randrange(1, ranks - 1),
        "batch": draw.choice((5, 6, 7, 8)),
    }


PART = Part(
    "02/samples",
    1,
    "Which rank gets which samples",
    6,
    1,
    asked(
        _draw,
        [
            ("samples", "{samples}, numbered from 0"),
            ("ranks", "{ranks}"),
            ("your rank", "{rank}"),
            ("batch size of each rank", "{batch}"),
        ],
        number(
            "per_rank",
            "how many samples each rank gets in an epoch",
            "per_rank",
            "All ranks must make the same number of steps, so all get the same number of samples.",
            {
                "samples // ranks": "this leaves samples over. The sampler repeats some.",
                "samples": "this is all of them, on every rank.",
                "ceil(samples / batch)": "these are batches, not samples of a rank.",
            },
            exact=True,
        ),
        number(
            "repeated",
            "how many samples are given out twice, so that all ranks get the same number",
            "per_rank * ranks - samples",
            "Multiply what each rank gets by the number of ranks.",
            {
                "samples % ranks": "this is the remainder of the division. How many are missing "
                "for another full round?",
                "0": "the number of samples does not divide by the number of ranks.",
            },
            exact=True,
        ),
        number(
            "first_three",
            "the first three samples of your rank, with shuffle=False",
            "[rank, rank + ranks, rank + 2 * ranks]",
            "Samples are dealt out like cards: one to each rank, then the next round.",
            {
                "[rank * per_rank + turn for turn in range(3)]": "these are neighbours, as if "
                "each rank had one block. The sampler gives one sample to each rank in turn.",
                "[rank, rank + 1, rank + 2]": "the sample after your first one belongs to the "
                "next rank.",
                "[index + 1 for index in answer]": "the next rank has these: ranks count from 0.",
            },
            exact=True,
        ),
        number(
            "steps",
            "how many steps an epoch has, if the DataLoader keeps the last, smaller batch",
            "ceil(per_rank / batch)",
            "Each rank cuts its own samples into batches.",
            {
                "per_rank // batch": "this drops the last batch. Keep it, although it is smaller.",
                "ceil(samples / batch)": "this is right for one process. A rank has only its own "
                "samples.",
            },
            exact=True,
        ),
        number(
            "dropped",
            "how many samples no rank gets in an epoch, with drop_last=True in the sampler",
            "samples % ranks",
            "Each rank gets one sample of every full round.",
            {
                "per_rank * ranks - samples": "this many would be repeated without drop_last.",
                "0": "an incomplete round is left over. With drop_last no rank gets it.",
            },
            exact=True,
        ),
        choice(
            "forgotten",
            "shuffle=True, and set_epoch is never called: what does your rank see in epoch 2?",
            {
                "the same": "what it saw in epoch 1, in the same order",
                "reordered": "what it saw in epoch 1, in another order",
                "others": "other samples than in epoch 1",
                "sorted": "samples in the order of their numbers",
            },
            "the same",
            "The order is drawn from the sampler's seed and its epoch.",
            {
                "reordered": "what would the new order be drawn from?",
                "others": "this would need set_epoch.",
                "sorted": "it does shuffle, with its seed and epoch 0.",
            },
        ),
        where={"ceil": ceil, "per_rank": "ceil(samples / ranks)"},
    ),
)

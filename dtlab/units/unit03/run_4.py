"""03/run_4: the rate grows although the batch does not."""

from __future__ import annotations

import random
from collections.abc import Iterator

from dtlab.checks.functions.trials import Trial
from dtlab.checks.programs.cases import Training
from dtlab.checks.programs.training import script_part
from dtlab.units.unit03.run_trials import (
    BASE_BATCH,
    BATCH,
    RATE,
    linear,
    of_rates,
    rates_and_end,
    scene,
    schedule,
    training,
)


def one_recipe(seed: int) -> list[Trial]:
    """Trials of `script(model, data, epochs, batch, rate, accumulate)`, which splits one batch."""
    draw = random.Random(seed)

    def trial(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        micro = draw.choice((20, 24, 28))
        batch, rate = ranks * accumulate * micro, draw.choice((0.06, 0.07, 0.09))
        more = (batch, rate, accumulate)
        return Trial(ranks, [training(seed + number, batch * steps, more, accumulate, micro)])

    return [trial(2, draw.choice((3, 4)), 3, 0), trial(3, 2, draw.randint(2, 3), 1)]


def _of_recipe(case: Training, ranks: int) -> list[float]:
    """The rate of each update, with the peak of the recipe."""
    batch, peak, _ = case.more
    return schedule(peak, case.updates(ranks), BASE_BATCH / batch)


def _factors(case: Training, ranks: int) -> Iterator[tuple[float, str]]:
    """Yields factors by which all rates may be off, and the cause of each."""
    _, rate, parts = case.more
    for count in (ranks, parts, ranks * parts):
        yield (
            1 / count,
            f"The rate is divided by {count}. It belongs to the batch of an update; that batch "
            "stays the same.",
        )
    yield from of_rates(case, ranks)
    for other in (RATE, max(linear(case, ranks))):
        yield other / rate, "Use the argument `rate`: the check has other recipes."


PART = script_part(
    "03/run_4",
    "Run 4",
    10,
    2,
    "dtlab.units.unit03.runs.train_4",
    scene(4, (BATCH, RATE, 4)),
    one_recipe,
    rates_and_end(
        _of_recipe, "rate", "updates have the rates of the recipe, on 2 and 3 ranks", _factors
    ),
    lines=["optimizer = SGD(replica.parameters(), lr=size * parts * rate, momentum=0.9)"],
    look="With what should the rate grow, and does that grow here?",
)

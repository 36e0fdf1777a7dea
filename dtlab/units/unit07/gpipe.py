"""07/gpipe: write GPipe's schedule as lists that are valid, run on ranks, and waste no slot.

Huang et al. 2019, "GPipe", figure 2c. The figure draws the backward passes in reverse order. Any
order takes the same time and holds the same number of microbatches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.schedules import Schedule, gpipe
from dtlab.units.unit07.judging import COMMON, LIMIT, Planned, carried_out, part_of_grid, slow


def _more(schedule: Schedule, stages: int, count: int) -> Iterator[Fault]:
    """Yields what is wrong with a schedule that can run."""
    for rank, row in enumerate(schedule):
        kinds = "".join(action.kind for action in row)
        late = kinds.find("F", kinds.find("B"))
        if late >= 0:
            shown = part_of_grid(schedule, [(rank, late)])
            yield (
                "order",
                f"rank {rank} does {row[late]} after a backward: in GPipe every rank does all "
                f"its forwards first.\n{shown}",
            )
            break
    yield from slow(schedule, gpipe(stages, count))


def _trials(seed: int) -> list[Trial]:
    """Trials of small sizes, with m = p, m < p, p = 1 and m = 1. Ranks run the first."""
    draw = random.Random(seed)
    stages, few = draw.randint(3, 5), draw.randint(4, 6)
    sizes = [(3, draw.randint(4, 6)), (stages, stages), (few, draw.randint(2, few - 1))]
    sizes += [(2, draw.randint(3, 7)), (1, draw.randint(2, 4)), (draw.randint(2, 4), 1)]
    return [Trial(1, [Planned(p, m, _more) for p, m in sizes], limit=LIMIT)]


PART = Part(
    name="07/gpipe",
    level=2,
    title="GPipe",
    minutes=12,
    difficulty=1,
    check=Check(
        trials=_trials,
        then=carried_out,
        rules=(
            *COMMON,
            rule("order", 1, "all forwards before the first backward", "complete", "runs"),
            rule("time", 1, "the step takes 2(m + p - 1) slots", "complete", "runs"),
        ),
    ),
    reference="dtlab.schedules.gpipe",
)

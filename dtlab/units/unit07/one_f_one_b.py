"""07/one_f_one_b: write 1F1B as lists. Unlike GPipe, it limits what a rank must hold.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM", section 2.2.1 (PipeDream-Flush).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict import peak_in_flight
from dtlab.predict.units import counted
from dtlab.schedules import Schedule, one_f_one_b
from dtlab.units.unit07.judging import (
    COMMON,
    LIMIT,
    Planned,
    carried_out,
    first_above,
    part_of_grid,
    slow,
)


def _more(schedule: Schedule, stages: int, count: int) -> Iterator[Fault]:
    """Yields what is wrong with a schedule that can run."""
    for rank, peak in enumerate(peak_in_flight(schedule)):
        enough = min(count, stages - rank)
        if peak > enough:
            index = first_above(schedule[rank], enough)
            yield (
                "memory",
                f"rank {rank} holds {counted(peak, 'microbatch', 'microbatches')} at once, but "
                f"{enough} {'is' if enough == 1 else 'are'} enough: could its next backward come "
                f"before {schedule[rank][index]}?\n{part_of_grid(schedule, [(rank, index)])}",
            )
            break
    yield from slow(schedule, one_f_one_b(stages, count))


def _trials(seed: int) -> list[Trial]:
    """Trials with enough microbatches; then with few, with one, and with a single stage."""
    draw = random.Random(seed)
    stages, deep = draw.randint(3, 5), draw.randint(4, 6)
    sizes = [(3, draw.randint(5, 7)), (stages, stages), (4, draw.randint(5, 9)), (2, 4)]
    edges = [(deep, draw.randint(2, deep - 2)), (1, draw.randint(2, 4)), (draw.randint(3, 4), 1)]
    return [
        Trial(1, [Planned(p, m, _more) for p, m in sizes], limit=LIMIT),
        Trial(1, [Planned(p, m, _more, "edges") for p, m in edges], limit=LIMIT),
    ]


PART = Part(
    name="07/one_f_one_b",
    level=2,
    title="1F1B",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        then=carried_out,
        rules=(
            *COMMON,
            rule("memory", 3, "rank r holds p - r microbatches at most", "complete", "runs"),
            rule("time", 2, "the step takes 2(m + p - 1) slots", "complete", "runs"),
            rule("edges", 2, "right for few microbatches, and for one stage", "complete", "runs"),
        ),
    ),
    reference="dtlab.simple.one_f_one_b",
    short_path="1 to 4",
)

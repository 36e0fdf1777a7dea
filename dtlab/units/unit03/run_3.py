"""03/run_3: the rate lacks the number of ranks, and the losses lack a division by microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from dtlab.checks.programs.cases import Training
from dtlab.checks.programs.training import script_part
from dtlab.units.unit03.run_trials import accumulated, linear, of_rates, rates_and_end, scene


def of_two(case: Training, ranks: int) -> Iterator[tuple[float, str]]:
    """Yields factors by which all updates may be off, and the numbers that they come from."""
    passes = case.passes
    yield passes / ranks, f"That is {passes} microbatches by {ranks} ranks."
    yield passes, f"There are {passes} microbatches in an update."
    yield 1 / ranks, f"There are {ranks} ranks."
    yield from of_rates(case, ranks)


PART = script_part(
    "03/run_3",
    "Run 3",
    13,
    3,
    "dtlab.units.unit03.runs.train_3",
    scene(8, (32, 8)),
    accumulated,
    rates_and_end(
        linear,
        "rate",
        "updates follow the gradient of the mean loss, with the rates of the linear rule",
        of_two,
    ),
    lines=[
        "peak = linear_scaled_lr(0.05, 32, micro * accumulate)",
        'loss = F.cross_entropy(replica(images), labels, reduction="sum") / micro',
        "loss.backward()",
    ],
    look="An update is a rate times a gradient. By which factor is each of them off?",
)

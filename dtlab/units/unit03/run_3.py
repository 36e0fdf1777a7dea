"""03/run_3, "The right rate, and too far": losses are not divided by the microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.units.unit03.run_trials import (
    SYMPTOMS,
    accumulated,
    linear,
    measured,
    rates_and_end,
    scene,
)


def of_gradients(case: Training, ranks: int) -> Iterator[tuple[float, str]]:
    """Yields factors by which all gradients may be off, and the cause of each."""
    yield case.passes, "An update has as many microbatches: divide each loss by their number."
    yield 1 / case.passes, "An update has as many microbatches: you divide by their number twice."
    yield (
        case.passes / ranks,
        f"That is {case.passes} microbatches by {ranks} ranks. DDP has divided by one of the two "
        "already.",
    )
    yield 1 / ranks, f"There are {ranks} ranks, and DDP has divided by their number already."


PART = script_part(
    "03/run_3",
    "The right rate, and too far",
    12,
    2,
    "dtlab.units.unit03.runs.train_3",
    scene(8, (32, 8)),
    accumulated,
    rates_and_end(
        linear,
        "gradient",
        "updates follow the gradient of the mean loss, on 2 and 3 ranks",
        of_gradients,
    ),
    SYMPTOMS,
    ["loss = F.cross_entropy(outputs, labels)", "loss.backward()"],
    "`.grad` is a sum. Of which gradients, and by what is it divided?",
    proof=proof(
        measured,
        "stretch",
        "Divide the length of the first update by its rate times the length of the mean gradient.",
        {
            "1 / stretch": "that is the inverse.",
            "ranks * stretch": "DDP has averaged over the ranks already.",
            "1": "this would be right if the update had the right length. Divide the lengths.",
        },
        unit="times",
        tolerance=0.02,
    ),
)

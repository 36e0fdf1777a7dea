"""Level III of unit 02: find and mend eight broken training scripts.

The scripts are in `unit02.scripts`, as the notebook shows them. Each part is a `MendScript` of
`dtlab.grading.scripts`: the symptom is measured in a run of the broken script
(`scripts_symptoms`), and the mended one is judged by what ranks do, compared with one process.
What only this unit judges is in `scripts_cases`, `scripts_judges` and `scripts_training`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import (
    Objection,
    an_earlier_order_again,
    copies_differ,
    first,
    not_shared_out,
    rest_dropped,
    then,
    too_much_sent,
)
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.training import not_as_one_process, too_large_passes
from dtlab.grading.unit02.scripts_cases import OnCards, OnShards
from dtlab.grading.unit02.scripts_judges import (
    more_than_gradients,
    no_card_of_its_own,
    no_such_card,
    unused_samples,
)
from dtlab.grading.unit02.scripts_symptoms import SYMPTOMS
from dtlab.grading.unit02.scripts_training import (
    not_as_one_process_on_shards,
    piled_up_in_an_epoch,
)
from dtlab.grading.unit02.scripts_trials import accumulated, for_long, on_nodes, shards, shared

__all__ = ["PARTS"]

Trials = Callable[[random.Random, int], Sequence[Trial]]

_SCRIPTS = "dtlab.grading.unit02.scripts."
_FORWARD = "loss = F.cross_entropy(replica(images), labels)"
_COPIES = "the copies are equal, bit by bit"
_AS_ONE = "every rank has the parameters of one process that takes all their samples"


def _part(number: int, title: str, minutes: int, difficulty: int, check: MendScript) -> Part:
    name = f"script_{number}"
    return Part(f"02/{name}", 3, title, name, f"{name}-check", minutes, difficulty, check)


def _check(
    trials: Trials,
    subject: tuple[str, float, str, Sequence[Objection]],
    other: tuple[str, float, str, Sequence[Objection]],
) -> Check:
    """Two criteria, each (name, points, what is said where it is right, objections)."""
    begin = first(subject[2], *subject[3], trouble=no_such_card)
    rules = (
        Rule(subject[0], subject[1], begin),
        Rule(other[0], other[1], then(other[2], *other[3]), after=subject[0]),
    )
    return Check(lambda seed: trials(random.Random(seed), seed), rules)


def _copies(optimizer: Optimizer, *more: Objection) -> Check:
    return _check(
        shared,
        ("copies", 1, f"{_COPIES}, on 2 and 3 ranks", [copies_differ]),
        ("training", 2, _AS_ONE, [not_shared_out, not_as_one_process(optimizer), *more]),
    )


def _samples(optimizer: Optimizer, name: str, right: str, trials: Trials = shared) -> Check:
    return _check(
        trials,
        (name, 2, right, [rest_dropped, not_shared_out, an_earlier_order_again]),
        ("training", 1, _AS_ONE, [copies_differ, not_as_one_process(optimizer)]),
    )


_ADAM, _SGD = Optimizer(2e-3, adam=True, eps=1e-3), Optimizer(0.1)
_MOMENTUM, _FAST = Optimizer(0.05, momentum=0.9), Optimizer(0.5)

SCRIPT_1 = _part(
    1,
    "Four copies, four models",
    7,
    1,
    MendScript(
        _SCRIPTS + "train_1",
        Trial(2, [Training(0, 128)]),
        _copies(_ADAM),
        symptoms=SYMPTOMS,
        lines=["loss = F.cross_entropy(model(images), labels)"],
        look="Who is called here, and who would have averaged the gradients?",
        optimizer=_ADAM,
    ),
)

SCRIPT_2 = _part(
    2,
    "As fast as one rank",
    8,
    1,
    MendScript(
        _SCRIPTS + "train_2",
        Trial(2, [Training(0, 128)]),
        _samples(_SGD, "samples", "the ranks share the samples out, anew in every epoch"),
        symptoms=SYMPTOMS,
        lines=["loader = DataLoader(data, batch_size=16, shuffle=True, generator=order)"],
        look="Where is it settled which samples a rank takes?",
    ),
)

SCRIPT_3 = _part(
    3,
    "Every epoch the first",
    7,
    1,
    MendScript(
        _SCRIPTS + "train_3",
        Trial(2, [Training(0, 128)]),
        _samples(
            _MOMENTUM, "order", "every epoch shares the samples out in another order", for_long
        ),
        symptoms=SYMPTOMS,
        lines=[
            "for epoch in range(epochs):",
            "total = 0.0",
            "losses.append(total / len(loader))",
        ],
        look="A line is missing. Below which one does an epoch begin?",
        optimizer=_MOMENTUM,
    ),
)


SCRIPT_4 = _part(
    4,
    "The shard that is longer",
    11,
    2,
    MendScript(
        _SCRIPTS + "train_4",
        Trial(2, [OnShards(0, sizes=(40, 56))]),
        _check(
            shards,
            ("samples", 2, "all ranks come to the end, with all samples", [unused_samples]),
            ("training", 1, _AS_ONE, [copies_differ, not_as_one_process_on_shards(_SGD)]),
        ),
        symptoms=SYMPTOMS,
        lines=["for images, labels in loader:"],
        look="Which line runs more often on one rank than on another?",
    ),
)

SCRIPT_5 = _part(
    5,
    "A hook of one's own",
    11,
    2,
    MendScript(
        _SCRIPTS + "train_5",
        Trial(2, [Training(0, 128)]),
        _copies(_ADAM, more_than_gradients),
        symptoms=SYMPTOMS,
        lines=["dist.all_reduce(parameter.data)", "parameter.data /= size"],
        look="What is averaged, and when: before the optimizer steps, or after it?",
        optimizer=_ADAM,
    ),
)


SCRIPT_6 = _part(
    6,
    "Four times the traffic",
    11,
    2,
    MendScript(
        _SCRIPTS + "train_6",
        Trial(2, [Training(0, 128, more=(4,), passes=4, micro_batch=8)]),
        _check(
            accumulated,
            ("traffic", 2, "a rank sends one gradient for each step", [too_much_sent]),
            (
                "training",
                1,
                _AS_ONE,
                [
                    too_large_passes,
                    not_shared_out,
                    copies_differ,
                    not_as_one_process(_SGD),
                ],
            ),
        ),
        symptoms=SYMPTOMS,
        lines=[
            "loss = F.cross_entropy(replica(images), labels) / accumulate",
            "with replica.no_sync():",
        ],
        look="When does DDP make up its mind whether a backward pass sends?",
    ),
)

SCRIPT_7 = _part(
    7,
    "A step that grows",
    7,
    1,
    MendScript(
        _SCRIPTS + "train_7",
        Trial(2, [Training(0, 128)]),
        _check(
            shared,
            (
                "training",
                2,
                _AS_ONE,
                [not_shared_out, piled_up_in_an_epoch(_FAST), not_as_one_process(_FAST)],
            ),
            ("copies", 1, f"{_COPIES}, on 2 and 3 ranks", [copies_differ]),
        ),
        symptoms=SYMPTOMS,
        lines=[
            "for images, labels in loader:",
            _FORWARD,
            "optimizer.step()",
            "total += loss.item()",
        ],
        look="A line is missing: between one backward pass and the next, outside of which two?",
        optimizer=_FAST,
    ),
)


SCRIPT_8 = _part(
    8,
    "The second node",
    11,
    2,
    MendScript(
        _SCRIPTS + "train_8",
        Trial(4, [OnCards(0, 128, nodes=2)]),
        _check(
            on_nodes,
            ("devices", 2, "each rank has the card of its LOCAL_RANK", [no_card_of_its_own]),
            (
                "training",
                1,
                _AS_ONE,
                [not_shared_out, copies_differ, not_as_one_process(_SGD)],
            ),
        ),
        symptoms=SYMPTOMS,
        lines=["device = card(rank)"],
        look="Which number is counted over all nodes, and which one is asked for here?",
    ),
)

PARTS = (
    SCRIPT_1, SCRIPT_2, SCRIPT_3, SCRIPT_4, SCRIPT_5, SCRIPT_6, SCRIPT_7, SCRIPT_8,
)  # fmt: skip

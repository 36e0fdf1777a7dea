"""02/script_8: the second node."""

from __future__ import annotations

from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.judges import (
    copies_differ,
    not_shared_out,
)
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.training import not_as_one_process
from dtlab.units.unit02.script_runs import (
    AS_ONE,
    SCRIPTS,
    SGD,
    SYMPTOMS,
    OnCards,
    no_card_of_its_own,
    on_nodes,
    two_criteria,
)

PART = Part(
    "02/script_8",
    3,
    "The second node",
    11,
    2,
    MendScript(
        SCRIPTS + "train_8",
        Trial(4, [OnCards(0, 128, nodes=2)]),
        two_criteria(
            on_nodes,
            ("devices", 2, "each rank has the card of its LOCAL_RANK", [no_card_of_its_own]),
            (
                "training",
                1,
                AS_ONE,
                [not_shared_out, copies_differ, not_as_one_process(SGD)],
            ),
        ),
        symptoms=SYMPTOMS,
        lines=["device = card(rank)"],
        look="Which number is counted over all nodes, and which one is asked for here?",
    ),
)

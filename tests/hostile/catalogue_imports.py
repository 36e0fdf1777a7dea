"""Answers that import what judges them: reference solutions, cases, their source, or all parts."""

from __future__ import annotations

from tests.hostile.submissions import Hostile

__all__ = ["CATALOGUE"]

GONE = "is not available while an answer is graded"


def imports(name: str, tries: str, part: str, answer: str, says: str = GONE) -> Hostile:
    """An answer of a part that earns nothing."""
    symbol = "Orchestrator" if part == "orchestrator" else part
    return Hostile(name, f"{tries}.", {part: 0.0}, 60, answers={symbol: answer}, says=[says])


CATALOGUE = [
    imports(
        "the judge's reference",
        "Hands in the function with which the check of 04/update_scale computes what is right",
        "update_scale",
        """
        def update_scale(scale, good_steps, overflow, growth_interval):
            from dtlab.units.unit04.update_scale import next_scale

            return next_scale(scale, good_steps, overflow, growth_interval)
        """,
    ),
    imports(
        "the judge's reference by reference",
        "Imports the reference in a cell, so that the answer is only a name in dtlab.units",
        "update_scale",
        """
        from dtlab.units.unit04.update_scale import next_scale as update_scale
        """,
    ),
    imports(
        "the right plan of the judge",
        "Calls the plan of starts with which unit 11 simulates a cluster",
        "orchestrator",
        """
        class Orchestrator:
            def __init__(self, nodes):
                from dtlab.units.unit11 import cluster

                self.nodes, self.plan = nodes, cluster.planned_starts
                self.cluster = cluster.Cluster.__new__(cluster.Cluster)

            def decide(self, event):
                return self.plan(self.cluster, lambda cluster, job: job.name)
        """,
    ),
    imports(
        "a case without its constructor",
        "Makes a case of 09/top_k and has it compute the right result",
        "top_k",
        """
        def top_k(gradient, error, k):
            from dtlab.units.unit09.top_k import TopK

            case = object.__new__(TopK)
            object.__setattr__(case, "k", k)
            right, kept = case.right([gradient], [{"error": error}])
            error.copy_(kept[0])
            return right
        """,
    ),
    imports(
        "the judge's source",
        "Reads the formula of 07/warm_up in the file of its check",
        "warm_up",
        """
        def warm_up(rank, num_stages, num_microbatches):
            import re

            from dtlab.units.unit07 import warm_up as judge

            with open(judge.__file__) as file:
                formula = re.search(r"min\\(behind, .*?\\)", file.read())[0]
            return min(num_stages - 1 - rank, num_microbatches) if formula else 0
        """,
        "FileNotFoundError",
    ),
    imports(
        "the catalogue of parts",
        "Asks the catalogue for the check of 05/gather, to try its cases first",
        "gather",
        """
        def gather(block, flat, piece):
            from dtlab.checks.parts import find_part

            check = find_part("05/gather").check
            raise ValueError(f"{len(check.trials(0))} trials")
        """,
        "there is no part",
    ),
    imports(
        "a second import of the judge",
        "Forgets that dtlab.units was imported, and imports the check of 02/average_gradients",
        "average_gradients",
        """
        def average_gradients(module, group=None):
            import sys

            for name in [name for name in sys.modules if name.startswith("dtlab.units")]:
                del sys.modules[name]
            from dtlab.units.unit02 import average_gradients as judge

            raise ValueError(f"{judge.PART}")
        """,
        "ModuleNotFoundError",
    ),
]

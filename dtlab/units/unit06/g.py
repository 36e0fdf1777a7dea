"""06/g: the operator g at the end of a shared region: all-reduce forward, identity backward."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.parts import Part
from dtlab.units.unit06.f import Region, trials_of
from dtlab.units.unit06.passes import compare, wrong_calls


class Adding(Region):
    """A case with a part of a sum that differs by rank, and the same gradient of y on all."""

    main = "sum"
    same_leaf = False
    hints = (
        "One dist.all_reduce leaves the sum on every rank.",
        "Every rank already has the gradient of y.",
    )

    @property
    def sums(self) -> tuple[int, int]:
        return prod(self.shape), 0

    def wrong(self, result: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        exp, ranks = self.topic == "kept", len(members)
        leaves = [self.differing(rank) for rank in members]
        parts = [leaf.exp() if exp else 2 * leaf for leaf in leaves]
        total = sum(parts[1:], parts[0])
        known = {
            "is only this rank's part": parts[place],
            "is the mean of the parts, not their sum": total / ranks,
        }
        advice = "It must be the sum of all ranks' parts."
        yield from compare(result, "the output", "sum", total, advice, known)
        if not self.groups:
            known = {"is the sum": total}
            yield from compare(
                result, "the input after the call", "kept", parts[place], _KEPT, known
            )
        if not exp:  # the gradient of exp depends on its output, which `fn` may have changed
            gradient = 2 * self.same(members[0])
            known = {
                "is the right value times the number of ranks": gradient * ranks,
                "is divided by the number of ranks": gradient / ranks,
            }
            yield from compare(result, "the gradient of x", "gradient", gradient, _GRADIENT, known)


_KEPT = (
    "The operator that made the input may have saved it for backward: sum in a copy of the input."
)
_GRADIENT = (
    "y grows by as much as any part of it grows, so the gradient of each part is the gradient of "
    "y, which every rank already has."
)

PART = Part(
    name="06/g",
    level=2,
    title="g, where the region ends",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=trials_of(Adding, "kept"),
        rules=(
            rule("sum", 2, "y is the sum of all ranks' parts"),
            rule("gradient", 2, "each part gets the gradient of y", "sum"),
            rule("kept", 1, "the input is unchanged", "sum"),
            rule(
                "calls", 1, "one all-reduce, only in forward", "sum", "gradient", also=wrong_calls
            ),
            rule("group", 1, "right on groups of some of the ranks", "sum", "gradient"),
        ),
    ),
    reference="dtlab.simple.SumOverRanks",
)

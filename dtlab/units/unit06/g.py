"""06/g: where the region that ranks share ends. A sum forward, nothing backward."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Noted, rule
from dtlab.grading.parts import Part
from dtlab.units.unit06.f import Region, trials_of
from dtlab.units.unit06.passes import compare, wrong_calls


class Adding(Region):
    """A part of a sum, which differs by rank; then all have the same gradient of y."""

    main = "sum"
    same_leaf = False
    hints = (
        "One dist.all_reduce leaves the sum on every rank.",
        "Every rank has the gradient of y already.",
    )

    @property
    def sums(self) -> tuple[int, int]:
        return prod(self.shape), 0

    def wrong(self, seen: Noted, place: int, members: tuple[int, ...]) -> Iterator[Fault]:
        exp, ranks = self.topic == "kept", len(members)
        leaves = [self.differing(rank) for rank in members]
        parts = [leaf.exp() if exp else 2 * leaf for leaf in leaves]
        total = sum(parts[1:], parts[0])
        known = {
            "this rank's part alone": parts[place],
            "the mean of the parts, not their sum": total / ranks,
        }
        advice = "It is the sum of all ranks' parts."
        yield from compare(seen, "what comes out", "sum", total, advice, known)
        if not self.groups:
            known = {"the sum now": total}
            yield from compare(seen, "what was passed in", "kept", parts[place], _KEPT, known)
        if not exp:  # of exp, the gradient is made of the part, which may be another by now
            gradient = 2 * self.same(members[0])
            known = {
                "times the number of ranks": gradient * ranks,
                "divided by the number of ranks": gradient / ranks,
            }
            yield from compare(seen, "the gradient of x", "gradient", gradient, _GRADIENT, known)


_KEPT = (
    "Whoever made it may need it for backward: add up in a tensor of your own, a copy of the part."
)
_GRADIENT = (
    "y grows by as much as a part of it grows, and every rank has the gradient of y already: "
    "each part gets just that."
)

PART = Part(
    name="06/g",
    level=2,
    title="g, where it ends",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=trials_of(Adding, "kept"),
        rules=(
            rule("sum", 2, "y is the sum of all ranks' parts"),
            rule("gradient", 2, "each part gets the gradient of y", "sum"),
            rule("kept", 1, "the part stays as it was", "sum"),
            rule("calls", 1, "one all-reduce forward only", "sum", "gradient", also=wrong_calls),
            rule("group", 1, "only its group's ranks count", "sum", "gradient"),
        ),
    ),
    reference="dtlab.parallel.tensor.regions.reduce_from_region",
)

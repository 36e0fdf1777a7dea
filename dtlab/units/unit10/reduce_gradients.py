"""10/reduce_gradients: sum each gradient over the groups in which it is only a part."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dtlab.checks.comparison import Known, difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import inside_marks
from dtlab.checks.parts import Part
from dtlab.checks.words import Explanation, amount, ranks_in_words
from dtlab.parallel.mesh import group_of
from dtlab.units.unit10.mesh_cases import ANSWER, Marked, Place, WithGradients, place_of

if TYPE_CHECKING:
    from torch import Tensor

Due = dict[tuple[int, ...], int]  # bytes by the members of a group

_PART_OF = "It should be that of one process: which ranks have a part of it?"


class Reducing(WithGradients):
    """A call of `fn(parameters, groups)`; topic "data": that criterion judges all gradients."""

    def shows(self, criterion: str) -> bool:
        if self.topic in ("data", "tied"):
            return criterion in (self.topic, "bytes")
        return criterion not in ("data", "tied")

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, place, which, got in self.gradients(results):
            wanted = self.reduced(which, place)
            known = self._known(which, rank, place)
            if wrong := difference(got, wanted, known, hint=_PART_OF):
                name = "tied" if which.tied else which.kind
                kind = f"{'tied, ' * which.tied}{which.kind}"
                yield (
                    "data" if self.topic == "data" else name,
                    f"{self.where(rank)}: the gradient of {which.name} ({kind}) " + wrong,
                )

    def _known(self, which: Marked, rank: int, place: Place) -> Known:
        """The gradients that known mistakes give."""
        data, stages, _ = self.holders(which, place)
        here, every = place[2:], range(self.sizes[2])
        wanted, summed = self.reduced(which, place), self.mean(which, data, stages, every)
        pipeline, sharers = self._group(rank, "pipeline"), self._group(rank, "tensor")
        kind = {
            "sharded": "These hold different parts of the weight.",
            "equal": "These hold equal gradients.",
            "partial": "It should be the sum.",
        }[which.kind]
        known: dict[str, tuple[Tensor, str]] = {
            "comes from this rank's tokens only": (
                self.mean(which, data, stages, here), f"Sum the parts over {sharers}."
            ),
            "has only this pipeline stage's part": (
                self.mean(which, data, place[1:2], here),
                f"Add the gradients of both copies, which are in {pipeline}.",
            ),
            "is the mean of both copies": (
                wanted / len(stages), "One process has their sum."
            ),
            Explanation(f"is the sum over {sharers}", "is the sum over the tensor group"): (
                summed, kind
            ),
            Explanation(f"is the mean over {sharers}", "is the mean over the tensor group"): (
                summed / len(every), kind
            ),
            "is unchanged": (
                self.gradient(which, place), f"Average it over {self._group(rank, 'data')}."
            ),
            "is the sum over the data group, not the mean": (wanted * len(data), ""),
        }  # fmt: skip
        return known

    def _group(self, rank: int, axis: str) -> str:
        return f"the {axis} group, {ranks_in_words(group_of(rank, axis, self.axes))}"

    def due(self, rank: int) -> Due:
        """The bytes that this rank must reduce in each group, by the members of the group."""
        marked = self.parameters(place_of(rank, self.sizes)[1])
        data, pipeline, tensor = (group_of(rank, axis, self.axes) for axis in self.axes)
        counts = {
            (*data,): len(marked),
            (pipeline[0], pipeline[-1]): sum(which.tied for which in marked),
            (*tensor,): sum(which.kind == "partial" for which in marked),
        }
        size = 4 * self.elements
        return {group: size * count for group, count in counts.items() if len({*group}) > 1}

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        """Yields a fault for a rank that sends more than one all-reduce per sum takes."""
        cases = [case for case in observation.trial.cases if isinstance(case, Reducing)]
        for rank in range(observation.trial.world_size):
            due = [case.due(rank) for case in cases]
            sums = [(len(members), size) for each in due for members, size in each.items()]
            goal = sum(2 * (ranks - 1) / ranks * size for ranks, size in sums)
            if (sent := observation.sent_beyond(rank, goal)) is not None:
                yield (
                    "bytes",
                    f"{observation.trial.words(0)}: rank {rank} sent {amount(sent)}; one "
                    f"all-reduce for each sum takes {amount(goal)}. "
                    f"{_which_group(observation, rank, due)}",
                )


def _which_group(run: Observation, rank: int, due: Sequence[Due]) -> str:
    """Names the group in which a rank reduces too much; asks a question if there is none."""
    for allowed, events in zip(due, inside_marks(run.trace, rank, ANSWER), strict=False):
        reduced: Counter[tuple[int, ...]] = Counter()
        for event in events:
            if event.kind == "comm" and event.peers:
                reduced[tuple(sorted({rank, *event.peers}))] += event.bytes
        for members, size in reduced.items():
            if size > allowed.get(members, 0):
                return (
                    f"Between {ranks_in_words(members)} it reduces {amount(size)}, but only "
                    f"{amount(allowed.get(members, 0))} are parts of a sum there."
                )
    return "Which gradients are equal already?"


def _trials(seed: int) -> list[Trial]:
    """Trials on one axis, on two axes, and with a pipeline stage between the first and last."""
    draw = random.Random(seed)

    def case(sizes: tuple[int, int, int], topic: str, table: str = "sharded") -> Reducing:
        return Reducing(draw.randrange(10**6), sizes, topic, table, draw.randint(4000, 5000))

    kinds = draw.sample(("sharded", "equal"), 2)
    return [
        Trial(3, [case((3, 1, 1), "data")]),
        Trial(4, [case((2, 1, 2), "partial", kinds[0])]),
        Trial(4, [case((2, 2, 1), "tied", kinds[0]), case((1, 2, 2), "tied", kinds[1])]),
        Trial(3, [case((1, 3, 1), "tied")]),
        Trial(1, [case((1, 1, 1), "data")]),
    ]


_KINDS = ("sharded", "equal", "partial", "tied")

PART = Part(
    name="10/reduce_gradients",
    level=2,
    title="Gradients in the right groups",
    minutes=20,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("data", 1, "gradients are averaged over the data group"),
            rule("sharded", 1, "shards are not mixed", "data"),
            rule("equal", 1, "equal gradients stay unchanged", "data"),
            rule("partial", 2, "parts add up over the tensor group", "data"),
            rule("tied", 2, "both copies of the table have their sum", "data"),
            rule("bytes", 2, "each sum is computed once, in its group", "data", *_KINDS),
        ),
    ),
    reference="dtlab.parallel.gpt.ParallelGPT",
)

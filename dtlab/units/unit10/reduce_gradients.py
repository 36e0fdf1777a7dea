"""10/reduce_gradients: each gradient summed over the groups in which it is only a part."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Noted, Seen, rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.unseen import inside_marks
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.grading.words import amount, ranks_in_words
from dtlab.units.unit10.mesh_cases import (
    ANSWER,
    AXES,
    Marked,
    OnMesh,
    members_on,
    place_of,
)

if TYPE_CHECKING:
    from torch import Tensor

_OWN, _MORE = 8192, 1.05  # bytes that gloo itself sends; allowed ratio to the bytes that are due


class Reducing(OnMesh):
    """A call of `fn(parameters, groups)`; topic "data": that criterion judges all gradients."""

    def shows(self, criterion: str) -> bool:
        if self.topic in ("data", "tied"):
            return criterion in (self.topic, "bytes")
        return criterion not in ("data", "tied")

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, result in enumerate(results):
            _, stage, tensor = place_of(rank, self.sizes)
            for which, got in zip(self.parameters(stage), result["after"], strict=True):
                wanted = self.reduced(which, stage, tensor)
                if got is None or got.shape != wanted.shape or not close(got, wanted):
                    name = "tied" if which.tied else which.kind
                    what = f"{which.name} ({'tied, ' * which.tied}{which.kind})"
                    why = self._known(which, rank, got)
                    yield (
                        "data" if self.topic == "data" else name,
                        f"{self.where(rank)}, gradient of {what}: {why}",
                    )

    def _known(self, which: Marked, rank: int, got: Tensor | None) -> str:
        """The message for a known mistake that gives this gradient; else a general hint."""
        if got is None:
            return "it is None afterwards."
        data, stage, tensor = place_of(rank, self.sizes)
        wanted, replicas = self.reduced(which, stage, tensor), range(self.sizes[0])
        stages = (0, self.sizes[1] - 1) if which.tied else (stage,)
        parts, sharers = range(self.sizes[2]), self._group(rank, 2)
        every = self.mean(which, replicas, stages, parts)
        known: list[tuple[Tensor, str]] = []
        if which.tied:
            copy = self.mean(which, replicas, (stage,), (tensor,))
            known = [
                (copy, f"it has this stage's part only. Add both copies, {self._group(rank, 1)}."),
                (wanted / 2, "it is the mean of both copies. What one process has is their sum."),
            ]
        if which.kind == "partial":
            own = self.mean(which, replicas, stages, (tensor,))
            known += [
                (own, f"it has this rank's tokens only. Sum the parts over {sharers}."),
                (every / len(parts), f"it is the mean over {sharers}, not the sum."),
            ]
        else:
            hold = (
                "different parts of the weight" if which.kind == "sharded" else "equal gradients"
            )
            known += [
                (every, f"it is the sum over {sharers}. These hold {hold}."),
                (every / len(parts), f"it is the mean over {sharers}. These hold {hold}."),
            ]
        left = self.gradient(which, data, stage, tensor)
        known += [
            (left, f"it is as backward left it. Average it over {self._group(rank, 0)}."),
            (wanted * len(replicas), "it is the sum over the data group, not the mean."),
        ]
        fitting = (why for one, why in known if close(got, one) and not close(wanted, one))
        return next(fitting, "these are not the numbers of one process. Which ranks have a part?")

    def _group(self, rank: int, axis: int) -> str:
        members = members_on(rank, axis, self.sizes)
        return f"the {AXES[axis]} group, {ranks_in_words(members)}"

    def due(self, rank: int) -> dict[tuple[int, ...], int]:
        """The bytes that this rank must reduce in each group, by the members of the group."""
        marked, size = self.parameters(place_of(rank, self.sizes)[1]), 4 * self.elements
        counts = (
            len(marked),
            sum(one.tied for one in marked),
            sum(one.kind == "partial" for one in marked),
        )
        due = {}
        for axis, count in enumerate(counts):
            members = members_on(rank, axis, self.sizes)
            if len(members) > 1 and count:
                ends = members if axis != 1 else [members[0], members[-1]]
                due[tuple(ends)] = count * size
        return due


def _too_much(seen: Seen) -> str:
    """A message if a rank sends more than one all-reduce per sum needs; empty otherwise."""
    for one in seen:
        for rank in range(one.trial.world_size if one.trace is not None else 0):
            goal = sum(
                2 * (len(members) - 1) / len(members) * size
                for case in one.trial.cases
                if isinstance(case, Reducing)
                for members, size in case.due(rank).items()
            )
            sent = one.trace.bytes_wire(rank) if one.trace is not None else None
            if sent is not None and sent > goal * _MORE + _OWN:
                return (
                    f"{one.trial.words(0)}: {amount(sent)} left rank {rank}; one all-reduce "
                    f"for each sum takes {amount(goal)}. {_which_group(one, rank)}"
                )
    return ""


def _which_group(one: Observation, rank: int) -> str:
    """A sentence that names the group in which a rank reduces too much; a hint if none does."""
    for case, events in zip(one.trial.cases, inside_marks(one.trace, rank, ANSWER), strict=False):
        assert isinstance(case, Reducing)
        reduced: Counter[tuple[int, ...]] = Counter()
        for event in events:
            if event.kind == "comm" and event.peers:
                reduced[tuple(sorted({rank, *event.peers}))] += event.bytes
        due = case.due(rank)
        for members, size in reduced.items():
            if size > due.get(members, 0):
                return (
                    f"Between {ranks_in_words(members)} it reduces {amount(size)}, and "
                    f"{amount(due.get(members, 0))} are parts of a sum there."
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
            rule("data", 1, "the mean over the data group"),
            rule("sharded", 1, "shards are not mixed", "data"),
            rule("equal", 1, "equal gradients stay as they are", "data"),
            rule("partial", 2, "parts add up over the tensor group", "data"),
            rule("tied", 2, "both copies of the table have their sum", "data"),
            rule("bytes", 2, "each sum once, in its group", "data", *_KINDS, also=_too_much),
        ),
    ),
    reference="dtlab.parallel.gpt.ParallelGPT",
)

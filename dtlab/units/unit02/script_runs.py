"""What the training scripts of Level III have in common: 02/script_1 to 02/script_8.

The scripts are in `scripts`, as the notebook shows them. The symptom is measured in a run of the
broken script, and the mended one is judged by what ranks do, compared with one process.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dtlab.errors import DeadlockError, RankError
from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import Objection, judge_by
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.cases import Script, Seen, Training, trained
from dtlab.grading.scripts.judges import (
    an_earlier_order_again,
    copies_differ,
    not_shared_out,
    rest_dropped,
    uneven_epochs,
)
from dtlab.grading.scripts.reference import (
    NEAR,
    Optimizer,
    Step,
    gradient_of,
    in_one_process,
    mean,
    off,
    steps_of,
)
from dtlab.grading.scripts.symptoms import (
    Finding,
    Scene,
    Symptom,
    distances,
    drift,
    too_many_bytes,
)
from dtlab.grading.scripts.training import not_as_one_process
from dtlab.grading.words import amount, nodes_of, ranks_in_words
from dtlab.predict import Cluster

if TYPE_CHECKING:
    import torch

__all__ = [
    "ADAM",
    "AS_ONE",
    "COPIES",
    "FAST",
    "FORWARD",
    "MOMENTUM",
    "SCRIPTS",
    "SGD",
    "SYMPTOMS",
    "OnCards",
    "OnShards",
    "accumulated",
    "copies_check",
    "for_long",
    "more_than_gradients",
    "no_card_of_its_own",
    "not_as_one_process_on_shards",
    "on_nodes",
    "piled_up_in_an_epoch",
    "samples_check",
    "shards",
    "shared",
    "two_criteria",
    "unused_samples",
]

# How else a check runs training scripts of unit 02: on uneven shards, on nodes with cards --------


@dataclass(frozen=True)
class OnShards(Training):
    """`script(model, shard, epochs)`: rank r has `sizes[r]` samples that nobody else has."""

    samples: int = field(default=0, init=False)
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", sum(self.sizes))

    def __str__(self) -> str:
        return f"shards of {', '.join(map(str, self.sizes))} samples, {self.epochs} epochs"

    def share(self, rank: int) -> slice:
        first = sum(self.sizes[:rank])
        return slice(first, first + self.sizes[rank])


@dataclass(frozen=True)
class OnCards(Training):
    """`script(model, data, epochs, card)` on nodes with cards, and a LOCAL_RANK for each rank.

    Ranks fill one node after the other, or go `round` the nodes as some launchers have it.
    """

    nodes: int = 1
    per_node: int = 2
    cards: int = 2
    round: bool = False

    def __str__(self) -> str:
        nodes = nodes_of(Cluster(self.nodes, self.per_node))
        spread = "ranks dealt round the nodes" if self.round else "one node after the other"
        return f"{nodes}" + (f", {spread}" if self.nodes > 1 else "")

    def seat(self, rank: int) -> int:
        """The LOCAL_RANK of a rank."""
        return rank // self.nodes if self.round else rank % self.per_node

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        node = rank % self.nodes if self.round else rank // self.per_node
        places = {
            "LOCAL_RANK": str(self.seat(rank)),
            "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(node),
        }
        own = super().given(rank, world_size)
        return {**own, "environment": places, "cards": self.cards}

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        import operator
        import os

        import torch

        os.environ.update(given["environment"])
        asked: list[int] = []

        def card(index: Any) -> torch.device:
            asked.append(operator.index(index))
            if not 0 <= asked[-1] < given["cards"]:
                raise RuntimeError(f"CUDA error: invalid device ordinal ({index})")
            return torch.device("cpu")

        return {**trained(fn, given, [card])[0], "cards": asked}


# What else training may come to: on shards of different lengths, with gradients that pile up -----


def not_as_one_process_on_shards(optimizer: Optimizer) -> Objection:
    """As `not_as_one_process`, where a rank may be through before others: three means are right.

    Over all ranks, with nothing from those that are through, as `join` has it; over the ranks
    that still have a batch; or over the samples of the step.
    """

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        for steps, weights in itertools.product(_aligned(case, results), _MEANS):
            wanted = in_one_process(case, [weights(step) for step in steps], optimizer)
            if all(off(own.after, wanted, case.start(0)) < NEAR for own in results):
                return ""
        for rank, own in enumerate(results):
            each = len(own.passes) // case.epochs
            fed = [sample for batch in own.passes[:each] for sample in batch]
            if len(fed) > len(set(fed)):
                return (
                    f"rank {rank} takes {len(fed) - len(set(fed))} of its samples twice in an "
                    "epoch, and they count twice. A rank that is through adds nothing to the mean."
                )
        return (
            "the parameters are not those of one process that takes the batches of all ranks in "
            "each step. What does a rank add to the mean that has no batch any more?"
        )

    return objection


def _aligned(case: Training, results: Sequence[Seen]) -> Iterator[list[Step]]:
    """The steps, epoch by epoch; and where a rank goes on to its next epoch without waiting."""
    fresh = [_without_repeats(own, case.epochs) for own in results]
    yield steps_of(case, fresh)
    most = max(len(own.passes) for own in fresh)
    yield [[own.passes[k : k + 1] for own in fresh] for k in range(most)]


def _without_repeats(own: Seen, epochs: int) -> Seen:
    """With empty passes in the place of those whose samples have been there in this epoch."""
    each, passes = max(1, len(own.passes) // epochs), []
    for at, batch in enumerate(own.passes):
        before = {sample for one in own.passes[at - at % each : at] for sample in one}
        passes.append([] if before.issuperset(batch) else batch)
    return Seen(passes, own.before, own.after, own.cards)


def _present(step: Step) -> list[Sequence[Sequence[int]]]:
    return [rank for rank in step if rank and rank[0]]


def _over_all(step: Step) -> dict[int, float]:
    share = len(_present(step)) / len(step)
    return {sample: share * weight for sample, weight in mean(_present(step)).items()}


def _over_those_present(step: Step) -> dict[int, float]:
    return dict(mean(_present(step)))


def _over_samples(step: Step) -> dict[int, float]:
    samples = [sample for rank in step for batch in rank for sample in batch]
    return dict.fromkeys(samples, 1 / max(1, len(samples)))


_MEANS = (_over_all, _over_those_present, _over_samples)


def piled_up_in_an_epoch(optimizer: Optimizer) -> Objection:
    """Gradients are set to zero where an epoch begins, and pile up from there on."""

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        steps = steps_of(case, results)
        each = len(steps) // case.epochs
        if each < 2 or case.epochs < 2:  # as if zeroed in every step, or never
            return ""
        left: list[torch.Tensor] = []

        def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
            new = gradient_of(case, now, mean(steps[step]))
            if step % each:
                new = new + left[-1]
            left.append(new)
            return new

        wanted = optimizer.run(case.start(0), gradients, len(steps))
        if any(off(own.after, wanted, case.start(0)) >= NEAR for own in results):
            return ""
        return (
            "gradients pile up within an epoch, and begin anew with the next one: from its second "
            "step on, `.grad` still holds earlier batches of it. Which loop is the line for?"
        )

    return objection


# What else mended scripts of unit 02 have to do: use whole shards, and cards of their own --------

_MORE = 1.25  # a factor: a loss or a count may travel too


def no_such_card(one: Observation) -> str:
    """Why the ranks did not come back: one of them may have asked for a card that is not there."""
    if "device ordinal" not in one.trouble or not isinstance(one.error, RankError):
        return one.trouble
    return (
        f"{one.trial.words(one.failed_case)}: rank {min(one.error.failures)} asks for a card that "
        "its node does not have. Every node counts its cards from 0."
    )


def more_than_gradients(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A rank has something else averaged in every step, of the size of the gradients."""
    assert one.trace is not None
    for rank, seen in enumerate(results):
        needed = 4 * len(seen.after) * len(seen.passes)
        own = [e for e in one.trace.events if e.rank == rank and e.name == "all_reduce"]
        handed = sum(event.bytes for event in own)
        if handed > _MORE * needed:
            return (
                f"rank {rank} has {amount(handed)} averaged, and its gradients are "
                f"{amount(needed)}. What else is averaged, and what for? Copies that begin equal "
                "and take equal steps stay equal."
            )
    return ""


def unused_samples(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A rank leaves out samples of its shard in some epoch."""
    assert isinstance(case, OnShards)
    for rank, own in enumerate(results):
        if len(own.passes) % case.epochs:
            return uneven_epochs(rank, len(own.passes), case.epochs)
        each, shard = len(own.passes) // case.epochs, case.share(rank)
        for epoch in range(case.epochs):
            batches = own.passes[epoch * each : (epoch + 1) * each]
            used = {sample for batch in batches for sample in batch}
            left_out = case.sizes[rank] - len(used & set(range(shard.start, shard.stop)))
            if left_out:
                return (
                    f"rank {rank} leaves out {left_out} of its {case.sizes[rank]} samples in "
                    f"epoch {epoch}. Nothing waits any more, but every sample is to be trained on."
                )
    return ""


def no_card_of_its_own(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A rank asks for another card than that of its LOCAL_RANK."""
    assert isinstance(case, OnCards)
    seats = [case.seat(rank) for rank in range(len(results))]
    for rank, own in enumerate(results):
        if not own.cards:
            return f"rank {rank} asks for no card: `device = card(...)` stays."
        wrong = set(own.cards) - {seats[rank]}
        if not wrong:
            continue
        index = min(wrong)
        node = [
            other for other in range(len(results))
            if other != rank and index in results[other].cards and _same_node(case, rank, other)
        ]  # fmt: skip
        shared = f", which {ranks_in_words(node)} on its node has too" if node else ""
        return (
            f"rank {rank} asks for card {index}{shared}. Which number does a launcher give each "
            "rank of a node, however the ranks are spread?"
        )
    return ""


def _same_node(case: OnCards, one: int, other: int) -> bool:
    if case.round:
        return one % case.nodes == other % case.nodes
    return one // case.per_node == other // case.per_node


# Runs that do not come back ---------------------------------------------------------------------


def _hang(scene: Scene) -> Finding:
    if not isinstance(scene.one.error, DeadlockError):
        return Finding(False, "no rank waited in vain")
    stuck = ranks_in_words([waiting.rank for waiting in scene.one.error.waiting])
    return Finding(True, f"{stuck} waited for a rank that never came")


def _wrong_card(scene: Scene) -> Finding:
    said = scene.one.failure.message if scene.one.failure is not None else ""
    if "device ordinal" not in said:
        return Finding(False, "no rank asked for a card that its node does not have")
    return Finding(True, f"a rank stopped with: {said.splitlines()[0]}")


# Runs that do -----------------------------------------------------------------------------------


def _different_start(scene: Scene) -> Finding:
    far = distances(scene.results)[0]
    words = "before the first step the copies were {}equal"
    return Finding(far > 0, words.format("not " if far else ""))


def _one_step_apart(scene: Scene) -> Finding:
    found, far = drift(scene), distances(scene.results)
    return Finding(far[-1] > 0 and not found.seen, found.words)


def _same_samples(scene: Scene) -> Finding:
    fed = [{sample for batch in one.passes for sample in batch} for one in scene.results]
    per_epoch = [
        sum(len(batch) for batch in one.passes) / scene.case.epochs for one in scene.results
    ]
    count = f"in an epoch each rank took {max(per_epoch):g} of the {scene.case.samples} samples"
    return Finding(min(per_epoch) >= scene.case.samples and fed[0] == fed[-1], count)


def _same_order(scene: Scene) -> Finding:
    each = len(scene.results[0].passes) // scene.case.epochs
    same = all(one.passes[:each] == one.passes[each : 2 * each] for one in scene.results)
    other = "the same batches as" if same else "other batches than"
    return Finding(same, f"the second epoch had {other} the first")


def _piled_up(scene: Scene) -> Finding:
    return _trained_as(scene, 1.0, True, "gradients that are never set to zero")


def _sum(scene: Scene) -> Finding:
    return _trained_as(scene, len(scene.results), False, "the sum of the ranks' gradients")


def _trained_as(scene: Scene, factor: float, piled_up: bool, what: str) -> Finding:
    """Whether the copies are those of one process that steps in another way."""
    case, results = scene.case, scene.results
    steps = [
        {sample: factor * share for sample, share in mean(step).items()}
        for step in steps_of(case, results)
    ]
    wanted = in_one_process(case, steps, scene.optimizer, piled_up=piled_up)
    same = all(off(one.after, wanted, case.start(0)) < NEAR for one in results)
    ends = "ends" if same else "does not end"
    return Finding(same, f"one process that steps with {what} {ends} there")


SYMPTOMS: dict[str, Symptom] = {
    "different start": Symptom(
        "the copies differ before the first step already", _different_start
    ),
    "drift": Symptom("the copies differ, by more and more", drift),
    "one step apart": Symptom(
        "the copies differ after every step, by about as much each time", _one_step_apart
    ),
    "same samples": Symptom("in an epoch every rank goes through all samples", _same_samples),
    "same order": Symptom("every epoch goes through the same batches", _same_order),
    "hang": Symptom("some ranks wait for others that never come", _hang, comes_back=False),
    "wrong card": Symptom(
        "a rank asks for a card that its node does not have", _wrong_card, comes_back=False
    ),
    "too many bytes": Symptom(
        "the copies are right, but more is sent than a step needs", too_many_bytes
    ),
    "piled up": Symptom(
        "the copies are equal, but gradients of earlier steps are in every step", _piled_up
    ),
    "sum": Symptom(
        "the copies are equal, but they step with the sum of the gradients, not the mean", _sum
    ),
}


# The trials of mended training scripts: ranks, samples and shards, drawn from a seed -------------

_EPOCHS = 6


def shared(draw: random.Random, seed: int) -> list[Trial]:
    """On two ranks as it fits, and on three so that shares have to be made equal."""
    uneven = 3 * draw.choice((13, 14, 15, 18, 19)) + draw.choice((1, 2))
    return [
        Trial(2, [Training(seed, 2 * draw.choice((24, 32, 40)), epochs=3)]),
        Trial(3, [Training(seed + 1, uneven)]),
    ]


def for_long(draw: random.Random, seed: int) -> list[Trial]:
    """As `shared`, with as many epochs as it takes to see orders that come back."""
    longer, uneven = shared(draw, seed)
    cases = [replace(case, epochs=_EPOCHS) for case in longer.cases if isinstance(case, Training)]
    return [replace(longer, cases=cases), uneven]


def shards(draw: random.Random, seed: int) -> list[Trial]:
    """Two ranks, then three, whose shards make unequal numbers of batches of 8."""
    long, short = 8 * draw.randint(3, 4) + draw.randint(1, 8), 8 * draw.randint(1, 2)
    middle = short + 8 + draw.randint(1, 7)
    return [
        Trial(2, [OnShards(seed, sizes=(short, long))]),
        Trial(3, [OnShards(seed + 1, sizes=(long, short, middle))]),
    ]


def accumulated(draw: random.Random, seed: int) -> list[Trial]:
    """Microbatches of 8 that make whole steps, of a model large enough to be seen on the wire."""

    def case(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        samples = ranks * accumulate * 8 * steps
        size: dict[str, Any] = {"more": (accumulate,), "passes": accumulate, "micro_batch": 8}
        return Trial(ranks, [Training(seed + number, samples, hidden=256, **size)])

    return [case(2, 4, draw.randint(2, 3), 0), case(3, draw.choice((2, 3)), 3, 1)]


def on_nodes(draw: random.Random, seed: int) -> list[Trial]:
    """One node; two that are filled one after the other; two that ranks are dealt round."""
    samples = 4 * draw.randint(12, 16)
    return [
        Trial(2, [OnCards(seed, samples)]),
        Trial(
            4,
            [
                OnCards(seed + 1, samples + 4, nodes=2),
                OnCards(seed + 2, samples + 8, nodes=2, round=True),
            ],
        ),
    ]


Trials = Callable[[random.Random, int], Sequence[Trial]]

SCRIPTS = "dtlab.units.unit02.scripts."
FORWARD = "loss = F.cross_entropy(replica(images), labels)"
COPIES = "the copies are equal, bit by bit"
AS_ONE = "every rank has the parameters of one process that takes all their samples"


def two_criteria(
    trials: Trials,
    subject: tuple[str, float, str, Sequence[Objection]],
    other: tuple[str, float, str, Sequence[Objection]],
) -> Check:
    """Two criteria, each (name, points, what is said where it is right, objections)."""
    begin = judge_by(subject[2], *subject[3], trouble=no_such_card)
    rules = (
        Rule(subject[0], subject[1], begin),
        Rule(other[0], other[1], judge_by(other[2], *other[3]), after=subject[0]),
    )
    return Check(lambda seed: trials(random.Random(seed), seed), rules)


def copies_check(optimizer: Optimizer, *more: Objection) -> Check:
    return two_criteria(
        shared,
        ("copies", 1, f"{COPIES}, on 2 and 3 ranks", [copies_differ]),
        ("training", 2, AS_ONE, [not_shared_out, not_as_one_process(optimizer), *more]),
    )


def samples_check(optimizer: Optimizer, name: str, right: str, trials: Trials = shared) -> Check:
    return two_criteria(
        trials,
        (name, 2, right, [rest_dropped, not_shared_out, an_earlier_order_again]),
        ("training", 1, AS_ONE, [copies_differ, not_as_one_process(optimizer)]),
    )


ADAM, SGD = Optimizer(2e-3, adam=True, eps=1e-3), Optimizer(0.1)
MOMENTUM, FAST = Optimizer(0.05, momentum=0.9), Optimizer(0.5)

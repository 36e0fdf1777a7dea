"""What a mended training script has to do on ranks, and what is said where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dtlab.errors import RankError
from dtlab.grading.checks import Judge, Verdict, blocked, lost, ok
from dtlab.grading.trials import Observation
from dtlab.grading.unit02.scripts_cases import OnCards, OnShards, Seen, Training
from dtlab.grading.unit02.scripts_reference import off
from dtlab.grading.unit02.scripts_symptoms import NEAR
from dtlab.grading.words import amount, ranks_in_words

__all__ = [
    "Objection", "copies_differ", "first", "no_card_of_its_own", "not_shared_out", "then",
    "too_much_sent", "unused_samples",
]  # fmt: skip

Objection = Callable[[Training, Sequence[Seen], Observation], str]

_SENT_MORE, _SENT_LESS, _OWN = 1.25, 0.9, 1 << 16  # factors; bytes of gloo's and of the start


def first(right: str, *objections: Objection) -> Judge:
    """Judges the criterion that comes first, which has to do with the ranks coming back too."""

    def judge(seen: Sequence[Observation]) -> Verdict:
        trouble = next(filter(None, map(_trouble, seen)), "")
        trouble = trouble or next(_objections(seen, objections), "")
        return lost(trouble) if trouble else ok(right)

    return judge


def _trouble(one: Observation) -> str:
    """Why the ranks did not come back, if they did not."""
    if "device ordinal" not in one.trouble or not isinstance(one.error, RankError):
        return one.trouble
    return (
        f"{one.trial.words(one.failed_case)}: rank {min(one.error.failures)} asks for a card that "
        "its node does not have. Every node counts its cards from 0."
    )


def then(right: str, before: Judge, *objections: Objection) -> Judge:
    """Judges another criterion, once the one `before` is right."""

    def judge(seen: Sequence[Observation]) -> Verdict:
        if before(seen).status != "ok":
            return blocked("judged once the criterion above is right")
        trouble = next(_objections(seen, objections), "")
        return lost(trouble) if trouble else ok(right)

    return judge


def _objections(seen: Sequence[Observation], all_: Sequence[Objection]) -> Iterator[str]:
    for one in seen:
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
            assert isinstance(case, Training)
            said = (objection(case, results, one) for objection in all_)
            yield from (f"{one.trial.words(number)}: {what}" for what in said if what)


# Copies -----------------------------------------------------------------------------------------


def copies_differ(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The parameters of some rank are not, bit by bit, those of rank 0."""
    begin, end = results[0].before, results[0].after
    for rank, other in enumerate(results):
        if other.after.equal(end):
            continue
        if len(other.before) and len(begin) and not other.before[0].equal(begin[0]):
            return (
                f"the copies of rank 0 and rank {rank} differ in their first forward pass: the "
                "ranks begin with different parameters. Who hands rank 0's to all?"
            )
        far = off(other.after, end, case.start(0))
        if far < NEAR:
            return (
                f"the copies of rank 0 and rank {rank} differ, though by rounding only: they add "
                "up the same gradients in different orders. All have to step with the same bits."
            )
        return (
            f"the copies of rank 0 and rank {rank} differ in the end, by {far:.1%} of the way "
            "that the parameters went. Which gradient does each rank step with?"
        )
    return ""


# Samples ----------------------------------------------------------------------------------------


def not_shared_out(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The samples of an epoch are not shared out, or not another way in the next epoch."""
    before: list[list[int]] = []
    for epoch in range(case.epochs):
        taken = []
        for rank, own in enumerate(results):
            if not own.passes or len(own.passes) % case.epochs:
                return _uneven_epochs(rank, len(own.passes), case.epochs)
            each = len(own.passes) // case.epochs
            batches = own.passes[epoch * each : (epoch + 1) * each]
            taken.append([sample for batch in batches for sample in batch])
        trouble = _shares(case.samples, taken) or _reshuffled(epoch, before, taken)
        if trouble:
            return trouble
        before = taken
    return ""


def _uneven_epochs(rank: int, passes: int, epochs: int) -> str:
    return (
        f"rank {rank} makes {passes} forward passes in {epochs} epochs. Every rank trains in "
        "every epoch, and equally often."
    )


def _shares(samples: int, taken: Sequence[Sequence[int]]) -> str:
    """Why what the ranks have taken is not the data, shared out; padding may repeat a few."""
    ranks, fed = len(taken), [sample for own in taken for sample in own]
    if -1 in fed:
        return "a batch has images that are not in the data."
    if ranks > 1 and all(len(set(own)) == samples for own in taken):
        return (
            f"every rank goes through all {samples} samples in an epoch. How many are there for "
            f"each of {ranks} ranks?"
        )
    missing, repeated = samples - len(set(fed)), len(fed) - len(set(fed))
    if missing:
        return (
            f"in an epoch {missing} of {samples} samples are in no rank's batches. Put together, "
            "the shares of the ranks have to be the whole data."
        )
    if repeated >= ranks:  # it takes fewer to make equal shares
        return (
            f"in an epoch {repeated} samples are taken more than once. Two ranks may share no "
            "more than what makes their shares equally long."
        )
    return ""


def _reshuffled(
    epoch: int, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> str:
    if not before:
        return ""
    if list(before) == list(after):
        return (
            f"epoch {epoch} takes the samples in the order of epoch {epoch - 1}. Something has to "
            "tell the sampler which epoch it is, before its batches are drawn."
        )
    if len(after) > 1 and all(set(a) == set(b) for a, b in zip(before, after, strict=True)):
        return (
            f"in epoch {epoch} each rank has the same samples as before, and only their order is "
            "new. Shuffle all of them, alike on every rank, and then share them out."
        )
    return ""


def unused_samples(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A rank leaves out samples of its shard in some epoch."""
    assert isinstance(case, OnShards)
    for rank, own in enumerate(results):
        if len(own.passes) % case.epochs:
            return _uneven_epochs(rank, len(own.passes), case.epochs)
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


# What is sent, and where it runs ----------------------------------------------------------------


def too_much_sent(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A rank sends more, or less, than one gradient for each step of the optimizer."""
    assert one.trace is not None
    (accumulate,), ranks = case.more, len(results)
    gradient = 2 * (ranks - 1) / ranks * 4 * len(results[0].after)
    steps = case.epochs * (case.samples // (ranks * accumulate * 8))
    start = 4 * len(results[0].after) * (ranks - 1)
    for rank in range(ranks):
        left = one.trace.bytes_wire(rank)
        if left is None:  # where the system does not count: what was handed to all-reduces
            events = (e for e in one.trace.events if (e.rank, e.name) == (rank, "all_reduce"))
            left = round(sum(e.bytes for e in events) * 2 * (ranks - 1) / ranks)
        if left > _SENT_MORE * steps * gradient + start + _OWN:
            return (
                f"{amount(left)} left rank {rank} in {steps} steps of {accumulate} micro-batches; "
                f"a gradient for each step is {amount(steps * gradient)}. Look at what decides "
                "whether a backward pass sends: is it inside `no_sync` by then?"
            )
        if left < _SENT_LESS * steps * gradient:
            return (
                f"{amount(left)} left rank {rank} in {steps} steps; a gradient for each step is "
                f"{amount(steps * gradient)}. Something has to be sent in every step."
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

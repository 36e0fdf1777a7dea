"""What else mended scripts of unit 02 have to do: use whole shards, and cards of their own."""

from __future__ import annotations

from collections.abc import Sequence

from dtlab.errors import RankError
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.judges import uneven_epochs
from dtlab.grading.words import amount, ranks_in_words
from dtlab.units.unit02.scripts_cases import OnCards, OnShards

__all__ = ["more_than_gradients", "no_card_of_its_own", "no_such_card", "unused_samples"]

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

"""What a mended program of 07/unsynchronised has to do on ranks, and what is said of others."""

from __future__ import annotations

from dtlab.grading.checking.trials import Observation
from dtlab.grading.words import amount
from dtlab.units.unit07.replicas_cases import Replica, Trained, hash_of, one_process, reduced

__all__ = ["copies_differ", "other_training", "too_much_sent"]

_NEAR = 1e-3  # of a loss, and of the way that parameters went
_MORE = 1.25  # times the gradient of a step: a tensor more for a loss or a norm is no matter

def copies_differ(case: Replica, results: list[Trained], one: Observation) -> str:
    """The replicas of some stage are not, bit by bit, the same."""
    for stage in range(case.num_stages):
        ranks = range(stage, len(results), case.num_stages)
        hashes = {rank: hash_of(results[rank].own) for rank in ranks}
        if len(set(hashes.values())) > 1:
            said = ", ".join(f"{each} on rank {rank}" for rank, each in hashes.items())
            return (
                f"the copies of stage {stage} end with other hashes: {said}. What do these ranks "
                "send each other in a step?"
            )
    return ""


def other_training(case: Replica, results: list[Trained], one: Observation) -> str:
    """It does not train as one process with the batches of all pipelines does."""
    import torch

    losses, wanted = one_process(case, len(results) // case.num_stages)
    starts = [torch.cat([part.flatten() for part in stage]) for stage in case.start()]
    for rank, seen in enumerate(results):
        pipeline, stage = divmod(rank, case.num_stages)
        way = float((wanted[stage] - starts[stage]).norm())
        off = float((seen.own - wanted[stage]).norm())
        if not off <= _NEAR * way:
            return (
                f"stage {stage} on rank {rank} ends {off / way:.0%} of its way from where one "
                "process with the batches of all pipelines is. The copies agree: on what mean?"
            )
        if stage == case.num_stages - 1 and not _alike(seen.losses, losses[pipeline]):
            return (
                f"rank {rank} returns the losses {_short(seen.losses)}; in one process those of "
                f"its batches are {_short(losses[pipeline])}. Only what is broken has to change."
            )
    return ""


def _alike(got: list[float], wanted: list[float]) -> bool:
    near = (abs(a - b) <= _NEAR * b for a, b in zip(got, wanted, strict=False))
    return len(got) == len(wanted) and all(near)


def _short(losses: list[float]) -> str:
    return "[" + ", ".join(f"{loss:.3f}" for loss in losses) + "]"


def too_much_sent(case: Replica, results: list[Trained], one: Observation) -> str:
    """A rank has more in collectives than the gradient of its stage once in a step."""
    for rank in range(len(results)):
        stage = case.bytes_of(rank % case.num_stages)
        least, sent = case.steps * stage, reduced(one, rank)
        if sent > _MORE * least + stage:  # and its parameters once, at the start
            return (
                f"rank {rank} has {amount(sent)} in collectives in {case.steps} steps. The "
                f"gradient of its stage, {case.width} wide here and not 32 as in the notebook, is "
                f"{amount(stage)}: once in a step is enough, and no other stage's belongs into it."
            )
    return ""

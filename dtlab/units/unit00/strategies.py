"""Training jobs whose strategy `dtlab.predict.choose` says, for two parts of Level I."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from dtlab.grading.questions.answers import Question, Values
from dtlab.grading.questions.declared import choice
from dtlab.predict.strategy import Choice as Chosen
from dtlab.predict.strategy import choose

__all__ = ["FACTS", "LEAVES", "draw_job", "fact_of", "is_clear", "questions_on",
           "strategy_of", "unless", "words"]  # fmt: skip

LEAVES: Final[Mapping[str, str]] = {  # in the tree: what to write
    "one_gpu": "one GPU",
    "data": "data parallelism",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "tensor_parallel": "tensor parallelism",
    "split_sample": "split samples",
    "split_and_shard": "split samples and ZeRO-3",
    "more_gpus": "more GPUs",
    "too_few": "more GPUs",
}
FACTS: Final[Mapping[str, str]] = {  # the questions of the tree that drive these: what to write
    "time": "time",
    "gpus": "GPUs in time",
    "replica": "replica",
    "sample": "sample",
    "stage3": "stage 3",
    "context": "everything shared",
}
_CLEAR = 0.06  # by how much at least the numbers of a question differ

_PARAMS = (0.2, 0.7, 1, 1.5, 3, 4, 7, 8, 13, 20, 30, 34, 70, 120, 175)  # billions
_ACTIVATIONS = (1, 2, 4, 8, 12, 20, 40, 60, 120, 300, 500, 900)  # GB
_GPUS = (4, 8, 16, 32, 64, 128)
_HOURS = ((2, 24), (6, 12), (20, 48), (96, 24), (168, 48), (300, 72), (900, 24), (2000, 100))


def chosen(job: Values) -> Chosen:
    """What `choose` says of a job."""
    return choose(
        job["billions"] * 1e9,
        job["card"] * 1e9,
        job["activations"] * 1e9,
        num_gpus=job["gpus"],
        hours=job["hours"],
        deadline_hours=job["deadline"],
    )


def strategy_of(job: Values) -> str:
    """What to write for its strategy."""
    return LEAVES[chosen(job).leaf.id]


def fact_of(job: Values) -> str:
    """What to write for the question whose answer drove it."""
    return FACTS[chosen(job).because.question.id]


def words(job: Values) -> str:
    """A job in words."""
    return (
        f"{job['billions']:g} billion parameters; activations of the smallest microbatch "
        f"{job['activations']:g} GB; {job['gpus']} GPUs of {job['card']:g} GB; {job['hours']:g} "
        f"hours on one GPU, due in {job['deadline']:g}"
    )


def is_clear(job: Values) -> bool:
    """Whether no question on its way is a close one."""
    return all(
        abs(step.value / step.limit - 1) > _CLEAR for step in chosen(job).path if step.known
    )


def draw_job(draw: Random, leaf: str) -> dict[str, Any]:
    """A job that comes to this leaf of the tree."""
    for _ in range(20_000):
        hours, deadline = draw.choice(_HOURS)
        job = {
            "billions": draw.choice(_PARAMS),
            "activations": draw.choice(_ACTIVATIONS),
            "gpus": draw.choice(_GPUS),
            "card": draw.choice((40, 80)),
            "hours": hours,
            "deadline": deadline,
        }
        if _may_be(job, leaf) and chosen(job).leaf.id == leaf and is_clear(job):
            return job
    raise AssertionError(f"no draw comes to {leaf}")


def _may_be(job: Values, leaf: str) -> bool:
    """Cheaper to ask than the tree: does the replica fit, does a sample?"""
    replica = bool(16 * job["billions"] + job["activations"] <= job["card"])
    sample = bool(job["activations"] <= job["card"])
    if leaf in ("one_gpu", "data", "more_gpus"):
        return replica
    return not replica and sample is not leaf.startswith("split")


# Questions --------------------------------------------------------------------------------------

_SPLIT = (
    "do the activations of one microbatch fit on a card? If not, does a replica fit beside its "
    "part of them?"
)
_STRATEGY_MISTAKES = {
    "one GPU": "does a whole replica fit on one card, and is one in time?",
    "data parallelism": "each GPU holds a whole replica. Does one fit? And is one GPU too slow?",
    "ZeRO-1": "stage 1 shares out Adam's state. Is that needed here, and is it enough?",
    "ZeRO-2": "stage 2 shares out gradients too. Is that needed here, and is it enough?",
    "ZeRO-3": "stage 3 shares out all model states. Is that needed here, and is it enough?",
    "tensor parallelism": "this is for what stage 3 leaves too large. What does a rank hold then?",
    "split samples": _SPLIT,
    "split samples and ZeRO-3": _SPLIT,
    "more GPUs": "are the GPUs too few, by their bytes with everything shared out, or by hours?",
}
_FACT_MISTAKES = {
    "time": "this drives a job whose replica fits. Is it what the strategy hangs on here?",
    "GPUs in time": "this drives a job whose replica fits, where one GPU is too slow. Is it what "
    "the strategy hangs on here?",
    "replica": "does a replica fit? Then it is a question of time. If not: is it the model states "
    "that are too large, or a sample?",
    "sample": "compare the activations of one microbatch with the card.",
    "stage 3": "this drives a job that stage 3 does not help. What would a rank hold?",
    "everything shared": "this is the last question. What does a rank hold with less shared out?",
}


def unless(right: Callable[[Values], str], why: Mapping[str, str]) -> dict[Any, str]:
    """What is said of each option, save for the one that is right."""
    return {
        lambda given, one=one: "" if right(given) == one else one: said
        for one, said in why.items()
    }


def questions_on(name: str, about: str) -> tuple[Question, Question]:
    """The strategy of the job that is given as `name`, and the one fact that drove it."""

    def strategy(given: Values) -> str:
        return strategy_of(given[name])

    def fact(given: Values) -> str:
        return fact_of(given[name])

    return (
        choice(
            name,
            f"the strategy for {about}",
            dict.fromkeys(LEAVES.values(), ""),
            strategy,
            "Go through the tree from the top.",
            unless(strategy, _STRATEGY_MISTAKES),
        ),
        choice(
            f"{name}_fact",
            f"the one fact that drove the strategy for {about}",
            list(FACTS.values()),
            fact,
            "Which question would have to be answered the other way for another strategy?",
            unless(fact, _FACT_MISTAKES),
        ),
    )

"""Training jobs and their strategy by `dtlab.predict.choose`, for two parts of Level I."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import choice
from dtlab.predict.strategy import Choice as Chosen
from dtlab.predict.strategy import choose

__all__ = ["FACTS", "LEAVES", "draw_job", "fact_of", "is_clear", "questions_on",
           "strategy_of", "unless", "words"]  # fmt: skip

LEAVES: Final[Mapping[str, str]] = {  # leaf of the decision tree: the learner's answer
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
FACTS: Final[Mapping[str, str]] = {  # question of the decision tree: the learner's answer
    "time": "time",
    "gpus": "GPUs in time",
    "replica": "replica",
    "sample": "sample",
    "stage3": "stage 3",
    "context": "everything shared",
}
_CLEAR = 0.06  # least relative difference of the two numbers that a question compares

_PARAMS = (0.2, 0.7, 1, 1.5, 3, 4, 7, 8, 13, 20, 30, 34, 70, 120, 175)  # billions
_ACTIVATIONS = (1, 2, 4, 8, 12, 20, 40, 60, 120, 300, 500, 900)  # GB
_GPUS = (4, 8, 16, 32, 64, 128)
_HOURS = ((2, 24), (6, 12), (20, 48), (96, 24), (168, 48), (300, 72), (900, 24), (2000, 100))


def chosen(job: Values) -> Chosen:
    """The result of `choose` for a job."""
    return choose(
        job["billions"] * 1e9,
        job["card"] * 1e9,
        job["activations"] * 1e9,
        num_gpus=job["gpus"],
        hours=job["hours"],
        deadline_hours=job["deadline"],
    )


def strategy_of(job: Values) -> str:
    """The right answer for the job's strategy."""
    return LEAVES[chosen(job).leaf.id]


def fact_of(job: Values) -> str:
    """The right answer for the fact that decides the job's strategy."""
    return FACTS[chosen(job).because.question.id]


def words(job: Values) -> str:
    """A job as text."""
    return (
        f"{job['billions']:g} billion parameters; activations of the smallest microbatch "
        f"{job['activations']:g} GB; {job['gpus']} GPUs of {job['card']:g} GB; {job['hours']:g} "
        f"hours on one GPU, due in {job['deadline']:g}"
    )


def is_clear(job: Values) -> bool:
    """Whether no question on the job's path through the tree is a close decision."""
    return all(
        abs(step.value / step.limit - 1) > _CLEAR for step in chosen(job).path if step.known
    )


def draw_job(draw: Random, leaf: str) -> dict[str, Any]:
    """A job whose path through the tree ends at this leaf."""
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
    raise AssertionError(f"no draw ends at {leaf}")


def _may_be(job: Values, leaf: str) -> bool:
    """Whether the job could end at `leaf`: a test that is faster than the decision tree."""
    replica = bool(16 * job["billions"] + job["activations"] <= job["card"])
    sample = bool(job["activations"] <= job["card"])
    if leaf in ("one_gpu", "data", "more_gpus"):
        return replica
    return not replica and sample is not leaf.startswith("split")


# Questions --------------------------------------------------------------------------------------

_SPLIT = (
    "do the activations of one microbatch fit on a GPU? If not, do all model states fit beside "
    "a rank's part of the activations?"
)
_STRATEGY_MISTAKES = {
    "one GPU": "does a whole replica fit on one GPU, and does one GPU meet the deadline?",
    "data parallelism": "each GPU holds a whole replica. Does one fit? And is one GPU too slow?",
    "ZeRO-1": "ZeRO stage 1 shards Adam's state. Is that needed here, and is it enough?",
    "ZeRO-2": "ZeRO stage 2 also shards gradients. Is that needed here, and is it enough?",
    "ZeRO-3": "ZeRO stage 3 shards all model states. Is that needed here, and is it enough?",
    "tensor parallelism": "this is for jobs that do not fit with ZeRO stage 3. How many bytes "
    "does a rank hold with stage 3?",
    "split samples": _SPLIT,
    "split samples and ZeRO-3": _SPLIT,
    "more GPUs": "are the GPUs too few for the deadline, or for a job with everything sharded?",
}
_FACT_MISTAKES = {
    "time": "this fact decides only if a replica fits. Does the strategy depend on it here?",
    "GPUs in time": "this fact decides only if a replica fits and one GPU is too slow. Does the "
    "strategy depend on it here?",
    "replica": "does a replica fit? If so, time decides. If not, which are too large: the model "
    "states, or the activations of a sample?",
    "sample": "compare the activations of one microbatch with the memory of one GPU.",
    "stage 3": "this fact decides only if the job does not fit with ZeRO stage 3. How many bytes "
    "would a rank hold?",
    "everything shared": "this is the last question. What does a rank hold with less sharded?",
}


def unless(right: Callable[[Values], str], why: Mapping[str, str]) -> dict[Any, str]:
    """The message for each wrong option; the right option gets none."""
    return {
        lambda given, option=option: "" if right(given) == option else option: message
        for option, message in why.items()
    }


def questions_on(name: str, about: str) -> tuple[Question, Question]:
    """Two questions on the job called `name`: its strategy, and the fact that decides it."""

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
            f"the one fact that decides the strategy for {about}",
            list(FACTS.values()),
            fact,
            "For which question would the opposite answer lead to another strategy?",
            unless(fact, _FACT_MISTAKES),
        ),
    )

"""04/checkpoint_every: a checkpoint for every k layers, and none for the last group."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit04.checkpointing_spans import Spanned, Spanning

__all__ = ["PART"]


def _trials(seed: int) -> list[Trial]:
    """Groups that divide the layers, and that do not; then one group, one layer, k of 1."""
    draw = random.Random(seed)

    def case(topic: str, count: int, k: int) -> Spanning:
        # Alike within, so that a layer can stand in another's place: only numbers tell.
        sizes = (draw.randint(3, 5), *[draw.randint(6, 9)] * (count - 1), draw.randint(3, 5))
        return Spanning(draw.randrange(10**6), sizes, draw.randint(3, 6), k, topic)

    k = draw.choice((2, 3))
    equal = [
        case("equal", k * draw.randint(2, 3) + draw.randint(1, k - 1), k),
        case("equal", k * 3, k),
        case("equal", draw.choice((9, 11)), 4),
    ]
    n = draw.randint(3, 6)
    edges = [case("edges", *one) for one in ((n, n), (n, n + 3), (1, 1), (n, 1), (1, 2))]
    return [Trial(1, equal), Trial(1, edges)]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Spanning, Spanned]]:
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Spanning):
                yield one.trial.words(number), case, results[0]


def _judge_equal(seen: Seen) -> Verdict:
    """Whose work it is, outputs and gradients."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    wrong = next((one.mistakes[0] for one in of_topic(seen, "equal") if one.mistakes), "")
    return lost(f"{wrong}\n{_advice(wrong)}".rstrip()) if wrong else ok(_EQUAL)


_EQUAL = "outputs and gradients are those of the layers, in both steps"


def _advice(wrong: str) -> str:
    if "a second time" in wrong or "gradient of" in wrong:
        return (
            "The function runs again in backward. What it reads from a loop's variable then has "
            "its last value: hand it over as an argument."
        )
    return ""


def _spans(spans: Sequence[Sequence[int]]) -> str:
    """Layers as they stand in a checkpoint each: "0 to 2, 3 to 5"."""
    said = [
        str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" if span else "none"
        for span in spans
    ]
    return ", ".join(said) or "none"


def _judge_groups(seen: Seen) -> Verdict:
    """What stands under checkpoints before the last group."""
    if _judge_equal(seen).status != "ok":
        return blocked("judged once outputs and gradients are right")
    for words, case, result in _cases(seen, "equal"):
        wanted = case.groups[:-1]
        for spans, saved, least in zip(result.spans, result.saved, case.wanted.saved, strict=True):
            before = [span for span in spans if span != case.groups[-1]]
            if before != wanted:
                return lost(
                    f"{words}: checkpoints are over the layers {_spans(before)}; asked for is "
                    f"one over each of {_spans(wanted)}."
                )
            if saved > least:
                return lost(
                    f"{words}: {amount(saved)} are kept for backward, where it takes "
                    f"{amount(least)}. Is what comes out of a checkpoint what goes on?"
                )
    return ok("a checkpoint is over each group of k layers, and nothing else is kept")


def _judge_last(seen: Seen) -> Verdict:
    if _judge_groups(seen).status != "ok":
        return blocked("judged once the groups before the last are right")
    for words, case, result in _cases(seen, "equal"):
        if any(case.groups[-1] in spans for spans in result.spans):
            return lost(
                f"{words}: the last group, {_spans(case.groups[-1:])}, is under a checkpoint too. "
                "Backward begins with it, so it would be whole again at once: no memory is saved, "
                "and it is run once more."
            )
    return ok("the last group is not under a checkpoint, also where k divides the layers")


def _judge_runs(seen: Seen) -> Verdict:
    if _judge_last(seen).status != "ok":
        return blocked("judged once the right layers are under checkpoints")
    for words, case, result in _cases(seen, "equal"):
        for runs, wanted in zip(result.runs, case.wanted.runs, strict=True):
            for layer, (got, right) in enumerate(zip(runs, wanted, strict=True)):
                if got != right:
                    return lost(
                        f"{words}: layer {layer} runs {got} times in a step, and {right} is "
                        "enough: once in forward, and once more under a checkpoint."
                    )
    return ok("layers under a checkpoint run twice in a step, all others once")


def _judge_edges(seen: Seen) -> Verdict:
    if _judge_last(seen).status != "ok":
        return blocked("judged once the right layers are under checkpoints")
    for one in of_topic(seen, "edges"):
        if one.mistakes:
            return lost(one.mistakes[0])
    for words, case, result in _cases(seen, "edges"):
        for spans in result.spans:
            if spans != case.groups[:-1]:
                return lost(
                    f"{words}: checkpoints are over the layers {_spans(spans)}; asked for: "
                    f"{_spans(case.groups[:-1])}."
                )
    return ok("right where there is one group only, and where each layer is one")


PART = Part(
    name="04/checkpoint_every",
    level=2,
    title="A checkpoint for every k layers",
    minutes=13,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("equal", 2, _judge_equal),
            Rule("groups", 2, _judge_groups),
            Rule("last", 1, _judge_last),
            Rule("runs", 1, _judge_runs),
            Rule("edges", 1, _judge_edges),
        ),
        compiles=True,  # so that PyTorch's own checkpoint is refused at once: it imports that
    ),
    reference="dtlab.training.activation.checkpoint_every",
)

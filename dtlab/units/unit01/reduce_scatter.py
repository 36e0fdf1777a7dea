"""01/reduce_scatter: write a ring reduce-scatter, the first half of a ring all-reduce."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from dtlab.checks.functions.checks import Check, Rule
from dtlab.checks.functions.criteria import Seen
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount, ranks_in_words
from dtlab.predict.units import counted
from dtlab.units.unit01.calls import ReduceScatter, draw_groups
from dtlab.units.unit01.judges import (
    chunks_pattern,
    messages,
    other_dtype,
    over_the_world,
    rule_after_result,
    rule_of_messages,
    rule_of_result,
    rule_of_subgroups,
)

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["BYTES", "PART", "RANKS", "ring_rules", "sends_as_a_ring"]

# Traffic in one or two halves of a ring all-reduce -----------------------------------------------

RANKS = 4  # number of ranks in the trial that counts bytes, neighbours and rounds
BYTES = 4 << 20  # size of the tensor in that trial, float32
_SLACK = 0.01  # of the bytes that a ring needs


def sends_as_a_ring(seen: Seen, halves: int) -> bool:
    """Whether the first trial has sent as many bytes as `halves` halves of a ring all-reduce."""
    need = halves * (RANKS - 1) / RANKS * BYTES
    measured = (run for run in seen if len(run.trial.cases) == 1 and run.trace is not None)
    sent = [count for run in measured for count in (run.trace.bytes_sent() if run.trace else ())]
    return bool(sent) and all(abs(count - need) <= _SLACK * need for count in sent)


def ring_rules(halves: int, points: float) -> tuple[Rule, ...]:
    """Rules on the traffic of a ring: reduce-scatter (`halves` = 1) or all-reduce (2).

    `points` are the points of the criterion on bytes.
    """
    times = "" if halves == 1 else f"{halves}"
    need = halves * (RANKS - 1) / RANKS * BYTES
    formula = f"{times}(N-1)/N x {amount(BYTES)}"

    def other_bytes(_: Any, trace: Trace) -> str:
        sent = trace.bytes_sent()
        if all(abs(count - need) <= _SLACK * need for count in sent):
            return ""
        least, most = min(sent), max(sent)
        loads = f"each rank sent {amount(most)}"
        if most - least > _SLACK * most:
            loads = f"rank {sent.index(most)} sent {amount(most)}, another only {amount(least)}"
        return f"{loads}; a ring needs {formula} = {amount(need)}. {advice(trace)}"

    def advice(trace: Trace) -> str:
        """Advice, from the bytes sent and the sizes of messages."""
        sent = trace.bytes_sent()
        most = max(sent)
        sends = trace.sends(sent.index(most))
        if most - min(sent) > _SLACK * most:
            return "The ranks do not share the work: let each rank send one chunk in each round."
        if other_dtype(messages(trace)):
            return other_dtype(messages(trace))
        if sends and most / sends > (1 - _SLACK) * BYTES:
            return "You pass the whole tensor on in every round: pass one chunk."
        if halves == 1 and abs(most - 2 * need) <= _SLACK * need:
            return "These are both halves of a ring all-reduce: stop after the first."
        if halves == 2 and abs(most - need / 2) <= _SLACK * need:
            return "This is half a ring: N-1 rounds reduce-scatter, and N-1 all-gather the sums."
        return f"Some chunks are {'not sent' if most < need else 'sent further than needed'}."

    def strangers(_: Any, trace: Trace) -> str:
        for rank in range(RANKS):
            before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
            others = sorted(trace.peers(rank) - {before, after})
            if others:
                return (
                    f"rank {rank} exchanges messages with {ranks_in_words(others)} too; in a ring "
                    f"it sends only to rank {after} and receives only from rank {before}."
                )
        return ""

    def more_rounds(_: Any, trace: Trace) -> str:
        """A message if there are too many rounds: each message to a neighbour is one round."""
        pairs = Counter(message[:2] for message in messages(trace))
        rounds, goal = max(pairs.values(), default=0), halves * (RANKS - 1)
        needed = "N-1" if halves == 1 else f"{halves}(N-1)"
        if rounds <= goal:
            return ""
        advice = "Each message to a neighbour costs a latency: send a whole chunk in one message."
        if min(message.bytes for message in messages(trace)) >= BYTES // RANKS:
            advice = f"Stop after {needed} rounds."
        made = counted(rounds, "round")
        return f"{made} on {RANKS} ranks; a ring needs {needed} = {goal}. {advice}"

    least = (1 - _SLACK) * need  # a rank that sends fewer bytes does not run a ring yet
    return (
        rule_of_messages("bytes", points, f"each rank sends {formula}", other_bytes),
        rule_of_messages("neighbours", 1, "only neighbours exchange messages", strangers, least),
        rule_of_messages("rounds", 1, "no more rounds than a ring needs", more_rounds, least),
    )


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 5 ranks, with chunks of several elements and of one element."""
    draw = random.Random(seed)
    trials = [Trial(RANKS, [ReduceScatter(seed, BYTES // 4)])]
    for ranks in range(1, 6):
        sizes = (ranks * draw.randint(2, 4), ranks)
        trials.append(Trial(ranks, [ReduceScatter(seed, size) for size in sizes]))
    groups = draw_groups(draw, world_size=5, size=3)
    return [*trials, Trial(5, [ReduceScatter(seed, 6 * draw.randint(2, 4), groups)])]


def _changed_input(seen: Seen) -> str:
    for run in over_the_world(seen):
        for number, (case, answers) in enumerate(zip(run.trial.cases, run.results, strict=True)):
            assert isinstance(case, ReduceScatter)
            rank = case.rank_of_changed_input(answers)
            if rank is not None:
                return (
                    f"{run.trial.words(number)}, rank {rank}: you have changed `input`, which "
                    "your caller may still need. Sum in a copy."
                )
    return ""


PART = Part(
    name="01/reduce_scatter",
    level=2,
    title="The reduce-scatter",
    minutes=25,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule_of_result(2, "chunk r of the sum is on rank r, on 1 to 5 ranks", chunks_pattern),
            rule_after_result("input", 1, "`input` is unchanged", _changed_input),
            rule_of_subgroups(1),
            *ring_rules(halves=1, points=2),
        ),
    ),
    reference="dtlab.collectives.ring_reduce_scatter",
)

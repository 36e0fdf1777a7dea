"""01/tree_broadcast: write a broadcast that sends each rank the tensor once, in few rounds."""

from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Seen
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.predict.units import counted
from dtlab.units.unit01.calls import Broadcast, draw_groups
from dtlab.units.unit01.judges import (
    Message,
    messages,
    other_dtype,
    rule_of_messages,
    rule_of_result,
    rule_of_subgroups,
    world_sizes_right,
)

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["PART", "rounds_of"]

_RANKS = 7  # in the trial that counts messages; a binary heap needs one round more than a tree
_ELEMENTS = 1 << 18  # of float32: 1 MB


def _trials(seed: int) -> list[Trial]:
    """A trial that counts messages, trials on 1 to 5 and on 9 ranks, and one on subgroups."""
    draw = random.Random(seed)
    trials = [Trial(_RANKS, [Broadcast(seed, _ELEMENTS, seat=draw.randrange(1, _RANKS))])]
    for ranks in (1, 2, 3, 4, 5, 9):
        seats: tuple[int, ...] = (0, draw.randrange(1, max(2, ranks)) % ranks)
        seats = seats[-1:] if ranks == 9 else seats  # 9 ranks need a fourth round
        calls = [Broadcast(seed, draw.randint(1, 9), seat=seat) for seat in seats]
        trials.append(Trial(ranks, calls))
    # The source is the last rank of each group, so its group rank differs from its global rank.
    groups = draw_groups(draw, world_size=5, size=3)
    return [*trials, Trial(5, [Broadcast(seed, 7, groups, seat=-1)])]


def _not_once(call: Broadcast, trace: Trace) -> str:
    """A message if the source receives anything, or another rank receives too many bytes."""
    source, sent = call.seat, messages(trace)
    received = [sum(m.bytes for m in sent if m.target == rank) for rank in range(_RANKS)]
    if received[source]:
        return (
            f"rank {source} is the source and has the tensor already, but received "
            f"{amount(received[source])}: send to ranks that still lack it."
        )
    for rank, size in enumerate(received):
        if size > 4 * _ELEMENTS:
            return (
                f"rank {rank} received {amount(size)}; the tensor has {amount(4 * _ELEMENTS)}. "
                f"Send it to each rank once. {other_dtype(sent)}".rstrip()
            )
    return ""


def _more_rounds(_: Broadcast, trace: Trace) -> str:
    """A message if there are more rounds than a tree needs."""
    rounds, goal = rounds_of(messages(trace)), (_RANKS - 1).bit_length()
    if rounds <= goal:
        return ""
    return (
        f"{counted(rounds, 'round')} on {_RANKS} ranks; a tree needs {goal} = log2 N, rounded "
        f"up. In every "
        "round each rank that has the tensor must send it, in one message, to one rank that lacks "
        "it: first to the rank with the largest subtree."
    )


def rounds_of(sent: list[Message]) -> int:
    """The number of rounds that the messages take if a rank sends one message per round.

    A rank can send from the round after its first receive.
    """
    busy: dict[int, int] = {}  # by rank: the last round in which it cannot send another message
    for message in sent:
        busy[message.source] = busy.get(message.source, 0) + 1
        busy.setdefault(message.target, busy[message.source])
    return max(busy.values(), default=0)


def _pattern(seen: Seen) -> str:
    right = world_sizes_right(seen)
    if {1, 2, 4} <= right < {run.trial.world_size for run in seen}:
        return "Right only if the number of ranks is a power of two: skip ranks that do not exist."
    small = [run for run in seen if len(run.trial.cases) > 1]  # each with src=0 and another src
    wrong = {
        getattr(call, "seat", 0) > 0
        for run in small
        for number, call in enumerate(run.trial.cases)
        if (run.stopped_in == number if run.error is not None else run.is_wrong(number))
    }
    if wrong == {True}:
        return (
            "Right only with src=0. The tree is made of positions, rank minus src modulo N: add "
            "src to a position, modulo N, before you send to it or receive from it."
        )
    return ""


PART = Part(
    name="01/tree_broadcast",
    level=2,
    title="A broadcast along a tree",
    minutes=20,
    difficulty=2,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            rule_of_result(2, "all ranks have the source's tensor, on up to 9 ranks", _pattern),
            rule_of_subgroups(1),
            rule_of_messages("once", 1, "each rank receives the tensor once", _not_once, inf),
            rule_of_messages("rounds", 2, "log2 N rounds, rounded up", _more_rounds, inf),
        ),
    ),
    reference="dtlab.collectives.tree_broadcast",
)

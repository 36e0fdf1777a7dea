"""The values of 01/bytes_sent: what a rank sends, in multiples of the tensor's size."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from random import Random

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Choices, Mistake, Number, Question, Questions, Values

__all__ = ["PART"]

Factor = Callable[[int], float]  # of the number of ranks, in multiples of S


def _draw_sizes(draw: Random) -> Values:
    return {"ranks": draw.choice((8, 16, 32)), "size": draw.choice(range(32, 129, 16)) * 10**6}


def _size_rows(given: Values) -> list[tuple[str, str]]:
    return [("N", f"{given['ranks']} ranks"), ("S", f"{given['size'] / 1e6:g} MB (10^6 bytes)")]


def _sent(
    name: str, points: float, prompt: str, factor: Factor, hint: str, *mistakes: tuple[Factor, str]
) -> Question:
    """Asks for MB sent; `factor` and the mistakes are functions of N, in multiples of S."""
    known = tuple(Mistake(_megabytes(wrong), why) for wrong, why in mistakes)
    return Question(name, points, prompt, Number(_megabytes(factor), known, hint, unit="MB"))


def _megabytes(factor: Factor) -> Callable[[Values], float]:
    return lambda given: factor(given["ranks"]) * given["size"] / 1e6


_COUNT = "Count the messages that leave this rank, and the size of each."
_BOTH_WAYS = "this counts what the rank receives as well. Asked for is what it sends."
_ONE_HALF = "this is one half of the ring. The sums have to be handed round too."
_ONE_CHUNK = "this is what the rank ends with, one chunk. How many chunks does it send?"
_WHOLE = "this passes the whole tensor on in every round. A ring passes one chunk."

BYTES = Questions(
    _draw_sizes,
    _size_rows,
    (
        _sent(
            "server_root",
            1,
            "what rank 0 sends in an all-reduce of S through rank 0",
            lambda n: n - 1,
            _COUNT,
            (lambda n: n, "rank 0 need not send the sum to itself."),
            (lambda n: 1, "this is one copy of the sum. How many ranks need one?"),
            (lambda n: 2 * (n - 1), _BOTH_WAYS),
            (lambda n: (n - 1) / n, "nothing is cut into chunks here: whole tensors travel."),
        ),
        _sent(
            "server_other",
            1,
            "what each other rank sends in the same all-reduce",
            lambda n: 1,
            _COUNT,
            (lambda n: n - 1, "this is rank 0's load. Whom does another rank talk to?"),
            (lambda n: 2, _BOTH_WAYS),
            (lambda n: 1 / n, "nothing is cut into chunks here: whole tensors travel."),
        ),
        _sent(
            "ring",
            2,
            "what each rank sends in a ring all-reduce of S",
            lambda n: 2 * (n - 1) / n,
            "How many rounds are there, and how large is what a rank sends in one of them?",
            (lambda n: (n - 1) / n, _ONE_HALF),
            (lambda n: 2, "this takes N rounds for each half. One chunk is there to begin with."),
            (lambda n: 2 * (n - 1), _WHOLE),
            (lambda n: 4 * (n - 1) / n, _BOTH_WAYS),
            (lambda n: 2 / n, "this is one round of each half. How many rounds has a half?"),
            (lambda n: n - 1, "this is what rank 0 sends through a central server."),
        ),
        _sent(
            "reduce_scatter",
            1,
            "what each rank sends in a ring reduce-scatter of S (each rank brings S, and ends "
            "with a chunk of S/N)",
            lambda n: (n - 1) / n,
            "It is one half of a ring all-reduce.",
            (lambda n: 2 * (n - 1) / n, "this is the whole all-reduce, both halves."),
            (lambda n: 1 / n, _ONE_CHUNK),
            (lambda n: 1, "this takes N rounds. One chunk is there to begin with."),
            (lambda n: n - 1, _WHOLE),
        ),
        _sent(
            "all_gather",
            1,
            "what each rank sends in a ring all-gather in which each rank brings a tensor of S "
            "and ends with all N of them",
            lambda n: n - 1,
            "What size has one message here? In a reduce-scatter of S it is S/N.",
            (
                lambda n: (n - 1) / n,
                "this would be right if S were all that a rank ends with, as in the second half "
                "of an all-reduce. Here S is what each rank brings.",
            ),
            (lambda n: n, "one of the N tensors is the rank's own, and needs no message."),
            (lambda n: 1, "this passes on the rank's own tensor only. Who passes on the others?"),
            (lambda n: 2 * (n - 1), _BOTH_WAYS),
        ),
        _sent(
            "doubling",
            1,
            "what each rank sends in an all-reduce of S by recursive doubling",
            lambda n: log2(n),
            "In each round pairs of ranks swap whole tensors. How many rounds until all have met?",
            (lambda n: 2 * log2(n), _BOTH_WAYS),
            (lambda n: n - 1, "this is one round for each other rank. Sums are swapped here."),
            (lambda n: 1, "this is one round. After it a rank has the sum of two ranks."),
            (lambda n: log2(n) / n, "nothing is cut into chunks here: whole tensors travel."),
        ),
        Question(
            "unbounded",
            1,
            "in which ways of doing an all-reduce does the busiest rank's load grow beyond any "
            "bound as N grows, S staying as it is?",
            Choices(
                {"server": "through rank 0", "ring": "", "doubling": "recursive doubling"},
                frozenset({"server", "doubling"}),
                (
                    Mistake("ring", "look at the ring again: can it ever exceed 2S?"),
                    Mistake("doubling", "look at doubling again: what happens from N to 2N?"),
                    Mistake("server", "look at rank 0 again: whom does it send the sum to?"),
                ),
                "Write each load as a multiple of S for N = 8, 64 and 1024.",
            ),
        ),
    ),
)

PART = Part("01/bytes_sent", 1, "What each rank sends", 9, 2, BYTES)

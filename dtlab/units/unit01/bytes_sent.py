"""01/bytes_sent: compute how many bytes a rank sends in several algorithms for collectives."""

from __future__ import annotations

from math import log2

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, choices, number

_COUNT = "Count the messages that this rank sends, and multiply by the size of a message."
_BOTH_WAYS = "this also counts the bytes that the rank receives. Count only those it sends."
_UNCUT = "the tensor is not cut into chunks here: each message is a whole tensor."
_WHOLE = "this sends the whole tensor in every round. A ring sends one chunk."


PART = Part(
    "01/bytes_sent",
    1,
    "What each rank sends",
    9,
    2,
    asked(
        {"ranks": (8, 16, 32), "size": range(32_000_000, 129_000_000, 16_000_000)},
        lambda given: [
            ("N", f"{given['ranks']} ranks"),
            ("S", f"{given['size'] / 1e6:g} MB (10^6 bytes)"),
        ],
        number(
            "server_root",
            "the bytes that rank 0 sends in an all-reduce of S through rank 0",
            "(N - 1) * S",
            _COUNT,
            {
                "N * S": "rank 0 does not send the sum to itself.",
                "S": "this is one copy of the sum. How many ranks need a copy?",
                "answer * 2": _BOTH_WAYS,
                "answer / N": _UNCUT,
            },
            unit="MB",
        ),
        number(
            "server_other",
            "the bytes that each other rank sends in the same all-reduce",
            "S",
            _COUNT,
            {
                "(N - 1) * S": "this is rank 0's load. To which rank does another rank send?",
                "answer * 2": _BOTH_WAYS,
                "answer / N": _UNCUT,
            },
            unit="MB",
        ),
        number(
            "ring",
            "the bytes that each rank sends in a ring all-reduce of S",
            "2 * (N - 1) / N * S",
            "How many rounds are there, and how many bytes does a rank send in one round?",
            {
                "answer / 2": "this is only the reduce-scatter. The sums must be gathered, too.",
                "2 * S": "this takes N rounds for each half. A sum starts as one rank's chunk.",
                "answer * N": _WHOLE,
                "answer * 2": _BOTH_WAYS,
                "2 / N * S": "this is one round of each half. How many rounds does a half take?",
                "(N - 1) * S": "this is what rank 0 sends in an all-reduce through rank 0.",
            },
            points=2,
            unit="MB",
        ),
        number(
            "reduce_scatter",
            "the bytes that each rank sends in a ring reduce-scatter of S (it ends with S/N)",
            "(N - 1) / N * S",
            "It is the first half of a ring all-reduce.",
            {
                "answer * 2": "this is the whole all-reduce, both halves.",
                "S / N": "this is the chunk that the rank ends with. How many does it send?",
                "S": "this takes N rounds. A sum starts as one rank's chunk.",
                "answer * N": _WHOLE,
            },
            unit="MB",
        ),
        number(
            "all_gather",
            "the bytes that each rank sends in a ring all-gather whose input is S on each rank",
            "(N - 1) * S",
            "How large is one message here? In a reduce-scatter of S it is S/N.",
            {
                "answer / N": "this takes S as the output's size. Here each input has size S.",
                "N * S": "one of the N tensors is the rank's own, and needs no message.",
                "S": "this sends only the rank's own tensor. A rank also passes other tensors on.",
                "answer * 2": _BOTH_WAYS,
            },
            unit="MB",
        ),
        number(
            "doubling",
            "the bytes that each rank sends in an all-reduce of S by recursive doubling",
            "log2(N) * S",
            "In each round pairs of ranks exchange whole tensors. How many rounds are needed?",
            {
                "answer * 2": _BOTH_WAYS,
                "(N - 1) * S": "this is one round for each other rank. Here ranks exchange sums.",
                "S": "this is one round. After it a rank has the sum of two ranks.",
                "answer / N": _UNCUT,
            },
            unit="MB",
        ),
        choices(
            "unbounded",
            "the all-reduces in which the busiest rank's load grows without bound as N grows",
            {"server": "through rank 0", "ring": "", "doubling": "recursive doubling"},
            {"server", "doubling"},
            "Write each load as a multiple of S for N = 8, 64 and 1024.",
            {
                "ring": "look at the ring again: can it ever exceed 2S?",
                "doubling": "look at doubling again: what happens from N to 2N?",
                "server": "look at rank 0 again: to how many ranks does it send the sum?",
            },
        ),
        where={"N": "ranks", "S": "size / 1e6", "log2": log2},
    ),
)

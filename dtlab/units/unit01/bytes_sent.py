"""01/bytes_sent: what a rank sends, in multiples of the tensor's size."""

from __future__ import annotations

from math import log2

from dtlab.grading.parts import Part
from dtlab.grading.questions.declared import asked, choices, number

_COUNT = "Count the messages that leave this rank, and the size of each."
_BOTH_WAYS = "this counts what the rank receives as well. Asked for is what it sends."
_UNCUT = "nothing is cut into chunks here: whole tensors travel."
_WHOLE = "this passes the whole tensor on in every round. A ring passes one chunk."


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
            "what rank 0 sends in an all-reduce of S through rank 0",
            "(N - 1) * S",
            _COUNT,
            {
                "N * S": "rank 0 need not send the sum to itself.",
                "S": "this is one copy of the sum. How many ranks need one?",
                "answer * 2": _BOTH_WAYS,
                "answer / N": _UNCUT,
            },
            unit="MB",
        ),
        number(
            "server_other",
            "what each other rank sends in the same all-reduce",
            "S",
            _COUNT,
            {
                "(N - 1) * S": "this is rank 0's load. Whom does another rank talk to?",
                "answer * 2": _BOTH_WAYS,
                "answer / N": _UNCUT,
            },
            unit="MB",
        ),
        number(
            "ring",
            "what each rank sends in a ring all-reduce of S",
            "2 * (N - 1) / N * S",
            "How many rounds are there, and how large is what a rank sends in one of them?",
            {
                "answer / 2": "this is one half of the ring. Who hands the sums round?",
                "2 * S": "this takes N rounds for each half. One chunk is there to begin with.",
                "answer * N": _WHOLE,
                "answer * 2": _BOTH_WAYS,
                "2 / N * S": "this is one round of each half. How many rounds has a half?",
                "(N - 1) * S": "this is what rank 0 sends through a central server.",
            },
            points=2,
            unit="MB",
        ),
        number(
            "reduce_scatter",
            "what each rank sends in a ring reduce-scatter of S, which leaves it a chunk of S/N",
            "(N - 1) / N * S",
            "It is one half of a ring all-reduce.",
            {
                "answer * 2": "this is the whole all-reduce, both halves.",
                "S / N": "this is what the rank ends with. How many chunks does it send?",
                "S": "this takes N rounds. One chunk is there to begin with.",
                "answer * N": _WHOLE,
            },
            unit="MB",
        ),
        number(
            "all_gather",
            "what each rank sends in a ring all-gather to which each rank brings a tensor of S",
            "(N - 1) * S",
            "What size has one message here? In a reduce-scatter of S it is S/N.",
            {
                "answer / N": "this is as if S were all that a rank ends with. Each brings S.",
                "N * S": "one of the N tensors is the rank's own, and needs no message.",
                "S": "this passes on the rank's own tensor only. Who passes on the others?",
                "answer * 2": _BOTH_WAYS,
            },
            unit="MB",
        ),
        number(
            "doubling",
            "what each rank sends in an all-reduce of S by recursive doubling",
            "log2(N) * S",
            "In each round pairs of ranks swap whole tensors. How many rounds until all have met?",
            {
                "answer * 2": _BOTH_WAYS,
                "(N - 1) * S": "this is one round for each other rank. Sums are swapped here.",
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
                "server": "look at rank 0 again: whom does it send the sum to?",
            },
        ),
        where={"N": "ranks", "S": "size / 1e6", "log2": log2},
    ),
)

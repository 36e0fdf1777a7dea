"""09/break_even: from how many tokens per GPU on the all-reduce hides behind computing."""

from __future__ import annotations

from math import ceil, floor

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, number

_QUESTIONS = asked(
    {
        "peak": (312, 989),  # dense bf16 of an A100 and an H100, TFLOP/s
        "reached": (35, 40, 45, 50),
        "ranks": (8, 16, 32),
        "link": (12.5, 25, 50),
        "length": (1024, 2048, 4096),
        "held": (1, 2),
        "faster": (2.5, 3, 4),
    },
    [
        ("your GPUs", "{ranks}, with a peak of {peak} TFLOP/s each; you reach {reached} % of it"),
        ("your link", "{link} GB/s per GPU, one way; leave latency out"),
        ("your sequences", "{length} tokens each; a GPU holds {held} at a time"),
    ],
    number(
        "tokens",
        "the tokens per GPU and step from which computing, forward and backward, takes as long as "
        "an all-reduce of gradients in 32 bits",
        "least",
        "Write both times for P parameters, and divide. P cancels.",
        {
            "100 * least / reached": "this is at the peak. You reach a part of it.",
            "least * ranks / (2 * ranks - 2)": "in a ring each GPU sends almost twice the bytes.",
            "least / 2": "this is for 16 bits, 2 bytes per gradient.",
            "3 * least": "this is forward alone. Backward takes twice as many operations.",
        },
        unit="tokens",
    ),
    number(
        "changes",
        "by which factor these tokens change: [with gradients in 16 bits, with links twice as "
        "fast, with GPUs that compute {faster} times as fast, with a model ten times as large]",
        "[0.5, 0.5, faster, 1]",
        "Which of the four is in your formula, above or below the line?",
        {
            "[0.5, 0.5, 1 / faster, 1]": "a faster GPU computes for a shorter time, behind which "
            "less hides.",
            "[0.5, 0.5, faster, 10]": "a larger model computes more and sends more.",
            "[2, 2, 1 / faster, 1]": "these are the factors of what fits behind the same tokens.",
        },
        unit="times",
    ),
    number(
        "behind",
        "the tokens from which the all-reduce, still in 32 bits, takes no longer than backward, "
        "behind which DDP sends its buckets",
        "1.5 * least",
        "How many of the 6 operations per parameter and token are backward's?",
        {
            "least": "this is behind forward and backward. In forward no gradient is ready.",
            "3 * least": "this is behind forward. Backward takes twice as many operations.",
            "2 * least / 3": "there is less to hide behind, so it takes more tokens.",
        },
        unit="tokens",
    ),
    number(
        "sequences",
        "the fewest whole sequences per GPU and step with which an all-reduce of gradients in 16 "
        "bits hides behind backward",
        "ceil(0.75 * least / length)",
        "Half the bytes, two thirds of the operations. Round up.",
        {
            "floor(0.75 * least / length)": "with these the all-reduce does not quite hide.",
            "ceil(1.5 * least / length)": "this is for 32 bits.",
            "ceil(0.5 * least / length)": "this is behind forward and backward.",
        },
        unit="sequences",
        exact=True,
    ),
    number(
        "microbatches",
        "the fewest microbatches, accumulated inside no_sync, with which computing takes at least "
        "as long as the one all-reduce in 16 bits",
        "ceil(half / (held * length))",
        "A microbatch has as many sequences as a GPU holds. Count forward and backward.",
        {
            "floor(half / (held * length))": "with these, computing takes a little less than "
            "the all-reduce.",
            "ceil(2 * half / (held * length))": "this is for 32 bits.",
        },
        unit="microbatches",
        exact=True,
    ),
    number(
        "share",
        "the share of a step that an all-reduce in 16 bits takes with one microbatch, without "
        "overlap and without anything but computing and the all-reduce",
        "100 / (1 + held * length / half)",
        "Compare the tokens of a microbatch with those at which both take as long.",
        {
            "100 * half / (held * length)": "this is the all-reduce over computing. A step has "
            "both.",
            "100 / (1 + held * length / (2 * half))": "this is for 32 bits.",
            "100 - answer": "this is the share of computing.",
        },
        unit="%",
    ),
    where={
        "ceil": ceil,
        "floor": floor,
        # tokens: 2(N-1)/N x 4 bytes, over 6 operations; TFLOP/s over GB/s, and per cent
        "least": "2 * (ranks - 1) / ranks * 4 / 6 * peak * reached / 100 * 1e3 / link",
        "half": "least / 2",
    },
)

PART = Part("09/break_even", 1, "When the wire hides", 7, 2, _QUESTIONS)

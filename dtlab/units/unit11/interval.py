"""11/interval: failures of a large job, how often it saves, and what that costs."""

from __future__ import annotations

from math import sqrt

from dtlab.checks.parts import Part
from dtlab.checks.questions.declared import asked, number

_QUESTIONS = asked(
    {
        "gpus": (2048, 4096, 8192, 12288, 24576, 32768),
        "save": (20, 30, 40, 60, 90),
        "restart": (4, 6, 8, 10, 12),
        "pause": (1, 2, 3, 4, 5),
        "times": (4, 9, 16),
    },
    [
        ("measured", "Llama 3 405B: 16,384 GPUs, 54 days, 466 interruptions, 47 of them planned"),
        ("your job", "{gpus:,} of these GPUs, in machines that fail as often, without planned "
         "interruptions"),
        ("a save", "{save} s, in which all GPUs wait"),
        ("a restart", "{restart} min from the failure until the job computes again"),
    ],
    number(
        "failures",
        "the failures of your job in a day",
        "failures",
        "How many interruptions were failures? How many of these, in a day, fall to one GPU?",
        {
            "failures * 466 / 419": "planned interruptions are not failures.",
            "419 / 54 * 16384 / gpus": "with more GPUs a job fails more often.",
            "419 / 54": "this is the job that was measured.",
        },
    ),
    number(
        "young",
        "Young's interval, the time of work between two saves",
        "young / 60",
        "Which two times does Young's formula have? Take both in the same unit.",
        {
            "sqrt(save * between) / 60": "a failure repeats half an interval on average. This "
            "gives a factor below the root.",
            "2 * sqrt(save * between) / 60": "the factor is below the root.",
            "sqrt(2 * save * between * gpus) / 60": "this is for the failures of one GPU. Any of "
            "them stops the job.",
            "sqrt(2 * (save + 60 * restart) * between) / 60": "a restart takes as long with any "
            "interval.",
        },
        unit="min",
    ),
    number(
        "lost",
        "the shares of the time that are lost with this interval, to first order: [to saves, to "
        "work that is done again, to restarts]",
        "[saves, saves, restarts]",
        "One save for each interval. For each failure half an interval, and one restart.",
        {
            "[saves, 2 * saves, restarts]": "a failure comes, on average, in the middle of an "
            "interval.",
            "[saves, saves, restarts / 60]": "take the restart in the same unit as the time "
            "between failures.",
            "[saves, saves, 0]": "after each failure the job waits for its restart.",
        },
        unit="%",
    ),
    number(
        "goodput",
        "the share of the time that becomes lasting progress, to first order",
        "100 - 2 * saves - restarts",
        "What remains after the three losses?",
        {
            "100 - 2 * saves": "the restarts are lost too.",
            "100 - saves - restarts": "saves, repeated work and restarts: three losses.",
            "2 * saves + restarts": "this is the share that is lost.",
        },
        unit="%",
    ),
    number(
        "asynchronous",
        "a save that writes in the background stops the GPUs for only {pause} s. The factors by "
        "which these change: [Young's interval, the loss to saves and repeated work together]",
        "[sqrt(pause / save), sqrt(pause / save)]",
        "Both are proportional to a power of the time of a save. Which power?",
        {
            "[pause / save, pause / save]": "the time of a save is below a root.",
            "[sqrt(save / pause), sqrt(pause / save)]": "a cheaper save is made more often.",
            "[1, pause / save]": "with a cheaper save, another interval is best.",
        },
        unit="times",
    ),
    number(
        "larger",
        "with {times} times as many GPUs and the same time of a save, the factors by which these "
        "change: [Young's interval, the loss to saves and repeated work together]",
        "[1 / sqrt(times), sqrt(times)]",
        "What happens to the time between failures? It is below the root too.",
        {
            "[1 / times, times]": "the time between failures is below a root.",
            "[sqrt(times), 1 / sqrt(times)]": "with more GPUs failures are more frequent.",
            "[1 / sqrt(times), 1 / sqrt(times)]": "saves are then more frequent, and each takes "
            "as long as before.",
        },
        unit="times",
    ),
    where={
        "sqrt": sqrt,
        "failures": "419 / 54 * gpus / 16384",
        "between": "86400 / failures",  # s
        "young": "sqrt(2 * save * between)",  # s
        "saves": "100 * save / young",
        "restarts": "100 * 60 * restart / between",
    },
)  # fmt: skip

PART = Part("11/interval", 1, "How often to save", 7, 2, _QUESTIONS)

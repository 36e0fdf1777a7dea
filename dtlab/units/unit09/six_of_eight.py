"""09/six_of_eight: where eight GPUs lose two, and what Amdahl and Gustafson say of the job."""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choice, number


def _draw(draw: Random) -> Values:
    forward = draw.choice((60, 70, 80))
    optimizer = draw.choice((40, 50, 60))
    ready = draw.choice((10, 15, 20))
    alone = 3 * forward + optimizer
    exposed = round(alone * draw.uniform(0.18, 0.3))
    return {
        "forward": forward,
        "backward": 2 * forward,
        "optimizer": optimizer,
        "ready": ready,
        "reduce": exposed + 2 * forward - ready,
        "input": round(alone * draw.uniform(0.04, 0.12)),
    }


_QUESTIONS = asked(
    _draw,
    [
        ("a step on one GPU", "forward {forward} ms, backward {backward} ms, "
         "optimizer {optimizer} ms"),
        ("the step on eight GPUs", "the same batch on each of them"),
        ("the all-reduce", "{reduce} ms in all; its first bucket is ready {ready} ms after "
         "backward begins, and from then on it runs without a gap"),
        ("the input", "eight readers share one disk: each step waits {input} ms for its batch"),
    ],
    number(
        "exposed",
        "how much of the all-reduce is exposed, so that the optimizer waits for it",
        "exposed",
        "When does the all-reduce end, counted from the beginning of backward?",
        {
            "reduce": "this is the whole all-reduce. It runs while backward still computes.",
            "reduce - backward": "the all-reduce cannot start together with backward.",
            "reduce - backward - ready": "a later start leaves more exposed, not less.",
            "reduce - backward - forward": "in forward there is no gradient to send.",
        },
        unit="ms",
    ),
    number(
        "speed_up",
        "how many times as many samples per second eight GPUs process as one",
        "8 * alone / step",
        "Eight batches in one step of eight GPUs. How long is that step?",
        {
            "alone / step": "this is the efficiency. Eight GPUs process eight batches.",
            "8 * alone / (alone + exposed)": "the step waits for its input too.",
            "8 * alone / (alone + reduce + input)": "this is without overlap.",
        },
        unit="times",
    ),
    number(
        "lost",
        "what is missing from 8, in GPUs: [lost to the all-reduce, lost to the input]",
        "[8 * exposed / step, 8 * input / step]",
        "For which share of a step does every GPU wait? Eight times that share is lost.",
        {
            "[8 * exposed / alone, 8 * input / alone]": "take shares of the step on eight GPUs. "
            "Both losses and your last answer add up to 8.",
            "[exposed / step, input / step]": "these are shares of one GPU's time. There are 8.",
            "answer[::-1]": "write the all-reduce first.",
        },
        unit="GPUs",
    ),
    number(
        "amdahl",
        "now the batch of one GPU is divided over eight. Forward and backward take an eighth, the "
        "optimizer as long as before. The speed-up by Amdahl's law, without any waiting",
        "alone / (optimizer + 3 * forward / 8)",
        "Which share of the time on one GPU does not shrink?",
        {
            "alone / optimizer": "this is the limit for any number of GPUs.",
            "(optimizer + 24 * forward) / alone": "this is Gustafson's: the batch grows. Here it "
            "stays the same.",
        },
        unit="times",
    ),
    number(
        "gustafson",
        "each GPU has the batch of one again, and nothing waits. How many times the work of one "
        "GPU do eight do in the same time, by Gustafson's law? The optimizer step is the same on "
        "all of them, so it counts once",
        "(optimizer + 24 * forward) / alone",
        "How long would one GPU take for a batch eight times as large, with one optimizer step?",
        {
            "8": "eight GPUs do the optimizer step too, each the same one.",
            "alone / (optimizer + 3 * forward / 8)": "this is Amdahl's: the work stays. Here the "
            "batch grows.",
            "24 * forward / alone": "the optimizer step counts once.",
        },
        unit="times",
    ),
    choice(
        "differ",
        "the last two answers differ. Why?",
        {
            "work": "Amdahl keeps the work and divides the time; Gustafson keeps the time and "
            "multiplies the work",
            "serial": "Gustafson assumes that the serial part shrinks on more GPUs",
            "wire": "Amdahl counts communication, Gustafson does not",
        },
        "work",
        "Which of the two has a larger batch on eight GPUs?",
        {
            "serial": "the optimizer takes as long in both.",
            "wire": "neither of them counts communication here.",
        },
    ),
    where={
        "alone": "3 * forward + optimizer",
        "exposed": "ready + reduce - backward",
        "step": "alone + exposed + input",
    },
)  # fmt: skip

PART = Part("09/six_of_eight", 1, "Where eight GPUs lose two", 7, 2, _QUESTIONS)

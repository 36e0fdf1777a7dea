"""02/ddp_step: name eight events in the trace of a rank that trains under DDP.

    constructor ▒▒▒▒   buffers ▒         last ▒▒▒▒▒▒  first ▒▒▒▒▒▒▒▒       loss ▒
    forward                     ██████            │       │
    backward                           ████████████████████
    step                                                           ████

The letters of the events are drawn. Its time and its bytes show what an event is.
"""

from __future__ import annotations

from random import Random

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.declared import asked, choice, formula, number

_LETTERS = "ABCDEFGH"
_COMMUNICATION = "constructor", "buffers", "last_layers", "first_layers", "loss"  # by time
_COMPUTE = "forward", "backward", "step"


def _draw(draw: Random) -> Values:
    first, last = draw.sample(range(20, 90, 5), 2)  # thousands of parameters
    channels = draw.choice((32, 48, 64, 96))
    buffers = 8 * channels  # running mean and variance, float32
    forward = draw.randint(60, 120)  # in tenths of a millisecond, like all times here
    backward = 2 * forward + draw.randint(-9, 9)
    begin = draw.randint(150, 300)
    turn = begin + draw.randint(5, 12) + forward  # forward ends, backward begins
    end = turn + backward
    sent = turn + backward * draw.randint(35, 55) // 100
    received = sent + draw.randint(20, 45)
    exposed = draw.randint(15, 60)
    step = draw.randint(20, 55)
    everything = 4000 * (first + last) + buffers
    times = {
        "constructor": (draw.randint(0, 20), draw.randint(60, 110), everything),
        "buffers": (begin, begin + draw.randint(2, 4), buffers),
        "forward": (turn - forward, turn, None),
        "backward": (turn, end, None),
        "last_layers": (sent, received, 4000 * last),
        "first_layers": (end - draw.randint(1, 3), end + exposed, 4000 * first),
        "step": (end + exposed, end + exposed + step, None),
        "loss": (end + exposed + step + 2, end + exposed + step + draw.randint(5, 9), 4),
    }
    letters = draw.sample(_LETTERS, len(_LETTERS))
    events = {
        letter: {"start": start / 10, "end": stop / 10, "bytes": count}
        for letter, (start, stop, count) in zip(letters, times.values(), strict=True)
    }
    return {
        "first": 1000 * first,
        "last": 1000 * last,
        "channels": channels,
        "events": dict(sorted(events.items())),
    }


def _rows(given: Values) -> list[tuple[str, str]]:
    rows = [
        ("parameters of the first layers", f"{given['first']}, float32"),
        ("parameters of the last layers", f"{given['last']}, float32"),
        ("channels of the BatchNorm between them", f"{given['channels']}"),
    ]
    for letter, event in given["events"].items():
        kind = "compute" if event["bytes"] is None else f"communication of {event['bytes']} bytes"
        rows.append((f"event {letter}", f"{event['start']:.1f} to {event['end']:.1f} ms, {kind}"))
    return rows


def _event(name: str, prompt: str, hint: str, **wrong: str) -> Question:
    known = {formula(f"letters[{other!r}]"): hint for other, hint in wrong.items()}
    return choice(name, prompt, _LETTERS, formula(f"letters[{name!r}]"), hint, known)


_BYTES = "A float32 parameter has 4 bytes, and so does its gradient. Compare the bytes."
_ORDER = "Sort the events by their start, and compare them with the lines of the script."
_PART = "{} layers alone have this many bytes. What about the other layers?"
_BEFORE = "this is before there were any gradients."

PART = Part(
    "02/ddp_step",
    1,
    "What a step leaves in a trace",
    8,
    2,
    asked(
        _draw,
        _rows,
        _event(
            "constructor",
            "line 1: all ranks get the parameters and buffers of rank 0",
            _BYTES,
            first_layers=_PART.format("the first"),
            last_layers=_PART.format("the last"),
            buffers="these bytes are the buffers of the BatchNorm, which lines 1 and 3 send.",
        ),
        _event(
            "buffers",
            "line 3, before the forward pass: all ranks get the buffers of rank 0",
            "A BatchNorm keeps a running mean and a running variance for each channel.",
            constructor="this is before the first step, and far more than the buffers.",
            loss="four bytes are one number. A BatchNorm keeps two for each channel.",
        ),
        _event(
            "forward",
            "line 3: the forward pass",
            _ORDER,
            backward="another compute event comes before this one.",
            step="this is the last of the compute events.",
        ),
        _event(
            "backward",
            "line 4: the backward pass",
            _ORDER,
            forward="gradients are sent during the backward pass, and none during this event.",
            step="this begins when all gradients have arrived. Which event computes them?",
        ),
        _event(
            "last_layers",
            "line 4: the all-reduce of the gradients of the last layers",
            _BYTES,
            first_layers="this starts when backward is nearly over: which layers come last?",
            constructor=_BEFORE,
        ),
        _event(
            "first_layers",
            "line 4: the all-reduce of the gradients of the first layers",
            _BYTES,
            last_layers="this starts in the middle of backward: which layers are done by then?",
            constructor=_BEFORE,
        ),
        _event(
            "step",
            "line 5: the optimizer updates the parameters",
            _ORDER,
            forward="this is the first of the compute events, when there are no gradients yet.",
            backward="gradients are still being sent during this event.",
        ),
        _event(
            "loss",
            "line 7: the loss is summed over the ranks",
            "The loss of a rank is one number. How many bytes are that?",
            first_layers="the loss is one number. This is a whole bucket of gradients.",
            buffers="this is before the forward pass, so there is no loss yet.",
        ),
        number(
            "exposed",
            "the time for which the rank only waits for gradients",
            "arrived - named['backward']['end']",
            "The wait begins when backward ends. When does it end?",
            {
                "arrived - named['first_layers']['start']": "this is the whole last all-reduce. "
                "It begins while backward is still running.",
                "arrived - named['last_layers']['start']": "this begins with the first "
                "all-reduce. Backward runs at the same time.",
                "named['last_layers']['end'] - named['last_layers']['start']": "this is the first "
                "all-reduce. Backward runs during all of it.",
            },
            unit="ms",
        ),
        where={
            "names": _COMMUNICATION + _COMPUTE,
            "order": "lambda letter: (events[letter]['bytes'] is None, events[letter]['start'])",
            "letters": "dict(zip(names, sorted(events, key=order)))",
            "named": "{name: events[letter] for name, letter in letters.items()}",
            "arrived": "named['first_layers']['end']",
        },
    ),
)

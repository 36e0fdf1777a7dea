"""Answers to 00/efficiency: what a deadline asks of the cards, and what they reach."""

CARDS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16}

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    needed, reached = given["days"] / given["due"], given["alone"] / given["eight"]
    serial = (8 / reached - 1) / 7
    return {
        "on_four": 100 * needed / 4,
        "on_eight": 100 * needed / 8,
        "in_time": {name for name, cards in CARDS.items() if cards >= needed},
        "strong": 100 * reached / 8,
        "weak": 100 * given["weak_alone"] / given["weak_eight"],
        "serial": 100 * serial,
        "most": 1 / serial,
    }


def with_units(given):
    """In per cent as text; the serial part from Amdahl's law by trying."""
    right, left = by_hand(given), given["eight"] / given["alone"]
    steps = 100_000
    serial = min(range(1, steps), key=lambda k: abs(k / steps + (1 - k / steps) / 8 - left))
    return right | {
        "on_four": f"{right['on_four']:.3f} %",
        "strong": f"{12.5 / left:.4f}%",
        "in_time": sorted(right["in_time"]),
        "serial": f"{100 * serial / steps} %",
        "most": f"{steps} / {serial}",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, value, message=""):
    """A wrong answer to one question, from the given values and the right ones."""

    def answer(given):
        right = by_hand(given)
        return right | {name: value(given, right)}

    answer.__name__ = f"{name}_{len(WRONG)}"
    WRONG[answer] = {name: message}


WRONG = {}


def needed(given):
    return given["days"] / given["due"]


def reached(given):
    return given["alone"] / given["eight"]


instead("on_four", lambda g, r: 100 * needed(g), "this is the speed-up")
instead("on_four", lambda g, r: 400 / needed(g), "upside down")
instead("on_four", lambda g, r: 100 / needed(g), "the fraction of the time that remains")
instead("on_four", lambda g, r: r["on_four"] / 3, "is not it. Which speed-up does")
instead("on_eight", lambda g, r: r["on_four"], "this is for four")
instead("on_eight", lambda g, r: 100 * needed(g), "this is the speed-up")
instead("on_eight", lambda g, r: 100 * (needed(g) - 1) / 7, "leaves the first GPU out")
instead("in_time", lambda g, r: set(CARDS) - r["in_time"], "upside down")
instead("in_time", lambda g, r: r["in_time"] | {"two"}, "two GPUs are at most twice as fast")
instead("in_time", lambda g, r: r["in_time"] ^ {"four"}, "look at four GPUs again")
instead("in_time", lambda g, r: r["in_time"] - {"sixteen"}, "a low efficiency is enough")
instead("in_time", lambda g, r: r["in_time"] - {"eight"}, "is not it. For which of them")
instead("strong", lambda g, r: 100 / reached(g), "the step's time that remains")
instead("strong", lambda g, r: 100 * reached(g), "this is the speed-up")
instead("strong", lambda g, r: 100 * (1 - 1 / reached(g)), "this is the time saved")
instead("strong", lambda g, r: 3.0, "is not it. How many times as fast is the step")
instead("weak", lambda g, r: r["weak"] / 8, "Each GPU does as much")
instead("weak", lambda g, r: 1e4 / r["weak"], "upside down")
instead("weak", lambda g, r: 1e4 / r["weak"] - 100, "by how much a step gets longer")
instead("serial", lambda g, r: 100 - r["strong"], "100 % minus the efficiency")
instead("serial", lambda g, r: 100 / reached(g), "an eighth of the rest")
instead("serial", lambda g, r: 100 - r["serial"], "the part that does get shorter")
instead("most", lambda g, r: reached(g), "the speed-up on eight GPUs")
instead(
    "most", lambda g, r: 1 / (1 - r["serial"] / 100), "the serial part is the one that shrinks"
)
instead("most", lambda g, r: r["serial"], "the serial part itself")
instead("most", lambda g, r: 8.0, "")

RIGHT = [by_hand, with_units]

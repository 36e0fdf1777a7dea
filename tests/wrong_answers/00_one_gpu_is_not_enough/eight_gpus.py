"""Answers to 00/eight_gpus: what a job gains when it moves from one GPU to eight."""

from dtlab.predict import Link, ring_all_reduce_seconds

# Right ----------------------------------------------------------------------------------------


def parts_of(given):
    """The three parts of a step with a batch that is shared out, in ms."""
    return {
        "compute": given["compute"] / 8,
        "latency": 2 * 7 * given["latency"] * 1e-3,
        "bandwidth": 2 * 7 / 8 * given["megabytes"] / given["bandwidth"],
    }


def by_hand(given):
    parts = parts_of(given)
    strong, weak = sum(parts.values()), sum(parts.values()) + 7 * parts["compute"]
    return {
        "effective": 8 * given["batch"],
        "steps": given["samples"] / (8 * given["batch"]),
        "strong": strong,
        "weak": weak,
        "efficiency": 100 * given["compute"] / weak,
        "lever": max(parts, key=parts.get),
    }


def by_the_library(given):
    link = Link(latency=1e-6 * given["latency"], bandwidth=1e9 * given["bandwidth"])
    ring = 1e3 * ring_all_reduce_seconds(1e6 * given["megabytes"], 8, link)
    compute = given["compute"]
    right = by_hand(given)
    return right | {
        "effective": float(right["effective"]),
        "steps": f"{right['steps']:g} steps",
        "strong": f"{compute / 8 + ring:.3f} ms",
        "weak": f"{compute + ring:.4f}",
        "efficiency": f"{100 * compute / (compute + ring):.2f} %",
        "lever": right["lever"].upper(),
    }


# Wrong ----------------------------------------------------------------------------------------

WRONG = {}


def instead(name, value, message=""):
    def answer(given):
        return by_hand(given) | {name: value(given)}

    answer.__name__ = f"{name}_{len(WRONG)}"
    WRONG[answer] = {name: message}


def ring(given):
    return parts_of(given)["latency"] + parts_of(given)["bandwidth"]


instead("effective", lambda g: g["batch"], "this is the batch of one GPU")
instead("effective", lambda g: g["batch"] / 8, "the batch is not divided")
instead("effective", lambda g: 7 * g["batch"], "is not it. Each step uses")
instead("steps", lambda g: g["samples"] / g["batch"], "on one GPU")
instead("steps", lambda g: g["samples"] / 8, "these are the samples of one GPU")
instead("steps", lambda g: g["samples"], "is not it. How many samples")
instead("strong", lambda g: g["compute"] / 8, "not averaged yet")
instead("strong", lambda g: g["compute"] + ring(g), "an eighth of the batch")
instead("strong", lambda g: g["compute"] / 8 + parts_of(g)["bandwidth"], "also takes the latency")
instead(
    "strong", lambda g: g["compute"] / 8 + g["megabytes"] / g["bandwidth"], "this is one message"
)
instead("weak", lambda g: g["compute"], "not averaged yet")
instead("weak", lambda g: g["compute"] / 8 + ring(g), "divided over eight GPUs")
instead("weak", lambda g: g["compute"] + 8 * ring(g), "gradients do not grow")
instead("efficiency", lambda g: by_hand(g)["efficiency"] / 8, "the work is not divided here")
instead("efficiency", lambda g: 1e4 / by_hand(g)["efficiency"], "this is upside down")
instead("efficiency", lambda g: 100 - by_hand(g)["efficiency"], "that the all-reduce takes")
instead("lever", lambda g: min(parts_of(g), key=parts_of(g).get), "another part of the step takes")
instead("lever", lambda g: sorted(parts_of(g), key=parts_of(g).get)[1], "another part of the")

RIGHT = [by_hand, by_the_library]

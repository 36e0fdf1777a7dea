"""Answers to 00/eight_gpus: a recipe for one GPU, moved to eight."""

from math import sqrt

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    return {
        "effective": 8 * given["batch"],
        "linear": 8 * given["rate"],
        "holds_for": {"SGD", "SGD with momentum"},
        "root": sqrt(8) * given["rate"],
        "steps": given["warmup"] * given["samples"] / (8 * given["batch"]),
        "why_warmup": "change",
    }


def written_out(given):
    right = by_hand(given)
    epoch = given["samples"] // (8 * given["batch"])
    return right | {
        "effective": float(right["effective"]),
        "linear": f"{8 * given['rate']:.4f}",
        "holds_for": ["sgd with momentum", "sgd"],
        "root": f"{2.828 * given['rate']:.6f}",
        "steps": f"{given['warmup'] * epoch} steps",
        "why_warmup": "CHANGE",
    }


# Wrong ----------------------------------------------------------------------------------------

WRONG = {}


def instead(name, value, message=""):
    def answer(given):
        return by_hand(given) | {name: value(given)}

    answer.__name__ = f"{name}_{len(WRONG)}"
    WRONG[answer] = {name: message}


instead("effective", lambda g: g["batch"], "this is the batch of one GPU")
instead("effective", lambda g: g["batch"] / 8, "the batch is not divided")
instead("effective", lambda g: 7 * g["batch"], "is not it. Each step uses")
instead("linear", lambda g: sqrt(8) * g["rate"], "this is the square root rule")
instead("linear", lambda g: g["rate"], "an eighth of the steps")
instead("linear", lambda g: g["rate"] / 8, "this makes each of them shorter")
instead("holds_for", lambda g: {"SGD", "SGD with momentum", "Adam"}, "look at Adam again")
instead("holds_for", lambda g: {"SGD", "SGD with momentum", "AdamW"}, "look at AdamW again")
instead("holds_for", lambda g: {"SGD"}, "trained with momentum")
instead("holds_for", lambda g: {"SGD with momentum"}, "k small steps of plain SGD")
instead("root", lambda g: 8 * g["rate"], "this is the linear rule")
instead("root", lambda g: g["rate"], "the rate grows with the batch")
instead("steps", lambda g: g["warmup"] * g["samples"] / g["batch"], "on one GPU")
instead("steps", lambda g: g["samples"] / g["batch"] / 8, "steps in one epoch")
instead("why_warmup", lambda g: "noise", "less noise, not more")
instead("why_warmup", lambda g: "agree", "ranks start with equal parameters")
instead("why_warmup", lambda g: "moments", "memory does not depend on the learning rate")

RIGHT = [by_hand, written_out]

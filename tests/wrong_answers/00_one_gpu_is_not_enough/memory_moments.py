"""Answers to 00/memory_moments: MB at five moments, and the first that is too much."""

NAMES = ("building", "forward", "backward", "step", "second")
BYTES = {"fp32": 4, "bf16": 2}
STATES = {"Adam": 2, "SGD with momentum": 1}

# Right ----------------------------------------------------------------------------------------


def pieces(given):
    weights = given["parameters"] * BYTES[given["dtype"]]
    late = given["clears"] == "right before each backward pass"
    return weights, STATES[given["optimizer"]] * weights, given["activations"], late * weights


def by_hand(given):
    weights, state, kept, stays = pieces(given)
    sizes = (weights, weights + kept, 2 * weights, 2 * weights + state,
             weights + state + stays + kept)  # fmt: skip
    dies = next((n for n, size in zip(NAMES, sizes, strict=True) if size > given["card"]), "never")
    return dict(zip(NAMES, sizes, strict=True)) | {"dies": dies}


def in_other_units(given):
    right = by_hand(given)
    return right | {
        "building": f"{right['building'] / 1000} GB",
        "forward": given["activations"] + float(right["building"]),
        "step": f"{right['step']:.1f} MB",
        "dies": right["dies"].upper(),
    }


# Wrong ----------------------------------------------------------------------------------------

WRONG = {}


def instead(name, value, message=""):
    def answer(given):
        right = by_hand(given)
        return right | {name: value(given, right, *pieces(given))}

    answer.__name__ = f"{name}_{len(WRONG)}"
    WRONG[answer] = {name: message}


instead("building", lambda g, r, w, s, a, late: 2 * w, "no gradients yet")
instead("building", lambda g, r, w, s, a, late: g["parameters"], "How many bytes does each")
instead("building", lambda g, r, w, s, a, late: w / 1.048576, "this would be right in MiB")
instead("building", lambda g, r, w, s, a, late: 3 * w, "is not it. Multiply the bytes")
instead("forward", lambda g, r, w, s, a, late: a, "the weights are still in memory")
instead("forward", lambda g, r, w, s, a, late: 2 * w + a, "no gradients yet")
instead("forward", lambda g, r, w, s, a, late: 9 * w + a, "is not it. The weights stay")
instead("backward", lambda g, r, w, s, a, late: 2 * w + a, "releases the activations")
instead("backward", lambda g, r, w, s, a, late: w, "the gradients are in memory now")
instead("backward", lambda g, r, w, s, a, late: r["step"], "no state before its first step")
instead("step", lambda g, r, w, s, a, late: 2 * w, "these are weights and gradients")
instead("step", lambda g, r, w, s, a, late: 5 * w - s, "how many numbers does your optimizer")
instead("step", lambda g, r, w, s, a, late: 9 * w, "is not it. What does the optimizer allocate")
instead("second", lambda g, r, w, s, a, late: w + a, "this is the first iteration")
instead("second", lambda g, r, w, s, a, late: 2 * w + s + a - late, "when does your loop clear")
instead("second", lambda g, r, w, s, a, late: 9 * w, "is not it. Add what the first")
for name in (*NAMES, "never"):
    instead("dies", lambda g, r, *_, name=name: name if name != r["dies"] else "after", "")

RIGHT = [by_hand, in_other_units]

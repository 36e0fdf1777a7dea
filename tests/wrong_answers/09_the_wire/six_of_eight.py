"""Answers to 09/six_of_eight: exposed communication, what is lost to it, and two laws."""

from dtlab.predict import Gradient, Link, amdahl, exposed_seconds, gustafson

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    alone = 3 * given["forward"] + given["optimizer"]
    exposed = given["ready"] + given["reduce"] - given["backward"]
    step = alone + exposed + given["input"]
    serial = given["optimizer"] / alone
    return {
        "exposed": exposed,
        "speed_up": 8 * alone / step,
        "lost": [8 * exposed / step, 8 * given["input"] / step],
        "amdahl": 1 / (serial + (1 - serial) / 8),
        "gustafson": serial + (1 - serial) * 8,
        "differ": "work",
    }


def by_the_library(given):
    """Buckets of 1 byte per ms on two ranks, whose ring sends each byte once."""
    rest = given["backward"] - given["ready"]
    gradients = [Gradient(given["ready"], given["reduce"] - 1), Gradient(rest, 1)]
    exposed = exposed_seconds(gradients, given["reduce"] - 1, 2, Link(0, 1))
    alone = given["forward"] + given["backward"] + given["optimizer"]
    step, serial = given["input"] + alone + exposed, given["optimizer"] / alone
    return {
        "exposed": f"{exposed} ms",
        "speed_up": 8 * alone / step,
        "lost": [8 * (1 - (step - waits) / step) for waits in (exposed, given["input"])],
        "amdahl": amdahl(serial, 8),
        "gustafson": gustafson(serial, 8),
        "differ": "work",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def alone(given):
    return 3 * given["forward"] + given["optimizer"]


whole_all_reduce = instead("exposed", lambda given, right: given["reduce"])
starts_with_backward = instead("exposed", lambda given, right: right - given["ready"])
starts_before = instead("exposed", lambda given, right: right - 2 * given["ready"])
behind_forward = instead(
    "exposed", lambda given, right: given["reduce"] - given["backward"] - given["forward"]
)
half_exposed = instead("exposed", lambda given, right: right / 2)
one_batch = instead("speed_up", lambda given, right: right / 8)
no_input = instead(
    "speed_up",
    lambda given, right: 8 * alone(given) / (alone(given) + by_hand(given)["exposed"]),
)
no_overlap = instead(
    "speed_up",
    lambda given, right: 8 * alone(given) / (alone(given) + given["reduce"] + given["input"]),
)
eight = instead("speed_up", lambda given, right: 8)
of_one_gpus_step = instead(
    "lost",
    lambda given, right: [
        8 * by_hand(given)["exposed"] / alone(given), 8 * given["input"] / alone(given)
    ],
)  # fmt: skip
shares = instead("lost", lambda given, right: [each / 8 for each in right])
input_first = instead("lost", lambda given, right: right[::-1])
one_each = instead("lost", lambda given, right: [1, 1])
limit = instead("amdahl", lambda given, right: alone(given) / given["optimizer"])
gustafsons = instead("amdahl", lambda given, right: by_hand(given)["gustafson"])
efficiency = instead("amdahl", lambda given, right: right / 8)
eight_times_the_work = instead("gustafson", lambda given, right: 8)
amdahls = instead("gustafson", lambda given, right: by_hand(given)["amdahl"])
optimizer_not_at_all = instead("gustafson", lambda given, right: right / 1.5)
serial_shrinks = instead("differ", lambda given, right: "serial")
about_the_wire = instead("differ", lambda given, right: "wire")

RIGHT = [by_hand, by_the_library]

WRONG = {
    whole_all_reduce: {"exposed": "this is the whole all-reduce"},
    starts_with_backward: {"exposed": "cannot start together with backward"},
    starts_before: {"exposed": "leaves more exposed, not less"},
    behind_forward: {"exposed": "in forward there is no gradient"},
    half_exposed: {"exposed": "is not it. When does the all-reduce end"},
    one_batch: {"speed_up": "this is the efficiency"},
    no_input: {"speed_up": "waits for its input too"},
    no_overlap: {"speed_up": "this is without overlap"},
    eight: {"speed_up": "is not it. Eight batches"},
    of_one_gpus_step: {"lost": "take shares of the step on eight GPUs"},
    shares: {"lost": "shares of one GPU's time"},
    input_first: {"lost": "write the all-reduce first"},
    one_each: {"lost": "is not it. For which share"},
    limit: {"amdahl": "the limit for any number of GPUs"},
    gustafsons: {"amdahl": "this is Gustafson's"},
    efficiency: {"amdahl": "is not it. Which share"},
    eight_times_the_work: {"gustafson": "the same one"},
    amdahls: {"gustafson": "this is Amdahl's"},
    optimizer_not_at_all: {"gustafson": "is not it. How long would one GPU take"},
    serial_shrinks: {"differ": "the optimizer takes as long in both"},
    about_the_wire: {"differ": "neither of them counts communication"},
}

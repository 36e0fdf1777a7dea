"""Answers to 09/three_times_job: levers for a job on eight ranks, and what each gains.

An answer is a function of the given values that returns what is handed in.
"""

import functools
from dataclasses import replace

from dtlab.units.unit09.levers import predicted_seconds

GOAL = 6.15

# Right ------------------------------------------------------------------------------------------


def seconds(given, levers):
    """The seconds of a step, by hand."""
    job, nodes, gpus = given["job"], given["cluster"].nodes, given["cluster"].gpus_per_node
    inside, between = given["cluster"].intra, given["cluster"].inter
    forward, backward = (job.kernel + times * levers.samples * job.sample / 4 for times in (1, 2))

    def all_reduce(nbytes):
        if levers.hierarchical:
            rounds, last = 2 * (gpus - 1), 2 * (nodes - 1)
            return rounds * inside.seconds(nbytes / gpus) + last * between.seconds(nbytes / 8)
        return 14 * between.seconds(nbytes / 8)

    now, free, waited, held = 0.0, 0.0, 0.0, 0
    for number, nbytes in enumerate(job.gradients):
        now, held = now + backward, held + nbytes
        if held >= levers.bucket_mb * 2**20 or number == 3:
            takes = all_reduce(held / 2 if levers.sixteen_bit else held)
            free, waited, held = max(now, free) + takes, waited + takes, 0
    exposed = free - now if levers.overlap else waited
    rest = levers.accumulate * 4 * (forward + backward) + exposed + job.optimizer
    load = levers.samples * levers.accumulate * job.load
    return max(rest, load) if levers.prefetch else rest + load


def by_hand(given, after):
    return after.samples * after.accumulate / seconds(given, after)


def by_the_library(given, after):
    cluster = given["job"].on(given["cluster"])
    return after.per_step / predicted_seconds(given["job"], after, cluster)


def values(given, levers):
    return {
        "prefetch": 2,
        "hierarchical": True,
        "samples": given["most_samples"] // levers.accumulate,
        "overlap": True,
        "sixteen_bit": True,
        "accumulate": 8 // levers.samples,
        "bucket_mb": 30,
    }


def one_rank(given):
    """The speed of one rank."""
    job, most = given["job"], given["most_samples"]
    return most / (8 * job.kernel + 3 * most * job.sample + job.optimizer)


def found(given, speed=by_hand, goal=GOAL):
    """The lever that gains most, again and again."""
    now, levers, gains = given["first"], [], []
    while 8 * speed(given, now) < goal * one_rank(given):
        tried = {name: replace(now, **{name: v}) for name, v in values(given, now).items()}
        name = max(tried, key=lambda one: speed(given, tried[one]))
        levers.append((name, getattr(tried[name], name)))
        gains.append(speed(given, tried[name]) / speed(given, now))
        now = tried[name]
    return {"first": levers[0][0], "levers": levers, "gains": gains}


def greedy(given):
    return found(given)


def as_lists(given):
    """By the library, further than needed, and rounded."""
    answer = found(given, by_the_library, 6.5)
    return {
        "first": answer["first"].upper(),
        "levers": [list(entry) for entry in answer["levers"]],
        "gains": [round(gain, 2) for gain in answer["gains"]],
    }


RIGHT = [greedy, as_lists]


# Wrong ------------------------------------------------------------------------------------------


def but(key):
    """The right answer, but for this entry: `change(given, its right value)`."""

    def decorate(change):
        @functools.wraps(change)
        def answer(given):
            right = found(given)
            return right | {key: change(given, right[key])}

        return answer

    return decorate


@but("first")
def overlap_first(given, right):
    return "overlap"


@but("first")
def smaller_buckets_first(given, right):
    return "bucket_mb"


@but("first")
def accumulate_first(given, right):
    return "accumulate"


@but("first")
def the_network(given, right):
    return "network"


@but("levers")
def more_samples_than_fit(given, right):
    return [("samples", 16)]


@but("levers")
def a_batch_too_large(given, right):
    return [("samples", 8), ("accumulate", 2)]


@but("levers")
def as_it_is(given, right):
    return [("prefetch", 0), *right]


@but("levers")
def no_lever(given, right):
    return [("compression", True)]


@but("levers")
def a_number_for_a_switch(given, right):
    return [("overlap", 1)]


@but("levers")
def samples_as_text(given, right):
    return [("samples", "eight")]


@but("levers")
def two_at_once(given, right):
    return [{"overlap": True, "sixteen_bit": True}]


@but("levers")
def a_dict(given, right):
    return dict(right)


@but("levers")
def everything(given, right):
    switches = [(name, on) for on in (True, False) for name in ("overlap", "sixteen_bit")]
    return [*right, *switches]


def with_an_idle_one(given):
    """Smaller buckets hide nothing without overlap."""
    right = found(given)
    first = replace(given["first"], bucket_mb=25.0)
    gain = by_hand(given, first) / by_hand(given, given["first"])
    rest = gains_of(given, right["levers"], first)
    levers = [("bucket_mb", 25), *right["levers"]]
    return right | {"levers": levers, "gains": [gain, *rest]}


def gains_of(given, levers, now):
    gains = []
    for name, value in levers:
        after = replace(now, **{name: value})
        gains.append(by_hand(given, after) / by_hand(given, now))
        now = after
    return gains


def two_levers(given):
    right = found(given)
    return right | {key: right[key][:2] for key in ("levers", "gains")}


@but("gains")
def shares(given, right):
    return [gain - 1 for gain in right]


@but("gains")
def ratios_of_seconds(given, right):
    return [1 / gain for gain in right]


@but("gains")
def speed_ups(given, right):
    """Over one rank, after each lever."""
    reached = 3.0
    return [reached := reached * gain for gain in right]


@but("gains")
def no_gain(given, right):
    return [1.0] * len(right)


@but("gains")
def twice_the_gain(given, right):
    return [2 * gain - 1 for gain in right]


@but("gains")
def one_too_few(given, right):
    return right[:-1]


@but("gains")
def in_words(given, right):
    return ["a lot"] * len(right)


WRONG = {
    overlap_first: {"first": "Only what backward computes"},
    smaller_buckets_first: {"first": "smaller buckets hide nothing"},
    accumulate_first: {"first": "with the limit on the batch it is at most 2"},
    the_network: {"first": "none of the options"},
    two_levers: {"levers": "the goal is 6"},
    more_samples_than_fit: {"levers": "a rank has room for 8"},
    a_batch_too_large: {"levers": "at most 64 are useful"},
    as_it_is: {"levers": "it is that already"},
    no_lever: {"levers": "The levers are samples, accumulate"},
    a_number_for_a_switch: {"levers": "the value is True or False"},
    samples_as_text: {"levers": "the value is a number"},
    two_at_once: {"levers": "write one lever, as"},
    a_dict: {"levers": "is a dict: write a list"},
    everything: {"levers": "entries, and 6 are allowed"},
    with_an_idle_one: {"levers": "bucket_mb gains nothing there"},
    shares: {"gains": "That is a share"},
    ratios_of_seconds: {"gains": "ratio of the seconds"},
    speed_ups: {"gains": "It gains less"},
    no_gain: {"gains": "It gains more"},
    twice_the_gain: {"gains": "It gains less"},
    one_too_few: {"gains": "one for each lever"},
    in_words: {"gains": "is no number"},
}

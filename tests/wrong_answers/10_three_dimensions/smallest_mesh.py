"""Answers to 10/smallest_mesh: cards for a model, its mesh, replicas, batch and bubble."""

from fractions import Fraction
from math import ceil, floor

from dtlab.predict import Costs, bubble, simulate
from dtlab.predict.communication import bus_factor
from dtlab.predict.memory import PrecisionPolicy, smallest_world_size
from dtlab.schedules import one_f_one_b

# Right ----------------------------------------------------------------------------------------


def stages_of(given):
    """The smallest divisor of the layers with which 8 GPUs hold the states of each stage."""
    return min(
        stages
        for stages in range(1, given["layers"] + 1)
        if given["layers"] % stages == 0 and given["weights"] <= stages * given["room"]
    )


def by_hand(given):
    stages, m = stages_of(given), given["count"]
    replicas = given["gpus"] // (8 * stages)
    return {
        "weights": ceil(given["weights"] / 80),
        "training": ceil(8 * given["weights"] / given["room"]),
        "mesh": [8, stages],
        "ratio": 4 * given["layers"] / stages * 7 / 8,
        "replicas": replicas,
        "batch": given["micro"] * m * replicas,
        "bubble": (stages - 1) / (m + stages - 1),
        "doubled": (stages - 1) / (m / 2 + stages - 1),
    }


def by_the_library(given):
    """In bytes and as text; the bubbles are those of a simulated step."""
    params = given["weights"] * 10**9 // 2
    alone = PrecisionPolicy("weights alone", 2, 0, moments=0)
    cards = smallest_world_size(params, 3, given["room"] * 1e9, "mixed")
    stages = next(p for p in range(1, 99) if given["layers"] % p == 0 and 8 * p >= cards)
    replicas = given["gpus"] / (8 * stages)
    elements = 4 * given["layers"] / stages * bus_factor("all_reduce", 8)
    idle = [
        bubble(simulate(one_f_one_b(stages, count), Costs(1.0, 1.0, 1.0)))
        for count in (given["count"], given["count"] // 2)
    ]
    return {
        "weights": f"{smallest_world_size(params, 3, 80e9, alone)} GPUs",
        "training": cards,
        "mesh": (8, stages),
        "ratio": f"{elements / 2} times",
        "replicas": f"{replicas} replicas",
        "batch": f"{given['micro'] * given['count'] * replicas} sequences",
        "bubble": f"{100 * idle[0]} %",
        "doubled": f"{100 * idle[1]} %",
    }


def by_fractions(given):
    stages, m = stages_of(given), given["count"]
    replicas = Fraction(given["gpus"], 8 * stages)
    doubled = Fraction(given["micro"] * m * replicas, given["micro"] * 2 * replicas)
    return {
        "weights": -(-given["weights"] // 80),
        "training": -(-8 * given["weights"] // given["room"]),
        "mesh": ("8", str(stages)),
        "ratio": Fraction(7 * given["layers"], 2 * stages),
        "replicas": replicas,
        "batch": given["micro"] * m * replicas,
        "bubble": Fraction(stages - 1, m + stages - 1),
        "doubled": (stages - 1) / (doubled + stages - 1),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def wrong(name, function):
    """A wrong answer: a function of the given values, the stages and the right answer."""

    def answer(given):
        value = function(given, stages_of(given), by_hand(given)[name])
        return instead(given, **{name: value})

    return answer


rounded_down = wrong("weights", lambda given, p, right: floor(given["weights"] / 80))
one_byte = wrong("weights", lambda given, p, right: ceil(given["weights"] / 160))
states_first = wrong("weights", lambda given, p, right: ceil(given["weights"] / 10))
one_node = wrong("weights", lambda given, p, right: 64)

eight_bytes = wrong("training", lambda given, p, right: ceil(4 * given["weights"] / given["room"]))
full_cards = wrong("training", lambda given, p, right: ceil(8 * given["weights"] / 80))
sixteen_times = wrong(
    "training", lambda given, p, right: ceil(16 * given["weights"] / given["room"])
)
no_optimizer = wrong(
    "training", lambda given, p, right: ceil(2 * given["weights"] / given["room"])
)
one_card_too_few = wrong("training", lambda given, p, right: right - 1)

tensor_across = wrong("mesh", lambda given, p, right: [p, 8])
tensor_alone = wrong(
    "mesh", lambda given, p, right: [ceil(8 * given["weights"] / given["room"]), 1]
)
pipeline_alone = wrong(
    "mesh", lambda given, p, right: [1, ceil(8 * given["weights"] / given["room"])]
)
uneven_stages = wrong("mesh", lambda given, p, right: [8, ceil(given["weights"] / given["room"])])
twice_the_stages = wrong("mesh", lambda given, p, right: [8, 2 * p])
product_of_the_mesh = wrong("mesh", lambda given, p, right: 8 * p)

forward_alone = wrong("ratio", lambda given, p, right: right / 2)
one_layer = wrong("ratio", lambda given, p, right: 3.5)
every_layer = wrong("ratio", lambda given, p, right: 3.5 * given["layers"])
no_ring = wrong("ratio", lambda given, p, right: 2 * given["layers"] / p)
one_neighbour = wrong("ratio", lambda given, p, right: 2 * right)
the_other_way_round = wrong("ratio", lambda given, p, right: 1 / right)

nodes = wrong("replicas", lambda given, p, right: given["gpus"] // 8)
over_stages = wrong("replicas", lambda given, p, right: given["gpus"] // p)
all_of_them = wrong("replicas", lambda given, p, right: given["gpus"])
one_replica_more = wrong("replicas", lambda given, p, right: right + 1)

times_all_gpus = wrong(
    "batch", lambda given, p, right: given["micro"] * given["count"] * given["gpus"]
)
of_one_replica = wrong("batch", lambda given, p, right: given["micro"] * given["count"])
one_microbatch = wrong("batch", lambda given, p, right: right // given["count"])
times_stages = wrong("batch", lambda given, p, right: right * p)
in_microbatches = wrong("batch", lambda given, p, right: right // given["micro"])

over_ideal = wrong("bubble", lambda given, p, right: (p - 1) / given["count"])
a_stage_too_many = wrong("bubble", lambda given, p, right: p / (given["count"] + p))
a_stage_on_each_gpu = wrong(
    "bubble", lambda given, p, right: (8 * p - 1) / (given["count"] + 8 * p - 1)
)
computing = wrong("bubble", lambda given, p, right: 1 - right)
a_tenth_of_it = wrong("bubble", lambda given, p, right: right / 10)

as_before = wrong("doubled", lambda given, p, right: by_hand(given)["bubble"])
more_microbatches = wrong(
    "doubled", lambda given, p, right: (p - 1) / (2 * given["count"] + p - 1)
)
doubled_over_ideal = wrong("doubled", lambda given, p, right: 2 * (p - 1) / given["count"])
twice_the_share = wrong("doubled", lambda given, p, right: 2 * by_hand(given)["bubble"])
no_bubble = wrong("doubled", lambda given, p, right: 0)


RIGHT = [by_hand, by_the_library, by_fractions]

WRONG = {
    rounded_down: {"weights": "a part of the weights is left over"},
    one_byte: {"weights": "one byte per parameter"},
    states_first: {"weights": "this is for training"},
    one_node: {"weights": "is not it. Divide the bytes"},
    eight_bytes: {"training": "What is in fp32"},
    full_cards: {"training": "Where do activations go"},
    sixteen_times: {"training": "mistakes bytes of weights for parameters"},
    no_optimizer: {"training": "What does the optimizer keep"},
    one_card_too_few: {"training": "is not it. How many bytes per parameter"},
    tensor_across: {"mesh": "here tensor parallelism goes across nodes"},
    tensor_alone: {"mesh": "all-reduces of every layer go across nodes"},
    pipeline_alone: {"mesh": "here each GPU is a pipeline stage"},
    uneven_stages: {"mesh": "Do they divide the layers"},
    twice_the_stages: {"mesh": "is not it. Which axis sends more"},
    product_of_the_mesh: {"mesh": "write a list of 2 numbers"},
    forward_alone: {"ratio": "half of it"},
    one_layer: {"ratio": "this is one layer"},
    every_layer: {"ratio": "these are all layers"},
    no_ring: {"ratio": "What does a ring send"},
    one_neighbour: {"ratio": "a gradient to the other"},
    the_other_way_round: {"ratio": "is not it. Multiply the all-reduces"},
    nodes: {"replicas": "these are nodes"},
    over_stages: {"replicas": "this divides by the stages"},
    all_of_them: {"replicas": "takes more than one GPU"},
    one_replica_more: {"replicas": "is not it. How many GPUs"},
    times_all_gpus: {"batch": "this multiplies by all GPUs"},
    of_one_replica: {"batch": "the batch of one replica"},
    one_microbatch: {"batch": "one microbatch of each replica"},
    times_stages: {"batch": "work on the same samples"},
    in_microbatches: {"batch": "is not it. Which ranks have different samples"},
    over_ideal: {"bubble": "this divides by the ideal time"},
    a_stage_too_many: {"bubble": "one too many"},
    a_stage_on_each_gpu: {"bubble": "a stage on each GPU"},
    computing: {"bubble": "in which a stage computes"},
    a_tenth_of_it: {"bubble": "is not it. For how many microbatches"},
    as_before: {"doubled": "this is as before"},
    more_microbatches: {"doubled": "twice as many microbatches"},
    doubled_over_ideal: {"doubled": "this divides by the ideal time"},
    twice_the_share: {"doubled": "What about the total"},
    no_bubble: {"doubled": "is not it. Twice as many replicas"},
}

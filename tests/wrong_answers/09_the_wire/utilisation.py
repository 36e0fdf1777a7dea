"""Answers to 09/utilisation: half of the time, 40 % busy, MFU, and the cost of a run."""

from dtlab.predict import Card, Link, mfu, ring_all_reduce_seconds, run_cost

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    n = given["gpus"]
    all_reduce = 2 * (n - 1) / n * 2 / (given["node"] * 1e9)  # seconds per parameter
    half = all_reduce / (6 * 2048 / (n * given["reached"] * 1e12))
    step = given["idle"] + given["work"] + given["nccl"]
    hours = given["trillions"] * 1e12 / given["rate"] / 3600 * given["cards"]
    return {
        "half": half,
        "share": half / (half + 1536),
        "low": "input",
        "shown": [(given["work"] + given["nccl"]) / step, given["work"] / step],
        "mfu": 6e9 * given["size"] * given["rate"] / (given["cards"] * given["peak"] * 1e12),
        "cost": [hours, hours * given["price"]],
    }


def by_the_library(given):
    """Seconds of a step of the whole model, and operations of the whole run."""
    n, parameters = given["gpus"], given["billions"] * 1e9
    wire = ring_all_reduce_seconds(2 * parameters, n, Link(0, given["node"] * 1e9))
    each = 6 * parameters * 2048 / (n * given["reached"] * 1e12)
    reached = mfu(
        given["rate"], given["cards"], given["peak"] * 1e12, parameters=given["size"] * 1e9
    )
    card = Card("a card", 80, bf16_flops=given["peak"] * 1e12)
    flops = 6e9 * given["size"] * given["trillions"] * 1e12
    cost = run_cost(flops, card, given["cards"], reached, given["price"])
    total = given["idle"] + given["work"] + given["nccl"]
    return {
        "half": wire / each,
        "share": f"{100 * wire / (wire + 1536 * each)} %",
        "low": "input",
        "shown": [f"{100 - 100 * given['idle'] / total} %", f"{100 * given['work'] / total} %"],
        "mfu": f"{100 * reached} %",
        "cost": [cost.gpu_hours, cost.dollars],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def times(factor):
    return lambda given, right: factor * right


def with_half(factor):
    """The share if the batch counts `factor` times as much."""
    return lambda given, right: (
        by_hand(given)["half"] / (by_hand(given)["half"] + factor(given) * 1536)
    )


one_gpus = instead("half", lambda given, right: right / given["gpus"])
no_ring = instead("half", lambda given, right: right / 2 * given["gpus"] / (given["gpus"] - 1))
ring_of_nodes = instead(
    "half", lambda given, right: right * (given["gpus"] - 8) / (given["gpus"] - 1)
)
forward_alone = instead("half", times(3))
in_tokens = instead("half", times(2048))
seven_times = instead("half", times(7))
the_claim = instead("share", lambda given, right: 0.5)
for_each_gpu = instead("share", with_half(lambda given: given["gpus"]))
of_computing = instead("share", lambda given, right: 1 - right)
a_fifth = instead("share", lambda given, right: 0.2)
the_network = instead("low", lambda given, right: "network")
a_slow_rank = instead("low", lambda given, right: "straggler")
small_kernels = instead("low", lambda given, right: "batch")
nccl_is_idle = instead("shown", lambda given, right: [right[1], right[1]])
nccl_computes = instead("shown", lambda given, right: [right[0], right[0]])
computing_first = instead("shown", lambda given, right: right[::-1])
always_busy = instead("shown", lambda given, right: [1, 1])
forward_mfu = instead("mfu", times(1 / 3))
sparse_peak = instead("mfu", lambda given, right: right * given["peak"] / given["sparse"])
one_peak = instead("mfu", lambda given, right: right * given["cards"])
recomputed = instead("mfu", times(4 / 3))
a_tenth = instead("mfu", times(1 / 10))
hours_of_the_run = instead("cost", lambda given, right: [each / given["cards"] for each in right])
gpu_days = instead("cost", lambda given, right: [each / 24 for each in right])
price_of_all = instead("cost", lambda given, right: [right[0], right[1] / given["cards"]])
nothing_yet = instead("cost", lambda given, right: [1, 1])

RIGHT = [by_hand, by_the_library]

WRONG = {
    one_gpus: {"half": "this is for one GPU"},
    no_ring: {"half": "almost twice the bytes"},
    ring_of_nodes: {"half": "How many members has a ring over all GPUs?"},
    forward_alone: {"half": "counts forward alone"},
    in_tokens: {"half": "these are tokens"},
    seven_times: {"half": "is not it. How long is the all-reduce"},
    the_claim: {"share": "the text's claim"},
    for_each_gpu: {"share": "the batch of all GPUs together"},
    of_computing: {"share": "the share of computing"},
    a_fifth: {"share": "is not it. The all-reduce takes as long"},
    the_network: {"low": "close to 100 %"},
    a_slow_rank: {"low": "close to 100 %"},
    small_kernels: {"low": "however little it uses"},
    nccl_is_idle: {"shown": "counts as busy while it waits"},
    nccl_computes: {"shown": "NCCL does not compute the model"},
    computing_first: {"shown": "write what nvidia-smi shows first"},
    always_busy: {"shown": "is not it. For the first"},
    forward_mfu: {"mfu": "counts forward alone"},
    sparse_peak: {"mfu": "compare it with the dense peak"},
    one_peak: {"mfu": "divide by all their peaks"},
    recomputed: {"mfu": "MFU does not"},
    a_tenth: {"mfu": "is not it. Operations per second"},
    hours_of_the_run: {"cost": "You pay for every GPU"},
    gpu_days: {"cost": "these are GPU days"},
    price_of_all: {"cost": "the price is that of one GPU hour"},
    nothing_yet: {"cost": "is not it. How many hours"},
}

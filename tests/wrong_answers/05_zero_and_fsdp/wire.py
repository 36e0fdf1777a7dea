"""Answers to 05/wire: what each rank sends in a step, by stage, with accumulation."""

from fractions import Fraction

from dtlab.predict import zero_traffic

# Right ----------------------------------------------------------------------------------------


def passes(given, count):
    """Billions of elements, if all of them go round so many times."""
    return count * given["parameters"] * (given["ranks"] - 1) / given["ranks"]


def by_hand(given):
    k = given["count"]
    return {
        "ddp": passes(given, 2),
        "stage_1": [passes(given, 2), passes(given, 3)],
        "stage_2": passes(given, k + 1),
        "stage_3": passes(given, 3 * k),
        "kept": passes(given, 2 * k),
        "gigabytes": passes(given, 2 * k * 2 + k * 4),
        "each": "same",
    }


def by_the_library(given):
    """As text, as fractions, in bytes."""
    params, ranks, k = round(given["parameters"] * 1e9), given["ranks"], given["count"]

    def elements(stage, **how):
        return zero_traffic(params, stage, ranks, k, **how).elements / 1e9

    return {
        "ddp": f"{float(Fraction(params, 10**9)) * 2 * (ranks - 1)}/{ranks}",
        "stage_1": [elements(1), elements(1, gradients_everywhere=True)],
        "stage_2": str(elements(2)),
        "stage_3": elements(3),
        "kept": elements(3, reshard_after_forward=False),
        "gigabytes": zero_traffic(params, 3, ranks, k).nbytes(2, 4),
        "each": "it does not depend on k",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def times(name, count):
    """With so many passes, of k microbatches, for one of the answers."""

    def answer(given):
        return instead(given, **{name: passes(given, count(given["count"]))})

    return answer


def without_the_ring(name, count):
    def answer(given):
        return instead(given, **{name: count(given["count"]) * given["parameters"]})

    return answer


def stage_1_of(first, second):
    def answer(given):
        return instead(given, stage_1=[passes(given, first), passes(given, second)])

    return answer


def gigabytes_of(parameters, gradients):
    def answer(given):
        k = given["count"]
        return instead(given, gigabytes=passes(given, 2 * k * parameters + k * gradients))

    return answer


ddp_as_the_paper_counts = without_the_ring("ddp", lambda k: 2)
half_an_all_reduce = times("ddp", lambda k: 1)
without_no_sync = times("ddp", lambda k: 2 * k)
central_server = times("ddp", lambda k: 7.3)
both_as_ddp = stage_1_of(2, 2)
both_as_pytorch = stage_1_of(3, 3)
weights_are_not_sent = stage_1_of(1, 2)
other_way_round = stage_1_of(3, 2)
added_up_first = times("stage_2", lambda k: 2)
weights_each_time = times("stage_2", lambda k: 2 * k)
stage_2_as_the_paper_counts = without_the_ring("stage_2", lambda k: k + 1)
gradients_alone = times("stage_2", lambda k: k)
forward_only = times("stage_3", lambda k: 2 * k)
accumulation_is_free = times("stage_3", lambda k: 3)
gradients_once = times("stage_3", lambda k: 2 * k + 1)
stage_3_as_the_paper_counts = without_the_ring("stage_3", lambda k: 3 * k)
four_times = times("stage_3", lambda k: 4 * k)
as_if_freed = times("kept", lambda k: 3 * k)
gathered_once_in_a_step = times("kept", lambda k: k + 1)
only_gathered = times("kept", lambda k: k)
sixteen_bits = gigabytes_of(2, 2)
all_in_fp32 = gigabytes_of(4, 4)
wrong_way_round = gigabytes_of(4, 2)
elements_for_bytes = gigabytes_of(1, 1)


def both_in_one(given):
    return instead(given, stage_1=passes(given, 2))


def in_elements(given):
    return instead(given, stage_3=by_hand(given)["stage_3"] * 1e9)


def falls(given):
    """Claim 18."""
    return instead(given, each="falls")


def grows(given):
    return instead(given, each="grows")


RIGHT = [by_hand, by_the_library]

WRONG = {
    ddp_as_the_paper_counts: {"ddp": "the paper counts this way"},
    half_an_all_reduce: {"ddp": "half of an all-reduce"},
    without_no_sync: {"ddp": "skips the all-reduce in all microbatches"},
    central_server: {"ddp": "is not it. An all-reduce is"},
    both_as_ddp: {"stage_1": "DDP's all-reduce gives all ranks"},
    both_as_pytorch: {"stage_1": "only the owner receives its gradients"},
    weights_are_not_sent: {"stage_1": "owners must send the weights"},
    other_way_round: {"stage_1": "is not it. The second all-reduces"},
    both_in_one: {"stage_1": "write a list of 2 numbers"},
    added_up_first: {"stage_2": "no memory to accumulate"},
    weights_each_time: {"stage_2": "weights change once in a step"},
    stage_2_as_the_paper_counts: {"stage_2": "the paper counts this way"},
    gradients_alone: {"stage_2": "is not it. Which gradients"},
    forward_only: {"stage_3": "in the forward pass only"},
    accumulation_is_free: {"stage_3": "this is one microbatch"},
    gradients_once: {"stage_3": "keep whole gradients until"},
    stage_3_as_the_paper_counts: {"stage_3": "the paper counts this way"},
    four_times: {"stage_3": "is not it. Count one microbatch first"},
    in_elements: {"stage_3": "is not it. Count one microbatch first"},
    as_if_freed: {"kept": "the weights are still whole"},
    gathered_once_in_a_step: {"kept": "again in each microbatch's forward"},
    only_gathered: {"kept": "is not it. Take your `stage_3`"},
    sixteen_bits: {"gigabytes": "sends gradients in 16 bits"},
    all_in_fp32: {"gigabytes": "gathers weights in fp32"},
    wrong_way_round: {"gigabytes": "exchanges the two dtypes"},
    elements_for_bytes: {"gigabytes": "how many bytes has each"},
    falls: {"each": "this holds for stages 0 and 1"},
    grows: {"each": "a step sends more"},
}

"""Answers to 00/scenarios: the strategy of three jobs, and the fact that drove each."""

import math

# Right ----------------------------------------------------------------------------------------


def of_job(job):
    """By hand, from the bytes of each stage."""
    states, kept, gpus = 16 * job["billions"], job["activations"], job["gpus"]
    if states + kept <= job["card"]:
        if job["hours"] <= job["deadline"]:
            return "one GPU", "time"
        enough = math.ceil(job["hours"] / job["deadline"]) <= gpus
        return ("data parallelism", "time") if enough else ("more GPUs", "GPUs in time")
    for stage, stays in ((1, 4), (2, 2), (3, 0)):
        if (stays + (16 - stays) / gpus) * job["billions"] + kept <= job["card"]:
            return f"ZeRO-{stage}", "replica"
    raise AssertionError("it fits at stage 3 for everybody")


def by_hand(given):
    answers = {}
    for name, job in given.items():
        answers[name], answers[f"{name}_fact"] = of_job(job)
    return answers


def by_the_library(given):
    """By `choose`; in other letters."""
    from dtlab.units.unit00.strategies import fact_of, strategy_of

    answers = {}
    for name, job in given.items():
        answers[name] = strategy_of(job).upper()
        answers[f"{name}_fact"] = f" {fact_of(job)} "
    return answers


# Wrong ----------------------------------------------------------------------------------------


def instead(name, *values):
    """The first of these that is not right."""

    def answer(given):
        right = by_hand(given)
        return right | {name: next(value for value in values if value != right[name])}

    answer.__name__ = f"{name}_{values[0]}"
    return answer


more_for_resnet = instead("resnet", "more GPUs", "data parallelism")
sharded_resnet = instead("resnet", "ZeRO-3")
one_card_for_a_week = instead("resnet", "one GPU")
memory_drives_resnet = instead("resnet_fact", "replica")
gpus_drive_resnet = instead("resnet_fact", "GPUs in time", "time")
replicas_of_forty_billion = instead("transformer", "data parallelism")
stage_1_for_it = instead("transformer", "ZeRO-1")
tensor_parallel_at_once = instead("transformer", "tensor parallelism")
another_stage = instead("transformer", "ZeRO-3", "ZeRO-2")
split_its_samples = instead("transformer", "split samples")
time_drives_it = instead("transformer_fact", "time")
stage_3_drives_it = instead("transformer_fact", "stage 3")
samples_drive_it = instead("transformer_fact", "sample")
nothing_is_enough_for_it = instead("transformer_fact", "everything shared")
eight_are_faster = instead("small", "data parallelism")
sharded_small = instead("small", "ZeRO-1")
split_small = instead("small", "split samples and ZeRO-3")
memory_drives_small = instead("small_fact", "replica")
gpus_drive_small = instead("small_fact", "GPUs in time")
a_strategy_of_its_own = instead("small", "pipeline")

RIGHT = [by_hand, by_the_library]

WRONG = {
    more_for_resnet: {"resnet": ""},
    sharded_resnet: {"resnet": "stage 3 shards all model states"},
    one_card_for_a_week: {"resnet": "does one GPU meet the deadline"},
    memory_drives_resnet: {"resnet_fact": "does a replica fit"},
    gpus_drive_resnet: {"resnet_fact": "depend on it here"},
    replicas_of_forty_billion: {"transformer": "each GPU holds a whole replica"},
    stage_1_for_it: {"transformer": "stage 1 shards Adam's state"},
    tensor_parallel_at_once: {"transformer": "do not fit with ZeRO stage 3"},
    another_stage: {"transformer": "Is that needed here, and is it enough"},
    split_its_samples: {"transformer": "do the activations of one microbatch fit"},
    time_drives_it: {"transformer_fact": "decides only if a replica fits"},
    stage_3_drives_it: {"transformer_fact": "if the job does not fit with ZeRO stage 3"},
    samples_drive_it: {"transformer_fact": "compare the activations"},
    nothing_is_enough_for_it: {"transformer_fact": "this is the last question"},
    eight_are_faster: {"small": "is one GPU too slow"},
    sharded_small: {"small": "Is that needed here"},
    split_small: {"small": "do the activations of one microbatch fit"},
    memory_drives_small: {"small_fact": "does a replica fit"},
    gpus_drive_small: {"small_fact": "one GPU is too slow"},
    a_strategy_of_its_own: {"small": "is none of the options"},
}

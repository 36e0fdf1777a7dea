"""Answers to 03/effective_batch: how many samples have a say in a step, and how many steps."""

from math import ceil

# Right ----------------------------------------------------------------------------------------


def copies_of_c(given):
    return given["c"]["gpus"] // given["c"]["degree"]


def by_hand(given):
    a, b, c = given["a"], given["b"], given["c"]
    together = copies_of_c(given) * c["micro"]
    rounds = given["samples"] // together
    steps = ceil(rounds / c["count"])
    return {
        "accumulated": a["micro"] * a["count"],
        "data_parallel": b["gpus"] * b["micro"],
        "tensor_parallel": together * c["count"],
        "micro_batches": given["wanted"] // together,
        "steps": steps,
        "all_reduces": rounds,
        "no_sync": steps,
    }


def groups_of(things, size):
    return [things[start : start + size] for start in range(0, len(things), size)]


def dealt_out(given):
    """By dealing the data set out to copies, microbatches and steps; some answers as text."""
    a, b, c = given["a"], given["b"], given["c"]
    own = range(given["samples"])[:: copies_of_c(given)]
    micro_batches = groups_of(own, c["micro"])
    steps = groups_of(micro_batches, c["count"])
    return {
        "accumulated": f"{a['micro'] * a['count']} samples",
        "data_parallel": str(b["gpus"] * b["micro"]),
        "tensor_parallel": float(copies_of_c(given) * sum(map(len, steps[0]))),
        "micro_batches": f"{given['wanted']}/{copies_of_c(given) * c['micro']}",
        "steps": len(steps),
        "all_reduces": len(micro_batches),
        "no_sync": len([step[-1] for step in steps]),
    }


# Wrong ----------------------------------------------------------------------------------------


def one_micro_batch(given):
    return by_hand(given) | {"accumulated": given["a"]["micro"]}


def micro_batches_for_samples(given):
    return by_hand(given) | {"accumulated": given["a"]["count"]}


def micro_plus_count(given):
    return by_hand(given) | {"accumulated": given["a"]["micro"] + given["a"]["count"]}


def one_gpu(given):
    return by_hand(given) | {"data_parallel": given["b"]["micro"]}


def split_among_gpus(given):
    return by_hand(given) | {"data_parallel": given["b"]["micro"] / given["b"]["gpus"]}


def gpus_plus_micro(given):
    return by_hand(given) | {"data_parallel": given["b"]["micro"] + given["b"]["gpus"]}


def every_gpu_is_a_copy(given):
    c = given["c"]
    return by_hand(given) | {"tensor_parallel": c["gpus"] * c["micro"] * c["count"]}


def one_copy(given):
    c = given["c"]
    return by_hand(given) | {"tensor_parallel": c["micro"] * c["count"]}


def gpus_of_one_copy(given):
    c = given["c"]
    return by_hand(given) | {"tensor_parallel": c["degree"] * c["micro"] * c["count"]}


def without_accumulation(given):
    return by_hand(given) | {"tensor_parallel": copies_of_c(given) * given["c"]["micro"]}


def all_gpus_everywhere(given):
    """Claim 20, and what follows from it."""
    c = given["c"]
    together = c["gpus"] * c["micro"]
    return by_hand(given) | {
        "tensor_parallel": together * c["count"],
        "micro_batches": given["wanted"] / together,
        "steps": ceil(given["samples"] / (together * c["count"])),
    }


def wanted_from_one_copy(given):
    return by_hand(given) | {"micro_batches": given["wanted"] / given["c"]["micro"]}


def wanted_from_every_gpu(given):
    together = given["c"]["gpus"] * given["c"]["micro"]
    return by_hand(given) | {"micro_batches": given["wanted"] / together}


def samples_for_micro_batches(given):
    return by_hand(given) | {"micro_batches": given["wanted"] / copies_of_c(given)}


def one_micro_batch_too_many(given):
    return by_hand(given) | {"micro_batches": by_hand(given)["micro_batches"] + 1}


def last_step_forgotten(given):
    return by_hand(given) | {"steps": by_hand(given)["steps"] - 1}


def steps_not_rounded(given):
    return by_hand(given) | {"steps": by_hand(given)["all_reduces"] / given["c"]["count"]}


def micro_batches_for_steps(given):
    return by_hand(given) | {"steps": by_hand(given)["all_reduces"]}


def steps_of_every_gpu(given):
    c = given["c"]
    effective = c["gpus"] * c["micro"] * c["count"]
    return by_hand(given) | {"steps": ceil(given["samples"] / effective)}


def steps_of_a_micro_batch_less(given):
    c = given["c"]
    return by_hand(given) | {"steps": ceil(by_hand(given)["all_reduces"] / (c["count"] - 1))}


def one_for_each_step(given):
    return by_hand(given) | {"all_reduces": by_hand(given)["steps"]}


def last_step_is_full(given):
    return by_hand(given) | {"all_reduces": by_hand(given)["steps"] * given["c"]["count"]}


def one_for_each_copy(given):
    return by_hand(given) | {"all_reduces": given["samples"] // given["c"]["micro"]}


def no_sync_saves_nothing(given):
    return by_hand(given) | {"no_sync": by_hand(given)["all_reduces"]}


def passes_inside_no_sync(given):
    right = by_hand(given)
    return right | {"no_sync": right["all_reduces"] - right["steps"]}


def short_step_sends_nothing(given):
    return by_hand(given) | {"no_sync": by_hand(given)["steps"] - 1}


RIGHT = [by_hand, dealt_out]

WRONG = {
    one_micro_batch: {"accumulated": "this is one microbatch"},
    micro_batches_for_samples: {"accumulated": "this counts microbatches"},
    micro_plus_count: {"accumulated": "this adds samples to microbatches"},
    one_gpu: {"data_parallel": "this is the batch of one GPU"},
    split_among_gpus: {"data_parallel": "this splits a microbatch among the GPUs"},
    gpus_plus_micro: {"data_parallel": "this adds GPUs to samples"},
    every_gpu_is_a_copy: {"tensor_parallel": "GPUs that share one copy process the same samples"},
    one_copy: {"tensor_parallel": "How many copies are there?"},
    gpus_of_one_copy: {"tensor_parallel": "this multiplies by the GPUs of one copy"},
    without_accumulation: {"tensor_parallel": "A step takes several"},
    all_gpus_everywhere: {
        "tensor_parallel": "this counts every GPU as a copy of the model",
        "micro_batches": "this counts every GPU as a copy of the model",
        "steps": "every GPU counts as a copy of the model",
    },
    wanted_from_one_copy: {"micro_batches": "this is right for one copy"},
    wanted_from_every_gpu: {"micro_batches": "this counts every GPU as a copy of the model"},
    samples_for_micro_batches: {"micro_batches": "each copy takes this many samples"},
    one_micro_batch_too_many: {"micro_batches": "is not it. How many samples do all copies take"},
    last_step_forgotten: {"steps": "this leaves samples over"},
    steps_not_rounded: {"steps": "this is not a whole number"},
    micro_batches_for_steps: {"steps": "these are the microbatches of one copy"},
    steps_of_every_gpu: {"steps": "every GPU counts as a copy of the model"},
    steps_of_a_micro_batch_less: {"steps": "is not it. Divide the data set"},
    one_for_each_step: {"all_reduces": "if gradients were averaged once per step"},
    last_step_is_full: {"all_reduces": "this counts the last step like the others"},
    one_for_each_copy: {"all_reduces": "this counts the microbatches of all copies"},
    no_sync_saves_nothing: {"no_sync": "this is the number without"},
    passes_inside_no_sync: {"no_sync": "which send nothing"},
    short_step_sends_nothing: {"no_sync": "what about the short step at the end of the epoch?"},
}

"""Answers to 00/five_scenarios: the strategy of five drawn jobs, and the fact that drove each."""

# Right ----------------------------------------------------------------------------------------


def by_the_library(given):
    from dtlab.units.unit00.strategies import fact_of, strategy_of

    answers = {}
    for name, job in given.items():
        answers |= {name: strategy_of(job), f"{name}_fact": fact_of(job)}
    return answers


def from_the_tree(given):
    """Walked here, on the bytes of each GPU."""
    answers = {}
    for name, job in given.items():
        psi, kept, n, room = (job[key] for key in ("billions", "activations", "gpus", "card"))
        node = 8 if n > 8 else n
        if 16 * psi + kept <= room:
            late, enough = job["hours"] > job["deadline"], n * job["deadline"] >= job["hours"]
            found = ("data parallelism", "time") if enough else ("more GPUs", "GPUs in time")
            found = found if late else ("one GPU", "time")
        elif kept > room:
            whole = 16 * psi + kept / n <= room
            found = ("split samples" if whole else "split samples and ZeRO-3"), "sample"
        elif 4 * psi + 12 * psi / n + kept <= room:
            found = "ZeRO-1", "replica"
        elif 2 * psi + 14 * psi / n + kept <= room:
            found = "ZeRO-2", "replica"
        elif 16 * psi / n + kept <= room:
            found = "ZeRO-3", "replica"
        elif 16 * psi / n + kept / node <= room:
            found = "tensor parallelism", "stage 3"
        else:
            found = "more GPUs", "everything shared"
        answers[name], answers[f"{name}_fact"] = found
    return answers


# Wrong ----------------------------------------------------------------------------------------


def instead(name, *values):
    def answer(given):
        right = by_the_library(given)
        return right | {name: next(value for value in values if value != right[name])}

    answer.__name__ = f"{name}_{values[0]}"
    return answer


stage_3_for_a = instead("a", "ZeRO-3", "ZeRO-1")
replicas_for_b = instead("b", "data parallelism", "ZeRO-2")
tensor_for_c = instead("c", "tensor parallelism", "ZeRO-2")
more_for_d = instead("d", "more GPUs", "one GPU")
split_for_e = instead("e", "split samples", "split samples and ZeRO-3")
replica_for_a = instead("a_fact", "replica", "time")
time_for_b = instead("b_fact", "time", "replica")
sample_for_c = instead("c_fact", "sample", "stage 3")
shared_for_d = instead("d_fact", "everything shared", "GPUs in time")
stage_3_for_e = instead("e_fact", "stage 3", "everything shared")
unknown_fact = instead("e_fact", "money")

RIGHT = [by_the_library, from_the_tree]

WRONG = {
    stage_3_for_a: {"a": ""},
    replicas_for_b: {"b": ""},
    tensor_for_c: {"c": ""},
    more_for_d: {"d": ""},
    split_for_e: {"e": "do the activations of one microbatch fit"},
    replica_for_a: {"a_fact": ""},
    time_for_b: {"b_fact": ""},
    sample_for_c: {"c_fact": ""},
    shared_for_d: {"d_fact": ""},
    stage_3_for_e: {"e_fact": "a rank hold"},
    unknown_fact: {"e_fact": "is none of the options"},
}

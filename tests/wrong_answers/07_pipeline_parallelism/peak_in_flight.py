"""Answers to 07/peak_in_flight: mistakes people make, and right answers written differently."""

from itertools import accumulate

import torch

from dtlab import predict


def right(schedule):
    peaks = []
    for row in schedule:
        held = most = 0
        for _, kind, _ in row:
            if kind == "F":
                held += 1
            elif kind in "BW":
                held -= 1
            most = max(most, held)
        peaks.append(most)
    return peaks


# Wrong ------------------------------------------------------------------------------------------


def untouched(schedule):
    raise NotImplementedError()


def nothing(schedule):
    right(schedule)


def one_number_for_all(schedule):
    return max(right(schedule))


def a_sum_over_ranks(schedule):
    return [sum(right(schedule))] * len(schedule)


def no_rank_is_idle(schedule):
    """Raises an exception if a rank has no actions."""
    steps = {"F": 1, "B": -1, "W": -1, "I": 0}
    return [max(accumulate(steps[kind] for _, kind, _ in row)) for row in schedule]


def all_forwards(schedule):
    return [sum(kind == "F" for _, kind, _ in row) for row in schedule]


def what_is_left_at_the_end(schedule):
    return [sum({"F": 1, "B": -1, "W": -1}.get(kind, 0) for _, kind, _ in row) for row in schedule]


def looked_at_after_backwards(schedule):
    """One short everywhere where a backward follows at once."""
    peaks = []
    for row in schedule:
        held = most = 0
        for _, kind, _ in row:
            held += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
            most = max(most, held) if kind != "F" else most
        peaks.append(most)
    return peaks


def the_count_goes_on_to_the_next_rank(schedule):
    peaks, most = [], 0
    for row in schedule:
        held = 0
        for _, kind, _ in row:
            held += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
            most = max(most, held)
        peaks.append(most)
    return peaks


def the_rule_of_1f1b(schedule):
    count = 1 + max((k for row in schedule for _, _, k in row), default=0)
    return [min(count, len(schedule) - rank) for rank in range(len(schedule))]


def by_the_library(schedule):
    return predict.peak_in_flight(schedule)


def freed_by_i(schedule):
    peaks = []
    for row in schedule:
        steps = [{"F": 1, "B": -1, "I": -1}.get(kind, 0) for _, kind, _ in row]
        peaks.append(max(accumulate(steps), default=0))
    return peaks


def freed_by_both_halves(schedule):
    """Each of them takes one away."""
    peaks = []
    for row in schedule:
        steps = [1 if kind == "F" else -1 for _, kind, _ in row]
        peaks.append(max(accumulate(steps), default=0))
    return peaks


def freed_by_whole_backwards_only(schedule):
    peaks = []
    for row in schedule:
        steps = [{"F": 1, "B": -1}.get(kind, 0) for _, kind, _ in row]
        peaks.append(max(accumulate(steps), default=0))
    return peaks


def does_not_know_halves(schedule):
    peaks = []
    for row in schedule:
        steps = [{"F": 1, "B": -1}[kind] for _, kind, _ in row]
        peaks.append(max(accumulate(steps), default=0))
    return peaks


def microbatches_whatever_the_stage(schedule):
    peaks = []
    for row in schedule:
        held, most = set(), 0
        for _, kind, microbatch in row:
            if kind == "F":
                held.add(microbatch)
            elif kind in "BW":
                held.discard(microbatch)
            most = max(most, len(held))
        peaks.append(most)
    return peaks


def stage_of_the_ranks_number_only(schedule):
    """In a schedule without chunks, stage r is on rank r; where not, its first one counts."""
    peaks = []
    for row in schedule:
        own = [kind for stage, kind, _ in row if stage == row[0][0]]
        steps = [{"F": 1, "B": -1, "W": -1}.get(kind, 0) for kind in own]
        peaks.append(max(accumulate(steps), default=0))
    return peaks


def the_most_of_each_stage_added_up(schedule):
    """Two stages need not have their most at the same time."""
    peaks = []
    for row in schedule:
        total = 0
        for own in {stage for stage, _, _ in row}:
            steps = [{"F": 1, "B": -1, "W": -1}.get(k, 0) for s, k, _ in row if s == own]
            total += max(accumulate(steps), default=0)
        peaks.append(total)
    return peaks


def until_the_first_backward(schedule):
    peaks = []
    for row in schedule:
        held = 0
        for _, kind, _ in row:
            if kind in "BW":
                break
            held += kind == "F"
        peaks.append(held)
    return peaks


def all_forwards_at_its_head(schedule):
    """Until a backward of any kind."""
    peaks = []
    for row in schedule:
        kinds = [kind for _, kind, _ in row]
        peaks.append(next((n for n, kind in enumerate(kinds) if kind != "F"), len(kinds)))
    return peaks


def every_rank_has_something_to_do(schedule):
    return [
        max(accumulate({"F": 1, "B": -1, "W": -1}.get(kind, 0) for _, kind, _ in row))
        for row in schedule
    ]


def idle_ranks_left_out(schedule):
    return right([row for row in schedule if row])


# Right ------------------------------------------------------------------------------------------


def as_sets(schedule):
    peaks = [0] * len(schedule)
    for rank, row in enumerate(schedule):
        held = set()
        for action in row:
            if action.kind == "F":
                held.add((action.stage, action.microbatch))
            if action.kind in ("B", "W"):
                held.remove((action.stage, action.microbatch))
            peaks[rank] = max(peaks[rank], len(held))
    return peaks


def with_torch(schedule):
    steps = {"F": 1, "I": 0, "B": -1, "W": -1}
    rows = [torch.tensor([0, *(steps[kind] for _, kind, _ in row)]) for row in schedule]
    return torch.stack([row.cumsum(0).max() for row in rows])


RIGHT = [right, as_sets, with_torch]

WRONG = {
    untouched: {"counts": "is not written yet"},
    nothing: {"counts": "returns None", "halves": "", "chunks": "", "any": ""},
    one_number_for_all: {"counts": "for each rank", "halves": "", "chunks": "", "any": ""},
    a_sum_over_ranks: {"counts": "the sum over all ranks", "halves": "", "chunks": "", "any": ""},
    no_rank_is_idle: {"any": "Rank 1 has an empty list here, and holds 0."},
    all_forwards: {"counts": "That counts every F", "halves": "", "chunks": "", "any": ""},
    what_is_left_at_the_end: {"counts": "end of the list", "halves": "", "chunks": "", "any": ""},
    looked_at_after_backwards: {"counts": "after a backward", "chunks": "", "any": ""},
    the_count_goes_on_to_the_next_rank: {
        "counts": "on rank 1", "chunks": "", "any": "begins with 0",
    },
    the_rule_of_1f1b: {"counts": "for 1F1B only", "halves": "", "chunks": "", "any": ""},
    by_the_library: {"counts": "finished code", "halves": "", "chunks": "", "any": ""},
    freed_by_i: {"halves": "but the rank holds more later: only W frees"},
    freed_by_both_halves: {"halves": "only W frees"},
    freed_by_whole_backwards_only: {"halves": "the number of its F. Here backward is split"},
    does_not_know_halves: {"halves": "KeyError"},
    microbatches_whatever_the_stage: {"chunks": "holds its own activations"},
    stage_of_the_ranks_number_only: {"chunks": "That counts one stage"},
    the_most_of_each_stage_added_up: {"chunks": "adds up the most of each stage"},
    until_the_first_backward: {"any": "holds more later"},
    all_forwards_at_its_head: {"halves": "held before the first I", "any": "holds more later"},
    every_rank_has_something_to_do: {"any": "empty"},
    idle_ranks_left_out: {"any": "for each rank"},
}

EQUIVALENT = {
    "if kind == 'F':; held += 1; ... -> most = max(most, held); if kind == 'F':; ...": "looked at "
    "before each action in place of after: no list ends with a forward",
    "most = max(most, held) -> most = max(held, most)": "the larger of two has no order",
    "most = max(most, held) -> most = max(most, held); for _, kind, _ in row:; ...": "nothing is "
    "held after a whole list, and going through it again finds the same",
}

"""Answers to 07/gpipe: mistakes people make, and right answers written differently."""

from dtlab import schedules


def texts(stage, kind, microbatches):
    return [f"{stage}{kind}{k}" for k in microbatches]


def right(p, m):
    return [texts(r, "F", range(m)) + texts(r, "B", range(m)) for r in range(p)]


# Wrong ------------------------------------------------------------------------------------------


def untouched(p, m):
    raise NotImplementedError()


def nothing(p, m):
    right(p, m)


def one_text_for_a_rank(p, m):
    return [" ".join(row) for row in right(p, m)]


def small_letters(p, m):
    return [[action.lower() for action in row] for row in right(p, m)]


def microbatches_from_one(p, m):
    return [texts(r, "F", range(1, m + 1)) + texts(r, "B", range(1, m + 1)) for r in range(p)]


def one_microbatch_short(p, m):
    return [texts(r, "F", range(m)) + texts(r, "B", range(m - 1)) for r in range(p)]


def forwards_only(p, m):
    return [texts(r, "F", range(m)) for r in range(p)]


def the_same_list_for_every_rank(p, m):
    return [texts(0, "F", range(m)) + texts(0, "B", range(m))] * p


def stages_the_other_way_round(p, m):
    return right(p, m)[::-1]


def stages_and_microbatches_swapped(p, m):
    return right(m, p)


def microbatch_and_stage_swapped_in_an_action(p, m):
    return [[f"{k}F{r}" for k in range(m)] + [f"{k}B{r}" for k in range(m)] for r in range(p)]


def backward_in_halves(p, m):
    return [
        texts(r, "F", range(m)) + [f"{r}{kind}{k}" for k in range(m) for kind in "IW"]
        for r in range(p)
    ]


def a_list_of_columns(p, m):
    """As a grid, with None where nothing runs."""
    rows = [[None] * r + texts(r, "F", range(m)) for r in range(p)]
    return [row + texts(r, "B", range(m)) for r, row in enumerate(rows)]


def by_the_library(p, m):
    return schedules.gpipe(p, m)


def backward_first(p, m):
    return [texts(r, "B", range(m)) + texts(r, "F", range(m)) for r in range(p)]


def backward_first_on_the_last_rank(p, m):
    rows = right(p, m)
    return [*rows[:-1], rows[-1][m:] + rows[-1][:m]]


def last_backward_one_too_early(p, m):
    """On the last rank B of the last microbatch stands before its F."""
    rows = right(p, m)
    last = rows[-1]
    last.remove(f"{p - 1}B{m - 1}")
    last.insert(m - 1, f"{p - 1}B{m - 1}")
    return rows


def one_f_one_b(p, m):
    return [list(map(str, row)) for row in _in_turns(p, m)]


def _in_turns(p, m):
    rows = []
    for r in range(p):
        warm = min(m, p - 1 - r)
        row = texts(r, "F", range(warm))
        for k in range(m - warm):
            row += [f"{r}F{warm + k}", f"{r}B{k}"]
        rows.append(row + texts(r, "B", range(m - warm, m)))
    return rows


def the_last_rank_in_turns(p, m):
    """It has its gradient at once; nobody is slower for that."""
    rows = right(p, m)
    rows[-1] = [f"{p - 1}{kind}{k}" for k in range(m) for kind in "FB"]
    return rows


def naive(p, m):
    return [[f"{r}{kind}{k}" for k in range(m) for kind in "FB"] for r in range(p)]


def in_two_halves_of_the_batch(p, m):
    halves = range(m // 2), range(m // 2, m)
    return [[one for some in halves for kind in "FB" for one in texts(r, kind, some)]
            for r in range(p)]  # fmt: skip


def backward_reversed_on_the_first_rank_only(p, m):
    rows = right(p, m)
    rows[0] = texts(0, "F", range(m)) + texts(0, "B", reversed(range(m)))
    return rows


def forward_reversed_on_the_last_rank_only(p, m):
    rows = right(p, m)
    rows[-1] = texts(p - 1, "F", reversed(range(m))) + texts(p - 1, "B", range(m))
    return rows


def without_an_end(p, m):
    rows = []
    while len(rows) <= p:
        rows = [*rows, "0F0"][-p:]
    return rows


# Right ------------------------------------------------------------------------------------------


def as_in_the_paper(p, m):
    """Backward begins with what went forward last."""
    return tuple(
        [(r, "F", k) for k in range(m)] + [(r, "B", k) for k in reversed(range(m))]
        for r in range(p)
    )


def as_actions(p, m):
    schedule = schedules.Schedule()
    for r in range(p):
        schedule.append([])
        for kind in ("F", "B"):
            for k in range(m):
                schedule[-1].append(schedules.Action(r, kind, k))
    return schedule


RIGHT = [right, as_in_the_paper, as_actions]

WRONG = {
    untouched: {"complete": "is not written yet"},
    nothing: {"complete": "is None"},
    one_text_for_a_rank: {"complete": "for a rank is text"},
    small_letters: {"complete": "is no action"},
    microbatches_from_one: {"complete": "microbatches count from 0: 0 to 3"},
    one_microbatch_short: {"complete": "no rank does 0B"},
    forwards_only: {"complete": "no rank does 0B0."},
    the_same_list_for_every_rank: {"complete": "rank 1 does 0F0: rank r has stage r"},
    stages_the_other_way_round: {"complete": "rank r has stage r"},
    stages_and_microbatches_swapped: {"complete": "are the two arguments swapped"},
    microbatch_and_stage_swapped_in_an_action: {"complete": "An action begins with its stage"},
    backward_in_halves: {"complete": "write B"},
    a_list_of_columns: {"complete": "entry 0 of list 1, None, is no action"},
    by_the_library: {"complete": "finished code"},
    backward_first: {"runs": "which it needs"},
    backward_first_on_the_last_rank: {"runs": "which it needs"},
    last_backward_one_too_early: {"runs": "which it needs"},
    one_f_one_b: {"order": "does all its forwards first"},
    the_last_rank_in_turns: {"order": "does all its forwards first"},
    naive: {"order": "after a backward", "time": "are enough"},
    in_two_halves_of_the_batch: {"order": "after a backward", "time": "are enough"},
    backward_reversed_on_the_first_rank_only: {"time": "are enough"},
    forward_reversed_on_the_last_rank_only: {"time": "are enough"},
    without_an_end: {"complete": "your function did not finish"},
}

EITHER = (
    "in whichever order microbatches go, if all ranks take the same one, as in the paper's figure"
)
SAME = "the same list, which is in the schedule already"
EQUIVALENT = {
    "row = [f'{rank}F{k}' for k in range(num_microbatches)] -> "
    "row = [f'{rank}F{k}' for k in reversed(range(num_microbatches))]": EITHER,
    "row += [f'{rank}B{k}' for k in range(num_microbatches)] -> "
    "row += [f'{rank}B{k}' for k in reversed(range(num_microbatches))]": EITHER,
    "row += [f'{rank}B{k}' for k in range(num_microbatches)]; schedule.append(row) -> "
    "schedule.append(row); row += [f'{rank}B{k}' for k in range(num_microbatches)]": SAME,
    "row += [f'{rank}B{k}' for k in range(num_microbatches)] -> "
    "row = row + [f'{rank}B{k}' for k in range(num_microbatches)]": "nobody else has the list",
}

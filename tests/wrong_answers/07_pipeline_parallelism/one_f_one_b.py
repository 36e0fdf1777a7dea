"""Answers to 07/one_f_one_b: mistakes people make, and right answers written differently."""

from dtlab import schedules


def in_three(r, m, warm, cool=None):
    """Forwards, turns, and the backwards left."""
    row = [f"{r}F{k}" for k in range(warm)]
    for k in range(m - warm):
        row += [f"{r}F{warm + k}", f"{r}B{k}"]
    left = range(m - warm, m) if cool is None else cool
    return row + [f"{r}B{k}" for k in left]


def right(p, m):
    return [in_three(r, m, min(m, p - 1 - r)) for r in range(p)]


# Wrong ------------------------------------------------------------------------------------------


def untouched(p, m):
    raise NotImplementedError()


def forgets_what_is_left(p, m):
    return [in_three(r, m, min(m, p - 1 - r), cool=()) for r in range(p)]


def the_same_list_for_every_rank(p, m):
    return [right(p, m)[0]] * p


def the_first_rank_only(p, m):
    return right(p, m)[0]


def turns_for_all_of_them(p, m):
    """Forwards of the warm-up are done again."""
    rows = []
    for r in range(p):
        warm = [f"{r}F{k}" for k in range(min(m, p - 1 - r))]
        rows.append(warm + [f"{r}{kind}{k}" for k in range(m) for kind in "FB"])
    return rows


def last_turn_forgotten(p, m):
    rows = []
    for r in range(p):
        warm = min(m, p - 1 - r)
        row = [f"{r}F{k}" for k in range(warm)]
        for k in range(m - warm - 1):
            row += [f"{r}F{warm + k}", f"{r}B{k}"]
        rows.append(row + [f"{r}B{k}" for k in range(m - warm - 1, m)])
    return rows


def halves(p, m):
    return [
        [half for one in row for half in ([one] if "F" in one else _halved(one))]
        for row in right(p, m)
    ]


def _halved(action):
    return [action.replace("B", "I"), action.replace("B", "W")]


def by_the_library(p, m):
    return schedules.one_f_one_b(p, m)


def as_chunks_of_the_library(p, m):
    return schedules.interleaved(p, m, 1)


def warm_up_the_wrong_way_round(p, m):
    return [in_three(r, m, min(m, r)) for r in range(p)]


def backward_before_forward_in_turns(p, m):
    rows = []
    for r in range(p):
        warm = min(m, p - 1 - r)
        row = [f"{r}F{k}" for k in range(warm)]
        for k in range(m - warm):
            row += [f"{r}B{k}", f"{r}F{warm + k}"]
        rows.append(row + [f"{r}B{k}" for k in range(m - warm, m)])
    return rows


def the_last_rank_alone_turns_round(p, m):
    rows = right(p, m)
    rows[-1] = [f"{p - 1}{kind}{k}" for k in range(m) for kind in "BF"]
    return rows


def one_more_on_odd_ranks(p, m):
    """Fine in its own list; the neighbours wait for each other."""
    return [in_three(r, m, min(m, max(0, p - 1 - r + (3 if r % 2 else -2)))) for r in range(p)]


def gpipe(p, m):
    return [[f"{r}{kind}{k}" for kind in "FB" for k in range(m)] for r in range(p)]


def warm_up_one_too_long(p, m):
    return [in_three(r, m, min(m, p - r)) for r in range(p)]


def the_first_ranks_warm_up_on_all(p, m):
    return [in_three(r, m, min(m, p - 1)) for r in range(p)]


def twice_the_warm_up(p, m):
    """As ZB-H2 begins; here it is of no use."""
    return [in_three(r, m, min(m, 2 * (p - 1 - r))) for r in range(p)]


def one_too_long_on_the_last(p, m):
    rows = right(p, m)
    rows[-1] = in_three(p - 1, m, min(m, 1))
    return rows


def warm_up_one_too_short(p, m):
    return [in_three(r, m, min(m, max(0, p - 2 - r))) for r in range(p)]


def one_too_short_on_the_first(p, m):
    rows = right(p, m)
    rows[0] = in_three(0, m, min(m, max(0, p - 2)))
    return rows


def naive(p, m):
    return [[f"{r}{kind}{k}" for k in range(m) for kind in "FB"] for r in range(p)]


def warm_up_without_a_limit(p, m):
    """With few microbatches there are forwards of none."""
    return [in_three(r, m, p - 1 - r) for r in range(p)]


def left_without_a_limit(p, m):
    rows = []
    for r in range(p):
        warm = p - 1 - r
        row = [f"{r}F{k}" for k in range(min(m, warm))]
        for k in range(m - warm):
            row += [f"{r}F{warm + k}", f"{r}B{k}"]
        rows.append(row + [f"{r}B{k}" for k in range(m - warm, m)])
    return rows


def refuses_few(p, m):
    if m < p:
        raise ValueError("as many microbatches as stages, at least")
    return right(p, m)


def nothing_for_one_stage(p, m):
    return right(p, m) if p > 1 else []


# Right ------------------------------------------------------------------------------------------


def by_what_is_held(p, m):
    """A backward whenever a rank holds as many as it may."""
    schedule = []
    for r in range(p):
        row, done, back = [], 0, 0
        while back < m:
            if done - back < p - r and done < m:
                row.append((r, "F", done))
                done += 1
            else:
                row.append((r, "B", back))
                back += 1
        schedule.append(row)
    return schedule


def as_actions(p, m):
    rows = schedules.Schedule()
    for r in range(p):
        forward = [schedules.Action(r, "F", k) for k in range(m)]
        backward = [schedules.Action(r, "B", k) for k in range(m)]
        ahead = min(p - r, m)
        row, forward = forward[:ahead], forward[ahead:]
        while backward:
            row.append(backward.pop(0))
            if forward:
                row.append(forward.pop(0))
        rows.append(row)
    return rows


RIGHT = [right, by_what_is_held, as_actions]

WRONG = {
    untouched: {"complete": "is not written yet"},
    forgets_what_is_left: {"complete": "no rank does 0B"},
    the_same_list_for_every_rank: {"complete": "rank r has stage r"},
    the_first_rank_only: {"complete": "for a rank is text"},
    turns_for_all_of_them: {"complete": "is done 2 times"},
    last_turn_forgotten: {"complete": "no rank does 0F"},
    halves: {"complete": "write B"},
    by_the_library: {"complete": "finished code"},
    as_chunks_of_the_library: {"complete": "finished code"},
    warm_up_the_wrong_way_round: {"runs": "waits in"},
    backward_before_forward_in_turns: {"runs": "which it needs"},
    the_last_rank_alone_turns_round: {"runs": "which it needs"},
    one_more_on_odd_ranks: {"runs": "waits in"},
    gpipe: {"memory": "microbatches at once"},
    warm_up_one_too_long: {"memory": "microbatches at once"},
    the_first_ranks_warm_up_on_all: {"memory": "rank 1 holds", "time": "are enough"},
    twice_the_warm_up: {"memory": "rank 0 holds"},
    one_too_long_on_the_last: {"memory": "rank 2 holds 2", "time": "are enough"},
    warm_up_one_too_short: {"time": "are enough"},
    one_too_short_on_the_first: {"time": "are enough"},
    naive: {"time": "are enough"},
    warm_up_without_a_limit: {"edges": "is a warm-up longer"},
    left_without_a_limit: {"edges": "is a warm-up longer"},
    refuses_few: {"edges": "at least"},
    nothing_for_one_stage: {"edges": "for 1 rank"},
}

SAME = "the same list, which is in the schedule already"
ALONE = "nobody else has the list"
EQUIVALENT = {
    "ahead = min(num_stages - 1 - rank, num_microbatches) -> "
    "ahead = min(num_microbatches, num_stages - 1 - rank)": "the smaller of two has no order",
    "row += [f'{rank}F{ahead + k}', f'{rank}B{k}'] -> "
    "row = row + [f'{rank}F{ahead + k}', f'{rank}B{k}']": ALONE,
    "row += [f'{rank}B{k}' for k in range(pairs, num_microbatches)]; schedule.append(row) -> "
    "schedule.append(row); row += [f'{rank}B{k}' for k in range(pairs, num_microbatches)]": SAME,
    "row += [f'{rank}B{k}' for k in range(pairs, num_microbatches)] -> "
    "row = row + [f'{rank}B{k}' for k in range(pairs, num_microbatches)]": ALONE,
}

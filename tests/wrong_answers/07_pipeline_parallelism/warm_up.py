"""Answers to 07/warm_up: mistakes people make, and right answers written differently."""

import torch


def right(rank, p, m):
    return min(p - 1 - rank, m)


# Wrong ------------------------------------------------------------------------------------------


def untouched(rank, p, m):
    raise NotImplementedError()


def nothing(rank, p, m):
    min(p - 1 - rank, m)


def a_half(rank, p, m):
    return right(rank, p, m) + 0.5


def actions_in_place_of_a_number(rank, p, m):
    return [f"{rank}F{k}" for k in range(right(rank, p, m))]


def what_it_holds(rank, p, m):
    return min(p - rank, m)


def without_the_ends(rank, p, m):
    """Right where there are many, but not on the last rank."""
    return max(1, min(p - 1 - rank, m))


def one_too_few(rank, p, m):
    return max(0, min(p - 2 - rank, m))


def from_the_front(rank, p, m):
    return min(rank, m)


def as_many_as_stages_on_every_rank(rank, p, m):
    return min(p, m)


def as_the_first_rank(rank, p, m):
    return min(p - 1, m)


def two_for_each_stage_behind(rank, p, m):
    """That is ZB-H2, or a chunked schedule's."""
    return min(2 * (p - 1 - rank), m)


def all_of_them(rank, p, m):
    return m


def no_limit(rank, p, m):
    return p - 1 - rank


def leaves_one_for_the_turns(rank, p, m):
    return min(p - 1 - rank, m - 1)


def none_where_there_are_few(rank, p, m):
    return p - 1 - rank if m >= p else 0


def all_where_there_are_few(rank, p, m):
    """The last ranks have time for turns all the same."""
    if rank == p - 1:
        return 0
    return p - 1 - rank if m >= p else m


def negative_on_the_last(rank, p, m):
    return min(p - 1 - rank, m) if rank < p - 1 else -1


def one_stage_is_a_warm_up(rank, p, m):
    return m if p == 1 else right(rank, p, m)


def divides_what_is_there(rank, p, m):
    return min(m // p, p - 1 - rank)


# Right ------------------------------------------------------------------------------------------


def counted(rank, p, m):
    stages = 0
    for _ in range(rank + 1, p):
        stages += 1
    return m if stages > m else stages


def a_tensor(rank, p, m):
    return torch.arange(p).flip(0).clamp(max=m)[rank]


def as_a_float(rank, p, m):
    return float(len(range(rank, p - 1)[:m]))


RIGHT = [right, counted, a_tensor, as_a_float]

WRONG = {
    untouched: {"steady": "is not written yet"},
    nothing: dict.fromkeys(("steady", "last", "few"), "not a whole number"),
    a_half: dict.fromkeys(("steady", "last", "few"), "not a whole number"),
    actions_in_place_of_a_number: dict.fromkeys(("steady", "last", "few"), "not a whole number"),
    what_it_holds: {"steady": "the most that it holds", "last": "as soon as", "few": ""},
    without_the_ends: {"last": "as soon as its first forward"},
    one_too_few: {"steady": "stages come after it", "few": ""},
    from_the_front: {"steady": "the reverse order", "last": "", "few": ""},
    as_many_as_stages_on_every_rank: {"steady": "", "last": "", "few": ""},
    as_the_first_rank: {"steady": "2 stages come after it", "last": "", "few": "after it"},
    two_for_each_stage_behind: {"steady": "stages come after it", "few": "after it"},
    all_of_them: {"steady": "stages come after it", "last": "", "few": ""},
    no_limit: {"few": "The step has only"},
    leaves_one_for_the_turns: {"few": "stages come after it, and the step has "},
    none_where_there_are_few: {"few": "0 is wrong for rank 0"},
    all_where_there_are_few: {"few": ""},
    negative_on_the_last: {"last": "as soon as"},
    one_stage_is_a_warm_up: {"last": "as soon as"},
    divides_what_is_there: {"steady": "stages come after it", "few": ""},
}

EQUIVALENT = {
    "return min(num_stages - 1 - rank, num_microbatches) -> "
    "return min(num_microbatches, num_stages - 1 - rank)": "the smaller of two has no order",
}

"""Answers to 01/results: what each of three ranks holds after a collective."""

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    tensors, root = given["tensors"], given["root"]
    firsts = [tensor[0] for tensor in tensors]
    sums = [a + b + c for a, b, c in zip(*tensors, strict=True)]
    return {
        "broadcast": [tensors[root]] * 3,
        "scatter": [[element] for element in tensors[root]],
        "gather": [firsts if rank == root else [] for rank in range(3)],
        "reduce": [sums if rank == root else [] for rank in range(3)],
        "all_reduce": [sums, sums, sums],
        "all_gather": [firsts, firsts, firsts],
        "reduce_scatter": [[total] for total in sums],
        "all_to_all": [[tensor[rank] for tensor in tensors] for rank in range(3)],
    }


def one_element_without_brackets(given):
    """A number for a list of one, None for a rank that holds nothing, tuples for lists."""
    right = by_hand(given)
    right["scatter"] = tuple(element for (element,) in right["scatter"])
    right["reduce_scatter"] = [total for (total,) in right["reduce_scatter"]]
    right["gather"] = [content or None for content in right["gather"]]
    return right


def answers_in_order(given):
    """A list in the order of the questions, numbers as text."""
    return [
        [[str(element) for element in content] for content in table]
        for table in by_hand(given).values()
    ]


# Wrong ----------------------------------------------------------------------------------------


def broadcast_from_rank_0(given):
    return by_hand(given) | {"broadcast": [given["tensors"][0]] * 3}


def nobody_sent_a_broadcast(given):
    return by_hand(given) | {"broadcast": given["tensors"]}


def scatter_taken_for_broadcast(given):
    return by_hand(given) | {"scatter": by_hand(given)["broadcast"]}


def gather_taken_for_all_gather(given):
    return by_hand(given) | {"gather": by_hand(given)["all_gather"]}


def gathered_on_rank_0(given):
    firsts = by_hand(given)["all_gather"][0]
    return by_hand(given) | {"gather": [firsts, [], []]}


def reduced_on_every_rank(given):
    return by_hand(given) | {"reduce": by_hand(given)["all_reduce"]}


def root_left_out_of_the_sum(given):
    root = given["root"]
    others = [tensor for rank, tensor in enumerate(given["tensors"]) if rank != root]
    sums = [sum(column) for column in zip(*others, strict=True)]
    return by_hand(given) | {"reduce": [sums if rank == root else [] for rank in range(3)]}


def averages_for_sums(given):
    averages = [total / 3 for total in by_hand(given)["all_reduce"][0]]
    return by_hand(given) | {"all_reduce": [averages] * 3}


def one_element_off(given):
    sums = by_hand(given)["all_reduce"][0]
    return by_hand(given) | {"all_reduce": [[sums[0] + 1, *sums[1:]]] * 3}


def all_gather_added_up(given):
    total = sum(tensor[0] for tensor in given["tensors"])
    return by_hand(given) | {"all_gather": [[total]] * 3}


def whole_sum_scattered_nowhere(given):
    return by_hand(given) | {"reduce_scatter": by_hand(given)["all_reduce"]}


def sums_of_the_rows(given):
    rows = [[sum(tensor)] for tensor in given["tensors"]]
    return by_hand(given) | {"reduce_scatter": rows, "all_reduce": rows}


def all_to_all_added_up(given):
    return by_hand(given) | {"all_to_all": by_hand(given)["reduce_scatter"]}


def all_to_all_that_moves_nothing(given):
    return by_hand(given) | {"all_to_all": given["tensors"]}


def words_for_numbers(given):
    return by_hand(given) | {"broadcast": "everyone has it"}


def one_list_for_all_ranks(given):
    """Every rank has it, so it is written once."""
    return by_hand(given) | {"all_reduce": by_hand(given)["all_reduce"][0]}


def two_of_three_ranks(given):
    return by_hand(given) | {"all_gather": by_hand(given)["all_gather"][:2]}


def numbers_as_text(given):
    first, *_ = by_hand(given)["broadcast"]
    return by_hand(given) | {"broadcast": [", ".join(map(str, first))] * 3}


def a_name_misspelt(given):
    right = by_hand(given)
    return {"brodcast": right.pop("broadcast")} | right


RIGHT = [by_hand, one_element_without_brackets, answers_in_order]

WRONG = {
    broadcast_from_rank_0: {"broadcast": "this is rank 0's tensor. The root need not be rank 0."},
    nobody_sent_a_broadcast: {"broadcast": "as if no rank had sent anything"},
    scatter_taken_for_broadcast: {"scatter": "that is a broadcast"},
    gather_taken_for_all_gather: {"gather": "that is an all-gather"},
    gathered_on_rank_0: {"gather": "The root need not be rank 0."},
    reduced_on_every_rank: {"reduce": "that is an all-reduce"},
    root_left_out_of_the_sum: {"reduce": "it takes part like every other rank"},
    averages_for_sums: {"all_reduce": "these are averages. SUM does not divide."},
    one_element_off: {"all_reduce": "is not it"},
    all_gather_added_up: {"all_gather": "an all-gather concatenate them"},
    whole_sum_scattered_nowhere: {"reduce_scatter": "that is an all-reduce"},
    sums_of_the_rows: {
        "reduce_scatter": "sums over the elements of one rank",
        "all_reduce": "sums over the elements of one rank",
    },
    all_to_all_added_up: {"all_to_all": "that is a reduce-scatter"},
    all_to_all_that_moves_nothing: {"all_to_all": "as if no rank had sent anything"},
    words_for_numbers: {"broadcast": "write one list for each rank, 3 in all"},
    one_list_for_all_ranks: {"all_reduce": "[[4], [5, 6], []], not a list of 3 numbers"},
    two_of_three_ranks: {"all_gather": "not a list of 2 lists"},
    numbers_as_text: {"broadcast": "cannot be read. Write a point for decimals, and no commas."},
    a_name_misspelt: {"broadcast": "unknown answer 'brodcast': did you mean 'broadcast'?"},
}

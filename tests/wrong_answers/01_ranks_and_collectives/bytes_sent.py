"""Answers to 01/bytes: what a rank sends in different ways of doing an all-reduce."""

from math import log2

# Right ----------------------------------------------------------------------------------------


def in_megabytes(given):
    ranks, megabytes = given["ranks"], given["size"] / 1e6
    return {
        "server_root": (ranks - 1) * megabytes,
        "server_other": megabytes,
        "ring": 2 * (ranks - 1) / ranks * megabytes,
        "reduce_scatter": (ranks - 1) / ranks * megabytes,
        "all_gather": (ranks - 1) * megabytes,
        "doubling": log2(ranks) * megabytes,
        "unbounded": {"server", "doubling"},
    }


def changed(given, **wrong):
    """The right answers with some replaced, as multiples of S in MB."""
    return in_megabytes(given) | {
        name: value * given["size"] / 1e6 if isinstance(value, (int, float)) else value
        for name, value in wrong.items()
    }


def in_bytes(given):
    right = in_megabytes(given)
    return {n: one * 1e6 if isinstance(one, float) else list(one) for n, one in right.items()}


def with_units(given):
    """Gigabytes and bytes, as text."""
    right = in_megabytes(given)
    words = {name: f"{right[name] / 1000} GB" for name in ("server_root", "ring", "doubling")}
    bytes_ = {name: f"{right[name] * 1e6} B" for name in ("server_other", "reduce_scatter")}
    return right | words | bytes_ | {"unbounded": "doubling, server"}


def with_a_note(given):
    """An entry that nobody asked for costs nothing."""
    return in_megabytes(given) | {"as I counted": "2(N-1)/N, twelve chunks"}


def rounded(given):
    """To the nearest tenth of a megabyte."""
    right = in_megabytes(given)
    return {n: round(one, 1) if isinstance(one, float) else one for n, one in right.items()}


# Wrong ----------------------------------------------------------------------------------------


def root_sends_to_itself(given):
    return changed(given, server_root=given["ranks"])


def root_sends_one_copy(given):
    return changed(given, server_root=1)


def sends_and_receives_at_the_server(given):
    return changed(given, server_root=2 * (given["ranks"] - 1), server_other=2)


def others_as_busy_as_the_root(given):
    return changed(given, server_other=given["ranks"] - 1)


def half_a_ring(given):
    return changed(given, ring=(given["ranks"] - 1) / given["ranks"])


def ring_of_whole_tensors(given):
    return changed(given, ring=2 * (given["ranks"] - 1))


def ring_with_a_round_too_many(given):
    return changed(given, ring=2)


def ring_in_binary_megabytes(given):
    return changed(given, ring=in_megabytes(given)["ring"] / 1.048576 / given["size"] * 1e6)


def unit_of_the_wrong_kind(given):
    return changed(given, ring=f"{in_megabytes(given)['ring']} ms")


def what_a_rank_ends_with(given):
    return changed(given, reduce_scatter=1 / given["ranks"])


def all_reduce_for_reduce_scatter(given):
    return changed(given, reduce_scatter=2 * (given["ranks"] - 1) / given["ranks"])


def all_gather_of_s_in_all(given):
    return changed(given, all_gather=(given["ranks"] - 1) / given["ranks"])


def own_tensor_only(given):
    return changed(given, all_gather=1)


def doubling_counted_both_ways(given):
    return changed(given, doubling=2 * log2(given["ranks"]))


def doubling_with_every_rank(given):
    return changed(given, doubling=given["ranks"] - 1)


def ring_grows_too(given):
    return changed(given, unbounded={"server", "ring", "doubling"})


def only_the_server_grows(given):
    return changed(given, unbounded={"server"})


def a_list_for_a_number(given):
    return changed(given, ring=[in_megabytes(given)["ring"]])


def a_truth_for_a_number(given):
    return in_megabytes(given) | {"server_other": True}


def nothing_computed(given):
    return in_megabytes(given) | {"doubling": float("nan")}


def a_dict_for_a_set(given):
    return in_megabytes(given) | {"unbounded": {"server": True, "doubling": True}}


def two_names_misspelt(given):
    """The others are graded all the same."""
    right = in_megabytes(given)
    return {"rings": right.pop("ring"), "dubling": right.pop("doubling")} | right


RIGHT = [in_megabytes, in_bytes, with_units, with_a_note, rounded]

WRONG = {
    root_sends_to_itself: {"server_root": "rank 0 does not send the sum to itself"},
    root_sends_one_copy: {"server_root": "one copy of the sum"},
    sends_and_receives_at_the_server: {
        "server_root": "also counts the bytes that the rank receives",
        "server_other": "also counts the bytes that the rank receives",
    },
    others_as_busy_as_the_root: {"server_other": "this is rank 0's load"},
    half_a_ring: {"ring": "only the reduce-scatter"},
    ring_of_whole_tensors: {"ring": "the whole tensor in every round"},
    ring_with_a_round_too_many: {"ring": "N rounds for each half"},
    ring_in_binary_megabytes: {"ring": "this would be right in MiB"},
    unit_of_the_wrong_kind: {"ring": "'ms' is no unit for this question"},
    what_a_rank_ends_with: {"reduce_scatter": "the chunk that the rank ends with"},
    all_reduce_for_reduce_scatter: {"reduce_scatter": "the whole all-reduce"},
    all_gather_of_s_in_all: {"all_gather": "takes S as the output's size"},
    own_tensor_only: {"all_gather": "sends only the rank's own tensor"},
    doubling_counted_both_ways: {"doubling": "also counts the bytes that the rank receives"},
    doubling_with_every_rank: {"doubling": "one round for each other rank"},
    ring_grows_too: {"unbounded": "can it ever exceed 2S?"},
    a_list_for_a_number: {"ring": ", not a list."},
    a_truth_for_a_number: {"server_other": "True is no number. Write a number, as 2.5"},
    nothing_computed: {"doubling": "nan is no finite number. Write a number"},
    a_dict_for_a_set: {"unbounded": "Write the names in braces"},
    two_names_misspelt: {
        "ring": "unknown answer 'rings': did you mean 'ring'?",
        "doubling": "unknown answer 'dubling': did you mean 'doubling'?",
    },
    only_the_server_grows: {"unbounded": "what happens from N to 2N?"},
}

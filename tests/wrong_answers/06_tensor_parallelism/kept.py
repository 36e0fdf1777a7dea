"""Answers to 06/kept: what a rank keeps of a layer for backward, by what is divided."""

from dtlab.predict import activation_bytes, activation_pieces

PLANS = ("tensor", "sequence", "selective", "both", "full")

# Right ----------------------------------------------------------------------------------------


def megabytes(given, whole, divided=0.0, matrices=0.0):
    """So many bytes of sbh on every rank, so many over t, and so many of as/h over t."""
    sbh = given["sequence"] * given["micro_batch"] * given["hidden"]
    over_t = divided + matrices * given["heads"] * given["sequence"] / given["hidden"]
    return sbh * (whole + over_t / given["ranks"]) / 1e6


def by_plan(given):
    """MB of a layer."""
    return {
        "tensor": megabytes(given, 10, 24, 5),
        "sequence": megabytes(given, 0, 34, 5),
        "selective": megabytes(given, 10, 24),
        "both": megabytes(given, 0, 34),
        "full": megabytes(given, 2),
    }


def fitting(given):
    sizes = by_plan(given)
    return {plan for plan in PLANS if sizes[plan] * given["layers"] <= given["room"] * 1e3}


def by_hand(given):
    sizes = by_plan(given)
    return {
        "tensor": sizes["tensor"],
        "sequence": sizes["sequence"],
        "floor": megabytes(given, 10),
        "both": sizes["both"],
        "full": sizes["full"],
        "fits": fitting(given),
    }


def by_the_library(given):
    """With units, in bytes, and by pieces."""
    names = ("sequence", "micro_batch", "hidden", "heads", "ranks")
    sizes = [given[name] for name in names]
    one, many = activation_pieces(*sizes[:-1], 1), activation_pieces(*sizes[:-1], 2)
    options = ({}, {"sequence_parallel": True}, {"recompute": "selective"},
               {"sequence_parallel": True, "recompute": "selective"},
               {"recompute": "full"})  # fmt: skip
    kept = dict(zip(PLANS, (activation_bytes(*sizes, **each) for each in options), strict=True))
    return {
        "tensor": f"{kept['tensor'] / 1e9} GB",
        "sequence": kept["sequence"],
        "floor": sum(size for name, size in one.items() if many[name] == size),
        "both": kept["both"],
        "full": f"{kept['full']} B",
        "fits": [plan for plan in PLANS if kept[plan] * given["layers"] <= given["room"] * 1e9],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def formula(name, whole, divided=0.0, matrices=0.0):
    def answer(given):
        return instead(given, **{name: megabytes(given, whole, divided, matrices)})

    return answer


def undivided(name, size, matrices=0.0):
    def answer(given):
        t = given["ranks"]
        return instead(given, **{name: megabytes(given, 0, size * t, matrices * t)})

    return answer


everything_divided = formula("tensor", 0, 34, 5)
one_rank_alone = undivided("tensor", 34, 5)
no_matrices = formula("tensor", 10, 24)
outside_counted_twice = formula("tensor", 20, 24, 5)


def all_matrices(given):
    return instead(given, tensor=megabytes(given, 10, 24, 5 * given["ranks"]))


def in_mib(given):
    return instead(given, tensor=by_hand(given)["tensor"] * 1e6 / 2**20)


tensor_alone = formula("sequence", 10, 24, 5)
inputs_whole = formula("sequence", 4, 30, 5)
masks_whole = formula("sequence", 2, 32, 5)
norms_whole = formula("sequence", 8, 26, 5)

no_floor = formula("floor", 0)
one_rank = formula("floor", 34)
no_masks = formula("floor", 8)
floor_divided = formula("floor", 0, 10)
the_divided_part = formula("floor", 24)

without_sequence_parallelism = formula("both", 10, 24)
both_undivided = formula("both", 34)
matrices_kept = formula("both", 0, 34, 5)
softmax_kept = formula("both", 0, 34, 3)
no_dropout = formula("both", 0, 32)

input_divided = formula("full", 0, 2)
elements_for_bytes = formula("full", 1)
input_and_output = formula("full", 4)


def all_layers(given):
    return instead(given, full=given["layers"] * by_hand(given)["full"])


def fits_with(name):
    def answer(given):
        return instead(given, fits=by_hand(given)["fits"] ^ {name})

    return answer


tensor_fits = fits_with("tensor")
sequence_fits = fits_with("sequence")
selective_fits = fits_with("selective")
both_fit = fits_with("both")
full_fits = fits_with("full")


RIGHT = [by_hand, by_the_library]

WRONG = {
    everything_divided: {"tensor": "this divides everything"},
    one_rank_alone: {"tensor": "this is for a single rank"},
    no_matrices: {"tensor": "leaves out the attention matrices"},
    all_matrices: {"tensor": "has the matrices of only its heads"},
    in_mib: {"tensor": "right in MiB"},
    outside_counted_twice: {"tensor": "is not it. Go through the table line by line"},
    tensor_alone: {"sequence": "this is without sequence parallelism"},
    inputs_whole: {"sequence": "this divides norms and dropout"},
    masks_whole: {"sequence": "both masks"},
    norms_whole: {"sequence": "is not it. Tensor parallelism alone"},
    no_floor: {"floor": "the limit with sequence parallelism"},
    one_rank: {"floor": "are between f and g"},
    no_masks: {"floor": "masks outside of attention"},
    floor_divided: {"floor": "lines that are not divided"},
    the_divided_part: {"floor": "is not it. With more and more ranks"},
    without_sequence_parallelism: {"both": "tensor parallelism only"},
    both_undivided: {"both": "this is not divided"},
    matrices_kept: {"both": "still has attention matrices"},
    softmax_kept: {"both": "the output of softmax"},
    no_dropout: {"both": "is not it. Take your `sequence`"},
    input_divided: {"full": "is the input of a layer between f and g"},
    elements_for_bytes: {"full": "this counts elements"},
    all_layers: {"full": "this is all layers"},
    input_and_output: {"full": "is not it. How many elements"},
    tensor_fits: {"fits": "look at `tensor` again"},
    sequence_fits: {"fits": "look at `sequence` again"},
    selective_fits: {"fits": "look at `selective` again"},
    both_fit: {"fits": "look at `both` again"},
    full_fits: {"fits": "look at `full` again"},
}

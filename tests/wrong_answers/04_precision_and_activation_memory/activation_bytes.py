"""Answers to 04/activation_bytes: what a transformer layer keeps for its backward pass."""

# Right ----------------------------------------------------------------------------------------


def elements_of(given):
    """Of one activation, and of all attention matrices of a layer."""
    tokens = given["sequence"] * given["micro_batch"]
    return tokens * given["hidden"], tokens * given["sequence"] * given["heads"]


def kept(given, plain, matrices=0):
    """MB of so many bytes for each element."""
    activation, attention = elements_of(given)
    return (plain * activation + matrices * attention) / 1e6


def by_hand(given):
    full, fused = kept(given, 34, 5), kept(given, 34)
    cuts = {
        "no_dropout": full - kept(given, 32, 2),
        "fused": full - fused,
        "halved": full / 2,
    }
    return {
        "layer": full,
        "no_dropout": kept(given, 32, 2),
        "fused": kept(given, 32),
        "selective": 100 * (full - fused) / full,
        "full": given["layers"] * kept(given, 2),
        "most": max(cuts, key=cuts.get),
    }


def by_the_formula(given):
    """s b h (34 + 5 a s / h), in bytes, with units, and a share for per cent."""
    s, b, h, a = (given[name] for name in ("sequence", "micro_batch", "hidden", "heads"))
    x = a * s / h
    return {
        "layer": s * b * h * (34 + 5 * x),
        "no_dropout": f"{s * b * h * (32 + 2 * x) / 1e6} MB",
        "fused": f"{s * b * h * 32 / 2**20} MiB",
        "selective": f"{5 * x / (34 + 5 * x) * 100:.3f}%",
        "full": f"{given['layers'] * 2 * s * b * h / 1e9} GB",
        "most": "Fused attention" if 5 * x > 17 + 2.5 * x else "half of the microbatch",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def without_attention(given):
    return instead(given, layer=kept(given, 34))


def one_byte_for_attention(given):
    return instead(given, layer=kept(given, 34, 1))


def bytes_twice(given):
    return instead(given, layer=2 * kept(given, 34, 5))


def in_mib(given):
    return instead(given, layer=kept(given, 34, 5) * 1e6 / 2**20)


def in_fp32_and_more(given):
    return instead(given, layer=3 * kept(given, 34, 5))


def attention_as_it_was(given):
    return instead(given, no_dropout=kept(given, 32, 5))


def masks_alone(given):
    return instead(given, no_dropout=kept(given, 32, 4))


def masks_outside_stay(given):
    return instead(given, no_dropout=kept(given, 34, 2))


def all_stays(given):
    return instead(given, no_dropout=kept(given, 34, 5))


def fused_with_dropout(given):
    return instead(given, fused=kept(given, 34))


def softmax_stays(given):
    return instead(given, fused=kept(given, 32, 2))


def what_fusing_saves(given):
    return instead(given, fused=kept(given, 0, 5))


def fused_saves_nothing(given):
    return instead(given, fused=kept(given, 34, 5))


def part_that_is_left(given):
    return instead(given, selective=100 - by_hand(given)["selective"])


def softmax_is_not_recomputed(given):
    return instead(given, selective=100 * kept(given, 0, 3) / kept(given, 34, 5))


def beside_what_is_left(given):
    return instead(given, selective=100 * kept(given, 0, 5) / kept(given, 34))


def all_is_saved(given):
    return instead(given, selective=100)


def one_layer(given):
    return instead(given, full=kept(given, 2))


def elements_for_bytes(given):
    return instead(given, full=given["layers"] * kept(given, 1))


def selective_for_full(given):
    return instead(given, full=given["layers"] * kept(given, 34))


def with_the_layer_at_work(given):
    return instead(given, full=by_hand(given)["full"] + kept(given, 34, 5))


def nothing_is_kept(given):
    return instead(given, full=0)


def dropout_saves_most(given):
    return instead(given, most="no_dropout")


def the_other_of_two(given):
    return instead(given, most="halved" if by_hand(given)["most"] == "fused" else "fused")


RIGHT = [by_hand, by_the_formula]

WRONG = {
    without_attention: {"layer": "leaves out the attention matrices"},
    one_byte_for_attention: {"layer": "How many bytes are kept for each element?"},
    bytes_twice: {"layer": "are included already"},
    in_mib: {"layer": "this would be right in MiB"},
    in_fp32_and_more: {"layer": "is not it. Compute s b h"},
    attention_as_it_was: {"no_dropout": "There is dropout inside attention, too"},
    masks_alone: {"no_dropout": "without dropout that is one tensor"},
    masks_outside_stay: {"no_dropout": "there are masks outside of attention"},
    all_stays: {"no_dropout": "is not it. Go through the table"},
    fused_with_dropout: {"fused": "this is right with dropout"},
    softmax_stays: {"fused": "is an attention matrix as well"},
    what_fusing_saves: {"fused": "What is left?"},
    fused_saves_nothing: {"fused": "is not it. Which lines of the table are left"},
    part_that_is_left: {"selective": "this is the part that is left"},
    softmax_is_not_recomputed: {"selective": "leaves the output of softmax in memory"},
    beside_what_is_left: {"selective": "this compares the savings with what is left"},
    all_is_saved: {"selective": "is not it. Which lines of the table are gone"},
    one_layer: {"full": "this is one layer"},
    elements_for_bytes: {"full": "this counts elements"},
    selective_for_full: {"full": "this is selective recomputation"},
    with_the_layer_at_work: {"full": "which was not kept"},
    nothing_is_kept: {"full": "is not it. How many elements"},
    dropout_saves_most: {"most": "Is anything larger?"},
    the_other_of_two: {"most": "compute a s / h"},
}

"""Answers to 04/sixteen_bytes: which bytes of a parameter are what, by policy."""

POLICIES = {
    "fp32": 16,
    "mixed": 16,
    "mixed_fp32_grads": 18,
    "mixed_fp32_accumulation": 20,
    "half_only": 8,
}

# Right ----------------------------------------------------------------------------------------


def pieces_of(given):
    gradients = {"mixed_fp32_grads": 4, "mixed_fp32_accumulation": 2 + 4}
    return [2, gradients[given["policy"]], 4, 4 + 4]


def fitting(given, budget):
    return {name for name, size in POLICIES.items() if size * given["parameters"] * 1e9 <= budget}


def by_hand(given):
    each = sum(pieces_of(given))
    return {
        "pieces": pieces_of(given),
        "state": each * given["parameters"],
        "missing": (each - 4 * 2) * given["parameters"],
        "ratio": 1,
        "fits": fitting(given, given["budget"]),
        "halved": {"inputs"},
    }


def by_tensors(given):
    """From the sizes of real tensors; with units, in bytes, and as lists."""
    import torch

    half, full = torch.ones(1).bfloat16().nbytes, torch.ones(1).nbytes
    gradients = {"mixed_fp32_grads": full, "mixed_fp32_accumulation": half + full}
    pieces = [half, gradients[given["policy"]], full, 2 * full]
    return {
        "pieces": torch.tensor(pieces),
        "state": sum(pieces) * given["parameters"] * 1e9,
        "missing": f"{(sum(pieces) - 4 * half) * given['parameters']:.3f} GB",
        "ratio": (2 * half + 3 * full) / (4 * full),
        "fits": sorted(fitting(given, given["budget"])),
        "halved": ["the inputs that linear layers keep for the backward pass"],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def pieces_with(given, place, size):
    pieces = pieces_of(given)
    pieces[place] = size
    return instead(given, pieces=pieces)


def one_moment(given):
    return pieces_with(given, 3, 4)


def no_master(given):
    return pieces_with(given, 2, 0)


def half_gradients(given):
    return pieces_with(given, 1, 2)


def gradients_of_another_policy(given):
    return pieces_with(given, 1, 4 if given["policy"] == "mixed_fp32_accumulation" else 6)


def full_weights(given):
    return pieces_with(given, 0, 4)


def half_master(given):
    return pieces_with(given, 2, 2)


def everything_in_fp32(given):
    return instead(given, pieces=[4, 4, 0, 8])


def total_for_pieces(given):
    return instead(given, pieces=sum(pieces_of(given)))


def sixteen_for_every_policy(given):
    return instead(given, state=16 * given["parameters"])


def weights_alone(given):
    return instead(given, state=2 * given["parameters"])


def four_times_the_weights(given):
    """Claim 2."""
    return instead(given, state=8 * given["parameters"])


def without_moments(given):
    return instead(given, state=(sum(pieces_of(given)) - 8) * given["parameters"])


def in_gib(given):
    return instead(given, state=by_hand(given)["state"] * 1e9 / 2**30)


def twice_the_state(given):
    return instead(given, state=2 * by_hand(given)["state"])


def what_the_text_has(given):
    return instead(given, missing=8 * given["parameters"])


def all_of_it(given):
    return instead(given, missing=by_hand(given)["state"])


def four_bytes_for_the_text(given):
    return instead(given, missing=(sum(pieces_of(given)) - 4) * given["parameters"])


def nothing_missing(given):
    return instead(given, missing=0)


def mixed_is_half(given):
    """Claim 16."""
    return instead(given, ratio=0.5)


def without_master_weights(given):
    return instead(given, ratio=0.75)


def master_on_top(given):
    return instead(given, ratio="5/4")


def twice_as_much(given):
    return instead(given, ratio=2)


def budget_in_gib(given):
    return instead(given, fits=fitting(given, given["budget"] / 2**30 * 1e9))


def what_does_not_fit(given):
    return instead(given, fits=set(POLICIES) - by_hand(given)["fits"])


def smallest_left_out(given):
    return instead(given, fits={"mixed"})


def fp32_swapped(given):
    return instead(given, fits=(by_hand(given)["fits"] | {"mixed", "mixed_fp32_grads"}) ^ {"fp32"})


def most_of_all(given):
    return instead(given, fits=by_hand(given)["fits"] ^ {"mixed_fp32_accumulation"})


def halved_with(*names):
    def answer(given):
        return instead(given, halved={"inputs", *names})

    return answer


weights_are_halved = halved_with("weights")
gradients_are_halved = halved_with("gradients")
traffic_is_halved = halved_with("traffic")
moments_are_halved = halved_with("moments")
all_is_halved = halved_with("weights", "gradients", "traffic", "moments")


def nothing_is_halved(given):
    return instead(given, halved=set())


RIGHT = [by_hand, by_tensors]

WRONG = {
    one_moment: {"pieces": "Adam keeps two moments"},
    no_master: {"pieces": "what are the 16-bit weights computed from"},
    half_gradients: {"pieces": "these are 16-bit gradients only"},
    gradients_of_another_policy: {"pieces": "how many sets of gradients"},
    full_weights: {"pieces": "forward and backward compute have 16 bits"},
    half_master: {"pieces": "is no more exact than the weight"},
    everything_in_fp32: {"pieces": "is not it"},
    total_for_pieces: {"pieces": "write a list of 4 numbers"},
    sixteen_for_every_policy: {"state": "this takes 16 bytes per parameter"},
    weights_alone: {"state": "the 16-bit weights alone"},
    four_times_the_weights: {"state": "if nothing were kept in fp32"},
    without_moments: {"state": "as many as Adam's moments take"},
    in_gib: {"state": "this would be right in GiB"},
    twice_the_state: {"state": "is not it"},
    what_the_text_has: {"missing": "this is what the text counts"},
    all_of_it: {"missing": "this is all of it"},
    four_bytes_for_the_text: {"missing": "The text counts four times two"},
    nothing_missing: {"missing": "is not it"},
    mixed_is_half: {"ratio": "texts often claim this"},
    without_master_weights: {"ratio": "One of the four is missing"},
    master_on_top: {"ratio": "Those have 16 bits"},
    twice_as_much: {"ratio": "is not it"},
    budget_in_gib: {"fits": "this compares GB with GiB"},
    what_does_not_fit: {"fits": "this is the opposite"},
    smallest_left_out: {"fits": "look at `half_only` again"},
    fp32_swapped: {"fits": "look at `fp32` again"},
    most_of_all: {"fits": "is not it"},
    weights_are_halved: {"halved": "look at the weights again"},
    gradients_are_halved: {"halved": "look at .grad again"},
    traffic_is_halved: {"halved": "look at DDP again"},
    moments_are_halved: {"halved": "look at the moments again"},
    all_is_halved: {"halved": "look at the weights again"},
    nothing_is_halved: {"halved": "look at the linear layers again"},
}

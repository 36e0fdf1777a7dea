"""Answers to 02/all_reduces: how many buckets there are."""

# Right ----------------------------------------------------------------------------------------


def buckets(sizes, first, others):
    """Layers by their numbers, from the last one on."""
    made, filling = [], []
    for number in range(len(sizes), 0, -1):
        filling.append(number)
        if sum(sizes[one - 1] for one in filling) >= (others if made else first):
            made.append(filling)
            filling = []
    return made + [filling] * bool(filling)


def by_hand(given):
    cap, k = given["bucket_cap_mb"], given["micro"]
    made = buckets(given["layers"], cap, cap)
    return {
        "first_step": 1,
        "second_step": len(made),
        "first_bucket": {str(number) for number in made[0]},
        "default": len(buckets(given["layers"], 1, 25)),
        "micro": k * len(made),
        "no_sync": len(made),
    }


def numbers_for_names(given):
    """Layers as numbers in a list, counts as text."""
    right = by_hand(given)
    return right | {
        "first_bucket": sorted(map(int, right["first_bucket"])),
        "micro": str(right["micro"]),
    }


# Wrong ----------------------------------------------------------------------------------------


def first_step_as_the_others(given):
    return by_hand(given) | {"first_step": by_hand(given)["second_step"]}


def first_step_without_buckets(given):
    return by_hand(given) | {"first_step": 6}


def never_over_the_limit(given):
    made, filling = 0, given["bucket_cap_mb"] + 1
    for size in given["layers"][::-1]:
        filling += size
        if filling > given["bucket_cap_mb"]:
            made, filling = made + 1, size
    return by_hand(given) | {"second_step": made}


def one_for_each_layer(given):
    return by_hand(given) | {"second_step": 6}


def second_step_as_the_first(given):
    return by_hand(given) | {"second_step": 1}


def from_the_first_layer_on(given):
    cap, sizes = given["bucket_cap_mb"], given["layers"]
    (first, *_) = buckets(sizes[::-1], cap, cap)
    return by_hand(given) | {"first_bucket": {str(7 - number) for number in first}}


def last_bucket(given):
    cap = given["bucket_cap_mb"]
    made = buckets(given["layers"], cap, cap)
    return by_hand(given) | {"first_bucket": {str(number) for number in made[-1]}}


def one_layer_too_many(given):
    right = by_hand(given)
    more = str(min(map(int, right["first_bucket"])) - 1)
    return right | {"first_bucket": right["first_bucket"] | {more}}


def all_buckets_of_25(given):
    return by_hand(given) | {"default": len(buckets(given["layers"], 25, 25))}


def micro_batches_send_once(given):
    return by_hand(given) | {"micro": by_hand(given)["second_step"]}


def one_for_each_micro_batch(given):
    return by_hand(given) | {"micro": given["micro"]}


def no_sync_saves_nothing(given):
    return by_hand(given) | {"no_sync": by_hand(given)["micro"]}


def no_sync_passes_counted(given):
    count = (given["micro"] - 1) * by_hand(given)["second_step"]
    return by_hand(given) | {"no_sync": count}


RIGHT = [by_hand, numbers_for_names]

WRONG = {
    first_step_as_the_others: {"first_step": "this is right from step 2 on"},
    first_step_without_buckets: {"first_step": "one for each layer"},
    never_over_the_limit: {"second_step": "this closes a bucket before it reaches its limit"},
    one_for_each_layer: {"second_step": "this is one for each layer"},
    second_step_as_the_first: {"second_step": "this is the single bucket of the first step"},
    from_the_first_layer_on: {
        "first_bucket": "which layers' gradients does backward compute first?"
    },
    last_bucket: {"first_bucket": "this is the bucket that is sent last"},
    one_layer_too_many: {"first_bucket": "is not it"},
    all_buckets_of_25: {"default": "this uses 25 MiB for all buckets"},
    micro_batches_send_once: {"micro": "only one of the k backward passes communicated"},
    one_for_each_micro_batch: {"micro": "How many buckets does each one send?"},
    no_sync_saves_nothing: {"no_sync": "this is the number without no_sync"},
    no_sync_passes_counted: {"no_sync": "these are the passes inside no_sync"},
}

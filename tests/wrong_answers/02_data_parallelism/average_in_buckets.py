"""Answers to 02/average_in_buckets: mistakes people make, right answers written differently."""

import torch
import torch.distributed as dist

from dtlab.parallel.data.buckets import in_buckets


def gradients_of(module):
    return [one.grad for one in module.parameters() if one.grad is not None]


def average_together(bucket, group=None):
    flat = torch.cat([one.flatten() for one in bucket])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for one, piece in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
        one.copy_(piece.view_as(one))


def by_dtype(gradients):
    return [
        [one for one in gradients if one.dtype == dtype]
        for dtype in dict.fromkeys(one.dtype for one in gradients)
    ]


def in_lists(gradients, full):
    """`gradients` in lists, each closed when `full(list)` says so."""
    buckets = [[]]
    for gradient in gradients:
        buckets[-1].append(gradient)
        if full(buckets[-1]):
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


def nbytes(bucket):
    return sum(one.nbytes for one in bucket)


def right_buckets(module, bucket_bytes):
    return [
        bucket
        for same in by_dtype(gradients_of(module)[::-1])
        for bucket in in_lists(same, lambda bucket: nbytes(bucket) >= bucket_bytes)
    ]


# Wrong ------------------------------------------------------------------------------


def one_for_each_gradient(module, bucket_bytes, group=None):
    for gradient in gradients_of(module)[::-1]:
        average_together([gradient], group)


def all_in_one(module, bucket_bytes, group=None):
    for same in by_dtype(gradients_of(module)[::-1]):
        average_together(same, group)


def closed_before_it_is_full(module, bucket_bytes, group=None):
    for same in by_dtype(gradients_of(module)[::-1]):
        bucket = []
        for gradient in same:
            if bucket and nbytes([*bucket, gradient]) > bucket_bytes:
                average_together(bucket, group)
                bucket = []
            bucket.append(gradient)
        average_together(bucket, group)


def closed_only_above_its_limit(module, bucket_bytes, group=None):
    for same in by_dtype(gradients_of(module)[::-1]):
        for bucket in in_lists(same, lambda bucket: nbytes(bucket) > bucket_bytes):
            average_together(bucket, group)


def elements_for_bytes(module, bucket_bytes, group=None):
    def full(bucket):
        return sum(one.numel() for one in bucket) >= bucket_bytes

    for same in by_dtype(gradients_of(module)[::-1]):
        for bucket in in_lists(same, full):
            average_together(bucket, group)


def count_never_begins_again(module, bucket_bytes, group=None):
    for same in by_dtype(gradients_of(module)[::-1]):
        bucket, filled = [], 0
        for gradient in same:
            bucket.append(gradient)
            filled += gradient.nbytes
            if filled >= bucket_bytes:
                average_together(bucket, group)
                bucket = []
        if bucket:
            average_together(bucket, group)


def bucket_is_never_emptied(module, bucket_bytes, group=None):
    for same in by_dtype(gradients_of(module)[::-1]):
        bucket, filled = [], 0
        for number, gradient in enumerate(same, 1):
            bucket.append(gradient)
            filled += gradient.nbytes
            if filled >= bucket_bytes or number == len(same):
                average_together(bucket, group)
                filled = 0


def rest_left_out(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        if nbytes(bucket) >= bucket_bytes:
            average_together(bucket, group)


def from_the_first_parameter_on(module, bucket_bytes, group=None):
    for same in by_dtype(gradients_of(module)):
        for bucket in in_lists(same, lambda bucket: nbytes(bucket) >= bucket_bytes):
            average_together(bucket, group)


def last_bucket_first(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes)[::-1]:
        average_together(bucket, group)


def padded_to_one_size(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        room = bucket[0].new_zeros(max(0, 8 * bucket_bytes // 7 - nbytes(bucket)) // 4 + 8)
        average_together([*bucket, room], group)


def travels_as_float64(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        wide = [one.double() for one in bucket]
        average_together(wide, group)
        for one, mean in zip(bucket, wide, strict=True):
            one.copy_(mean)


def dtypes_share_a_bucket(module, bucket_bytes, group=None):
    gradients = gradients_of(module)[::-1]
    for bucket in in_lists(gradients, lambda bucket: nbytes(bucket) >= bucket_bytes):
        average_together(bucket, group)


def four_bytes_for_every_element(module, bucket_bytes, group=None):
    def full(bucket):
        return 4 * sum(one.numel() for one in bucket) >= bucket_bytes

    for same in by_dtype(gradients_of(module)[::-1]):
        for bucket in in_lists(same, full):
            average_together(bucket, group)


def a_change_of_dtype_closes_a_bucket(module, bucket_bytes, group=None):
    gradients = gradients_of(module)[::-1]
    changes = [i for i in range(1, len(gradients)) if gradients[i - 1].dtype != gradients[i].dtype]
    for begin, end in zip([0, *changes], [*changes, None], strict=True):
        for bucket in in_lists(gradients[begin:end], lambda all_: nbytes(all_) >= bucket_bytes):
            average_together(bucket, group)


def padded_by_an_element(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        average_together([*bucket, bucket[0].new_zeros(1)], group)


def everything_is_float32(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        narrow = [one.float() for one in bucket]
        average_together(narrow, group)
        for one, mean in zip(bucket, narrow, strict=True):
            one.copy_(mean)


def other_dtypes_left_out(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        if bucket[0].dtype == torch.float32:
            average_together(bucket, group)


def sum_in_place_of_the_mean(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        average_together(bucket, group)
        for one in bucket:
            one *= dist.get_world_size(group)


def never_copied_back(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        average_together([one.clone() for one in bucket], group)


def copied_back_from_the_start(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        flat = torch.cat([one.flatten() for one in bucket])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for one in bucket:
            one.copy_(flat[: one.numel()].view_as(one))


def copied_back_the_other_way_round(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        flat = torch.cat([one.flatten() for one in bucket])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for one in bucket[::-1]:
            one.copy_(flat[: one.numel()].view_as(one))
            flat = flat[one.numel() :]


def without_asking_for_none(module, bucket_bytes, group=None):
    gradients = [one.grad for one in module.parameters()][::-1]
    for bucket in in_lists(gradients, lambda bucket: nbytes(bucket) >= bucket_bytes):
        average_together(bucket, group)


def ignores_the_group(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        average_together(bucket)


def divided_by_the_world(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        average_together(bucket, group)
        for one in bucket:
            one *= dist.get_world_size(group) / dist.get_world_size()


def without_a_group(module, bucket_bytes):
    ignores_the_group(module, bucket_bytes)


def untouched(module, bucket_bytes, group=None):
    raise NotImplementedError()


def does_nothing(module, bucket_bytes, group=None):
    return module


def gathered_and_added_up(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        flat = torch.cat([one.flatten() for one in bucket])
        every = [torch.empty_like(flat) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, flat, group=group)
        flat = sum(every) / len(every)
        for one in bucket:
            one.copy_(flat[: one.numel()].view_as(one))
            flat = flat[one.numel() :]


def buckets_of_the_library(module, bucket_bytes, group=None):
    trained = [one for one in module.parameters() if one.grad is not None][::-1]
    size = dist.get_world_size(group)
    for bucket in in_buckets(trained, bucket_bytes, bucket_bytes, size):
        average_together([one.grad for one in bucket.parameters], group)


def below_the_recorder(module, bucket_bytes, group=None):
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(
        torch.device("cpu")
    )
    for gradient in gradients_of(module):
        backend.allreduce([gradient]).wait()
        gradient /= dist.get_world_size(group)


# Right, written differently --------------------------------------------------------------------


def with_lists_of_lists(module, bucket_bytes, group=None):
    for bucket in right_buckets(module, bucket_bytes):
        average_together(bucket, group)


def a_bucket_in_hand_for_each_dtype(module, bucket_bytes, group=None):
    """Goes through the gradients once; gradients become views of the buckets."""
    in_hand = {}

    def send(parameters):
        flat = torch.cat([one.grad.reshape(-1) for one in parameters]) / size
        dist.all_reduce(flat, group=group)
        start = 0
        for one in parameters:
            one.grad = flat[start : start + one.numel()].view(one.shape)
            start += one.numel()

    size = len(dist.get_process_group_ranks(group))
    for parameter in reversed([*module.parameters()]):
        if parameter.grad is None:
            continue
        bucket = in_hand.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(one.grad.nbytes for one in bucket) >= bucket_bytes:
            send(in_hand.pop(parameter.dtype))
    for bucket in in_hand.values():
        send(bucket)


def all_at_the_same_time(module, bucket_bytes, group=None):
    """Starts all of them, then waits for one after the other."""
    started = []
    for bucket in right_buckets(module, bucket_bytes):
        flat = torch.nn.utils.parameters_to_vector(bucket)
        started.append((bucket, flat, dist.all_reduce(flat, group=group, async_op=True)))
    for bucket, flat, work in started:
        work.wait()
        pieces = (flat / dist.get_world_size(group)).split([one.numel() for one in bucket])
        for one, piece in zip(bucket, pieces, strict=True):
            one.copy_(piece.reshape(one.shape))


RIGHT = [with_lists_of_lists, a_bucket_in_hand_for_each_dtype, all_at_the_same_time]

WRONG = {
    one_for_each_gradient: {"all_reduces": "10 all-reduces, for "},
    all_in_one: {"all_reduces": "1 all-reduce, for "},
    closed_before_it_is_full: {"all_reduces": "close it with the gradient that reaches"},
    closed_only_above_its_limit: {"all_reduces": "close it with the gradient that reaches"},
    elements_for_bytes: {"all_reduces": "; bytes of the buckets: "},
    count_never_begins_again: {"all_reduces": "all-reduces, for "},
    bucket_is_never_emptied: {"bytes": "each gradient is in one bucket"},
    rest_left_out: {
        "gradients": "this is the rank's own gradient",
        "all_reduces": "The gradients left at the end form a bucket too",
        "bytes": "each gradient is in one bucket",
    },
    from_the_first_parameter_on: {"order": "Backward reaches the last layers first"},
    last_bucket_first: {"order": "Backward reaches the last layers first"},
    padded_to_one_size: {"bytes": "A bucket is as large as its gradients"},
    padded_by_an_element: {"bytes": "have 9564 bytes, and the gradients have 9552 bytes"},
    travels_as_float64: {"bytes": "Buckets hold the gradients' own dtype, float32"},
    dtypes_share_a_bucket: {"dtypes": "a bucket must hold gradients of one dtype"},
    four_bytes_for_every_element: {"dtypes": "an element of float64 has 8 bytes"},
    a_change_of_dtype_closes_a_bucket: {"dtypes": "of another dtype must not close a bucket"},
    everything_is_float32: {"dtypes": "are sent as float32"},
    other_dtypes_left_out: {"dtypes": "this is the rank's own gradient"},
    sum_in_place_of_the_mean: {"gradients": "this is the sum over the ranks"},
    never_copied_back: {"gradients": "a concatenation, write the result back"},
    copied_back_from_the_start: {"gradients": "off the mean over the ranks by up to"},
    copied_back_the_other_way_round: {"gradients": "off the mean over the ranks by up to"},
    without_asking_for_none: {"gradients": "'NoneType' object has no attribute 'nbytes'"},
    ignores_the_group: {"subgroups": "this is the mean over all ranks"},
    divided_by_the_world: {"subgroups": "divide by dist.get_world_size(group)"},
    without_a_group: {"subgroups": "takes no `group`"},
    untouched: {"gradients": "average_in_buckets is not written yet"},
    does_nothing: {
        "gradients": "this is the rank's own gradient",
        "all_reduces": "0 all-reduces, for ",
        "bytes": "each gradient is in one bucket",
    },
    gathered_and_added_up: {
        "all_reduces": "calls dist.all_gather",
        "bytes": "the all-reduces have 0 bytes",
    },
    buckets_of_the_library: {"gradients": "parallel.data.buckets.in_buckets does the work for"},
    below_the_recorder: {"gradients": "left it as the operating system counts"},
}

_ORDER = "dtypes are listed in an order that is the same on all ranks, whichever it is"
_ROUNDING = "to divide before or after is the same up to rounding"

EQUIVALENT = {
    "for dtype in dict.fromkeys((one.dtype for one in gradients)): -> "
    "for dtype in reversed(dict.fromkeys((one.dtype for one in gradients))):": _ORDER,
    "... dict.fromkeys((one.dtype for one in gradients)): -> "
    "... dict.fromkeys((one.dtype for one in reversed(gradients))):": _ORDER,
    "bucket.append(gradient); filled += gradient.nbytes -> "
    "filled += gradient.nbytes; bucket.append(gradient)": "neither needs the other",
    "filled += gradient.nbytes -> filled = filled + gradient.nbytes": "a number is a number",
    "dist.all_reduce(flat, group=group); flat /= dist.get_world_size(group) -> "
    "flat /= dist.get_world_size(group); dist.all_reduce(flat, group=group)": _ROUNDING,
    "flat /= dist.get_world_size(group); pieces = flat.split([one.numel() for one in gradients]) "
    "-> pieces = flat.split([one.numel() for one in gradients]); "
    "flat /= dist.get_world_size(group)": "pieces are views, which see the division",
    "flat /= dist.get_world_size(group) -> flat = flat / dist.get_world_size(group)": (
        "the name is bound to the mean either way"
    ),
    "gradient.copy_(piece.view_as(gradient)) -> gradient.copy_(piece.view_as(gradient)); "
    "for gradient, piece in zip(gradients, pieces, strict=True):; "
    "gradient.copy_(piece.view_as(gradient))": "the same copied twice",
}

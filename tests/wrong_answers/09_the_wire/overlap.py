"""Answers to 09/overlap: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist


class Bucket:
    """Gradients with the number of the first one, and their all-reduce."""

    def __init__(self, first, gradients):
        self.first, self.gradients = first, list(gradients)

    def send(self, async_op=True, dtype=torch.float32):
        self.flat = torch.cat([each.flatten() for each in self.gradients]).to(dtype)
        self.work = dist.all_reduce(self.flat, async_op=async_op)
        return self

    def wait(self):
        self.work.wait()

    def run(self, step, ranks=None):
        flat = self.flat.float() / (ranks or dist.get_world_size())
        pieces = flat.split([each.numel() for each in self.gradients])
        for place, (piece, each) in enumerate(zip(pieces, self.gradients, strict=True)):
            step(self.first + place, piece.view_as(each))


def buckets_of(gradients, bucket_bytes, full=None):
    """Yields each bucket when it is full, and at the end what is left."""
    full = full or (lambda held: sum(each.nbytes for each in held) >= bucket_bytes)
    held, number = [], -1
    for number, gradient in enumerate(gradients):
        held.append(gradient)
        if full(held):
            yield Bucket(number + 1 - len(held), held)
            held = []
    if held:
        yield Bucket(number + 1 - len(held), held)


def finish(buckets, step, **options):
    for bucket in buckets:
        bucket.wait()
        bucket.run(step, **options)


def right(gradients, bucket_bytes, step):
    finish([bucket.send() for bucket in buckets_of(gradients, bucket_bytes)], step)


# Wrong ------------------------------------------------------------------------------------------


def untouched(gradients, bucket_bytes, step):
    raise NotImplementedError()


def sums(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    finish(buckets, step, ranks=1)


def own_gradients(gradients, bucket_bytes, step):
    """The result of the all-reduce stays in the bucket."""
    for bucket in [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]:
        bucket.wait()
        for place, each in enumerate(bucket.gradients):
            step(bucket.first + place, each)


def divided_by_two(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    finish(buckets, step, ranks=2)


def flat_gradients(gradients, bucket_bytes, step):
    right(gradients, bucket_bytes, lambda place, mean: step(place, mean.flatten()))


def numbers_within_a_bucket(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket in buckets:
        bucket.first = 0
    finish(buckets, step)


def nobody_waits(gradients, bucket_bytes, step):
    for bucket in [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]:
        bucket.run(step)


def asks_and_never_waits(gradients, bucket_bytes, step):
    for bucket in [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]:
        while not bucket.work.is_completed():
            pass
        bucket.run(step)


def waits_for_the_last_one(gradients, bucket_bytes, step):
    """As if the last to be sent were the last to arrive."""
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    buckets[-1].wait()
    for bucket in buckets:
        bucket.run(step)


def rest_left_out(gradients, bucket_bytes, step):
    buckets = []
    for bucket in buckets_of(gradients, bucket_bytes):
        if sum(each.nbytes for each in bucket.gradients) >= bucket_bytes:
            buckets.append(bucket.send())
    finish(buckets, step)


def one_for_each_gradient(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, 1)]
    finish(buckets, step)


def one_bucket(gradients, bucket_bytes, step):
    finish([bucket.send() for bucket in buckets_of(gradients, 1 << 40)], step)


def closed_before_it_is_full(gradients, bucket_bytes, step):
    held, buckets, first = [], [], 0
    for gradient in gradients:
        if held and sum(each.nbytes for each in [*held, gradient]) > bucket_bytes:
            buckets.append(Bucket(first, held).send())
            first, held = first + len(held), []
        held.append(gradient)
    buckets.append(Bucket(first, held).send())
    finish(buckets, step)


def counts_elements(gradients, bucket_bytes, step):
    def full(held):
        return sum(each.numel() for each in held) >= bucket_bytes

    finish([bucket.send() for bucket in buckets_of(gradients, bucket_bytes, full)], step)


def more_than_full(gradients, bucket_bytes, step):
    def full(held):
        return sum(each.nbytes for each in held) > bucket_bytes

    finish([bucket.send() for bucket in buckets_of(gradients, bucket_bytes, full)], step)


def in_float64(gradients, bucket_bytes, step):
    buckets = buckets_of(gradients, bucket_bytes)
    finish([bucket.send(dtype=torch.float64) for bucket in buckets], step)


def a_barrier(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    finish(buckets, step)
    dist.barrier()


def all_gradients_first(gradients, bucket_bytes, step):
    right(list(gradients), bucket_bytes, step)


def with_the_next_gradient(gradients, bucket_bytes, step):
    """A full bucket is sent when the next gradient is there."""
    buckets, full = [], None
    for bucket in buckets_of(gradients, bucket_bytes):
        if full:
            buckets.append(full.send())
        full = bucket
    finish([*buckets, full.send()], step)


def rest_after_waiting(gradients, bucket_bytes, step):
    """What is left at the end is sent when all other buckets are done."""
    *buckets, last = buckets_of_and_send(gradients, bucket_bytes)
    finish(buckets, step)
    if not hasattr(last, "work"):
        last.send()
    finish([last], step)


def buckets_of_and_send(gradients, bucket_bytes):
    """All buckets; those that are full are sent."""
    for bucket in buckets_of(gradients, bucket_bytes):
        if sum(each.nbytes for each in bucket.gradients) >= bucket_bytes:
            bucket.send()
        yield bucket


def all_reduce_that_blocks(gradients, bucket_bytes, step):
    for bucket in [b.send(async_op=False) for b in buckets_of(gradients, bucket_bytes)]:
        bucket.run(step)


def one_at_a_time(gradients, bucket_bytes, step):
    """Waits for a bucket before it sends the next one."""
    buckets = []
    for bucket in buckets_of(gradients, bucket_bytes):
        if buckets:
            buckets[-1].wait()
        buckets.append(bucket.send())
    buckets[-1].wait()
    for bucket in buckets:
        bucket.run(step)


def steps_in_backward(gradients, bucket_bytes, step):
    """Each bucket is done when the next one is full."""
    before = None
    for bucket in buckets_of(gradients, bucket_bytes):
        bucket.send()
        if before:
            finish([before], step)
        before = bucket
    finish([before], step)


def waits_for_all_first(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket in buckets:
        bucket.wait()
    for bucket in buckets:
        bucket.run(step)


def waits_for_all_and_again(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket in buckets:
        bucket.wait()
    finish(buckets, step)


def waits_for_all_in_reverse(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket in reversed(buckets):
        bucket.wait()
    finish(buckets, step)


def waits_for_two_and_again(gradients, bucket_bytes, step):
    """The next bucket's wait comes before this one's, and then once more."""
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket, following in zip(buckets, [*buckets[1:], None], strict=True):
        if following:
            following.wait()
        finish([bucket], step)


def waits_for_the_last_one_often(gradients, bucket_bytes, step):
    """As many waits as buckets, all for the same one."""
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket in buckets:
        buckets[-1].wait()
        bucket.run(step)


def waits_for_two(gradients, bucket_bytes, step):
    """The next bucket's wait comes before this one's step."""
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    buckets[0].wait()
    for bucket, following in zip(buckets, [*buckets[1:], None], strict=True):
        if following:
            following.wait()
        bucket.run(step)


# Right ------------------------------------------------------------------------------------------


def in_lists(gradients, bucket_bytes, step):
    """Without a class, and divided before it is sent."""
    pending, names, parts, size = [], [], [], 0
    iterator = iter(gradients)
    while True:
        gradient = next(iterator, None)
        if gradient is not None:
            names.append(len(names) + sum(len(each[0]) for each in pending))
            parts.append(gradient)
            size += gradient.element_size() * gradient.numel()
        if parts and (gradient is None or size >= bucket_bytes):
            flat = torch.cat([each.reshape(-1) for each in parts])
            pending.append((names, parts, flat, dist.all_reduce(flat, async_op=True)))
            names, parts, size = [], [], 0
        if gradient is None:
            break
    for numbers, tensors, flat, work in pending:
        work.wait()
        flat.mul_(1 / dist.get_world_size()) if dist.get_world_size() != 3 else flat.div_(3)
        offset = 0
        for number, tensor in zip(numbers, tensors, strict=True):
            step(number, flat[offset : offset + tensor.numel()].reshape(tensor.shape))
            offset += tensor.numel()


def written_back(gradients, bucket_bytes, step):
    """The means are copied into the gradients, and two sends of one tensor need no copy."""
    sent = []
    for bucket in buckets_of(gradients, bucket_bytes):
        if len(bucket.gradients) == 1:
            bucket.flat = bucket.gradients[0]
            bucket.work = dist.all_reduce(bucket.flat, async_op=True)
            bucket.flat = bucket.flat.view(-1)
        else:
            bucket.send()
        sent.append(bucket)
    for bucket in sent:
        bucket.work.wait()
        bucket.flat /= dist.get_world_size()
        offset = 0
        for number, gradient in enumerate(bucket.gradients, bucket.first):
            gradient.view(-1).copy_(bucket.flat[offset : offset + gradient.numel()])
            offset += gradient.numel()
            step(number, gradient)


def by_futures(gradients, bucket_bytes, step):
    buckets = [bucket.send() for bucket in buckets_of(gradients, bucket_bytes)]
    for bucket in buckets:
        bucket.work.get_future().wait()
        bucket.run(step)


RIGHT = [right, in_lists, written_back, by_futures]

WRONG = {
    untouched: {"gradients": "is not written yet"},
    sums: {"gradients": "this is the sum over the ranks"},
    own_gradients: {"gradients": "the rank's own gradient, not the mean"},
    divided_by_two: {"gradients": "this is not the mean"},
    flat_gradients: {"gradients": "has shape"},
    numbers_within_a_bucket: {"gradients": "Call it once for each"},
    nobody_waits: {"gradients": "Call wait() for each"},
    asks_and_never_waits: {"gradients": "is_completed() does not wait"},
    waits_for_the_last_one: {"gradients": "Call wait() for each"},
    rest_left_out: {"gradients": "Call it once for each", "all_reduces": ""},
    one_for_each_gradient: {"all_reduces": "for buckets of"},
    one_bucket: {"all_reduces": "for buckets of"},
    closed_before_it_is_full: {"all_reduces": "for buckets of"},
    counts_elements: {"all_reduces": "for buckets of"},
    more_than_full: {"all_reduces": "for buckets of"},
    in_float64: {"all_reduces": "for buckets of"},
    a_barrier: {"all_reduces": "calls barrier"},
    all_gradients_first: {"at_once": "before its all-reduce begins"},
    with_the_next_gradient: {"at_once": "before its all-reduce begins"},
    rest_after_waiting: {"at_once": "Send what is left first"},
    all_reduce_that_blocks: {"waits": "nothing overlaps"},
    one_at_a_time: {"waits": "nothing overlaps", "at_once": "Send what is left first"},
    steps_in_backward: {"waits": "nothing overlaps"},
    waits_for_all_first: {"steps": "Wait for one bucket"},
    waits_for_all_and_again: {"steps": "Wait for one bucket"},
    waits_for_all_in_reverse: {"steps": "Wait for one bucket"},
    waits_for_two_and_again: {"steps": "Wait for one bucket"},
    waits_for_the_last_one_often: {"gradients": "Call wait() for each"},
    waits_for_two: {"steps": "Wait for one bucket"},
}

EQUIVALENT = {
    "held.clear() -> held.clear(); held.clear()": "nothing is held any more",
    "if sum((each.nbytes for each in held)) >= bucket_bytes: -> "
    "if sum((each.nbytes for each in reversed(held))) >= bucket_bytes:": "a sum",
    "send() -> send(); for gradient in gradients:; ...": "the iterator is at its end",
    "if held:; send(); number = 0 -> number = 0; if held:; send()": "send reads no number",
    "work.wait() -> work.wait(); work.wait()": "the second wait returns at once",
    "flat /= dist.get_world_size() -> flat = flat / dist.get_world_size()": "a new tensor",
}

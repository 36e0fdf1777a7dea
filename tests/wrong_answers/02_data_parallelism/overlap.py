"""Answers to 02/overlap: mistakes people make, and right answers written differently."""

from functools import partial

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from dtlab.parallel.data import DataParallel


class Bucket:
    def __init__(self, parameters, group):
        self.parameters, self.group, self.arrived, self.work = parameters, group, 0, None

    @property
    def full(self):
        return self.arrived == len(self.parameters)

    def start(self, async_op=True):
        self.flat = torch.cat([one.grad.flatten() for one in self.parameters])
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=async_op)

    def finish(self, wait=True, size=None):
        if wait and self.work is not None:
            self.work.wait()
        self.flat /= size or dist.get_world_size(self.group)
        pieces = self.flat.split([one.numel() for one in self.parameters])
        for one, piece in zip(self.parameters, pieces, strict=True):
            one.grad.copy_(piece.view_as(one))
        self.arrived, self.work = 0, None


def trained(module):
    return [one for one in module.parameters() if one.requires_grad][::-1]


def in_lists(parameters, full):
    """`parameters` in lists, each closed when `full(list)` says so."""
    lists = [[]]
    for parameter in parameters:
        lists[-1].append(parameter)
        if full(lists[-1]):
            lists.append([])
    return [one for one in lists if one]


def buckets_of(parameters, bucket_bytes, group):
    def full(parameters):
        return sum(one.nbytes for one in parameters) >= bucket_bytes

    return [Bucket(one, group) for one in in_lists(parameters, full)]


def counting(buckets, counted, register="register_post_accumulate_grad_hook"):
    """Hooks that count a gradient in its bucket, and then call `counted` with that."""

    def hook_for(bucket):
        def hook(_):
            bucket.arrived += 1
            counted(bucket)

        return hook

    for bucket in buckets:
        for parameter in bucket.parameters:
            getattr(parameter, register)(hook_for(bucket))


def in_order(buckets, **register):
    """Hooks that start every bucket as soon as it is full and those before it have left."""
    waiting = list(buckets)

    def start(_):
        while waiting and waiting[0].full:
            waiting.pop(0).start()

    counting(buckets, start, **register)
    return waiting


def overlapping(buckets, finish_one=Bucket.finish):
    waiting = in_order(buckets)

    def finish():
        for bucket in buckets:
            finish_one(bucket)
        waiting.extend(buckets)

    return finish


# Wrong ------------------------------------------------------------------------------


def all_of_it_in_finish(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)

    def finish():
        for bucket in buckets:
            bucket.start()
        for bucket in buckets:
            bucket.finish()

    return finish


def from_the_first_parameter_on(module, bucket_bytes, group=None):
    return overlapping(buckets_of(trained(module)[::-1], bucket_bytes, group))


def when_the_last_gradient_is_there(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)

    def hook_for(bucket):
        def hook(_):
            bucket.arrived += 1
            if all(one.full for one in buckets):
                for one in buckets:
                    one.start()

        return hook

    for bucket in buckets:
        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(hook_for(bucket))
    return lambda: [bucket.finish() for bucket in buckets]


def with_the_next_gradient(module, bucket_bytes, group=None):
    """A full bucket leaves when another gradient comes: it looks first, and counts after that."""
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = list(buckets)

    def start_full_ones():
        while waiting and waiting[0].full:
            waiting.pop(0).start()

    def hook_for(bucket):
        def hook(_):
            start_full_ones()
            bucket.arrived += 1

        return hook

    def finish():
        start_full_ones()
        for bucket in buckets:
            bucket.finish()
        waiting.extend(buckets)

    for bucket in buckets:
        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(hook_for(bucket))
    return finish


def all_reduce_that_blocks(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    for bucket in buckets:
        bucket.start = lambda bucket=bucket: Bucket.start(bucket, async_op=False)
    return overlapping(buckets)


def one_bucket_under_way_at_a_time(module, bucket_bytes, group=None):
    """Waits for a bucket before it starts the next one."""
    buckets = buckets_of(trained(module), bucket_bytes, group)

    def start(number):
        if number:
            buckets[number - 1].work.wait()
        Bucket.start(buckets[number])

    for number, bucket in enumerate(buckets):
        bucket.start = lambda number=number: start(number)
    return overlapping(buckets)


def as_soon_as_it_is_full(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    counting(buckets, lambda bucket: bucket.start() if bucket.full else None)
    return lambda: [bucket.finish() for bucket in buckets]


def sends_one_in_each_hook(buckets):
    """Returns the buckets that wait for their turn."""
    waiting = list(buckets)

    def start(_):
        if waiting and waiting[0].full:
            waiting.pop(0).start()

    counting(buckets, start)
    return waiting


def one_in_each_hook(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = sends_one_in_each_hook(buckets)

    def finish():
        while waiting:
            waiting.pop(0).start()
        for bucket in buckets:
            bucket.finish()
        waiting.extend(buckets)

    return finish


def full_with_its_last_parameter(module, bucket_bytes, group=None):
    """The last parameter of a bucket stands for all of them, as if gradients came in order."""
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = list(buckets)

    def hook_for(bucket):
        def hook(parameter):
            if parameter is bucket.parameters[-1]:
                bucket.arrived = len(bucket.parameters)
            while waiting and waiting[0].full:
                waiting.pop(0).start()

        return hook

    def finish():
        for bucket in buckets:
            bucket.finish()
        waiting.extend(buckets)

    for bucket in buckets:
        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(hook_for(bucket))
    return finish


def one_for_each_gradient(module, bucket_bytes, group=None):
    return overlapping([Bucket([one], group) for one in trained(module)])


def closed_before_it_is_full(module, bucket_bytes, group=None):
    lists = [[]]
    for one in trained(module):
        if lists[-1] and sum(each.nbytes for each in lists[-1]) + one.nbytes > bucket_bytes:
            lists.append([])
        lists[-1].append(one)
    return overlapping([Bucket(each, group) for each in lists])


def one_bucket(module, bucket_bytes, group=None):
    return overlapping([Bucket(trained(module), group)])


def rest_left_out(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    if sum(one.nbytes for one in buckets[-1].parameters) < bucket_bytes:
        buckets.pop()
    return overlapping(buckets)


def right_in_the_first_step_only(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    in_order(buckets)
    return lambda: [bucket.finish() for bucket in buckets]


def arrived_is_never_reset(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = in_order(buckets)

    def finish():
        for bucket in buckets:
            arrived = bucket.arrived
            bucket.finish()
            bucket.arrived = arrived
        waiting.extend(buckets)

    return finish


def hooks_that_all_count_in_the_last_bucket(module, bucket_bytes, group=None):
    """The hooks see `bucket` when they run, and by then it is the last one."""
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = list(buckets)
    for bucket in buckets:

        def hook(_):
            bucket.arrived += 1  # noqa: B023
            while waiting and waiting[0].full:
                waiting.pop(0).start()

        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(hook)

    def finish():
        for one in buckets:
            one.work.wait()
            one.finish(wait=False)
        waiting.extend(buckets)

    return finish


def asks_and_never_waits(module, bucket_bytes, group=None):
    def finish(bucket):
        while not bucket.work.is_completed():
            pass
        bucket.finish(wait=False)

    return overlapping(buckets_of(trained(module), bucket_bytes, group), finish)


def divided_by_two(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    return overlapping(buckets, lambda bucket: bucket.finish(size=2))


def nobody_waits(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    return overlapping(buckets, lambda bucket: bucket.finish(wait=False))


def largest_in_place_of_the_sum(module, bucket_bytes, group=None):
    """Right on one rank, as what is read or written while it is under way is."""

    def start(bucket):
        bucket.flat = torch.cat([one.grad.flatten() for one in bucket.parameters])
        bucket.work = dist.all_reduce(bucket.flat, dist.ReduceOp.MAX, group, async_op=True)

    buckets = buckets_of(trained(module), bucket_bytes, group)
    for bucket in buckets:
        bucket.start = partial(start, bucket)
    return overlapping(buckets)


def sum_in_place_of_the_mean(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    return overlapping(buckets, lambda bucket: bucket.finish(size=1))


def never_copied_back(module, bucket_bytes, group=None):
    def finish(bucket):
        bucket.work.wait()
        bucket.arrived = 0

    return overlapping(buckets_of(trained(module), bucket_bytes, group), finish)


def hooks_before_the_gradient_is_there(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    in_order(buckets, register="register_hook")
    return lambda: [bucket.finish() for bucket in buckets]


def hooks_on_frozen_parameters(module, bucket_bytes, group=None):
    parameters = list(module.parameters())[::-1]
    return overlapping(buckets_of(parameters, bucket_bytes, group))


def returns_nothing(module, bucket_bytes, group=None):
    overlapping(buckets_of(trained(module), bucket_bytes, group))


def a_small_one_for_show(module, bucket_bytes, group=None):
    """Something travels in backward, and all gradients travel after it."""
    afterwards, sent = all_of_it_in_finish(module, bucket_bytes, group), []

    def hook(parameter):
        sent.append(dist.all_reduce(torch.zeros(1), group=group, async_op=True))

    def finish():
        while sent:
            sent.pop().wait()
        afterwards()

    trained(module)[0].register_post_accumulate_grad_hook(hook)
    return finish


def ignores_the_group(module, bucket_bytes, group=None):
    return overlapping(buckets_of(trained(module), bucket_bytes, None))


def divided_by_the_world(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)
    return overlapping(buckets, lambda bucket: bucket.finish(size=dist.get_world_size()))


def without_a_group(module, bucket_bytes):
    return overlapping(buckets_of(trained(module), bucket_bytes, None))


def untouched(module, bucket_bytes, group=None):
    raise NotImplementedError()


def does_nothing(module, bucket_bytes, group=None):
    return lambda: None


def the_librarys_own(module, bucket_bytes, group=None):
    DataParallel(module, bucket_bytes / 2**20, group)
    return lambda: None


def pytorchs_own(module, bucket_bytes, group=None):
    DistributedDataParallel(module, bucket_cap_mb=bucket_bytes / 2**20, process_group=group)
    return lambda: None


def returns_what_finish_returns(module, bucket_bytes, group=None):
    """Calls `finish` and returns its result, instead of returning `finish`."""
    return overlapping(buckets_of(trained(module), bucket_bytes, group))()


def without_a_loop(module, bucket_bytes, group=None):
    """Sends one bucket in a hook; the last one held back is never sent."""
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = sends_one_in_each_hook(buckets)

    def finish():
        for bucket in buckets:
            bucket.work.wait()
            bucket.finish(wait=False)
        waiting.extend(buckets)

    return finish


def one_gradient_too_early(module, bucket_bytes, group=None):
    buckets = buckets_of(trained(module), bucket_bytes, group)

    def start(bucket):
        if bucket.arrived == max(1, len(bucket.parameters) - 1):
            bucket.start()

    counting(buckets, start)
    return lambda: [bucket.finish() for bucket in buckets]


# Right, written differently --------------------------------------------------------------------


def with_a_number_for_the_next(module, bucket_bytes, group=None):
    """No class: dictionaries, counters, and gradients that are views of the buckets."""
    size, next_one, missing, works = len(dist.get_process_group_ranks(group)), [0], {}, []
    lists = in_lists(trained(module), lambda own: sum(one.nbytes for one in own) >= bucket_bytes)
    number_of = {one: number for number, each in enumerate(lists) for one in each}

    def begin():
        next_one[0] = 0
        missing.update({number: len(each) for number, each in enumerate(lists)})
        works.clear()

    def hook(parameter):
        missing[number_of[parameter]] -= 1
        while next_one[0] < len(lists) and missing[next_one[0]] == 0:
            flat = torch.cat([one.grad.reshape(-1) for one in lists[next_one[0]]]) / size
            works.append((flat, dist.all_reduce(flat, group=group, async_op=True)))
            next_one[0] += 1

    def finish():
        for own, (flat, work) in zip(lists, works, strict=True):
            work.wait()
            for one, piece in zip(own, flat.split([one.numel() for one in own]), strict=True):
                one.grad = piece.view(one.shape)
        begin()

    begin()
    for parameter in number_of:
        parameter.register_post_accumulate_grad_hook(hook)
    return finish


def finished_within_backward(module, bucket_bytes, group=None):
    """As PyTorch's own: backward waits at its very end, and nothing is left for `finish`."""
    buckets = buckets_of(trained(module), bucket_bytes, group)
    waiting = in_order(buckets)
    begun = []

    def at_the_end():
        for bucket in buckets:
            bucket.finish()
        waiting.extend(buckets)
        begun.clear()

    def hook(_):
        if not begun:
            begun.append(True)
            Variable._execution_engine.queue_callback(at_the_end)

    for parameter in trained(module):
        parameter.register_post_accumulate_grad_hook(hook)
    return lambda: None


class MyOverlap:
    """A class whose instances are called; flat tensors are made once, and waits are futures'."""

    def __init__(self, module, bucket_bytes, group=None):
        self.group, self.lists = group, []
        left = trained(module)
        while left:
            taken = [left.pop(0)]
            while left and sum(one.nbytes for one in taken) < bucket_bytes:
                taken.append(left.pop(0))
            self.lists.append(taken)
        self.flats = [torch.zeros(sum(one.numel() for one in own)) for own in self.lists]
        self.there, self.futures = set(), []
        for own in self.lists:
            for one in own:
                one.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, parameter):
        self.there.add(parameter)
        for own, flat in list(zip(self.lists, self.flats, strict=True))[len(self.futures) :]:
            if not self.there.issuperset(own):
                return
            torch.cat([one.grad.flatten() for one in own], out=flat)
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self.futures.append(work.get_future())

    def __call__(self):
        for own, flat, future in zip(self.lists, self.flats, self.futures, strict=True):
            future.wait()
            flat.div_(dist.get_world_size(self.group))
            for one, piece in zip(own, flat.split([one.numel() for one in own]), strict=True):
                one.grad.copy_(piece.view_as(one))
        self.there, self.futures = set(), []


def in_a_class(module, bucket_bytes, group=None):
    return MyOverlap(module, bucket_bytes, group)


RIGHT = [with_a_number_for_the_next, finished_within_backward, in_a_class]

WRONG = {
    all_of_it_in_finish: {"overlap": "nothing is sent before backward reaches the first layer"},
    from_the_first_parameter_on: {"overlap": "Fill buckets from the last parameter on"},
    when_the_last_gradient_is_there: {"overlap": "nothing is sent before backward reaches the"},
    with_the_next_gradient: {"at_once": "before you send it. Count a gradient first"},
    one_in_each_hook: {"at_once": "full buckets are sent only after backward"},
    all_reduce_that_blocks: {"waits": "Start the all-reduce with async_op=True"},
    one_bucket_under_way_at_a_time: {"waits": "so the two do not overlap"},
    as_soon_as_it_is_full: {"order": "until the buckets before it have been sent"},
    full_with_its_last_parameter: {"order": "whichever comes last"},
    one_for_each_gradient: {"all_reduces": "all-reduces, for "},
    closed_before_it_is_full: {"all_reduces": "close it with the gradient that reaches"},
    one_bucket: {
        "all_reduces": "1 all-reduce, for ",
        "overlap": "nothing is sent before backward reaches the first layer",
    },
    rest_left_out: {
        "gradients": "this is the rank's own gradient",
        "all_reduces": "The gradients left at the end form a bucket too",
    },
    right_in_the_first_step_only: {
        "gradients": "Step 1 sends its buckets, and later steps send none",
        "all_reduces": "no bucket is sent, although step 1 sent them all. Which state did",
    },
    arrived_is_never_reset: {
        "gradients": "Step 1 sends its buckets, and later steps send none",
        "all_reduces": "no bucket is sent, although step 1 sent them all. Which state did",
    },
    hooks_that_all_count_in_the_last_bucket: {"gradients": "which gradients does its hook count"},
    asks_and_never_waits: {"gradients": "even if is_completed() returned True"},
    divided_by_two: {"gradients": "Right on 2 ranks only"},
    nobody_waits: {"gradients": "does not wait for a dist.all_reduce"},
    largest_in_place_of_the_sum: {"gradients": "before wait() for it has returned?"},
    sum_in_place_of_the_mean: {"gradients": "this is the sum over the ranks"},
    never_copied_back: {"gradients": "write the result back"},
    hooks_before_the_gradient_is_there: {"gradients": "4 ranks, "},
    hooks_on_frozen_parameters: {"gradients": "cannot register a hook"},
    returns_nothing: {"gradients": "return finish`, without brackets"},
    returns_what_finish_returns: {"gradients": "return that function, and do not call it"},
    without_a_loop: {"order": "go on sending while the next bucket is full"},
    one_gradient_too_early: {"gradients": "A gradient of this bucket has not arrived yet"},
    a_small_one_for_show: {"all_reduces": "all-reduces, for "},
    ignores_the_group: {"subgroups": "this is the mean over all ranks"},
    divided_by_the_world: {"subgroups": "divide by dist.get_world_size(group)"},
    without_a_group: {"subgroups": "takes no `group`"},
    untouched: {"gradients": "overlap is not written yet"},
    does_nothing: {
        "gradients": "this is the rank's own gradient",
        "all_reduces": "0 all-reduces, for ",
    },
    the_librarys_own: {"gradients": "does the work for you"},
    pytorchs_own: {"gradients": "DistributedDataParallel does the work for you"},
}

_ANY_ORDER = "hooks are registered, and buckets that are under way waited for, in any order"
_MEAN = "self.flat /= dist.get_world_size(self.group)"
_PIECES = "pieces = self.flat.split([one.numel() for one in self.parameters])"
_COPY = "one.grad.copy_(piece.view_as(one))"
_LOOP = "for one, piece in zip(self.parameters, pieces, strict=True):"

EQUIVALENT = {
    "filling.append(parameter); if sum((one.nbytes for one in filling)) >= bucket_bytes:; ... -> "
    "if sum((one.nbytes for one in filling)) >= bucket_bytes:; "
    "buckets.append(Bucket(filling, group)); ...": (
        "a full bucket is closed when the next parameter comes, or as the rest"
    ),
    "if sum((one.nbytes for one in filling)) >= bucket_bytes: -> "
    "if sum((one.nbytes for one in reversed(filling))) >= bucket_bytes:": (
        "a sum of whole numbers has no order"
    ),
    "line 26: for bucket in buckets: -> for bucket in reversed(buckets):": _ANY_ORDER,
    "for bucket in buckets:; for parameter in bucket.parameters:; ... -> ; def finish():; ...": (
        "`finish` is called after the first step, wherever it is defined"
    ),
    "for parameter in bucket.parameters: -> for parameter in reversed(bucket.parameters):": (
        _ANY_ORDER
    ),
    "line 31: for bucket in buckets: -> for bucket in reversed(buckets):": _ANY_ORDER,
    "for bucket in buckets:; bucket.finish(); waiting.extend(buckets) -> "
    "waiting.extend(buckets); for bucket in buckets:; bucket.finish()": (
        "no gradient comes while `finish` runs"
    ),
    "self.work.wait() -> self.work.wait(); self.work.wait()": "an operation that is done is done",
    f"{_MEAN}; {_PIECES} -> {_PIECES}; {_MEAN}": "pieces are views, which see the division",
    f"{_MEAN} -> self.flat = self.flat / dist.get_world_size(self.group)": (
        "the name is bound to the mean either way"
    ),
    f"{_LOOP}; {_COPY}; self.arrived = 0 -> self.arrived = 0; {_LOOP}; {_COPY}": (
        "no gradient comes while `finish` runs"
    ),
    f"{_COPY} -> one.grad = piece.view_as(one)": "`.grad` may be a view of the bucket",
    f"{_COPY} -> {_COPY}; {_LOOP}; {_COPY}": "the same copied twice",
}

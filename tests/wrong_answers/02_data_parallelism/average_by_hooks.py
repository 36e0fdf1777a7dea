"""Answers to 02/average_by_hooks: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel


def begin_equal(module, group=None):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, group=group, group_src=0)


def average(parameter, group=None):
    dist.all_reduce(parameter.grad, group=group)
    parameter.grad /= dist.get_world_size(group)


def hook_all(module, hook):
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(hook)


# Wrong ------------------------------------------------------------------------------


def sum_in_place_of_the_mean(module, group=None):
    begin_equal(module, group)
    hook_all(module, lambda parameter: dist.all_reduce(parameter.grad, group=group))


def averages_the_parameter(module, group=None):
    def hook(parameter):
        dist.all_reduce(parameter.data, group=group)
        parameter.data /= dist.get_world_size(group)

    begin_equal(module, group)
    hook_all(module, hook)


def divided_into_a_new_tensor(module, group=None):
    def hook(parameter):
        dist.all_reduce(parameter.grad, group=group)
        gradient = parameter.grad
        gradient = gradient / dist.get_world_size(group)

    begin_equal(module, group)
    hook_all(module, hook)


def all_hooks_see_the_last_parameter(module, group=None):
    begin_equal(module, group)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _: average(parameter, group))  # noqa: B023


def all_in_the_hook_of_the_first_parameter(module, group=None):
    def hook(_):
        for parameter in module.parameters():
            if parameter.grad is not None:
                average(parameter, group)

    begin_equal(module, group)
    first = next(one for one in module.parameters() if one.requires_grad)
    first.register_post_accumulate_grad_hook(hook)


def in_double(module, group=None):
    def hook(parameter):
        wide = parameter.grad.double()
        dist.all_reduce(wide, group=group)
        parameter.grad.copy_(wide / dist.get_world_size(group))

    begin_equal(module, group)
    hook_all(module, hook)


def first_step_only(module, group=None):
    begin_equal(module, group)
    for parameter in module.parameters():
        if parameter.requires_grad:
            handles = []

            def hook(parameter, handles=handles):
                average(parameter, group)
                handles[0].remove()

            handles.append(parameter.register_post_accumulate_grad_hook(hook))


def tensor_hook_that_returns_nothing(module, group=None):
    def hook(gradient):
        mean = gradient.clone()
        dist.all_reduce(mean, group=group)
        mean /= dist.get_world_size(group)

    begin_equal(module, group)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(hook)


def now_and_never_again(module, group=None):
    """Averages what is there when it is called: nothing yet."""
    begin_equal(module, group)
    for parameter in module.parameters():
        if parameter.grad is not None:
            average(parameter, group)


def nobody_waits(module, group=None):
    def hook(parameter):
        parameter.grad /= dist.get_world_size(group)
        dist.all_reduce(parameter.grad, group=group, async_op=True)

    begin_equal(module, group)
    hook_all(module, hook)


def each_rank_begins_by_itself(module, group=None):
    hook_all(module, lambda parameter: average(parameter, group))


def frozen_parameters_begin_by_themselves(module, group=None):
    for parameter in module.parameters():
        if parameter.requires_grad:
            dist.broadcast(parameter.data, group=group, group_src=0)
    for buffer in module.buffers():
        dist.broadcast(buffer, group=group, group_src=0)
    hook_all(module, lambda parameter: average(parameter, group))


def buffers_begin_by_themselves(module, group=None):
    for parameter in module.parameters():
        dist.broadcast(parameter.data, group=group, group_src=0)
    hook_all(module, lambda parameter: average(parameter, group))


def what_is_saved_begins_equal(module, group=None):
    """`state_dict` leaves out buffers with persistent=False."""
    for tensor in module.state_dict().values():
        dist.broadcast(tensor, group=group, group_src=0)
    hook_all(module, lambda parameter: average(parameter, group))


def begins_by_itself_and_is_never_averaged(module, group=None):
    """Two mistakes that have nothing to do with each other."""
    hook_all(module, lambda parameter: None)


def begins_with_the_mean(module, group=None):
    for parameter in module.parameters():
        dist.all_reduce(parameter.data, group=group)
        parameter.data /= dist.get_world_size(group)
    for buffer in module.buffers():
        dist.broadcast(buffer, group=group, group_src=0)
    hook_all(module, lambda parameter: average(parameter, group))


def begins_with_the_last_rank(module, group=None):
    last = dist.get_world_size(group) - 1
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, group=group, group_src=last)
    hook_all(module, lambda parameter: average(parameter, group))


def copies_that_nobody_uses(module, group=None):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach().clone(), group=group, group_src=0)
    hook_all(module, lambda parameter: average(parameter, group))


def hooks_on_frozen_parameters(module, group=None):
    begin_equal(module, group)
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: average(one, group))


def frozen_parameters_are_trained(module, group=None):
    begin_equal(module, group)
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    hook_all(module, lambda parameter: average(parameter, group))


def every_module_with_its_children(module, group=None):
    begin_equal(module, group)
    for one in module.modules():
        hook_all(one, lambda parameter: average(parameter, group))


def all_of_them_in_every_hook(module, group=None):
    def hook(_):
        for parameter in module.parameters():
            if parameter.grad is not None:
                average(parameter, group)

    begin_equal(module, group)
    hook_all(module, hook)


def ignores_the_group(module, group=None):
    begin_equal(module)
    hook_all(module, average)


def begins_with_rank_0_of_the_world(module, group=None):
    begin_equal(module)
    hook_all(module, lambda parameter: average(parameter, group))


def divided_by_the_world(module, group=None):
    def hook(parameter):
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size()

    begin_equal(module, group)
    hook_all(module, hook)


def rank_0_of_the_world_for_the_first_member(module, group=None):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, 0, group=group)
    hook_all(module, lambda parameter: average(parameter, group))


def without_a_group(module):
    begin_equal(module)
    hook_all(module, average)


def untouched(module, group=None):
    raise NotImplementedError()


def does_nothing(module, group=None):
    return module


def wrapped_by_pytorch(module, group=None):
    begin_equal(module, group)
    DistributedDataParallel(module, process_group=group)


def below_the_recorder(module, group=None):
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(
        torch.device("cpu")
    )

    def hook(parameter):
        backend.allreduce([parameter.grad]).wait()
        parameter.grad /= dist.get_world_size(group)

    begin_equal(module, group)
    hook_all(module, hook)


# Right, written differently --------------------------------------------------------------------


def tensor_hooks(module, group=None):
    """Hooks that get the gradient before it is in `.grad`, and return the mean."""
    members = dist.get_process_group_ranks(group)

    def hook(gradient):
        mean = gradient / len(members)
        dist.all_reduce(mean, group=group)
        return mean

    with torch.no_grad():
        for tensor in [*module.buffers(), *module.parameters()]:
            dist.broadcast(tensor, members[0], group)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(hook)


def a_function_for_each_parameter(module, group=None):
    """Hooks know their parameter; all parameters begin as one packed vector."""
    packed = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    dist.broadcast(packed, group=group, group_src=0)
    torch.nn.utils.vector_to_parameters(packed, module.parameters())
    for buffer in module.buffers():
        dist.broadcast(buffer, group=group, group_src=0)
    for parameter in module.parameters():
        if parameter.requires_grad:

            def hook(_, own=parameter):
                own.grad = own.grad.div(dist.get_world_size(group))
                dist.all_reduce(own.grad, group=group)

            parameter.register_post_accumulate_grad_hook(hook)


def waits_at_the_end_of_backward(module, group=None):
    """All travel at the same time."""
    works = []

    def finish():
        while works:
            parameter, work = works.pop()
            work.wait()
            parameter.grad /= dist.get_world_size(group)

    def hook(parameter):
        if not works:
            Variable._execution_engine.queue_callback(finish)
        works.append((parameter, dist.all_reduce(parameter.grad, group=group, async_op=True)))

    begin_equal(module, group)
    hook_all(module, hook)


RIGHT = [tensor_hooks, a_function_for_each_parameter, waits_at_the_end_of_backward]

WRONG = {
    sum_in_place_of_the_mean: {"gradients": "this is the sum over the ranks, not the mean"},
    averages_the_parameter: {"gradients": "its gradient is `parameter.grad`"},
    divided_into_a_new_tensor: {"gradients": "this is the sum over the ranks"},
    all_hooks_see_the_last_parameter: {
        "gradients": "Each parameter's hook averages that gradient alone"
    },
    first_step_only: {
        "gradients": "step 2, rank 0, layers.0.weight: this is the rank's own gradient",
        "all_reduces": "step 2, rank 0: the rank calls no all-reduce",
    },
    tensor_hook_that_returns_nothing: {"gradients": "this is the rank's own gradient"},
    now_and_never_again: {
        "gradients": "this is the rank's own gradient",
        "all_reduces": "the rank calls no all-reduce",
    },
    nobody_waits: {"gradients": "does not wait for a dist.all_reduce"},
    each_rank_begins_by_itself: {"start": "this is this rank's initial value, and must be rank 0"},
    frozen_parameters_begin_by_themselves: {"start": ".1.weight: this is this rank"},
    buffers_begin_by_themselves: {"start": "centre: this is this rank's initial value"},
    what_is_saved_begins_equal: {"start": "`buffers()` returns all of them"},
    begins_by_itself_and_is_never_averaged: {
        "gradients": "this is the rank's own gradient",
        "start": "this is this rank's initial value, and must be rank 0",
        "all_reduces": "the rank calls no all-reduce",
    },
    all_in_the_hook_of_the_first_parameter: {"gradients": "Each parameter's hook averages"},
    in_double: {"all_reduces": "in its own dtype"},
    begins_with_the_mean: {"start": "rank 0, layers.0.weight: this is no rank's initial value"},
    begins_with_the_last_rank: {"start": "layers.0.weight: this is rank 2's initial value"},
    copies_that_nobody_uses: {"start": "this is this rank's initial value"},
    hooks_on_frozen_parameters: {
        "start": "so it needs no hook: check requires_grad",
        "frozen": "so it needs no hook: check requires_grad",
    },
    frozen_parameters_are_trained: {"frozen": "had no gradient, and should have none"},
    every_module_with_its_children: {"all_reduces": "18 all-reduces for 6 gradients"},
    all_of_them_in_every_hook: {"all_reduces": "21 all-reduces for 6 gradients"},
    ignores_the_group: {"subgroups": "this is the mean over all ranks"},
    begins_with_rank_0_of_the_world: {"subgroups": "group_src=0 counts in the group"},
    divided_by_the_world: {"subgroups": "divide by dist.get_world_size(group)"},
    rank_0_of_the_world_for_the_first_member: {"subgroups": "src= is a global rank"},
    without_a_group: {"subgroups": "takes no `group`"},
    untouched: {"gradients": "average_by_hooks is not written yet"},
    does_nothing: {
        "gradients": "this is the rank's own gradient",
        "start": "this is this rank's initial value, and must be rank 0",
        "all_reduces": "the rank calls no all-reduce",
    },
    wrapped_by_pytorch: {"gradients": "DistributedDataParallel does the work for you"},
    below_the_recorder: {"gradients": "left it as the operating system counts"},
}

EQUIVALENT = {
    "; def average(parameter):; ... -> for tensor in [*module.parameters(), *module.buffers()]:; "
    "dist.broadcast(tensor.detach(), group=group, group_src=0); ...": (
        "the hook is defined before it is registered, wherever it stands"
    ),
    "dist.all_reduce(parameter.grad, group=group); parameter.grad /= size -> "
    "parameter.grad /= size; dist.all_reduce(parameter.grad, group=group)": (
        "to divide first or last is the same up to rounding"
    ),
    "parameter.grad /= size -> parameter.grad = parameter.grad / size": (
        "`.grad` may be another tensor, as long as it holds the mean"
    ),
    "for tensor in [*module.parameters(), *module.buffers()]: -> "
    "for tensor in reversed([*module.parameters(), *module.buffers()]):": (
        "all ranks have the same order of broadcasts"
    ),
    "for tensor in [*module.parameters(), *module.buffers()]:; dist.broadcast(tensor.detach(), "
    "group=group, group_src=0); ... -> for parameter in module.parameters():; "
    "if parameter.requires_grad:; ...": (
        "hooks are registered and tensors broadcast before the first step, in any order"
    ),
    "dist.broadcast(tensor.detach(), ... -> dist.broadcast(tensor.detach(), group=group, "
    "group_src=0); dist.broadcast(tensor.detach(), ...": (
        "a second broadcast changes nothing, and what is sent before the first step is not counted"
    ),
    "dist.broadcast(tensor.detach(), ... -> dist.broadcast(tensor.detach(), group=group, "
    "group_src=0); for tensor in [*module.parameters(), *module.buffers()]:; "
    "dist.broadcast(tensor.detach(), ...": (
        "a second broadcast changes nothing, and what is sent before the first step is not counted"
    ),
}

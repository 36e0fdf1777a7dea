"""All private names of PyTorch that dtlab uses. No other module of dtlab uses one.

A private name may change in any release of PyTorch. `tests/test_torch_internals.py` has a test for
each entry, which says what breaks without it: a new release fails there first.

An entry's docstring says what it does, why no public name does it, and since which release of
PyTorch dtlab has used it. The functions import torch when they are called, so that modules which
need only the names of files load no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode

__all__ = ["DispatchMode"]  # made by `__getattr__` at the end; the other names are seen directly


# Files of PyTorch, by which the watcher recognises frames in the stack of a rank -----------------
#
# A traceback has only names of files and functions: no public interface says that a frame belongs
# to torch.distributed, or waits in a backward pass. All were seen since 2.13.

C10D_FILE = os.path.join("torch", "distributed", "distributed_c10d.py")  # `dist.all_reduce`, ...
LOGGER_FILE = os.path.join("torch", "distributed", "c10d_logger.py")  # decorates these functions
CONTEXT_FILE = os.path.join("torch", "utils", "_contextlib.py")  # `no_grad` as a decorator
FUNCTIONAL_FILE = os.path.join("torch", "distributed", "_functional_collectives.py")
MODULE_STATE_FILE = os.path.join("torch", "distributed", "utils.py")  # broadcasts it for DDP
DDP_FILE = os.path.join("torch", "nn", "parallel", "distributed.py")
SYNC_BATCH_NORM_FILE = os.path.join("torch", "nn", "modules", "_functions.py")
BACKWARD_FILE = os.path.join("torch", "autograd", "graph.py")  # runs backward passes
CHECKPOINT_FILE = os.path.join("torch", "utils", "checkpoint.py")
OPERATORS_FILE = os.path.join("torch", "_ops.py")  # calls the operators of torch.ops

DDP_FORWARD = ("_pre_forward", "_post_forward")  # methods of DDP that broadcast before and after
COMPILED_CALL = "_fn"  # the function in torch._dynamo that calls a compiled function


# Modules of PyTorch, by name ---------------------------------------------------------------------

COMPILER = "torch._dynamo"
"""The module that the first optimizer imports, which takes seconds: the server imports it early.

`torch.compiler`, the public module, does not import it. Seen since 2.13."""

REPLICATE = "torch.distributed._composable.replicate"
"""The module of `replicate`, composable DDP, which no public module exports. Seen since 2.13."""

FULLY_SHARD = "torch.distributed.fsdp._fully_shard._fully_shard"
"""The module that defines `fully_shard`; the public module has no code. Seen since 2.13."""

NEW_GROUP = "_new_group_with_tag"
"""The function of `c10d()` by which `new_group` and DeviceMesh both create a group.

Replacing the public `new_group` would miss the groups of a DeviceMesh. Seen since 2.13."""

WARN_NOT_IN_GROUP = "_warn_not_in_group"
"""The function of `c10d()` that warns a rank which is not a member of the group it passed.

The rank has issued no operation, so nothing else shows such a call. Seen since 2.13."""

ATTENTION_OPERATORS = "_scaled_dot_product"
"""How the names of the operators behind `scaled_dot_product_attention` begin.

A dispatch mode sees only these operators, not the public function. Seen since 2.13."""

FUNCTIONAL_OPERATORS = "_c10d_functional"
"""The namespace of the operators of functional collectives, which DTensor calls.

It has no public name, but DTensor waits by its `wait_tensor`. Seen since 2.13."""


# Backward passes ---------------------------------------------------------------------------------


def backward_number() -> int:
    """Return the number of the backward pass that runs on this thread; -1 outside of one.

    A hook on a gradient has no public way to learn that a new pass has begun. Seen since 2.13.
    """
    import torch

    return torch._C._current_graph_task_id()


def after_backward(do: Callable[[], None]) -> None:
    """Call `do` at the end of the backward pass that runs now.

    DDP and FSDP wait for their last bucket by it; no public hook fires at that time. Seen since
    2.13.
    """
    from torch.autograd import Variable

    Variable._execution_engine.queue_callback(do)


def run_backward(
    ends: Sequence[Any],
    gradients: Sequence[Tensor],
    wanted: Sequence[Any] = (),
    *,
    keep_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Run a backward pass from `ends`; return the gradients of `wanted`, or add them to `.grad`.

    `ends` and `wanted` are tensors or edges of the graph. Without `wanted`, each parameter's
    gradient is added to its `.grad`. `torch.autograd.backward` and `grad`, which call this engine,
    import sympy to compare the shapes of the gradients passed in. That takes two seconds on a
    fresh rank, and the engine compares them anyway. Seen since 2.13.
    """
    from torch.autograd import Variable

    computed: tuple[Tensor | None, ...] = Variable._execution_engine.run_backward(
        tuple(ends), tuple(gradients), keep_graph, False, tuple(wanted),
        allow_unreachable=True, accumulate_grad=not wanted,
    )  # fmt: skip
    return computed


def backward_code() -> CodeType:
    """Return the code of the function that `loss.backward()` calls to start the engine.

    Its frame separates what a hook called from the learner's line that called backward. No public
    function's frame is certain to be there. Seen since 2.13.
    """
    import torch

    return torch.autograd.graph._engine_run_backward.__code__


def has_saved_tensors_hooks() -> bool:
    """Return whether `saved_tensors_hooks` are active now, as while a checkpoint recomputes.

    Public names set these hooks but do not show them. Seen since 2.13.
    """
    import torch

    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def gradient_hooks(parameter: Tensor) -> list[Callable[..., Any]]:
    """Return the hooks that `register_post_accumulate_grad_hook` has set on a parameter.

    Public names set and remove such hooks but do not list them. Seen since 2.13.
    """
    return [*(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()]


# Modules -----------------------------------------------------------------------------------------


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the dictionary of a module's own parameters, without those of submodules.

    `named_parameters` leaves out those that are None, and cannot replace one without the checks
    of `setattr`. Seen since 2.13.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the dictionary of a module's own buffers, without those of submodules.

    `buffers()` visits all modules, which takes 1 % of the step of a small model. Seen since 2.13.
    """
    return module._buffers


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the dictionary of a module's submodules; empty if its constructor has not begun.

    `named_children` names a submodule that occurs twice only once. Seen since 2.13.
    """
    modules: dict[str, nn.Module | None] = vars(module).get("_modules", {})
    return modules


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is a BatchNorm of any number of dims, or a SyncBatchNorm.

    The public classes have only a private class in common. Seen since 2.13.
    """
    from torch import nn

    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def ddp_buckets(ddp: DistributedDataParallel) -> list[Any]:
    """Return DDP's buckets, whose `parameters()` are all parameters that DDP averages.

    Communication hooks get buckets too, but only in a backward pass. Seen since 2.13.
    """
    buckets: list[Any] = ddp.reducer._get_zeros_like_grad_buckets()
    return buckets


def is_joining(model: Any) -> bool:
    """Return whether a model, a `Joinable`, runs in a `Join` context that is enabled.

    `Join` tells its models so by a private attribute only. Seen since 2.13.
    """
    enabled: bool = model._join_config.enable
    return enabled


# Tensors and storages ----------------------------------------------------------------------------


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor of which `tensor` is a view; `tensor` itself if it is none.

    No public name leads from a view to its base. Seen since 2.13.
    """
    return tensor if tensor._base is None else tensor._base


def version(tensor: Tensor) -> int:
    """Return how many times a tensor, or a view of its storage, was changed in place.

    Autograd compares this number, but no public name shows it. Raises RuntimeError for a tensor
    of inference mode. Seen since 2.13.
    """
    return tensor._version


def storage_number(storage: Any) -> int:
    """Return a number that a storage shares with no other living one, also on the meta device.

    `data_ptr()` is 0 for every storage on the meta device and for each empty one. Seen since 2.13.
    """
    number: int = storage._cdata
    return number


def untyped(storage: Any) -> Any:
    """Return the untyped storage in a `TypedStorage`.

    The public `untyped()` warns that typed storages will be removed. Seen since 2.13.
    """
    return storage._untyped_storage


def sparse_indices(tensor: Tensor) -> Tensor:
    """Return the indices of a sparse tensor, which may occur more than once.

    The public `indices()` refuses a tensor that is not coalesced, as gradients are. Seen since
    2.13.
    """
    return tensor._indices()


def sparse_values(tensor: Tensor) -> Tensor:
    """Return the values of a sparse tensor, which may have several for one index.

    The public `values()` refuses a tensor that is not coalesced, as gradients are. Seen since
    2.13.
    """
    return tensor._values()


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each tensor into its target, all in one call.

    A loop of `copy_` costs one call for each parameter. Seen since 2.13.
    """
    import torch

    torch._foreach_copy_(targets, sources)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the objects in nested lists, tuples, dictionaries and registered classes.

    PyTorch has no public module for such trees. Seen since 2.13.
    """
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree)


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form with changed leaves; see `tree_leaves`. Seen since 2.13."""
    from torch.utils import _pytree

    return _pytree.tree_map(change, tree)


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a tree, and its form; see `tree_leaves`. Seen since 2.13."""
    from torch.utils import _pytree

    return _pytree.tree_flatten(tree)


def tree_unflatten(leaves: Sequence[Any], form: Any) -> Any:
    """Return the tree of this form that has these leaves; see `tree_leaves`. Seen since 2.13."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(leaves, form)


# The dispatcher ----------------------------------------------------------------------------------


def without_torch_function() -> AbstractContextManager[None]:
    """Return a context in which subclasses of Tensor behave as Tensor does.

    `Tensor.__torch_function__` of the base class is no help: it is reached by a call that the
    subclass has already seen. Seen since 2.13.
    """
    import torch

    return torch._C.DisableTorchFunctionSubclass()


def schema(operator: Any) -> Any:
    """Return the schema of an operator of `torch.ops`: its name, and which arguments it writes to.

    Dispatch modes get the operator, and no public name gives its schema. Seen since 2.13.
    """
    return operator._schema


def close_library(library: Any) -> None:
    """Remove the kernels that a `torch.library.Library` has registered.

    Without it they stay until Python collects the object. Seen since 2.13.
    """
    library._destroy()


def redispatcher(operator: Any) -> Callable[..., Any]:
    """Return the function that calls an operator's kernel for a set of keys; it releases the GIL.

    The public `redispatch` adds a frame of torch to the stack, in which the watcher would take the
    wait of a backend for one of torch itself. Seen since 2.13.
    """
    redispatch: Callable[..., Any] = operator._handle.redispatch_boxed
    return redispatch


def wait_tensor() -> Any:
    """Return the operator by which functional collectives wait for their result.

    The public function that calls it is one of several callers. Seen since 2.13.
    """
    import torch

    return getattr(torch.ops, FUNCTIONAL_OPERATORS).wait_tensor.default


def keys_after_backend_select() -> Any:
    """Return the set of the dispatch keys that come after BackendSelect.

    A kernel passes its call on with these; the dispatcher's keys have no public form in Python.
    Seen since 2.13.
    """
    import torch

    return torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


# The recorder calls the functions that the next five return for each operation. It keeps them,
# because a call through one of ours would be slower.


def keys_function() -> Callable[[Tensor], Any]:
    """Return the function that returns the dispatch keys of a tensor.

    They tell whether a tensor is lazily conjugated, wrapped or of a subclass, for which there is
    no single public question. Seen since 2.13.
    """
    import torch

    return torch._C._dispatch_keys


def modes_function() -> Callable[[], int]:
    """Return the function that counts the dispatch modes that are active.

    A mode is public; whether one is active is not. Seen since 2.13.
    """
    import torch

    return torch._C._len_torch_dispatch_stack


def profiling_function() -> Callable[[], bool]:
    """Return the function that returns whether a profiler runs.

    No public name shows whether another part of the program profiles. Seen since 2.13.
    """
    import torch

    return torch._C._autograd._profiler_enabled


def transforms_function() -> Callable[[], Any]:
    """Return the function that returns the innermost transform of torch.func, or None.

    No public name shows whether `vmap` or `grad` runs. Seen since 2.13.
    """
    import torch

    return torch._C._functorch.peek_interpreter_stack


def registering_function() -> Callable[[], bool]:
    """Return the function that returns whether Works are registered for compiled graphs.

    torch.compile sets it, and no public name shows it. Seen since 2.13.
    """
    import torch

    c10d: Any = torch._C._distributed_c10d  # has no complete type stubs
    registering: Callable[[], bool] = c10d._allow_inflight_collective_as_graph_input
    return registering


# Process groups and their operations -------------------------------------------------------------


def c10d() -> ModuleType:
    """Return the module that defines the functions of torch.distributed.

    Its functions call each other by their names there, so code that replaces a function in
    `torch.distributed` must replace it there too. It is not documented. Seen since 2.13.
    """
    import torch.distributed as dist

    return dist.distributed_c10d


def files_of_a_call() -> set[str]:
    """Return the files through which a call of torch.distributed passes, until its operator.

    A decorator logs the call, `torch.overrides` looks for subclasses, and `torch._ops` calls the
    operator. Without them, no frame shows whether the learner called it. Seen since 2.13.
    """
    import torch
    import torch.distributed as dist

    modules = dist.distributed_c10d, dist.c10d_logger, torch.overrides, torch._ops
    return {str(module.__file__) for module in modules}


def warn_not_in_group(name: str) -> None:
    """Warn that this rank is not in the group that it passed to the function `name`.

    The functions of torch.distributed warn in this way; see `WARN_NOT_IN_GROUP`. Seen since 2.13.
    """
    getattr(c10d(), WARN_NOT_IN_GROUP)(name)


def coalescing(group: dist.ProcessGroup | None) -> AbstractContextManager[Any]:
    """Return a context that sends the collectives in it together; its value is the Work of all.

    One message costs less than one for each tensor. The public `batch_isend_irecv` does this for
    messages only. Seen since 2.13.
    """
    import torch.distributed as dist

    manager = dist.distributed_c10d._coalescing_manager
    return cast("AbstractContextManager[Any]", manager(group, async_ops=True))


def backend_of(group: Any, device: Any) -> Any:
    """Return the backend that a group uses for a device, whose methods skip the dispatcher.

    The public `get_backend` returns only its name. Raises RuntimeError if there is none. Seen
    since 2.13.
    """
    return group._get_backend(device)


def source_rank(work: dist.Work) -> int:
    """Return the rank in its group from which a receive from any source got its message.

    `dist.recv` returns it, but a Work from `irecv` has no public way to it. Seen since 2.13.
    """
    return work._source_rank()


def work_from_future(future: Any) -> dist.Work:
    """Return a Work that is complete when a future is.

    A subclass of Work in Python cannot be returned by an operator. Seen since 2.13.
    """
    import torch

    make: Any = torch._C._distributed_c10d  # has no complete type stubs
    work: dist.Work = make._create_work_from_future(future)
    return work


def future_class() -> Any:
    """Return the class of the futures that C++ makes, such as that of a Work.

    `torch.futures.Future` is a subclass of it: its methods are not called for these. Seen since
    2.13.
    """
    import torch

    return torch._C.Future


def abort_process_groups() -> None:
    """Abort the operations of all groups, also those that a GPU waits in.

    `destroy_process_group` waits for them first. Seen since 2.13.
    """
    abort: Callable[[], None] = c10d()._abort_process_group
    abort()


# A class that its users inherit from is made when it is first used.


@cache
def _dispatch_mode() -> type:
    from torch.utils._python_dispatch import TorchDispatchMode

    class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Base of classes whose `__torch_dispatch__` sees each operator that is called.

        PyTorch documents the class, but keeps it in a private module. At the first operator, its
        own base would import the compiler, torch._dynamo, which takes seconds: a private method
        says whether it must, and returns False here. Seen since 2.13.
        """

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    DispatchMode.__module__, DispatchMode.__qualname__ = __name__, "DispatchMode"
    return DispatchMode


def __getattr__(name: str) -> Any:
    if name == "DispatchMode":
        return _dispatch_mode()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

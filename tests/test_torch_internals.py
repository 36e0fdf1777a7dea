"""Each private name of PyTorch does what dtlab relies on, and one module uses them.

If a test fails with a new release of PyTorch, its message names the entry of
`dtlab/torch_internals.py` and what breaks in dtlab without it. Change the entry first.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtlab import torch_internals as internals
from dtlab.ranks.record.operators import OPERATORS

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")
TESTED: set[str] = set()


def entry(*names: str, breaks: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark the test of entries: its failure says which entries changed, and what breaks."""
    TESTED.update(names)

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tested(*args: Any, **kwargs: Any) -> None:
            try:
                test(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  whatever it is, the entry has changed
                entries = ", ".join(f"torch_internals.{name}" for name in names)
                pytest.fail(
                    f"{entries} differs in PyTorch {torch.__version__}: {error!r}\n"
                    f"Without it, {breaks}."
                )

        return tested

    return mark


@pytest.fixture
def alone() -> Iterator[None]:
    """The default process group has this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()  # cycles keep a group's port open


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, requires_grad=True)


# ----------------------------------------------------------------------------- names of files


def file_of(function: Any) -> str:
    return str(function.__code__.co_filename)


def functional_collective() -> Any:
    return importlib.import_module("torch.distributed._functional_collectives").all_reduce


def functions_of_modules() -> Any:
    return importlib.import_module("torch.nn.modules._functions")


FILES: dict[str, tuple[Callable[[], str], str]] = {
    "C10D_FILE": (lambda: file_of(inspect.unwrap(dist.all_reduce)), "no wait has a name"),
    "LOGGER_FILE": (lambda: file_of(dist.all_reduce), "the learner's line is not found"),
    "CONTEXT_FILE": (lambda: file_of(torch.no_grad()(leaf)), "the learner's line is not found"),
    "FUNCTIONAL_FILE": (lambda: file_of(functional_collective()), "DTensor's calls look unknown"),
    "MODULE_STATE_FILE": (
        lambda: file_of(importlib.import_module("torch.distributed.utils")._sync_module_states),
        "DDP's constructor seems to compute while it waits",
    ),
    "DDP_FILE": (
        lambda: file_of(nn.parallel.DistributedDataParallel.forward),
        "DDP's forward seems to compute while it waits",
    ),
    "SYNC_BATCH_NORM_FILE": (
        lambda: file_of(functions_of_modules().SyncBatchNorm.forward),
        "deadlocks in SyncBatchNorm are not explained",
    ),
    "BACKWARD_FILE": (
        lambda: file_of(torch.autograd.graph._engine_run_backward),
        "a rank that waits in backward seems to compute",
    ),
    "CHECKPOINT_FILE": (
        lambda: file_of(inspect.unwrap(checkpoint)),
        "re-entrant checkpoints are not named in DDP's error",
    ),
    "OPERATORS_FILE": (
        lambda: file_of(type(torch.ops.aten.add).__call__),
        "a rank that waits in an operator seems to compute",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files(name: str) -> None:
    found, breaks = FILES[name]

    @entry(name, breaks=f"{breaks} (dtlab/ranks/watch)")
    def check() -> None:
        assert found().endswith(getattr(internals, name)), found()

    check()


@entry("DDP_FORWARD", breaks="the watcher does not explain that DDP broadcasts in its forward")
def test_ddp_forward() -> None:
    for name in internals.DDP_FORWARD:
        assert file_of(getattr(nn.parallel.DistributedDataParallel, name)).endswith(
            internals.DDP_FILE
        )


@entry("COMPILED_CALL", breaks="the watcher names a wrapper of torch.compile as the culprit")
def test_compiled_call() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    text = (Path(spec.origin).parent / "_dynamo" / "eval_frame.py").read_text(encoding="utf-8")
    assert f"def {internals.COMPILED_CALL}(" in text


# --------------------------------------------------------------------------- names of modules


@pytest.mark.slow
@entry("COMPILER", breaks="the first optimizer of each rank takes seconds (ranks/protocol.py)")
def test_compiler() -> None:
    code = (
        "import sys, torch\n"
        f"before = {internals.COMPILER!r} in sys.modules\n"
        "torch.optim.SGD([torch.zeros(1)], lr=1)\n"
        f"sys.exit(before or {internals.COMPILER!r} not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
@entry("REPLICATE", "FULLY_SHARD", breaks="checks do not see that an answer calls the function")
def test_modules_that_define_what_learners_write() -> None:
    functions = {internals.REPLICATE: "replicate", internals.FULLY_SHARD: "fully_shard"}
    for module, function in functions.items():
        made: Any = getattr(importlib.import_module(module), function)
        assert inspect.unwrap(made).__module__ == module


@entry("NEW_GROUP", breaks="the watcher does not see that ranks create different groups")
def test_new_group(alone: None) -> None:
    made: Any = getattr(internals.c10d(), internals.NEW_GROUP)
    parameters = inspect.signature(made).parameters
    assert next(iter(parameters)) == "ranks" and "use_local_synchronization" in parameters
    with patch.object(internals.c10d(), internals.NEW_GROUP, wraps=made) as calls:
        dist.new_group([0])
        assert calls.call_count == 1
    mesh = importlib.import_module("torch.distributed.device_mesh")
    assert mesh.new_group is dist.new_group  # imported by name, so it cannot be replaced there


@entry(
    "WARN_NOT_IN_GROUP", "warn_not_in_group",
    breaks="a rank outside of a group may call its collectives without an error",
)  # fmt: skip
def test_warn_not_in_group(alone: None) -> None:
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER
    with patch.object(internals.c10d(), internals.WARN_NOT_IN_GROUP) as warn:
        dist.all_reduce(torch.ones(1), group=outside)
        warn.assert_called_once_with("all_reduce")
        internals.warn_not_in_group("ring_all_reduce")  # what the recorder has put there
        warn.assert_called_with("ring_all_reduce")
    with pytest.warns(UserWarning, match="ring_all_reduce"):
        internals.warn_not_in_group("ring_all_reduce")


@entry("ATTENTION_OPERATORS", breaks="a check counts no products inside of attention (unit 8)")
def test_attention_operators() -> None:
    seen = Seen()
    tokens = torch.ones(1, 1, 4, 8)
    with seen:
        nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
    assert any(name.startswith(internals.ATTENTION_OPERATORS) for name in seen.names)


# ---------------------------------------------------------------------------- backward passes


@entry("backward_number", breaks="hooks cannot tell backward passes apart: no bucket is reduced")
def test_backward_number() -> None:
    numbers = []
    for _ in range(2):
        first, second = leaf(1.0), leaf(2.0)
        for each in (first, second):
            each.register_hook(lambda _: numbers.append(internals.backward_number()))
        (first * second).sum().backward()
    assert internals.backward_number() == -1
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3] and min(numbers) >= 0


@entry("after_backward", breaks="DataParallel, Zero2 and Zero3 do not wait for the last bucket")
def test_after_backward() -> None:
    parameter, grads = leaf(1.0, 2.0), []

    def hook(_: torch.Tensor) -> None:
        internals.after_backward(lambda: grads.append(parameter.grad))

    product = parameter * 3
    product.register_hook(hook)  # long before `.grad` is set
    product.sum().backward()
    assert [grad.tolist() for grad in grads] == [[3.0, 3.0]]


@entry("run_backward", breaks="pipelines cannot split a backward pass into its two halves")
def test_run_backward() -> None:
    weight, data = leaf(2.0), leaf(5.0)
    end = weight * data
    (gradient,) = internals.run_backward([end], [torch.ones(1)], [data], keep_graph=True)
    assert gradient is not None and gradient.tolist() == [2.0] and weight.grad is None
    internals.run_backward([end], [torch.ones(1)])
    assert weight.grad is not None and weight.grad.tolist() == [5.0]
    (unreachable,) = internals.run_backward([weight * 1], [torch.ones(1)], [data])
    assert unreachable is None


@entry("backward_code", breaks="operations of DDP's hooks seem to come from another line")
def test_backward_code() -> None:
    found = []

    def hook(_: torch.Tensor) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            found.append(frame.f_code)
            frame = frame.f_back

    parameter = leaf(1.0)
    parameter.register_hook(hook)
    (parameter * 2).sum().backward()
    assert internals.backward_code() in found


@pytest.mark.slow
@entry("has_saved_tensors_hooks", breaks="Zero3 frees parameters while a checkpoint recomputes")
def test_has_saved_tensors_hooks() -> None:
    seen = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        seen.append((internals.has_saved_tensors_hooks(), internals.backward_number() != -1))
        return x.sin()

    checkpoint(layer, leaf(1.0), use_reentrant=False).sum().backward()
    assert not internals.has_saved_tensors_hooks()
    assert seen == [(True, False), (True, True)]


@entry("gradient_hooks", breaks="two engines may reduce the same gradient without an error")
def test_gradient_hooks() -> None:
    parameter = leaf(1.0)
    assert internals.gradient_hooks(parameter) == []
    handle = parameter.register_post_accumulate_grad_hook(print)
    assert internals.gradient_hooks(parameter) == [print]
    handle.remove()
    assert internals.gradient_hooks(parameter) == []


# ------------------------------------------------------------------------------------ modules


@entry("own_parameters", breaks="layers without bias cannot be split; Zero3 cannot swap weights")
def test_own_parameters() -> None:
    layer = nn.Linear(2, 3, bias=False)
    assert internals.own_parameters(layer) == {"weight": layer.weight, "bias": None}
    other = nn.Parameter(torch.zeros(3, 2))
    internals.own_parameters(layer)["weight"] = other
    assert layer.weight is other and [*layer.parameters()] == [other]


@entry("own_buffers", breaks="DataParallel does not broadcast the buffers")
def test_own_buffers() -> None:
    norm = nn.BatchNorm1d(2)
    assert [*internals.own_buffers(norm).values()] == [*norm.buffers()] != []
    assert internals.own_buffers(nn.Sequential(norm)) == {}


@entry("own_modules", breaks="a layer that occurs twice loses its second name in a checkpoint")
def test_own_modules() -> None:
    layer = nn.ReLU()
    twice, other = nn.Sequential(layer, layer), nn.Sequential()
    internals.own_modules(other).update(internals.own_modules(twice))
    assert [*other] == [layer, layer]
    assert internals.own_modules(nn.Sequential.__new__(nn.Sequential)) == {}


def test_a_module_moves_and_converts_by_apply() -> None:
    """ShardedModule refuses to be moved by overriding `_apply`, for which there is no hook."""

    class Refuses(nn.Linear):
        def _apply(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("refused")

    for move in ("half", "cpu", "bfloat16"):
        with pytest.raises(RuntimeError, match="refused"):
            getattr(Refuses(1, 1), move)()
    with pytest.raises(RuntimeError, match="refused"):
        Refuses(1, 1).to(torch.float64)


@entry("is_batch_norm", breaks="DataParallel compares statistics that differ by design")
def test_is_batch_norm() -> None:
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        assert internals.is_batch_norm(kind(2))
    assert not internals.is_batch_norm(nn.LayerNorm(2))


@entry("ddp_buckets", breaks="DDP's errors name numbers instead of parameters")
def test_ddp_buckets(alone: None) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].bias.requires_grad_(False)
    buckets = internals.ddp_buckets(nn.parallel.DistributedDataParallel(model))
    named = {id(parameter) for bucket in buckets for parameter in bucket.parameters()}
    assert named == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.slow
@entry("is_joining", breaks="in `join`, ranks broadcast the buffers of a rank without batches")
def test_is_joining(alone: None) -> None:
    from dtlab.parallel.data import DataParallel

    model = DataParallel(nn.Linear(1, 1))
    assert not internals.is_joining(model)
    with model.join():
        assert internals.is_joining(model)
    with model.join(enable=False):
        assert not internals.is_joining(model)


# ------------------------------------------------------------------------ tensors and storages


@entry("base_of", breaks="views of a parameter count as activations")
def test_base_of() -> None:
    whole = torch.zeros(4)
    assert internals.base_of(whole[1:].view(3)) is whole is internals.base_of(whole)


@entry("version", breaks="changes before `wait` and between two runs of a checkpoint go unseen")
def test_version() -> None:
    whole = torch.zeros(4)
    before = internals.version(whole)
    whole[1:].add_(1)
    assert internals.version(whole) == before + 1
    with torch.inference_mode(), pytest.raises(RuntimeError):
        internals.version(torch.zeros(1))


@entry("storage_number", breaks="storages on the meta device count as one")
def test_storage_number() -> None:
    first, second = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    numbers = [internals.storage_number(t.untyped_storage()) for t in (first, second, first[1:])]
    assert numbers[0] == numbers[2] != numbers[1]


@entry("untyped", breaks="arguments with typed storages print a warning, or are copied twice")
def test_untyped() -> None:
    tensor = torch.arange(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = tensor.storage()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert internals.untyped(typed).data_ptr() == tensor.data_ptr()


@entry("sparse_indices", "sparse_values", breaks="sparse gradients cannot be measured or scaled")
def test_sparse_parts() -> None:
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,))
    assert internals.sparse_indices(twice).tolist() == [[1, 1]]
    assert internals.sparse_values(twice).tolist() == [2.0, 3.0]


@entry("copy_all", breaks="DataParallel copies gradients into its buckets one at a time")
def test_copy_all() -> None:
    targets = [torch.zeros(2), torch.zeros(1, dtype=torch.float64)]
    internals.copy_all(targets, [torch.ones(2), torch.full((1,), 5.0)])
    assert [each.tolist() for each in targets] == [[1.0, 1.0], [5.0]]


@entry(
    "tree_leaves", "tree_map", "tree_flatten", "tree_unflatten",
    breaks="arguments in dictionaries are neither cast nor recomputed",
)  # fmt: skip
def test_trees() -> None:
    tree = {"a": [1, (2, 3)], "b": 4}
    assert internals.tree_leaves(tree) == [1, 2, 3, 4]
    assert internals.tree_map(lambda leaf: -leaf, tree) == {"a": [-1, (-2, -3)], "b": -4}
    leaves, form = internals.tree_flatten(tree)
    assert internals.tree_unflatten([0, *leaves[1:]], form) == {"a": [0, (2, 3)], "b": 4}


# ------------------------------------------------------------------------------ the dispatcher


class Seen(internals.DispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(internals.schema(func).name.partition("::")[2])
        return func(*args, **(kwargs or {}))


@entry("DispatchMode", breaks="neither touches nor live bytes are found")
def test_dispatch_mode() -> None:
    seen = Seen()
    with seen:
        torch.ones(2).add_(1)
    assert "add_" in seen.names
    assert isinstance(seen, internals.DispatchMode)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = internals.Nothing  # type: ignore[attr-defined]


@pytest.mark.slow
@entry("DispatchMode", breaks="the first operator under a mode takes seconds")
def test_dispatch_mode_imports_no_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from dtlab.torch_internals import COMPILER, DispatchMode\n"
        "class Mode(DispatchMode):\n"
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None):\n"
        "        return func(*args, **(kwargs or {}))\n"
        "with Mode():\n"
        "    torch.ones(2) + 1\n"
        "sys.exit(COMPILER in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@entry("schema", breaks="a touch cannot be told to read or to change a tensor")
def test_schema() -> None:
    found = internals.schema(torch.ops.aten.add_.Tensor)
    assert found.name == "aten::add_"
    writes = {each.name: each.alias_info and each.alias_info.is_write for each in found.arguments}
    assert writes["self"] is True and writes["other"] is None


@entry("without_torch_function", breaks="a tensor in use reports dtlab's own look at it")
def test_without_torch_function() -> None:
    called = []

    class Noting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, *args: Any, **kwargs: Any) -> Any:
            called.append(func)
            return super().__torch_function__(func, *args, **kwargs)

    tensor = torch.ones(2).as_subclass(Noting)
    called.clear()
    with internals.without_torch_function():
        _ = tensor + 1, tensor.nbytes
    assert not called
    _ = tensor + 1
    assert called


@entry(
    "redispatcher", "keys_after_backend_select", "close_library", "wait_tensor",
    "FUNCTIONAL_OPERATORS", breaks="nothing is recorded: the recorder hooks operators with them",
)  # fmt: skip
def test_hooks_on_operators(alone: None) -> None:
    functional = importlib.import_module("torch.distributed._functional_collectives")
    library: Any = torch.library.Library(internals.FUNCTIONAL_OPERATORS, "IMPL")
    redispatch = internals.redispatcher(internals.wait_tensor())
    below, calls = internals.keys_after_backend_select(), []

    def kernel(keys: Any, tensor: torch.Tensor) -> Any:
        calls.append(tensor)
        return redispatch(keys & below, tensor)

    library.impl("wait_tensor", kernel, "BackendSelect", with_keyset=True)
    try:
        total = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        assert total.tolist() == [1.0, 1.0]
        assert calls, "a functional collective waits by another operator"
    finally:
        internals.close_library(library)
    calls.clear()
    assert functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).tolist() == [1.0, 1.0]
    assert not calls, "the kernel stays after the library is closed"


@entry("keys_function", breaks="the recorder takes unusual tensors for ordinary ones")
def test_keys_function() -> None:
    keys = internals.keys_function()
    ordinary = keys(torch.ones(2)).raw_repr()
    assert keys(torch.zeros(3, 4).t()).raw_repr() == ordinary
    conjugated = torch.ones(2, dtype=torch.complex64).conj()
    sparse = torch.ones(2).to_sparse()
    for unusual in (conjugated, sparse, torch.ones(2, device="meta")):
        assert keys(unusual).raw_repr() != ordinary


@entry("modes_function", breaks="modes miss operations, which take the recorder's fast path")
def test_modes_function() -> None:
    count = internals.modes_function()
    with Seen():
        inside = count()
    assert (count(), inside) == (0, 1)


@entry("profiling_function", breaks="profiles miss operations, which take the fast path")
def test_profiling_function() -> None:
    is_profiling = internals.profiling_function()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        inside = is_profiling()
    assert (is_profiling(), inside) == (False, True)


@entry("transforms_function", breaks="operations in vmap take the recorder's fast path")
def test_transforms_function() -> None:
    innermost, seen = internals.transforms_function(), []
    torch.func.vmap(lambda x: seen.append(innermost()) or x)(torch.ones(2))  # type: ignore[func-returns-value]
    assert innermost() is None and seen[0] is not None


@entry("registering_function", breaks="compiled graphs wait for Works that were not registered")
def test_registering_function() -> None:
    functional = importlib.import_module("torch.distributed._functional_collectives")
    is_registering = internals.registering_function()
    with functional.allow_inflight_collective_as_graph_input_ctx(True):
        inside = is_registering()
    assert (is_registering(), inside) == (False, True)


ARGUMENTS = {  # the names and types in the operators' schemas, for the columns of the table
    "group": r"(process_group|_): __torch__\.torch\.classes\.c10d\.ProcessGroup",
    "async_op": r"asyncOp: bool|async_op: bool",
    "peer": r"(dst|src): int",
    "tag": r"tag: int",
    "root": r"root_rank: int",
    "reduction": r"reduce_op: __torch__\.torch\.classes\.c10d\.ReduceOp",
    "payload": r"\w+: (Optional\[)?(List\[)*Tensor\]*",
}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.c10d)
def test_operators(operator: Any) -> None:
    """The recorder's table has each operator's arguments where c10d has them."""
    schema = internals.schema(getattr(torch.ops.c10d, operator.c10d).default)
    for column, pattern in ARGUMENTS.items():
        position = getattr(operator, column)
        if position is not None:
            argument = schema.arguments[position]
            found = f"{argument.name}: {argument.type}"
            assert re.fullmatch(pattern, found), f"{operator.c10d}: {column} is {found}"
    assert all(hasattr(dist.ProcessGroup, name) for name in operator.methods[-1:])


# --------------------------------------------------------------------------- process groups


@entry("c10d", breaks="replaced functions are not seen by code that imported the module")
def test_c10d(alone: None) -> None:
    module = internals.c10d()
    for name in ("all_reduce", "init_process_group", "isend", "PrefixStore"):
        assert getattr(module, name) is getattr(dist, name)
    with patch.object(module, "broadcast", wraps=dist.broadcast) as calls:
        dist.broadcast_object_list([1])  # one function calls the other by its name there
    assert calls.call_count > 0


@entry("files_of_a_call", breaks="tensors that the learner touches too early are not found")
def test_files_of_a_call(alone: None) -> None:
    library: Any = torch.library.Library("c10d", "IMPL")
    redispatch = internals.redispatcher(torch.ops.c10d.allreduce_.default)
    below, files = internals.keys_after_backend_select(), []

    def kernel(keys: Any, *args: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != __file__:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        return redispatch(keys & below, *args)

    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    try:
        dist.all_reduce(torch.ones(2))
    finally:
        internals.close_library(library)
    assert files and {*files} <= internals.files_of_a_call()


@entry("coalescing", breaks="ZeRO sends one all-gather for each dtype and size")
def test_coalescing(alone: None) -> None:
    whole = [torch.zeros(2), torch.zeros(3)]
    with internals.coalescing(dist.group.WORLD) as together:
        for each in whole:
            dist.all_gather_into_tensor(each, torch.ones_like(each))
    together.wait()
    assert [each.tolist() for each in whole] == [[1.0] * 2, [1.0] * 3]


@entry("backend_of", breaks="the recorder's fast path is never taken")
def test_backend_of(alone: None) -> None:
    backend = internals.backend_of(dist.group.WORLD, CPU)
    tensor = torch.full((2,), 3.0)
    backend.allreduce([tensor], dist.AllreduceOptions()).wait()
    assert tensor.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError):
        internals.backend_of(dist.group.WORLD, torch.device("meta"))


@entry("source_rank", breaks="receives from any source have no peer in the trace")
def test_source_rank() -> None:
    store, backend = dist.HashStore(), {}

    def join(rank: int) -> None:
        limit = timedelta(seconds=20)
        backend[rank] = dist.ProcessGroupGloo(dist.PrefixStore("two", store), rank, 2, limit)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = torch.zeros(1)
    work = backend[0].recv_anysource([received], 7)
    backend[1].send([torch.ones(1)], 0, 7).wait()
    work.wait()
    assert (received.item(), internals.source_rank(work)) == (1.0, 1)


@entry("work_from_future", breaks="asynchronous collectives end before an emulated link delivers")
def test_work_from_future() -> None:
    future: Any = torch.futures.Future()
    work = internals.work_from_future(future)
    assert isinstance(work, dist.Work) and not work.is_completed()
    assert dist.Work.unbox(work.boxed()) is not None  # type: ignore[attr-defined]
    future.set_result([torch.ones(1)])
    work.wait()
    assert work.is_completed()


@entry("future_class", breaks="a check does not see that an answer waits by a future")
def test_future_class(alone: None) -> None:
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    assert isinstance(future, internals.future_class())
    assert issubclass(torch.futures.Future, internals.future_class())
    plain = internals.future_class().wait
    with patch.object(internals.future_class(), "wait", lambda self: "seen"):
        assert future.wait() == "seen"
    assert internals.future_class().wait is plain


@entry("abort_process_groups", breaks="after an error, a session cannot stop ranks on GPUs")
def test_abort_process_groups() -> None:
    """Only NCCL can abort, so without GPUs this shows only that the call is still right."""
    with pytest.raises((AssertionError, ValueError), match="[Pp]rocess group"):
        internals.abort_process_groups()  # there is no group
    (parameter,) = inspect.signature(internals.c10d()._abort_process_group).parameters.values()
    assert parameter.default is None, "no group means all groups"


# -------------------------------------------------------------------------- the module itself


def entries() -> dict[str, str | None]:
    """The names of the module's entries, and the docstrings of its functions and classes."""
    found: dict[str, str | None] = {"DispatchMode": inspect.getdoc(internals.DispatchMode)}
    for name, value in vars(internals).items():
        if inspect.isfunction(value) and value.__module__ == internals.__name__:
            if not name.startswith("_"):
                found[name] = inspect.getdoc(value)
        elif name.isupper() and name != "TYPE_CHECKING":
            found[name] = None
    return found


def test_each_entry_has_a_test() -> None:
    assert entries().keys() == TESTED | FILES.keys()


def test_each_docstring_says_since_which_version() -> None:
    for name, text in entries().items():
        assert text is None or re.search(r"Seen\s+since\s+\d\.\d+\.$", text.strip()), name


def test_each_entry_is_used() -> None:
    """An entry that dtlab no longer uses is removed."""
    words = {word for text in texts().values() for word in re.findall(r"\w+", text)}
    assert not entries().keys() - words


@pytest.mark.slow
def test_the_module_loads_no_torch() -> None:
    code = "import sys, dtlab.torch_internals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---------------------------------------------------- no other module uses a private name of torch


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@functools.cache
def names_of_torch() -> frozenset[str]:
    """The private attributes of the classes and modules of torch that dtlab uses."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1)
    objects = [
        torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.library.Library, torch,
        torch.autograd.Function, torch.autograd.Variable, torch.autograd.graph,
        torch.amp.GradScaler, torch.ops.aten.add.Tensor, torch.futures.Future, nn.Module(),
        optimizer, dist, dist.Work, dist.ProcessGroup, dist.distributed_c10d,
        nn.parallel.DistributedDataParallel,
    ]  # fmt: skip
    return frozenset(name for each in objects for name in dir(each) if is_private(name))


@functools.cache
def texts() -> dict[str, str]:
    """The modules of dtlab, by their paths, without the one for private names."""
    found = sorted((ROOT / "dtlab").rglob("*.py"))
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in found
        if path.name != "torch_internals.py"
    }


@functools.cache
def names_of_dtlab() -> frozenset[str]:
    """The names that dtlab itself gives to functions, classes, attributes and variables."""
    assigned = r"(?:def|class) (\w+)|(\w+)(?:, [\w., ]+)?(?:: [^=\n]+)? = "
    every = "\n".join(texts().values())
    return frozenset(name for found in re.findall(assigned, every) for name in found if name)


# Private names of other libraries, which dtlab does not define either.
NOT_OF_TORCH = {
    "_replace": "a method of every NamedTuple", "_asdict": "a method of every NamedTuple",
    "_fields": "an attribute of every NamedTuple", "_make": "a method of every NamedTuple",
    "_exit": "documented: os._exit", "_getframe": "documented: sys._getframe",
    "_current_frames": "documented: sys._current_frames",
    "_SubParsersAction": "argparse: the type of what add_subparsers returns",
    "_repr_mimebundle_": "IPython: how an object is displayed",
    "_repr_html_": "IPython: how an object is displayed",
    "_filename_map": "ipykernel: the numbers of cells",
    "_format_source": "nbgrader", "_format_dest": "nbgrader",
    "_replace_solution_region": "nbgrader",
    "_private": "Ray", "_raylet": "Ray",
}  # fmt: skip

# Uses of a name that torch has too, by file and text.
ALLOWED = {
    ("dtlab/parallel/data/data_parallel.py", "model._sync_buffers"): "a method of DataParallel",
    ("dtlab/parallel/zero/sharded_module.py", "def _apply"): (
        "overrides the method by which a module moves and converts; it must have torch's name. "
        "test_a_module_moves_and_converts_by_apply tests it."
    ),
    ("dtlab/ranks/record/operators.py", "'_allgather_base'"): (
        "in the table of c10d's operators and methods; test_operators compares it with c10d"
    ),
    ("dtlab/ranks/record/operators.py", "'_reduce_scatter_base'"): "as above",
    ("dtlab/show/arguments.py", "'_is_protocol'"): "an attribute of typing.Protocol's classes",
    ("dtlab/simple.py", "dist.distributed_c10d"): (
        "simple.py imports only torch; the module is public by its name, but not documented"
    ),
    ("dtlab/trace/spans.py", "'_name'"): "a slot of dtlab.span",
}


def private_uses(code: str) -> Iterator[tuple[int, str]]:
    """The lines and texts where code uses a private name, or a private module, of torch."""
    nodes = [*ast.walk(ast.parse(code))]
    roots: set[str] = set()  # names that stand for torch or something in it
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None)
            for alias in node.names:
                parts = [*(module.split(".") if module else ()), *alias.name.split(".")]
                if parts[0] == "torch":
                    roots.add(alias.asname or ("torch" if module is None else alias.name))
                    if any(is_private(part) or part in INTERNAL_MODULES for part in parts):
                        yield node.lineno, ast.unparse(node)
    here = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}  # methods and such
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    here |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if is_of_torch(node, roots, here):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ClassDef):
            bases = " ".join(map(ast.unparse, node.bases))
            for method in node.body if "Module" in bases else ():
                name = getattr(method, "name", "")
                if is_private(name) and hasattr(nn.Module, name):
                    yield method.lineno, f"def {name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            path = re.fullmatch(r"torch[\w./]*[./]_\w[\w./]*|_?c10d\w*\.py", node.value)
            if path or node.value in names_of_torch() or node.value in INTERNAL_MODULES:
                yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "join":
            parts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if "torch" in parts and parts[-1]:  # a file of torch; a folder is public
                yield node.lineno, ast.unparse(node)


def is_of_torch(node: ast.Attribute, roots: set[str], here: set[str]) -> bool:
    """Whether an attribute is a private one of torch's, or of an unknown library's.

    `here` are the names that the same file defines: they are its own after `self`.
    """
    name = node.attr
    if name in INTERNAL_MODULES:
        return root_of(node) in roots
    if not is_private(name) or name in NOT_OF_TORCH:
        return False
    if name in here and ast.unparse(node.value) in ("self", "cls", "super()"):
        return False
    known = name in names_of_torch() or root_of(node) in roots
    return known or name not in names_of_dtlab()


INTERNAL_MODULES = ("distributed_c10d", "c10d_logger")  # not documented, and no underscore


def root_of(node: ast.expr) -> str:
    """The name at which a chain of attributes and calls begins."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo", "from torch.utils._pytree import tree_map",
        "from torch.distributed import _functional_collectives as fc",
        "from torch.distributed.distributed_c10d import all_reduce",
        "import torch\ntorch._C._dispatch_keys(x)",
        "import torch.distributed as dist\ndist.distributed_c10d.send",
        "from torch.autograd import Variable\nVariable._execution_engine.queue_callback(f)",
        "x = work._source_rank()", "x = module._parameters", "x = self._join_config.enable",
        "getattr(parameter, '_post_accumulate_grad_hooks')", "name = 'torch._dynamo'",
        "file = 'torch/distributed/_functional_collectives.py'",
        "import os\nos.path.join('torch', '_ops.py')",
        "class A(nn.Module):\n    def _load_from_state_dict(self): ...",
    ],
)  # fmt: skip
def test_the_search_finds(code: str) -> None:
    assert [*private_uses(code)]


@pytest.mark.parametrize(
    "code",
    ["import torch\ntorch.ones(2).__class__", "a._replace(b=1)", "self._x = 1\nself._x",
     "'torch.distributed.fsdp'", "class A:\n    def _apply(self): ..."],
)  # fmt: skip
def test_the_search_finds_nothing_in(code: str) -> None:
    assert not [*private_uses(code)]


@pytest.mark.slow
def test_only_this_module_uses_private_names_of_torch() -> None:
    found = {(file, use): line for file, text in texts().items()
             for line, use in private_uses(text)}  # fmt: skip
    wrong = [f"{file}, line {line}: {use}" for (file, use), line in found.items()
             if (file, use) not in ALLOWED]  # fmt: skip
    assert not wrong, (
        "Private names of PyTorch belong into dtlab/torch_internals.py, with a test here:\n"
        + "\n".join(wrong)
    )
    assert not ALLOWED.keys() - found.keys(), "exceptions that are no longer needed"

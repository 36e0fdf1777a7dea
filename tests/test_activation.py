"""Checkpoints against the plain function and PyTorch's own: results, gradients, random numbers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from dtlab.parallel.data import DataParallel
from dtlab.training import activation
from dtlab.training.activation import checkpoint, checkpoint_every, naive_checkpoint, saved_bytes
from dtlab.training.models import Block, GPTConfig
from tests.staying import on_ranks

Call = Callable[..., Any]


def theirs(fn: Call, *args: Any, **kwargs: Any) -> Any:
    return torch_checkpoint(fn, *args, use_reentrant=False, **kwargs)


def plain(fn: Call, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


# What a checkpoint must get right --------------------------------------------------------


class Net(nn.Module):
    """Something of everything: dropout, a tied weight, a frozen one, a norm."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.frozen, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(torch.tanh(self.first(x)), 0.4)
        return self.norm(self.second(self.frozen(hidden))) * F.dropout(x, 0.2)


def batch(*shape: int, seed: int = 1, grad: bool = True) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.requires_grad_(grad)


def a_net(run: Call) -> Any:
    net, x = Net(), batch(3, 6)
    return run(net, x), [x, *net.parameters()]


def no_input_with_gradient(run: Call) -> Any:
    net = Net()
    return run(net, batch(3, 6, grad=False)), list(net.parameters())


def no_input_at_all(run: Call) -> Any:
    net, x = Net(), batch(3, 6)
    return run(lambda: net(x)), [x, *net.parameters()]


def keyword_arguments(run: Call) -> Any:
    x, scale = batch(3, 6), batch(6, seed=2)
    return run(F.layer_norm, x, [6], weight=scale, eps=0.1), [x, scale]


def other_arguments(run: Call) -> Any:
    def fn(name: str, parts: dict[str, Any], times: int, nothing: None, *, power: float) -> Tensor:
        assert (name, nothing) == ("name", None)
        return F.dropout(parts["x"][0] * parts["x"][1] ** power, 0.5) * times

    x, mask = batch(4, 5), batch(4, 5, seed=2, grad=False).abs()
    return run(fn, "name", {"x": [x, mask]}, 3, None, power=1.5), [x]


def whole_numbers(run: Call) -> Any:
    table, tokens = nn.Embedding(7, 4), torch.tensor([[1, 2, 1], [6, 0, 2]])
    return run(lambda at: table(at).relu().cumsum(1), tokens), [table.weight]


def several_outputs(run: Call) -> Any:
    def fn(x: Tensor) -> dict[str, Any]:
        hidden = F.dropout(x, 0.3).sin()
        parts = hidden.cos(), hidden.exp(), x
        return {"parts": parts, "at": hidden.argmax(), "text": "text", "cut": hidden.detach()}

    x = batch(3, 6)
    return run(fn, x), [x]


def nested(run: Call) -> Any:
    inner, outer, x = Net(), Net(), batch(3, 6)

    def fn(x: Tensor) -> Tensor:
        hidden = outer(run(inner, x * 2))
        return run(lambda y: run(inner, y).exp(), hidden) + hidden

    return run(fn, x), [x, *inner.parameters(), *outer.parameters()]


def one_after_another(run: Call) -> Any:
    net, x = Net(), batch(3, 6)
    return run(net, run(net, F.dropout(run(net, x), 0.5))), [x, *net.parameters()]


def in_bf16(run: Call) -> Any:
    net, x = Net(), batch(3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = net.first(x)  # its weight is cast already, when the checkpoint comes to it
        with torch.autocast("cpu", enabled=False):
            outer = run(lambda: run(net, x))
        return run(net, kept) + outer, [x, *net.parameters()]


def autocast_inside(run: Call) -> Any:
    net, x = Net(), batch(3, 6)

    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    return run(fn, x), [x, *net.parameters()]


def changes_of_local_tensors(run: Call) -> Any:
    def fn(x: Tensor) -> Tensor:
        hidden = x * 3
        hidden[0] = hidden[1].detach().sin()
        hidden.add_(1).relu_()
        return hidden.sin().mul_(2).sum(0)

    x = batch(3, 6)
    return run(fn, x), [x]


def backward_inside(run: Call) -> Any:
    def fn(x: Tensor) -> Tensor:
        hidden = x.sin()
        (slope,) = torch.autograd.grad(hidden.exp().sum(), x)
        return x.cos() * slope

    x = batch(3, 6)
    return run(fn, x), [x]


CASES = {
    case.__name__: case
    for case in (
        a_net, no_input_with_gradient, no_input_at_all, keyword_arguments, other_arguments,
        whole_numbers, several_outputs, nested, one_after_another, in_bf16, autocast_inside,
        changes_of_local_tensors, backward_inside,
    )
}  # fmt: skip


def outcome(case: Call, run: Call) -> list[Any]:
    """Outputs, the next random number after forward, all gradients, the next one after that."""
    torch.manual_seed(0)
    outputs, trained = case(run)
    seen = [*tree_leaves(outputs), torch.rand(())]
    tensors = [each for each in seen if isinstance(each, Tensor) and each.requires_grad]
    trained = [each for each in trained if each.requires_grad]
    weights = [torch.ones_like(each) * (n + 1) for n, each in enumerate(tensors)]
    seen += torch.autograd.grad(tensors, trained, weights, allow_unused=True)
    return [*seen, torch.rand(())]


def same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        else:
            assert one == other


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_it_is_the_plain_function_and_torchs_checkpoint_bit_by_bit(case: Call) -> None:
    found = outcome(case, checkpoint)
    same(found, outcome(case, plain))
    same(found, outcome(case, theirs))


def test_a_generator_among_the_arguments_draws_the_same_again() -> None:
    """PyTorch's own does not see to that: its gradient belongs to another mask."""

    def fn(x: Tensor, draw: torch.Generator) -> Tensor:
        return x * torch.rand(x.shape, generator=draw).round() * x

    def gradient(run: Call) -> tuple[Tensor, Tensor]:
        x, draw = batch(4, 5), torch.Generator().manual_seed(3)
        run(fn, x, draw).sum().backward()
        assert x.grad is not None
        return x.grad, torch.rand(3, generator=draw)

    same(list(gradient(checkpoint)), list(gradient(plain)))
    assert not torch.equal(gradient(theirs)[0], gradient(plain)[0])


@pytest.mark.slow
def test_gradients_are_right_for_small_changes_and_so_are_second_ones() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def fn(x: Tensor, *_: Tensor) -> Tensor:
        return checkpoint(lambda y: checkpoint(net, y.sin()).exp(), x)

    assert torch.autograd.gradcheck(fn, (x, *net.parameters()))
    assert torch.autograd.gradgradcheck(fn, (x, *net.parameters()))


def test_batch_norm_has_the_plain_gradients_and_counts_a_batch_twice() -> None:
    def trained(run: Call) -> tuple[list[Any], dict[str, Tensor]]:
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), batch(8, 4)
        net[1].momentum = 0.3
        run(net, x).exp().sum().backward()
        return [x.grad, *(each.grad for each in net.parameters())], net[1].state_dict()

    (gradients, norm), (wanted, once), (_, twice) = map(trained, (checkpoint, plain, theirs))
    same(gradients, wanted)
    same(list(norm.values()), list(twice.values()))
    assert (once["num_batches_tracked"], norm["num_batches_tracked"]) == (1, 2)
    assert not torch.equal(once["running_mean"], norm["running_mean"])


# How often it runs --------------------------------------------------------------------


class Counting(nn.Module):
    """Counts how often it is called."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x)


def test_it_runs_once_in_each_pass_and_not_at_all_again_without_gradients() -> None:
    net = Counting(Net())
    with torch.no_grad():
        checkpoint(net, batch(3, 6))
    assert net.calls == 1
    loss = checkpoint(net, batch(3, 6)).sum()
    assert net.calls == 2
    loss.backward(retain_graph=True)
    assert net.calls == 3
    loss.backward()
    assert net.calls == 4


def test_the_second_run_ends_where_the_last_blank_is_filled() -> None:
    """A linear layer saves its input, so the output of the last one is not computed again."""
    layers = [Counting(nn.Linear(4, 4)), Counting(nn.Tanh()), Counting(nn.Linear(4, 4))]
    again = nn.Sequential(*layers, Counting(nn.Flatten()))
    checkpoint(again, batch(2, 4)).sum().backward()
    assert [each.calls for each in again] == [2, 2, 2, 1]


def test_each_level_of_nesting_costs_a_run() -> None:
    net = Counting(Net())
    checkpoint(lambda x: checkpoint(net, x.sin()).exp(), batch(3, 6)).sum().backward()
    assert net.calls == 3  # forward; again for the outer, to have its exp; again for the inner


def test_a_backward_pass_per_output_is_right_and_the_second_finds_its_blanks_filled() -> None:
    net = Counting(Net())
    x, y = batch(3, 6), batch(3, 6)
    torch.manual_seed(0)
    outputs = checkpoint(lambda x: (net(x).sin(), net(x).exp()), x)
    for output in outputs:
        output.sum().backward(retain_graph=True)
    torch.manual_seed(0)
    (net(y).sin().sum() + net(y).exp().sum()).backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert net.calls == 2 + 2 + 2


# What it keeps ------------------------------------------------------------------------


def test_only_the_outermost_inputs_are_kept() -> None:
    net, x = Net(), batch(3, 6)

    def fn(x: Tensor) -> Tensor:
        return checkpoint(net, checkpoint(net, x))

    assert saved_bytes(lambda x: checkpoint(fn, x), x).total == x.nbytes
    assert saved_bytes(fn, x).total == 2 * x.nbytes
    assert saved_bytes(net, x).total > 5 * x.nbytes
    for run in checkpoint, theirs:
        assert saved_bytes(lambda run=run: run(net, x)).total == x.nbytes


def test_nothing_stays_after_backward_and_blanks_are_emptied_as_they_are_used() -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def fn(x: Tensor) -> Tensor:
        for _ in range(6):
            x = (x * 1.5).tanh()
            made.append(weakref.ref(x.untyped_storage()))
            x.register_hook(lambda _: alive.append(sum(each() is not None for each in made)))
        return x

    gc.disable()  # tensors must be freed by their reference counts
    try:
        x = batch(100)
        inputs = weakref.ref(x.untyped_storage())
        loss = checkpoint(fn, x.clone()).sum()
        assert sum(each() is not None for each in made) == 0
        loss.backward()
        assert sum(each() is not None for each in made) == 0
        assert alive == [0, 5, 4, 3, 2, 1]  # the second run begins after the first hook
        del x, loss
        assert inputs() is None
    finally:
        gc.enable()


# What it cannot do --------------------------------------------------------------------


def test_arguments_changed_in_place_are_noticed() -> None:
    def relu_in_place(x: Tensor) -> Tensor:
        return x.relu_().exp()

    x = batch(3, 4)
    with pytest.raises(RuntimeError, match="passed to checkpoint was changed in place"):
        checkpoint(relu_in_place, x * 2).sum().backward()

    kept = x * 2
    loss = checkpoint(torch.sin, kept).sum()
    kept += 1
    with pytest.raises(RuntimeError, match=r"Change a copy: y = x\.clone\(\)"):
        loss.backward()


def test_parameters_changed_in_place_are_noticed_as_without_a_checkpoint() -> None:
    for run, words in (checkpoint, r"\[4, 4\] was changed in place"), (plain, "inplace operation"):
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        loss = run(net, batch(2, 4)).sum()
        with torch.no_grad():
            net[2].weight.mul_(2)
        with pytest.raises(RuntimeError, match=words):
            loss.backward()


def test_a_second_run_unlike_the_first_is_noticed() -> None:
    calls = []

    def shrinks(x: Tensor) -> Tensor:
        calls.append(1)
        return x[: 4 - len(calls)].sin().sum()

    with pytest.raises(RuntimeError, match=r"saved a tensor \[2, 5\].*, not \[3, 5\]") as caught:
        checkpoint(shrinks, batch(4, 5)).backward()
    assert "train() or eval()" in str(caught.value)

    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Dropout()), batch(2, 4)
    loss = checkpoint(net, x).sum()
    net.eval()
    with pytest.raises(RuntimeError, match="saved 2 tensors, but 4 the first time"):
        loss.backward()


def test_backward_twice_is_torchs_own_error() -> None:
    loss = checkpoint(Net(), batch(3, 6)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_errors_of_the_function_come_through() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        checkpoint(fails, batch(3))
    net, x = Net(), batch(3, 6)
    same([checkpoint(net.norm, x)], [net.norm(x)])  # the hooks of the first are gone


def test_a_function_that_catches_everything_does_not_stop_it() -> None:
    def careful(x: Tensor) -> Tensor:
        try:
            return x.sin().exp()
        except Exception:  # noqa: BLE001
            return x

    x, y = batch(3), batch(3)
    checkpoint(careful, x).sum().backward()
    careful(y).sum().backward()
    same([x.grad], [y.grad])


# The naive one ------------------------------------------------------------------------


def test_the_naive_one_is_right_for_a_net_without_random_numbers() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x, y = batch(3, 4), batch(3, 4)
    naive_checkpoint(net, x).exp().sum().backward()
    found = [each.grad for each in (x, *net.parameters())]
    net.zero_grad()
    net(y).exp().sum().backward()
    same(found, [each.grad for each in (y, *net.parameters())])
    assert saved_bytes(lambda x: naive_checkpoint(net, x), x).total == x.nbytes


def test_the_naive_one_falls_short_in_four_ways() -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    output = naive_checkpoint(F.dropout, x)
    output.sum().backward()
    assert not torch.equal(output.detach(), x.grad)  # another mask
    net = nn.Linear(4, 4)
    assert not naive_checkpoint(net, batch(3, 4, grad=False)).requires_grad
    loss = naive_checkpoint(net, batch(3, 4)).sum()
    assert torch.autograd.grad(loss, [net.weight], allow_unused=True) == (None,)
    assert not naive_checkpoint(lambda x: {"sine": x.sin()}, x)["sine"].requires_grad  # type: ignore


# A sequential model -------------------------------------------------------------------


def five_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 6), nn.Tanh(), Net(), nn.Sequential(nn.Dropout(0.3), nn.GELU()), Net()
    )


@pytest.mark.parametrize("k", range(1, 7))
def test_a_checkpointed_model_is_the_model(k: int) -> None:
    def model(wrap: Callable[[nn.Sequential], nn.Module]) -> Call:
        def case(_: Call) -> Any:
            layers, x = five_layers(), batch(3, 6)
            return wrap(layers)(x), [x, *layers.parameters()]

        return case

    wanted = outcome(model(lambda layers: layers), plain)
    same(outcome(model(lambda layers: checkpoint_every(layers, k)), plain), wanted)


@pytest.mark.parametrize(
    ("k", "calls"),
    [(1, [2, 2, 2, 2, 1]), (2, [2, 2, 2, 2, 1]), (3, [2, 2, 2, 1, 1]), (4, [2, 2, 2, 2, 1]),
     (5, [1] * 5), (9, [1] * 5)],
)  # fmt: skip
def test_the_last_group_runs_once(k: int, calls: list[int]) -> None:
    layers = nn.Sequential(*(Counting(nn.Tanh()) for _ in range(5)))
    checkpoint_every(layers, k)(batch(3, 6)).sum().backward()
    assert [each.calls for each in layers] == calls


def test_it_has_the_same_parameters_under_the_same_names() -> None:
    layers, shared = five_layers(), nn.Linear(6, 6)
    layers.append(shared)
    layers.append(shared)
    layers.add_module("head", nn.Linear(6, 2))
    layers[2].eval()
    model = checkpoint_every(layers, 2)
    assert list(model.state_dict()) == list(layers.state_dict())
    assert len(model) == len(layers) == 8
    for one, other in zip(model.parameters(), layers.parameters(), strict=True):
        assert one is other
    assert [each.training for each in model] == [each.training for each in layers]
    model.load_state_dict(five_layers_with(shared).state_dict())
    x = batch(3, 6)
    torch.manual_seed(1)
    wanted = layers(x)
    torch.manual_seed(1)
    same([model(x)], [wanted])
    same([model[:1](x)], [layers[:1](x)])
    assert not model.eval()[0].training


def five_layers_with(shared: nn.Module) -> nn.Sequential:
    layers = five_layers()
    layers.append(shared)
    layers.append(shared)
    layers.add_module("head", nn.Linear(6, 2))
    return layers


def test_bad_input_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="needs at least one layer, not 0"):
        checkpoint_every(five_layers(), 0)
    with pytest.raises(TypeError, match=r"an nn\.Sequential, not ModuleList"):
        checkpoint_every(nn.ModuleList([nn.Tanh()]), 1)  # type: ignore[arg-type]
    x = batch(3)
    assert checkpoint_every(nn.Sequential(), 3)(x) is x


def test_the_picture_is_literal() -> None:
    """GELU saves its input only; the tensors grow, so that their sizes identify them."""

    class Grow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.pad(F.gelu(x), (0, 1))

    names = "xabcde"
    layers = nn.Sequential(*(Grow() for _ in range(5)))
    picture = (activation.__doc__ or "").splitlines()
    models = {"saved, plain": layers, "saved, one per 2": checkpoint_every(layers, 2)}
    for words, model in models.items():
        (line,) = (each for each in picture if words in each)
        drawn = line.split(words)[1].split("  a and c")[0].split()
        kept = [names[each.shape[0] - 1] for each in saved_bytes(model, batch(1)).tensors]
        assert kept == drawn


# Over ranks ---------------------------------------------------------------------------


@pytest.mark.slow
def test_under_data_parallelism_it_is_one_process_on_the_whole_batch() -> None:
    def gradients(wrap: Call | None, k: int) -> list[Tensor]:
        torch.manual_seed(0)
        layers = nn.Sequential(*(Block(GPTConfig(width=8, num_heads=2)) for _ in range(3)))
        inner: nn.Module = checkpoint_every(layers, k) if k else layers
        model = wrap(inner) if wrap else inner
        whole = batch(4, 5, 8, grad=False)
        for _ in range(3):  # from the second step on, buckets leave in the order of gradients
            layers.zero_grad()
            mine = whole.tensor_split(2)[torch.distributed.get_rank()] if wrap else whole
            model(mine).square().mean().backward()
        return [each.grad.clone() for each in layers.parameters() if each.grad is not None]

    def ranks() -> list[list[Tensor]]:
        return [gradients(DataParallel, 1), gradients(DistributedDataParallel, 2)]

    wanted = gradients(None, 0)
    for values in on_ranks(ranks, world_size=2).values:
        for found in values:
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_random_numbers_and_autocast_are_kept() -> None:
    def case(run: Call) -> Any:
        torch.manual_seed(0)
        net, x = Net().cuda(), batch(3, 6).detach().cuda().requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return run(net, x), [x, *net.parameters()]

    same(outcome(case, checkpoint), outcome(case, plain))
    same(outcome(case, checkpoint), outcome(case, theirs))

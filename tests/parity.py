"""One harness for engines: on several ranks they train as one process does on all samples.

    class Engine          what a training loop needs; as it is, plain PyTorch in one process
    MODELS, OPTIMIZERS    what is trained, and how it is stepped
    PROGRAMS              what people do in a loop, each a function of a `Loop`
    assert_trains_alike   runs a program on ranks, and in one process that plays all ranks in turn

Parameters are compared after every step: with the reference up to rounding, and between the ranks
bit by bit. A new engine is a subclass of `Engine` and an entry in tests/test_parity.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.checkpoint import checkpoint

from dtlab.training.models import GPT, GPTConfig
from tests.staying import on_ranks

__all__ = ["CLOSE", "EXACT", "MODELS", "OPTIMIZERS", "PROGRAMS", "Engine", "Loop",
           "assert_trains_alike", "batch", "convolutional", "loss_of", "made", "mlp",
           "share_of"]  # fmt: skip

EXACT = {"rtol": 1e-9, "atol": 1e-10}  # float64, so that errors larger than rounding show
NORMS = {"rtol": 1e-6, "atol": 1e-7}  # engines return them in float32, and clip by them
CLOSE = {"rtol": 1e-3, "atol": 3e-5}
SAMPLES = 4  # of a rank in a step
TOKENS = 12  # of a sample of a language model; 1, 2, 3 and 4 ranks divide them
State = dict[str, Tensor]


# Models ------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A language model with one table for its input and its output."""

    def __init__(self, vocabulary: int = 29, width: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.block = nn.TransformerEncoderLayer(width, 3, 20, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.table(tokens)))


class Frozen(nn.Sequential):
    """One layer is not trained, nor is half of another; a weight is stored column by column."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 5))
        self[0].requires_grad_(False)
        self[2].weight.requires_grad_(False)
        self[3].weight = nn.Parameter(self[3].weight.detach().t().contiguous().t())


class Mixed(nn.Module):
    """Parameters of two dtypes, whatever the others are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(7, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def to(self, *_: Any, **__: Any) -> Mixed:
        self.second.double()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x.float()).double()).float())


class Few(nn.Module):
    """Three elements, one of which is a parameter without a dim."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :3] * self.scale, x[:, 3:5] + self.shift], 1)


class Branches(nn.Module):
    """The first column of x says whether a rank goes left or right; the third branch is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(7, 3) for _ in range(3))
        self.gains = Gains()
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        left = bool(x[0, 0] > 0)
        return self.head(self.gains((self.left if left else self.right)(x), left))


class Gains(nn.Module):
    """Parameters of one module, of which some are unused."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = (nn.Parameter(torch.ones(3) * n) for n in (1, 2, 3))

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return x * (self.left if left else self.right)


class Shared(nn.Module):
    """One layer that is called three times, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 7)])
        self.layers[2].weight = self.layers[1].weight
        self.last = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layers[0](x).tanh()
        return self.last(self.layers[2](self.layers[1](x).tanh()))


class Recomputing(nn.Module):
    """Checkpoints around one layer and around two; one layer is called before, in and after."""

    def __init__(self, reentrant: bool, tied: bool = True) -> None:
        super().__init__()
        self.reentrant, self.tied = reentrant, tied
        self.layers = nn.ModuleList([nn.Linear(7, 7) for _ in range(4)])
        self.last = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers
        x = fourth(x).tanh()
        x = checkpoint(first, x, use_reentrant=self.reentrant).tanh()
        x = checkpoint(lambda y: third(second(y).tanh()), x, use_reentrant=self.reentrant)
        if self.tied:
            x = checkpoint(lambda y: fourth(y).tanh(), x, use_reentrant=self.reentrant)
            x = fourth(x.tanh())
        return self.last(x)


def mlp() -> nn.Module:
    sizes = nn.Linear(7, 33), nn.Linear(33, 17), nn.Linear(17, 5)
    return nn.Sequential(sizes[0], nn.ReLU(), sizes[1], nn.ReLU(), sizes[2])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(),
        nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(30, 5),
    )  # fmt: skip


def gpt() -> nn.Module:
    return GPT(GPTConfig(vocab_size=29, context=TOKENS, num_layers=4, num_heads=4, width=12))


def gpt_of_twelve_heads(frozen: bool = False) -> nn.Module:
    """Heads that 1, 2, 3 and 4 ranks divide; some of the frozen parameters too, and some not."""
    model = GPT(GPTConfig(vocab_size=29, context=TOKENS, num_layers=2, num_heads=12, width=24))
    if frozen:
        model.blocks[0].mlp[0].weight.requires_grad_(False)
        model.blocks[1].mlp_norm.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "convolutional": convolutional, "gpt": gpt, "tied": Tied, "frozen": Frozen,
    "gpt, 12 heads": gpt_of_twelve_heads, "gpt, frozen": lambda: gpt_of_twelve_heads(True),
    "mixed": Mixed, "few": Few, "branches": Branches, "shared": Shared,
    "recomputing": lambda: Recomputing(False),
    "recomputing without a tie": lambda: Recomputing(False, tied=False),
    "recomputing, reentrant": lambda: Recomputing(True),
    "recomputing without a tie, reentrant": lambda: Recomputing(True, tied=False),
}  # fmt: skip


def made(model: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[model]().to(dtype)


def drawn(model: str, dtype: torch.dtype, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """The inputs and the labels of a rank in a step."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    if model.startswith(("gpt", "tied")):
        tokens = torch.randint(29, (SAMPLES, TOKENS + 1), generator=draw)
        return tokens[:, :-1], tokens[:, 1:]
    inputs = torch.randn(SAMPLES, 7, generator=draw, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(5, (SAMPLES,), generator=draw)


def batch(step: int, size: int, tokens: bool = False) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a step for all ranks together, in single precision."""
    draw = torch.Generator().manual_seed(step)
    if tokens:
        sequences = torch.randint(29, (size, TOKENS + 1), generator=draw)
        return sequences[:, :-1], sequences[:, 1:]
    return torch.randn(size, 7, generator=draw), torch.randint(5, (size,), generator=draw)


def share_of(whole: Sequence[Tensor], group: Any = None) -> list[Tensor]:
    """This rank's part of such a batch."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return [one.tensor_split(size)[rank] for one in whole]


def loss_of(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """The mean over samples, or over tokens."""
    return F.cross_entropy(model(inputs).flatten(0, -2).double(), labels.flatten())


# Optimizers --------------------------------------------------------------------------------------


class Stepped(NamedTuple):
    """The parameters or groups that `of` finds in a module, for an optimizer of a class."""

    of: Callable[[nn.Module], Any]
    cls: Any
    arguments: dict[str, Any]


def _all(module: nn.Module) -> Any:
    return list(module.parameters())


def _decayed(module: nn.Module) -> list[dict[str, Any]]:
    """Weights with decay, and the others at a different rate; both may be empty."""
    weights = [one for one in _all(module) if one.ndim > 1]
    others = [one for one in _all(module) if one.ndim <= 1]
    groups = [{"params": weights, "weight_decay": 0.3}, {"params": others, "lr": 0.02}]
    return [group for group in groups if group["params"]]


# A large eps: without it, Adam makes steps of rounding errors.
OPTIMIZERS = {
    "SGD": Stepped(_all, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": Stepped(_all, torch.optim.Adam, {"lr": 0.01, "eps": 1e-4}),
    "AdamW": Stepped(_decayed, torch.optim.AdamW, {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.0}),
}


# Engines -----------------------------------------------------------------------------------------


class Engine:
    """A model and its optimizer, as a training loop sees them; this one is plain PyTorch.

    Subclasses set `model` to what is called and `optimizer` to what is stepped.
    """

    def __init__(self, module: nn.Module, stepped: Stepped, group: Any = None) -> None:
        self.module: nn.Module = module
        self.model: Any = module
        self.names = [name for name, _ in module.named_parameters()]
        self.params = stepped.of(module)  # before the module is wrapped, which may cut it
        self.wrap(group)
        self.optimizer: Any = self.stepping(stepped, group)

    def wrap(self, group: Any) -> None:
        """Set `model`; nothing to do where the optimizer is the engine."""

    def stepping(self, stepped: Stepped, group: Any) -> Any:
        """The optimizer."""
        return stepped.cls(self.params, **stepped.arguments)

    def place(self, group: Any) -> int:
        """Which samples of a batch are this rank's; ranks that share a model have the same."""
        return dist.get_rank(group)

    def backward(self, inputs: Tensor, labels: Tensor, share: float) -> Tensor:
        """Forward and backward of a rank's samples, which are this share of the loss."""
        loss = share * loss_of(self.model, inputs, labels)
        loss.backward()
        return loss.detach()

    def no_sync(self) -> AbstractContextManager[Any]:
        """In which backward passes do not communicate."""
        return nullcontext()

    def clip(self, norm: float, kind: float) -> float:
        """Clip the whole gradient; return its norm before."""
        return float(nn.utils.clip_grad_norm_(self.module.parameters(), norm, kind))

    def state(self) -> State:
        """The whole parameters."""
        return {name: one.detach().clone() for name, one in self.module.named_parameters()}


# Programs ----------------------------------------------------------------------------------------


@dataclass
class Loop:
    """What a program sees: an engine, and the samples of the ranks that this process plays.

    A rank plays itself. The one process of the reference plays all ranks in turn, and each counts
    for its share of the gradient.
    """

    engine: Engine
    model: str
    dtype: torch.dtype
    plays: Sequence[int]
    group: Any = None
    seen: list[State] = field(default_factory=list)  # after each step
    numbers: list[float] = field(default_factory=list)  # losses, and norms before clipping

    def samples(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        """Inputs and labels of each rank that is played."""
        return [drawn(self.model, self.dtype, batch, rank) for rank in self.plays]

    def losses(self, batch: int) -> list[Tensor]:
        """The loss of each rank that is played, over their number."""
        each = [loss_of(self.engine.model, *one) for one in self.samples(batch)]
        return [loss / len(each) for loss in each]

    def backward(self, batch: int) -> Tensor:
        """Forward and backward of one batch; the mean loss of what is played."""
        share = 1 / len(self.plays)
        return torch.stack([
            self.engine.backward(*one, share) for one in self.samples(batch)
        ]).sum()  # fmt: skip

    def note(self, loss: Tensor) -> None:
        """Keep the mean loss over all ranks."""
        if len(self.plays) == 1 and dist.is_initialized():
            dist.all_reduce(loss, group=self.group)
            loss /= dist.get_world_size(self.group)
        self.numbers.append(loss.item())

    def step(self) -> None:
        """Step the optimizer, and keep what it has made of the parameters."""
        self.engine.optimizer.step()
        self.engine.optimizer.zero_grad()
        self.seen.append(self.engine.state())


def steps(loop: Loop) -> None:
    """A batch a step, and its loss."""
    for step in range(4):
        loop.note(loop.backward(step))
        loop.step()


def microbatches(loop: Loop) -> None:
    """Each of three communicates."""
    for batch in range(6):
        loop.backward(batch)
        if batch % 3 == 2:
            loop.step()


def silent(loop: Loop) -> None:
    """Only the last of three communicates, and blocks of `no_sync` may be nested."""
    for step in range(2):
        with loop.engine.no_sync():
            with loop.engine.no_sync():
                loop.backward(3 * step)
            loop.backward(3 * step + 1)
        loop.backward(3 * step + 2)
        loop.step()


def left_by_an_error(loop: Loop) -> None:
    """An error leaves `no_sync`, and the next pass communicates."""
    with pytest.raises(KeyError), loop.engine.no_sync():
        raise KeyError("in the middle")
    steps(loop)


def one_backward(loop: Loop) -> None:
    """Several forward passes, and one backward pass for all of them."""
    for step in range(2):
        batches = [loop.losses(3 * step + k) for k in range(3)]
        for losses in zip(*batches, strict=True):  # of one rank
            sum(losses).backward()
        loop.step()


def forward_twice(loop: Loop) -> None:
    """Two forward passes, and then the backward pass of each."""
    for step in range(2):
        for loss in [*loop.losses(2 * step), *loop.losses(2 * step + 1)]:
            loss.backward()
        loop.step()


def backward_twice(loop: Loop) -> None:
    """Two backward passes through one graph."""
    for step in range(2):
        for loss in loop.losses(step):
            loss.backward(retain_graph=True)
            loss.backward()
        loop.step()


def evaluated(loop: Loop) -> None:
    """Passes without gradients, in two modes, between the steps."""
    for step in range(3):
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                loop.losses(9)
        loop.backward(step)
        loop.step()


def broken_off(loop: Loop) -> None:
    """Passes that fail on all ranks in the middle of forward, and then of backward."""
    layers = [one for one in loop.engine.module.modules() if isinstance(one, nn.Linear)]

    def fail(*_: Any) -> None:
        raise KeyError("in the middle")

    def fail_in_backward(_: Any, __: Any, output: Tensor) -> None:
        output.register_hook(fail)

    for step in range(2):
        for hook in (fail, fail_in_backward):
            handle = layers[1].register_forward_hook(hook)
            with pytest.raises(KeyError):
                loop.backward(9)
            handle.remove()
        loop.engine.optimizer.zero_grad()
        loop.backward(step)
        loop.step()


def clipped(loop: Loop, kind: float = 2.0) -> None:
    """By the norm of the whole gradient, which is of all ranks."""
    for step in range(3):
        loop.note(loop.backward(step))
        loop.numbers.append(loop.engine.clip(0.05, kind))
        loop.step()


def clipped_by_the_largest(loop: Loop) -> None:
    clipped(loop, float("inf"))


def clipped_by_the_sum(loop: Loop) -> None:
    clipped(loop, 1.0)


def scheduled(loop: Loop) -> None:
    """Learning rate and momentum change from step to step."""
    rates = [0.2] * len(loop.engine.optimizer.param_groups)
    schedule = OneCycleLR(loop.engine.optimizer, rates, total_steps=6)
    for step in range(6):
        loop.backward(step)
        loop.step()
        schedule.step()


PROGRAMS: dict[str, Callable[[Loop], None]] = {
    fn.__name__.replace("_", " "): fn
    for fn in (steps, microbatches, silent, left_by_an_error, one_backward, forward_twice,
               backward_twice, evaluated, broken_off, clipped, clipped_by_the_largest,
               clipped_by_the_sum, scheduled)
}  # fmt: skip


# The comparison ----------------------------------------------------------------------------------


@contextmanager
def _of_a_part(members: Sequence[int] | None) -> Iterator[tuple[Any, bool]]:
    """A group of these ranks, and whether this rank is in it; of all, if none are named."""
    group = dist.new_group(list(members)) if members else None
    yield group, members is None or dist.get_rank() in members
    if members:
        dist.barrier()


def _on_rank(
    build: Callable[..., Engine],
    tasks: Sequence[tuple[str, str, str]],
    dtype: torch.dtype,
    members: Sequence[int] | None,
) -> list[tuple[list[State], list[float]]]:
    """Each task on this rank, whose parameters are its own until the engine takes the module."""
    with _of_a_part(members) as (group, inside):
        if not inside:
            return []
        rank, found = dist.get_rank(group), []
        for model, optimizer, program in tasks:
            engine = build(made(model, dtype, seed=rank), OPTIMIZERS[optimizer], group)
            loop = Loop(engine, model, dtype, [engine.place(group)], group)
            PROGRAMS[program](loop)
            found.append((loop.seen, loop.numbers))
        return found


def _alone(task: tuple[str, str, str], ranks: int, dtype: torch.dtype) -> Any:
    """The same in this process, which plays all ranks."""
    model, optimizer, program = task
    engine = Engine(made(model, dtype), OPTIMIZERS[optimizer])
    loop = Loop(engine, model, dtype, range(ranks))
    PROGRAMS[program](loop)
    return loop.seen, loop.numbers


def assert_trains_alike(
    build: Callable[..., Engine],
    models: Sequence[str] = ("mlp",),
    programs: Sequence[str] = ("steps",),
    optimizers: Sequence[str] = ("SGD",),
    ranks: int = 3,
    dtype: torch.dtype = torch.float64,
    members: Sequence[int] | None = None,
    replicas: int | None = None,
    reference: Callable[..., Engine] | None = None,
    **tolerance: float,
) -> None:
    """An engine trains as one process does, or as another engine: parameters after each step.

    With `members`, these are the ranks that train, of all that run. With `replicas`, several ranks
    share each of so many models. The tolerance is relative and absolute, `rtol` and `atol`.
    """
    tasks = [(m, o, p) for m in models for o in optimizers for p in programs]
    values = on_ranks(_on_rank, build, tasks, dtype, members, world_size=ranks, timeout=60).values
    values = [values[rank] for rank in members or range(ranks)]
    if reference is not None:
        wanted = on_ranks(
            _on_rank, reference, tasks, dtype, members, world_size=ranks, timeout=60
        ).values[(members or [0])[0]]
    else:
        wanted = [_alone(task, replicas or len(values), dtype) for task in tasks]
    close = tolerance or (EXACT if dtype is torch.float64 else CLOSE)
    for task, right, *each in zip(tasks, wanted, *values, strict=True):
        near = NORMS if close is EXACT and "clipped" in task[2] else close
        for rank, got in enumerate(each):
            where = f"{', '.join(task)}: rank {rank}: "
            torch.testing.assert_close(got, right, **near, msg=lambda t, w=where: w + t)
            torch.testing.assert_close(
                got[0], each[0][0], rtol=0, atol=0, msg=lambda t, w=where: f"{w}replicas: {t}"
            )

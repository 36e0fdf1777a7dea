"""The right answers of Level I of unit 04 are what PyTorch does, for every learner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from dtlab.checks import find_part, known_parts
from dtlab.checks.questions.answers import Questions
from dtlab.predict.formats import BinaryFormat
from tests.known_answers import Answers, answers_of
from tests.staying import on_ranks

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("04", 1)]

SYMBOLS = [part.symbol for part in PARTS]
LEARNERS = [f"learner{number}" for number in range(4)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]


def known(symbol: str) -> Answers:
    answers = answers_of(find_part(f"04/{symbol}"))
    assert answers is not None
    return answers


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given, and the right answers."""
    check = find_part(f"04/{symbol}").check
    assert isinstance(check, Questions)
    given = check.given(symbol, learner)
    return given, known(symbol).right[0](given)


# 04/representable ------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", MANY_LEARNERS[:20])
def test_casts_say_what_the_answers_say(learner: str) -> None:
    """The second right answer is worked out by casts alone."""
    given, right = drawn("representable", learner)
    cast = known("representable").right[1](given)
    for name in ("spacing", "rounded", "survives", "master", "lost"):
        assert cast[name] == right[name], name
    for name in ("in_fp16", "in_bf16"):
        assert set(cast[name]) == right[name]
    assert torch.tensor(1 + 2.0 ** -given["power"]).bfloat16() == 1


@pytest.mark.parametrize("learner", LEARNERS)
def test_sgd_moves_the_weights_that_the_answers_leave_out(learner: str) -> None:
    given, right = drawn("representable", learner)
    for name, weight, update in zip("pqrs", given["weights"], given["updates"], strict=True):
        stepped = nn.Parameter(torch.tensor([weight], dtype=torch.bfloat16))
        stepped.grad = torch.tensor([update], dtype=torch.bfloat16)
        SGD([stepped], lr=1.0).step()
        assert (stepped.item() == weight) == (name in right["lost"])


@pytest.mark.slow
def test_sizes_of_updates_mislead() -> None:
    """The largest update is lost, the smaller ones are not all; the master needs some steps."""
    for given, right in (drawn("representable", learner) for learner in MANY_LEARNERS):
        by_size = sorted(zip(given["updates"], "pqrs", strict=True))
        assert by_size[-1][1] in right["lost"]
        assert len(right["lost"]) == 2
        assert not {name for _, name in by_size[:2]} <= right["lost"]
        assert given["short"] in right["lost"]
        assert 3 < right["master"] < 15
        assert not BinaryFormat(given["exponent_bits"], given["mantissa_bits"]).holds(
            given["number"]
        )
        assert (len(right["in_fp16"]), len(right["in_bf16"])) == (2, 3)


# 04/scaler_steps -------------------------------------------------------------------------------


def scaled_by_torch(
    start: int, interval: int, gradients: Iterator[Callable[[float], Tensor]]
) -> Iterator[tuple[int, bool]]:
    """The exponent of the scale in each step, and whether the step was taken.

    Each of `gradients` makes a gradient from the scale.
    """
    weight = nn.Parameter(torch.ones(1))
    optimizer = SGD([weight], lr=0.0, momentum=0.5)  # its state says whether it stepped
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**start, growth_interval=interval)  # type: ignore[attr-defined]
    for gradient in gradients:
        scale = scaler.scale(torch.tensor(1.0)).item()
        weight.grad = gradient(scale)
        optimizer.state.clear()
        scaler.step(optimizer)
        scaler.update()
        yield int(math.log2(scale)), bool(optimizer.state)


@pytest.mark.parametrize("learner", MANY_LEARNERS[:20])
def test_pytorchs_scaler_follows_the_answers(learner: str) -> None:
    given, right = drawn("scaler_steps", learner)
    gradients = (
        lambda scale, overflow=overflow: torch.tensor([math.inf if overflow else scale])
        for overflow in given["overflows"]
    )
    found = list(scaled_by_torch(given["start"], given["interval"], gradients))
    assert [scale for scale, _ in found] == right["scales"]
    assert sum(stepped for _, stepped in found) == right["updates"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_pytorchs_scaler_settles_and_skips_as_the_answers_say(learner: str) -> None:
    """A gradient in fp16 that stays as large as it is."""
    given, right = drawn("scaler_steps", learner)
    size = 2.0 ** -given["gradient"]

    def gradient(scale: float) -> Tensor:
        return torch.tensor([size * scale]).half().float()

    cycle = given["interval"] + 1
    steps = iter([gradient] * (200 + 100 * cycle))
    found = list(scaled_by_torch(given["start"], given["interval"], steps))[200:]
    assert all(stepped == (scale <= right["settles"]) for scale, stepped in found)
    assert {scale for scale, _ in found} == {right["settles"], right["settles"] + 1}
    share = sum(not stepped for _, stepped in found) / len(found)
    assert 100 * share == pytest.approx(right["skipped"])


# 04/sixteen_bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_fp32_grads", "mixed_fp32_accumulation"])
def test_real_tensors_have_the_bytes_of_the_answers(policy: str) -> None:
    """Weights, gradients, master weights and Adam's moments of a layer, kept as policies say."""
    layer = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    layer(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
    assert layer.weight.grad is not None
    gradient = layer.weight.grad.float()
    master = nn.Parameter(layer.weight.detach().float())
    master.grad = gradient
    optimizer = Adam([master])
    optimizer.step()
    moments = [one for one in optimizer.state[master].values() if one.numel() > 1]
    both = [gradient] if policy == "mixed_fp32_grads" else [gradient, layer.weight.grad]
    kinds = [[layer.weight], both, [master], moments]
    pieces = [sum(one.nbytes for one in kind) / layer.weight.numel() for kind in kinds]
    given, right = next(
        (given, right)
        for given, right in (drawn("sixteen_bytes", learner) for learner in MANY_LEARNERS)
        if given["policy"] == policy
    )
    assert pieces == right["pieces"]
    assert sum(pieces) * given["parameters"] == pytest.approx(right["state"])


def step_under_autocast(enabled: bool) -> dict[str, set[torch.dtype]]:
    """Data types in a step of a model under DDP."""
    found: dict[str, set[torch.dtype]] = {name: set() for name in ("inputs", "traffic")}
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)))
    optimizer = Adam(model.parameters())

    def send(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses names of types
        found["traffic"].add(bucket.buffer().dtype)
        return allreduce_hook(state, bucket)

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape == (4, 32):  # a batch of activations, no parameter
            found["inputs"].add(tensor.dtype)
        return tensor

    model.register_comm_hook(None, send)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=enabled),
    ):
        loss = model(torch.ones(4, 32)).sum()
    loss.backward()
    optimizer.step()
    states = [one for state in optimizer.state.values() for one in state.values()]
    found["weights"] = {one.dtype for one in model.parameters()}
    found["gradients"] = {one.grad.dtype for one in model.parameters() if one.grad is not None}
    found["moments"] = {one.dtype for one in states if one.numel() > 1}
    return found


@pytest.mark.slow
def test_autocast_halves_what_the_answers_say() -> None:
    run = on_ranks(
        lambda: [step_under_autocast(enabled) for enabled in (False, True)], world_size=2
    )
    plain, cast = run.values[0]
    _, right = drawn("sixteen_bytes", "ada")
    assert set(plain) == {"weights", "gradients", "moments", "inputs", "traffic"}
    for name in plain:
        assert plain[name] == {torch.float32}
        assert cast[name] == {torch.bfloat16 if name in right["halved"] else torch.float32}, name


@pytest.mark.slow
def test_the_budget_lies_between_gb_and_gib() -> None:
    """A learner who confuses the two gets another answer, and no value is near an edge."""
    policies = {"half_only": 8, "mixed": 16, "mixed_fp32_grads": 18, "mixed_fp32_accumulation": 20}
    answers = set()
    for given, right in (drawn("sixteen_bytes", learner) for learner in MANY_LEARNERS):
        shares = {
            name: size * given["parameters"] * 1e9 / given["budget"]
            for name, size in policies.items()
        }
        assert all(not 0.99 < share < 1.01 for share in shares.values())
        assert right["fits"] - {"fp32"} == {name for name, share in shares.items() if share < 1}
        assert ("fp32" in right["fits"]) == ("mixed" in right["fits"])
        assert any(1e9 / 2**30 < share < 1 for share in shares.values())
        answers.add(frozenset(right["fits"]))
    assert len(answers) == 3


# 04/activation_bytes ---------------------------------------------------------------------------


class Block(nn.Module):
    """A transformer layer as the formula has it, without biases."""

    def __init__(self, hidden: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.queries, self.keys, self.values_, self.out = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4)
        )
        self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((hidden, 4 * hidden), (4 * hidden, hidden))
        )

    def attention(self, x: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        query, key, value = (
            linear(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for linear in (self.queries, self.keys, self.values_)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            weights = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).softmax(-1)
            mixed = F.dropout(weights, self.dropout) if self.dropout else weights
            mixed = mixed @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        for norm, inner in zip(self.norms, (self.attention, self.multilayer), strict=True):
            y = inner(norm(x))
            x = x + (F.dropout(y, self.dropout) if self.dropout else y)
        return x

    def multilayer(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # type: ignore[no-any-return]


def kept_by(block: Block, x: Tensor, *, again: bool = False) -> int:
    """Bytes that autograd keeps for the backward pass: each storage once, parameters left out."""
    own = {one.untyped_storage().data_ptr() for one in block.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = checkpoint(block, x, use_reentrant=True) if again else block(x)
    assert loss.requires_grad
    return sum(one.untyped_storage().nbytes() for place, one in kept.items() if place not in own)


SMALL = {"sequence": 128, "micro_batch": 2, "heads": 4, "hidden": 64, "layers": 3}


def measured(**switches: Any) -> float:
    """MB that a block of SMALL keeps."""
    again = switches.pop("again", False)
    torch.manual_seed(0)
    block = Block(SMALL["hidden"], SMALL["heads"], **switches).bfloat16()
    x = torch.randn(SMALL["micro_batch"], SMALL["sequence"], SMALL["hidden"]).bfloat16()
    return kept_by(block, x.requires_grad_(), again=again) / 1e6


def test_a_block_keeps_what_the_answers_say() -> None:
    right = known("activation_bytes").right[0](SMALL)
    near = 0.02  # the norms keep two numbers for each token
    assert measured(dropout=0.0, fused=False) == pytest.approx(right["no_dropout"], rel=near)
    assert measured(dropout=0.0, fused=True) == pytest.approx(right["fused"], rel=near)
    kept = measured(dropout=0.0, fused=False, again=True)
    assert SMALL["layers"] * kept == pytest.approx(right["full"])
    tokens = SMALL["sequence"] * SMALL["micro_batch"]
    masks = tokens * (2 * SMALL["hidden"] + SMALL["heads"] * SMALL["sequence"])
    with_dropout = measured(dropout=0.1, fused=False)  # CPU kernels keep masks in 2 bytes, not 1
    assert with_dropout - masks / 1e6 == pytest.approx(right["layer"], rel=near)


@pytest.mark.slow
def test_what_saves_most_is_not_the_same_for_all() -> None:
    found = {drawn("activation_bytes", learner)[1]["most"] for learner in MANY_LEARNERS}
    assert found == {"fused", "halved"}
    for given, right in (drawn("activation_bytes", learner) for learner in MANY_LEARNERS):
        assert given["hidden"] == given["heads"] * given["hidden"] // given["heads"]
        apart = abs(right["selective"] / 50 - 1)  # fused attention against half of all
        assert apart > 0.02


# 04/checkpoint_spacing -------------------------------------------------------------------------


class Bytes:
    """An object that counts as so many bytes while it is alive."""

    alive, most = 0, 0

    def __init__(self, count: int) -> None:
        self.count = count
        type(self).alive += count
        type(self).most = max(self.most, self.alive)

    def __del__(self) -> None:
        type(self).alive -= self.count


class Layer(torch.autograd.Function):
    """Keeps so many bytes from its forward pass until its backward pass is over."""

    forwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        Layer.forwards += 1
        ctx.kept = Bytes(count)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def run_segments(layers: int, spacing: int, kept: int) -> tuple[int, int]:
    """The most bytes that layers kept at a time, and how many ran forward again."""
    Bytes.most = Layer.forwards = 0

    def segment(x: Tensor) -> Tensor:
        for _ in range(spacing):
            x = Layer.apply(x, kept)
        return x

    x = torch.ones(1, requires_grad=True)
    for _ in range(layers // spacing):
        x = checkpoint(segment, x, use_reentrant=True)
    x.backward()
    assert Bytes.alive == 0
    return Bytes.most, Layer.forwards - layers


@pytest.mark.parametrize("learner", LEARNERS)
def test_segments_keep_and_repeat_what_the_answers_say(learner: str) -> None:
    given, right = drawn("checkpoint_spacing", learner)
    peaks = {}
    for spacing in (k for k in range(1, given["layers"] + 1) if given["layers"] % k == 0):
        most, again = run_segments(given["layers"], spacing, given["kept"])
        peaks[spacing] = given["layers"] // spacing * given["input"] + most
        assert again == right["again"]
    assert peaks[given["spacing"]] == right["peak"]
    assert min(peaks, key=lambda spacing: peaks[spacing]) == right["best"]


def test_checkpoints_cost_the_flops_of_the_answers() -> None:
    """PyTorch would leave out what no gradient needs of the forward pass: here, the last layer."""
    _, right = drawn("checkpoint_spacing", "ada")
    layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    counts = []
    for again in (False, True):
        x = torch.ones(8, 64, requires_grad=True)
        with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False):
            y = checkpoint(layers, x, use_reentrant=False) if again else layers(x)
            y.sum().backward()
        counts.append(counter.get_total_flops())
    assert 100 * (counts[1] / counts[0] - 1) == pytest.approx(right["flops"])


@pytest.mark.slow
def test_measured_times_are_as_checkpoints_make_them() -> None:
    """36 to 39 % more time, 26 to 28 % less throughput; and the best spacing is whole."""
    for given, right in (drawn("checkpoint_spacing", learner) for learner in MANY_LEARNERS):
        assert 1.36 < given["after"] / given["before"] < 1.39
        assert 26 < right["throughput"] < 28.1
        assert given["layers"] % right["best"] == given["layers"] % given["spacing"] == 0
        assert given["spacing"] != right["best"] < math.sqrt(given["layers"])

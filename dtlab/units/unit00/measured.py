"""Runs two training iterations and measures the peak bytes of all tensors in each phase.

    forward | backward | step | second: forward and backward once more

A setting is a dict:

    widths          widths of the inputs, of the activations between layers, and of the outputs
    batch           number of rows of a batch; they form `samples` equal samples
    dtype           of all tensors: "fp32" or "bf16"
    optimizer       "Adam" or "SGD"
    frozen          number of layers, from the first, that are not trained
    clear           when gradients are cleared: "after step", or "before backward"
    microbatches    number of parts into which a batch is cut; they run one after another
    checkpoint      whether all layers but the last are recomputed in backward

This file imports torch. Learners use it in level-3.ipynb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dtlab.training.activation import checkpoint
from dtlab.training.live import Storages

__all__ = ["PHASES", "AdamByHand", "SGDByHand", "Watch", "batch_of", "build", "forward",
           "one_thread", "peaks", "train"]  # fmt: skip

PHASES = ("forward", "backward", "step", "second")


class Watch(Storages):  # type: ignore[no-untyped-call]
    """Records, by phase, the peak bytes of the given tensors and of all that operators create."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.peaks: dict[str, int] = {}
        self._phase = ""

    def note(self) -> None:
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.bytes)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Context manager: record the peak bytes in its block under the phase `name`.

        A phase inside another phase counts as the outer one.
        """
        before, self._phase = self._phase, self._phase or name
        self.note()
        yield
        self._phase = before


class SGDByHand:
    """SGD without state: updates one parameter after another."""

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float = 0.01) -> None:
        self.parameters, self.rate = list(parameters), rate

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.add_(parameter.grad, alpha=-self.rate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Release the gradients, or fill them with zeros."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


class AdamByHand(SGDByHand):
    """Adam as in torch.optim.Adam(foreach=False): the first step allocates two moments.

    Constructing PyTorch's Adam for the first time imports its compiler, which takes seconds.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float = 0.001) -> None:
        super().__init__(parameters, rate)
        self.moments: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter in self.parameters:
            grad = parameter.grad
            if grad is None:
                continue
            if parameter not in self.moments:
                self.moments[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            mean, square = self.moments[parameter]
            mean.lerp_(grad, 0.1)
            square.mul_(0.999).addcmul_(grad, grad, value=0.001)
            correction = (1 - 0.999**self.steps) ** 0.5
            length = (square.sqrt() / correction).add_(1e-8)
            parameter.addcdiv_(mean, length, value=-self.rate / (1 - 0.9**self.steps))


# Models and steps -------------------------------------------------------------------------------


def build(setting: Mapping[str, Any]) -> nn.ModuleList:
    """Build a layer for each pair of widths: Linear, followed by GELU except in the last."""
    torch.manual_seed(0)
    widths = setting["widths"]
    dtype = torch.bfloat16 if setting["dtype"] == "bf16" else torch.float32
    layers = [
        nn.Sequential(nn.Linear(width, out), *([nn.GELU()] if number < len(widths) - 2 else []))
        for number, (width, out) in enumerate(pairwise(widths))
    ]
    for layer in layers[: setting["frozen"]]:
        layer.requires_grad_(False)
    return nn.ModuleList(layers).to(dtype)


def batch_of(setting: Mapping[str, Any], number: int) -> tuple[Tensor, Tensor]:
    """Inputs [batch, first width] and targets [batch, last width] of iteration `number`."""
    draw = torch.Generator().manual_seed(number)
    widths, dtype = setting["widths"], setting["dtype"]
    shapes = (setting["batch"], widths[0]), (setting["batch"], widths[-1])
    inputs, targets = (torch.randn(shape, generator=draw) for shape in shapes)
    return (inputs.bfloat16(), targets.bfloat16()) if dtype == "bf16" else (inputs, targets)


def forward(layers: nn.ModuleList, x: Tensor, is_checkpointed: bool) -> Tensor:
    """Run all layers; if `is_checkpointed`, backward recomputes all layers but the last."""
    recomputed = layers[:-1] if is_checkpointed else ()
    for layer in layers:
        x = checkpoint(layer, x) if layer in recomputed else layer(x)
    return x


def train(
    layers: nn.ModuleList,
    optimizer: SGDByHand,
    batches: Sequence[tuple[Tensor, Tensor]],
    setting: Mapping[str, Any],
    watch: Watch,
) -> None:
    """Train with the microbatches, the checkpoints and the time of clearing in `setting`."""
    for iteration, (inputs, targets) in enumerate(batches):
        parts = setting["microbatches"]
        for part, (x, y) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            with watch.phase("second" if iteration else "forward"):
                loss = F.mse_loss(forward(layers, x, setting["checkpoint"]), y) / parts
            if part == 0 and setting["clear"] == "before backward":
                optimizer.zero_grad()
            with watch.phase("second" if iteration else "backward"):
                loss.backward()
            del loss
        with watch.phase("step"):
            optimizer.step()
        if setting["clear"] == "after step":
            optimizer.zero_grad()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: with such small models, threads cost more than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peaks(setting: Mapping[str, Any]) -> dict[str, int]:
    """The peak bytes of all tensors in each phase of two real iterations."""
    with one_thread():
        return _peaks(setting)


def _peaks(setting: Mapping[str, Any]) -> dict[str, int]:
    layers = build(setting)
    trained = [parameter for parameter in layers.parameters() if parameter.requires_grad]
    optimizer = (AdamByHand if setting["optimizer"] == "Adam" else SGDByHand)(trained)
    batches = [batch_of(setting, number) for number in range(2)]
    tensors = [*layers.parameters(), *(tensor for pair in batches for tensor in pair)]
    with Watch(*tensors) as watch:
        train(layers, optimizer, batches, setting, watch)
    return {name: watch.peaks[name] for name in PHASES}

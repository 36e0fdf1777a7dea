"""Local SGD: ranks step independently and average their parameters every few steps.

    rank 0    step  step  step  step ─┐         ┌─ step  step  step  step ─┐
    rank 1    step  step  step  step ─┤ average ├─ step  step  step  step ─┤ average ...
    rank 2    step  step  step  step ─┘         └─ step  step  step  step ─┘

Data parallelism sends S bytes of gradients in each step. Local SGD sends S bytes of parameters in
every k-th step: 1/k of the bytes, and the ranks synchronize k times less often. Between two
averages the parameters of the ranks diverge; they diverge more with a larger k or learning rate.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from dtlab.messages import Group
from dtlab.parallel.data.replicas import broadcast, packs

__all__ = ["LocalSGD"]


class LocalSGD:
    """Averages the parameters of `module` over the ranks of the group after every `steps` steps.

        local = LocalSGD(model, steps=4)              # all ranks get the first rank's parameters
        for inputs, targets in my_batches():
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()                          # any optimizer; it steps on this rank only
            local.step()

    Only parameters that require a gradient are averaged. Buffers and the optimizer's state, such
    as momentum, remain separate on each rank. With plain SGD and `steps=1` this is data
    parallelism. The ranks average after each of the first `every_step_until` steps; local SGD
    begins after these. All ranks must take the same number of steps. Call `average` once more at
    the end if the last step did not average.

    Stich 2019, "Local SGD Converges Fast and Communicates Little". With `every_step_until` this is
    post-local SGD: Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD".
    Raises: ValueError if `steps` is below 1, `every_step_until` is below 0, or no parameter of
    `module` requires a gradient.
    """

    def __init__(
        self, module: nn.Module, steps: int, group: Group = None, every_step_until: int = 0
    ) -> None:
        if steps < 1 or every_step_until < 0:
            raise ValueError(
                f"LocalSGD needs steps of 1 or more and every_step_until of 0 or more, not "
                f"steps={steps}, every_step_until={every_step_until}."
            )
        self.steps, self.every_step_until = steps, every_step_until
        self.taken = 0  # steps so far
        self._group = group
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError(
                "no parameter of this module requires a gradient, so there is nothing to average."
            )
        broadcast([*module.parameters(), *module.buffers()], group)

    def step(self) -> bool:
        """Count an optimizer step, and average if due. Returns whether the ranks averaged."""
        self.taken += 1
        local = self.taken - self.every_step_until
        due = local <= 0 or local % self.steps == 0
        if due:
            self.average()
        return due

    @torch.no_grad()
    def average(self) -> None:
        """Average the parameters over all ranks, with one all-reduce per dtype and device."""
        for pack in packs(self._parameters):
            dist.all_reduce(pack, group=self._group)
            pack /= dist.get_world_size(self._group)

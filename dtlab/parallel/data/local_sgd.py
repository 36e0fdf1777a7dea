"""Local SGD: ranks step independently and average their parameters every few steps.

    rank 0    step  step  step  step ─┐         ┌─ step  step  step  step ─┐
    rank 1    step  step  step  step ─┤ average ├─ step  step  step  step ─┤ average ...
    rank 2    step  step  step  step ─┘         └─ step  step  step  step ─┘

Where data parallelism sends S bytes of gradients in each step, this sends S bytes of parameters in
every k-th: 1/k of the bytes, and ranks wait for each other k times less often. In between the
ranks drift apart, the more the larger k and the rate are.
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

        local = LocalSGD(model, steps=4)              # all ranks start as the first one
        for inputs, targets in my_batches():
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()                          # any optimizer, of this rank alone
            local.step()

    Works on the parameters that require a gradient. Buffers and the optimizer's state, such as
    momentum, stay each rank's own. With plain SGD and `steps=1` it is data parallelism. The first
    `every_step_until` steps average each time, and only then local SGD begins. All ranks take
    equally many steps; call `average` once more where the last of them was a local one.

    Stich 2019, "Local SGD Converges Fast and Communicates Little". Beginning later: post-local
    SGD, Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD".
    Raises: ValueError where `steps` is below 1, or nothing in `module` requires a gradient.
    """

    def __init__(
        self, module: nn.Module, steps: int, group: Group = None, every_step_until: int = 0
    ) -> None:
        if steps < 1 or every_step_until < 0:
            raise ValueError(
                f"LocalSGD averages every 1 or more steps, after 0 or more in which it does so "
                f"each time; not steps={steps}, every_step_until={every_step_until}."
            )
        self.steps, self.every_step_until = steps, every_step_until
        self.taken = 0  # steps so far
        self._group = group
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("No parameter here requires a gradient: there is nothing to average.")
        broadcast([*module.parameters(), *module.buffers()], group)

    def step(self) -> bool:
        """Count a step of the optimizer; average where it is time to. Returns whether it did."""
        self.taken += 1
        local = self.taken - self.every_step_until
        due = local <= 0 or local % self.steps == 0
        if due:
            self.average()
        return due

    @torch.no_grad()
    def average(self) -> None:
        """Make the parameters the mean over all ranks: one all-reduce per dtype and device."""
        for pack in packs(self._parameters):
            dist.all_reduce(pack, group=self._group)
            pack /= dist.get_world_size(self._group)

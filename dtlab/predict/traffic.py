"""Traffic of ZeRO: how often the parameters go round, and the gradients, in one step.

    k microbatches          parameters   gradients   all
    stage 0                      0            2         2      one all-reduce
    stage 1                      1            1         2      reduce-scatter, step, all-gather
    stage 1, DDP's gradients     1            2         3      all-reduce, step, broadcast
    stage 2                      1            k       k + 1    every microbatch to its owners
    stage 3                     2k            k        3k      gathered in forward and in backward
    stage 3, kept gathered       k            k        2k      gathered in forward only

Once round is (N-1)/N of all elements sent by each rank, on a ring: half an all-reduce.
Rajbhandari et al. 2020, "ZeRO", section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtlab.predict.units import check_bytes, check_count, check_whole, is_number

__all__ = ["Traffic", "check_stage", "zero_traffic"]


def check_stage(stage: int) -> int:
    """`stage`, of ZeRO. Raises: ValueError for one that there is not."""
    if not is_number(stage) or stage not in (0, 1, 2, 3):
        raise ValueError(f"stage is 0 (no sharding), 1, 2 or 3, not {stage!r}.")
    return int(stage)


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in a step.

    `parameter_passes` and `gradient_passes` say how often all of them go round the ring.
    """

    num_params: int
    world_size: int
    parameter_passes: int
    gradient_passes: int

    @property
    def passes(self) -> int:
        """The 2, 3, k + 1 or 3k of the papers, which count (N-1)/N as 1."""
        return self.parameter_passes + self.gradient_passes

    @property
    def elements(self) -> float:
        """Elements that one rank sends: (N-1)/N of all of them in each pass."""
        return self.passes * self.num_params * (self.world_size - 1) / self.world_size

    def nbytes(self, bytes_per_parameter: float, bytes_per_gradient: float) -> float:
        """Bytes that one rank sends, where elements of the two kinds have that many bytes each.

        Raises: ValueError for bytes below 0.
        """
        each = self.parameter_passes * check_bytes("bytes_per_parameter", bytes_per_parameter)
        each += self.gradient_passes * check_bytes("bytes_per_gradient", bytes_per_gradient)
        return each * self.num_params * (self.world_size - 1) / self.world_size


def zero_traffic(
    num_params: float,
    stage: int,
    world_size: int,
    num_microbatches: int = 1,
    *,
    gradients_everywhere: bool = False,
    reshard_after_forward: bool = True,
) -> Traffic:
    """What each rank sends in a step of `num_microbatches`, at stage 0 to 3.

    Stages 0 and 1 hold whole gradients, add them up, and send once: DDP has `no_sync` for that.
    `gradients_everywhere` is stage 1 as DDP with PyTorch's `ZeroRedundancyOptimizer`: all ranks
    get all averaged gradients, and each broadcasts what it has stepped. `reshard_after_forward`
    is that of `fully_shard`: where it is False, stage 3 keeps what it has gathered until backward
    is through, and all ranks hold whole parameters meanwhile.
    Raises: ValueError for a stage or a count that there is not, or an option of another stage.
    """
    params, ranks = check_whole("num_params", num_params), check_count("world_size", world_size)
    k = check_count("num_microbatches", num_microbatches)
    stage = check_stage(stage)
    if gradients_everywhere and stage != 1:
        raise ValueError(f"gradients_everywhere is for stage 1, not for stage {stage}.")
    if not reshard_after_forward and stage != 3:
        raise ValueError(f"reshard_after_forward=False is for stage 3, not for stage {stage}.")
    parameters, gradients = [(0, 2), (1, 1), (1, k), (2 * k, k)][stage]
    if gradients_everywhere:
        gradients = 2
    if not reshard_after_forward:
        parameters = k
    return Traffic(params, ranks, parameters, gradients)

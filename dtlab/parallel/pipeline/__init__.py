"""Pipeline parallelism: each rank runs some layers, and microbatches pass through the stages.

executor.py          `PipelineStage` and `run_schedule`: one loop runs any schedule
messages.py          which tensors are sent and received, and in which order
microbatches.py      a batch cut into microbatches, and their losses
split_backward.py    computes the input's gradient first, the weights' gradients later
tied.py              parameters that several stages share
costs.py             measured costs of layers
stand_ins.py         stages that take time but compute nothing, on ranks and in the simulator
"""

from dtlab.parallel.pipeline.costs import measure_costs as measure_costs
from dtlab.parallel.pipeline.executor import PipelineStage as PipelineStage
from dtlab.parallel.pipeline.executor import run_schedule as run_schedule
from dtlab.parallel.pipeline.microbatches import StepResult as StepResult
from dtlab.parallel.pipeline.stand_ins import StandIn as StandIn
from dtlab.parallel.pipeline.stand_ins import last_step as last_step
from dtlab.parallel.pipeline.stand_ins import run_stand_ins as run_stand_ins

__all__ = [
    "PipelineStage", "StandIn", "StepResult", "last_step", "measure_costs", "run_schedule",
    "run_stand_ins",
]  # fmt: skip

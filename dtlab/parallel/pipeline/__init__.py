"""Pipeline parallelism: each rank runs some layers, and microbatches pass through the stages.

executor.py          `PipelineStage` and `run_schedule`: one loop runs any schedule
messages.py          which tensors are sent and received, and in which order
microbatches.py      a batch cut into microbatches, and their losses
split_backward.py    computes the input's gradient first, the weights' gradients later
tied.py              parameters that several stages share
costs.py             measured costs of layers, and stages that only take time
"""

from dtlab.parallel.pipeline.costs import StandIn as StandIn
from dtlab.parallel.pipeline.costs import measure_costs as measure_costs
from dtlab.parallel.pipeline.executor import PipelineStage as PipelineStage
from dtlab.parallel.pipeline.executor import run_schedule as run_schedule
from dtlab.parallel.pipeline.microbatches import StepResult as StepResult

__all__ = ["PipelineStage", "StandIn", "StepResult", "measure_costs", "run_schedule"]

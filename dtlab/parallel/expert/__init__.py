"""Expert parallelism: the experts of a layer are spread over the ranks; tokens travel to them."""

from dtlab.parallel.expert.experts import ExpertParallel as ExpertParallel
from dtlab.parallel.expert.experts import Routing as Routing
from dtlab.parallel.expert.experts import balance_loss as balance_loss
from dtlab.parallel.expert.experts import dense_experts as dense_experts
from dtlab.parallel.expert.experts import route as route

__all__ = ["ExpertParallel", "Routing", "balance_loss", "dense_experts", "route"]

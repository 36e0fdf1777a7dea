"""Plans that spread one model over a cluster: the cost of a plan, and a search over all plans."""

from dtlab.predict.plan.all_plans import Search as Search
from dtlab.predict.plan.all_plans import search as search
from dtlab.predict.plan.cost import RECOMPUTE as RECOMPUTE
from dtlab.predict.plan.cost import SCHEDULES as SCHEDULES
from dtlab.predict.plan.cost import Estimate as Estimate
from dtlab.predict.plan.cost import Plan as Plan
from dtlab.predict.plan.cost import Problem as Problem
from dtlab.predict.plan.cost import Transformer as Transformer
from dtlab.predict.plan.cost import evaluate as evaluate

__all__ = ["Estimate", "Plan", "Problem", "Search", "Transformer", "evaluate", "search"]

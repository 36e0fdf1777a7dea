"""Figures with controls: a widget redraws its figure when the value of a control changes."""

from dtlab.show.widgets.batch import explore_effective_batch as explore_effective_batch
from dtlab.show.widgets.batch import explore_published_sweep as explore_published_sweep
from dtlab.show.widgets.batch import explore_schedule as explore_schedule
from dtlab.show.widgets.checkpoints import explore_checkpoints as explore_checkpoints
from dtlab.show.widgets.decision import explore_decision as explore_decision
from dtlab.show.widgets.explorer import Explorer as Explorer
from dtlab.show.widgets.explorer import explore_crossover as explore_crossover
from dtlab.show.widgets.explorer import step_ring as step_ring
from dtlab.show.widgets.explorer import step_tree as step_tree
from dtlab.show.widgets.formats import explore_activations as explore_activations
from dtlab.show.widgets.formats import explore_gradients as explore_gradients
from dtlab.show.widgets.formats import explore_number_line as explore_number_line
from dtlab.show.widgets.lengths import explore_lengths as explore_lengths
from dtlab.show.widgets.memory import explore_memory as explore_memory
from dtlab.show.widgets.pipeline import explore_block as explore_block
from dtlab.show.widgets.pipeline import explore_pipeline as explore_pipeline
from dtlab.show.widgets.plan import explore_mesh as explore_mesh
from dtlab.show.widgets.replay import Replay as Replay
from dtlab.show.widgets.replay import replay as replay
from dtlab.show.widgets.training import explore_overlap as explore_overlap
from dtlab.show.widgets.training import explore_straggler as explore_straggler
from dtlab.show.widgets.wire import explore_wire as explore_wire

__all__ = [
    "Explorer",
    "Replay",
    "explore_activations",
    "explore_block",
    "explore_checkpoints",
    "explore_crossover",
    "explore_decision",
    "explore_effective_batch",
    "explore_gradients",
    "explore_lengths",
    "explore_memory",
    "explore_mesh",
    "explore_number_line",
    "explore_overlap",
    "explore_pipeline",
    "explore_published_sweep",
    "explore_schedule",
    "explore_straggler",
    "explore_wire",
    "replay",
    "step_ring",
    "step_tree",
]

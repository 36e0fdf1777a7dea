"""Figures, widgets on them, and `guess`.

A figure is a pure function from a `Trace`, from parameters or from measured numbers to a `Figure`;
a widget is a thin front that calls such a function again when one of its controls moves.
"""

from __future__ import annotations

from dtlab.show.batch_widgets import (
    explore_effective_batch,
    explore_published_sweep,
    explore_schedule,
)
from dtlab.show.block_widgets import explore_block
from dtlab.show.decision_widgets import explore_decision
from dtlab.show.figures import (
    activation_bars,
    bus_bandwidths,
    collective_table,
    cost_curves,
    crossover,
    decision_tree,
    effective_batch,
    gradient_ranges,
    line_chart,
    loss_scale_chart,
    memory_bar,
    memory_bars,
    number_line,
    overlap,
    parallel_block,
    pipeline,
    predicted_pipeline,
    published_sweep,
    ring,
    scaling_chart,
    schedule,
    staircase,
    straggler,
    sweep_chart,
    timeline,
    tree,
)
from dtlab.show.guess import Guess, guess
from dtlab.show.memory_widgets import explore_memory
from dtlab.show.pipeline_widgets import explore_pipeline
from dtlab.show.precision_widgets import (
    explore_activations,
    explore_gradients,
    explore_number_line,
)
from dtlab.show.preflight import preflight
from dtlab.show.style import COLOURS, Figure
from dtlab.show.training_widgets import explore_overlap, explore_straggler
from dtlab.show.widgets import Explorer, explore_crossover, step_ring, step_tree

__all__ = [
    "COLOURS",
    "Explorer",
    "Figure",
    "Guess",
    "activation_bars",
    "bus_bandwidths",
    "collective_table",
    "cost_curves",
    "crossover",
    "decision_tree",
    "effective_batch",
    "explore_activations",
    "explore_block",
    "explore_crossover",
    "explore_decision",
    "explore_effective_batch",
    "explore_gradients",
    "explore_memory",
    "explore_number_line",
    "explore_overlap",
    "explore_pipeline",
    "explore_published_sweep",
    "explore_schedule",
    "explore_straggler",
    "gradient_ranges",
    "guess",
    "line_chart",
    "loss_scale_chart",
    "memory_bar",
    "memory_bars",
    "number_line",
    "overlap",
    "parallel_block",
    "pipeline",
    "predicted_pipeline",
    "preflight",
    "published_sweep",
    "ring",
    "scaling_chart",
    "schedule",
    "staircase",
    "step_ring",
    "step_tree",
    "straggler",
    "sweep_chart",
    "timeline",
    "tree",
]

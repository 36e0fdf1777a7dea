"""The figures: pure functions from a trace, from parameters or from numbers to a `Figure`.

Each returns a `dtlab.show.style.Figure`, which a notebook shows as the last expression of a
cell, and whose `alt_text` says in words what is on it. Nothing here touches pyplot or other
global state.
"""

from __future__ import annotations

from dtlab.show.activation_figure import activation_bars
from dtlab.show.bandwidth_figure import bus_bandwidths
from dtlab.show.batch_figure import effective_batch
from dtlab.show.block_figure import parallel_block
from dtlab.show.cost_figure import cost_curves
from dtlab.show.crossover_figure import crossover
from dtlab.show.decision_figure import decision_tree
from dtlab.show.gradient_figure import gradient_ranges
from dtlab.show.line_figure import line_chart
from dtlab.show.loss_scale_figure import loss_scale_chart
from dtlab.show.memory_figure import memory_bar, memory_bars
from dtlab.show.number_line_figure import number_line
from dtlab.show.overlap_figure import overlap
from dtlab.show.pipeline_figure import pipeline, predicted_pipeline
from dtlab.show.published_figure import published_sweep
from dtlab.show.ring_figure import ring
from dtlab.show.scaling_figure import scaling_chart
from dtlab.show.schedule_figure import schedule
from dtlab.show.staircase_figure import staircase
from dtlab.show.straggler_figure import straggler
from dtlab.show.sweep_figure import sweep_chart
from dtlab.show.table_figure import collective_table
from dtlab.show.timeline_figure import timeline
from dtlab.show.tree_figure import tree

__all__ = [
    "activation_bars",
    "bus_bandwidths",
    "collective_table",
    "cost_curves",
    "crossover",
    "decision_tree",
    "effective_batch",
    "gradient_ranges",
    "line_chart",
    "loss_scale_chart",
    "memory_bar",
    "memory_bars",
    "number_line",
    "overlap",
    "parallel_block",
    "pipeline",
    "predicted_pipeline",
    "published_sweep",
    "ring",
    "scaling_chart",
    "schedule",
    "staircase",
    "straggler",
    "sweep_chart",
    "timeline",
    "tree",
]

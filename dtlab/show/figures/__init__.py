"""The figures: pure functions from a trace, from parameters or from numbers to a `Figure`.

Each returns a `dtlab.show.Figure`, which a notebook displays as the last expression of a cell, and
whose `alt_text` describes it in words. Nothing here uses pyplot or other global state.
"""

from __future__ import annotations

from dtlab.show.figures.batch import effective_batch, published_sweep, schedule, sweep_chart
from dtlab.show.figures.costs import bus_bandwidths, cost_curves, crossover
from dtlab.show.figures.formats import bit_layouts, gradient_ranges, loss_scale_chart, number_line
from dtlab.show.figures.layer import activation_bars, parallel_block
from dtlab.show.figures.lines import ceiling_ladder, line_chart, roofline, scaling_chart
from dtlab.show.figures.memory import memory_bar, memory_bars, staircase, zero_stages
from dtlab.show.figures.orchestration import (
    goodput_curve,
    object_store,
    replicas_over_time,
    sweep_table,
    task_graph,
)
from dtlab.show.figures.overlap import gather_and_free, overlap, straggler, wire_step
from dtlab.show.figures.pipeline import pipeline, predicted_pipeline
from dtlab.show.figures.ring import ring, ring_timeline
from dtlab.show.figures.rounds import tree
from dtlab.show.figures.splits import (
    attention_rounds,
    field_frames,
    length_bars,
    sequence_and_field,
    tile_halos,
)
from dtlab.show.figures.strategy import (
    decision_tree,
    mesh_figure,
    plan_chart,
    plan_table,
    ways_to_split,
)
from dtlab.show.figures.table import collective_table
from dtlab.show.figures.timeline import timeline, waits

__all__ = [
    "activation_bars",
    "attention_rounds",
    "bit_layouts",
    "bus_bandwidths",
    "ceiling_ladder",
    "collective_table",
    "cost_curves",
    "crossover",
    "decision_tree",
    "effective_batch",
    "field_frames",
    "gather_and_free",
    "goodput_curve",
    "gradient_ranges",
    "length_bars",
    "line_chart",
    "loss_scale_chart",
    "memory_bar",
    "memory_bars",
    "mesh_figure",
    "number_line",
    "object_store",
    "overlap",
    "parallel_block",
    "pipeline",
    "plan_chart",
    "plan_table",
    "predicted_pipeline",
    "published_sweep",
    "replicas_over_time",
    "ring",
    "ring_timeline",
    "roofline",
    "scaling_chart",
    "schedule",
    "sequence_and_field",
    "staircase",
    "straggler",
    "sweep_chart",
    "sweep_table",
    "task_graph",
    "tile_halos",
    "timeline",
    "tree",
    "waits",
    "ways_to_split",
    "wire_step",
    "zero_stages",
]

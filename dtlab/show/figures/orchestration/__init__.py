"""Figures of orchestration: tasks and their data, checkpoints, a sweep, and replicas."""

from __future__ import annotations

from dtlab.show.figures.orchestration.jobs import goodput_curve, replicas_over_time, sweep_table
from dtlab.show.figures.orchestration.tasks import object_store, task_graph

__all__ = ["goodput_curve", "object_store", "replicas_over_time", "sweep_table", "task_graph"]

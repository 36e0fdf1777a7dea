"""A grading task and its result as plain data, the same for every engine.

Task(bytes, released notebooks, seeds) ──► repair ──► judge ──► Done(notebooks, verdicts)

`repair` repairs a broken notebook.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nbformat import NotebookNode

from dtlab.classroom.judging.cells import Limits
from dtlab.classroom.judging.judge import Judged, PartVerdict, judge
from dtlab.classroom.repair.repaired import repair
from dtlab.errors import LaunchError
from dtlab.ranks.launch.client import Server

__all__ = ["Done", "Task", "carry_out"]


@dataclass(frozen=True)
class Task:
    """The data that judging a submission needs.

    `handed` has the bytes of each notebook to judge, None for a missing one; `released` has the
    released notebooks. Parts in `known` keep their verdicts. `seeds` has the seeds of parts that
    were judged before; the seeds of other parts are drawn from `seed`.
    """

    student: str
    handed: Mapping[str, bytes | None]
    released: Mapping[str, NotebookNode]
    notes: Mapping[str, tuple[str, ...]]
    seed: int
    seeds: Mapping[str, int] = field(default_factory=dict)
    known: Mapping[str, PartVerdict] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass
class Done:
    """The results of a task by notebook; `troubles` says why notebooks could not be judged."""

    notebooks: dict[str, NotebookNode] = field(default_factory=dict)
    parts: dict[str, tuple[PartVerdict, ...]] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    seconds: float = 0.0
    cell_seconds: float = 0.0


def carry_out(
    task: Task,
    server: Server,
    slot: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    waits: Callable[[bool], bool | None] = lambda _: None,
) -> Done:
    """Repairs and judges the notebooks of a task; the failure of one does not affect the others.

    `slot` differs between tasks that this process judges at the same time. `progress` is called
    with each step, and `waits` with True when a long wait begins, so that other tasks can
    continue, and with False when it ends.
    """
    done, begun = Done(), time.monotonic()
    for name in task.handed:
        try:
            _take_in(done, task, name, _judged(task, name, server, slot, progress, waits))
        except LaunchError as error:
            done.troubles[name] = str(error)
        except Exception:  # noqa: BLE001  must not affect the other notebooks
            done.troubles[name] = traceback.format_exc()
    done.seconds = time.monotonic() - begun
    return done


def _judged(
    task: Task,
    name: str,
    server: Server,
    slot: int,
    progress: Callable[[str], None],
    waits: Callable[[bool], bool | None],
) -> Judged:
    progress("repairing")
    repaired = repair(task.handed[name], task.released[name])
    return judge(
        repaired.notebook,
        server,
        student=task.student,
        seed=task.seed,
        slot=slot,
        limits=task.limits,
        known=task.known,
        seeds=task.seeds,
        notes=[*task.notes.get(name, ()), *repaired.notes],
        progress=progress,
        waits=waits,
    )


def _take_in(done: Done, task: Task, name: str, judged: Judged) -> None:
    done.notebooks[name] = judged.notebook
    done.parts[name] = tuple(task.known.get(verdict.part, verdict) for verdict in judged.verdicts)
    done.notes[name] = tuple(judged.notes)
    done.missing = tuple(dict.fromkeys([*done.missing, *judged.missing]))
    done.cell_seconds += judged.cell_seconds

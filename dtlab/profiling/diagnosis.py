"""Where the time of a training step went, the likely causes, and what to try.

    Trace ──► steps ──► what each rank did (replay.py) ──► Diagnosis: a table, causes (report.py)
                                    └──► the trace replayed without each cause: seconds saved

    straggler              one rank has more work than the others, which wait for it
    exposed communication  all ranks have arrived, and compute nothing until the operation ends
    input pipeline         a rank waits for its next batch
    launch gaps            a GPU is idle while the CPU prepares its next kernel

All limits are shares of the step, so that a slow or busy machine changes no verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from dtlab.profiling.replay import (
    BORDER,
    COMPUTING,
    EXPOSED,
    INPUT,
    LAUNCH,
    OTHER,
    Use,
    replay,
    segments,
    uses,
)
from dtlab.profiling.report import (
    NAMES,
    Cause,
    Diagnosis,
    about,
    as_bytes,
    listed,
    named,
    percent,
    secs,
)
from dtlab.profiling.steps import find_steps, readable_steps
from dtlab.trace.analysis import Meetings, meetings
from dtlab.trace.columns import Columns, Floats, Ints

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["Cause", "Diagnosis", "diagnose"]

STANDS_OUT = 0.10  # share of the step that a cause costs
WORTH_A_LINE = 0.05
IN_TURN = 0.25  # share of the step that ranks wait for each other without a straggler
UNMARKED = 0.25  # share of the step that no event shows
_FEW_STEPS = 3  # with fewer steps, the first one counts too, and with one more the slowest
_BY_CHANCE = 3.0  # standard errors by which a rank must be late, on average over the steps
_SMALL = 1e6  # bytes: a smaller message takes about as long as an empty one
_SHORT_GAP = 1e-3  # seconds: launching a kernel takes microseconds, Python code milliseconds
OWN: Final = (COMPUTING, OTHER, LAUNCH)  # what a rank does by itself, without its input


def diagnose(trace: Trace) -> Diagnosis:
    """Return where the time of a step went, the likely causes, and what to try.

    Steps are found by the spans "step", "optimizer", "input" or "forward", or by the profiler's
    steps and its annotations of optimizers and DataLoaders. Raises: ValueError for a trace whose
    events take no time.
    """
    return _Patient(trace).diagnosis()


class _Patient:
    """A trace with what the causes need to know about it."""

    def __init__(self, trace: Trace) -> None:
        if not trace.duration:
            raise ValueError("The trace has no events that take time.")
        self.trace = trace
        self.columns: Columns = trace.columns
        self.there = np.unique(self.columns.rank).tolist()
        self.missing = sorted(set(range(trace.world_size)) - set(self.there))
        self.matches: Meetings = meetings(self.columns)
        self.marker, borders = find_steps(self.columns, self.there)
        self.borders = borders[:, 1:] if borders.shape[1] > _FEW_STEPS else borders
        steps = self.borders.shape[1] - 1
        self.uses = uses(self.columns, self.matches, self.there, list(self.borders))
        seconds = np.array([use.seconds for use in self.uses])  # rank, step, kind
        self.lengths = seconds.sum(axis=2).mean(axis=0)
        self.per_step, self.a_step = (" per step", "a step") if self.marker else ("", "the time")
        self.usual, self.lost = readable_steps(self.columns, self.there, self.borders)
        self.unreadable = steps - len(self.usual)
        self.left_out = borders.shape[1] - 1 - steps
        if len(self.usual) > _FEW_STEPS:  # a hiccup in one step says nothing about the others
            self.usual = np.delete(self.usual, self.lengths[self.usual].argmax())
            self.left_out += 1
        self.mean = seconds[:, self.usual].mean(axis=1)  # rank, kind
        self.step = float(self.mean.sum(axis=1).mean())
        self.own = seconds[:, self.usual][:, :, OWN].sum(axis=2)  # rank, step
        self.late = self._late()
        self.scales = self._scales()
        self.base, _ = self._replayed()

    # --------------------------------------------------------------- causes removed by a replay

    def _scales(self) -> dict[str, tuple[list[Floats], float]]:
        """How each cause's removal scales the work before each item, and transfers."""
        same = [np.ones_like(use.work) for use in self.uses]
        without = {
            kind: [np.where(np.arange(work.shape[1]) == number, 0.0, work) for work in same]
            for kind, number in (("input pipeline", INPUT), ("launch gaps", LAUNCH))
        }
        return {
            "straggler": (self._evenly(same), 1.0),
            "input pipeline": (without["input pipeline"], 1.0),
            "launch gaps": (without["launch gaps"], 1.0),
            "exposed communication": (same, 0.0),
        }

    def _evenly(self, same: list[Floats]) -> list[Floats]:
        """The scales that bring the work of late ranks down to that of the usual rank.

        A late rank's work is scaled segment by segment, if all steps have the same segments.
        """
        tables = [table for use in self.uses if (table := _by_segment(use)) is not None]
        scales = [scale.copy() for scale in same]
        if len(tables) < len(self.uses) or len({table.shape for table in tables}) > 1:
            own = self.own.mean(axis=1)
            for rank in self.late:
                scales[rank][:, OWN] = _usual(own) / own[rank]
            return scales
        seconds = np.array([table[self.usual].mean(axis=0) for table in tables])
        factors = np.minimum(1.0, _usual(seconds) / np.maximum(seconds, 1e-12))
        for rank in self.late:
            _, segment = segments(self.uses[rank])
            scales[rank][:, OWN] = factors[rank, segment][:, np.newaxis]
        return scales

    def _late(self) -> Ints:
        """The ranks that have more work than the usual rank, and not only by chance."""
        own = self.own.mean(axis=1)
        usual_rank = np.argsort(own, kind="stable")[(len(own) - 1) // 2]
        excess = self.own - self.own[usual_rank]
        least = WORTH_A_LINE * self.step
        steps = excess.shape[1]
        if steps > 1:
            errors = excess.std(axis=1, ddof=1) / np.sqrt(steps)
            least = np.maximum(least, _BY_CHANCE * errors)
        return np.flatnonzero(excess.mean(axis=1) > least)

    def _replayed(self, *without: str) -> tuple[float, float]:
        """Seconds of a step, and of waiting in it, without these causes."""
        scales, transfer = [np.ones_like(use.work) for use in self.uses], 1.0
        for kind in without:
            scales = [a * b for a, b in zip(scales, self.scales[kind][0], strict=True)]
            transfer *= self.scales[kind][1]
        total, waited = replay(self.columns, self.matches, self.uses, scales, transfer)
        return float(total[self.usual].mean()), float(waited[self.usual].mean())

    def diagnosis(self) -> Diagnosis:
        kinds = list(self.scales)
        best, in_turn = self._replayed(*kinds)
        causes = []
        for kind in kinds:
            saved = max(0.0, self.base - self._replayed(kind)[0])
            others = [each for each in kinds if each != kind]
            last = max(0.0, self._replayed(*others)[0] - best)
            causes.append(self._cause(kind, saved, last))
        causes.sort(key=lambda cause: (-cause.seconds, -cause.seconds_last))
        unknown = self._unknown()
        verdict, message, advice = unknown or self._verdict(causes, in_turn)
        return Diagnosis(
            verdict, message, advice,
            tuple(
                cause
                for cause in ([] if unknown else causes)
                if cause.seconds > WORTH_A_LINE * self.step
                or cause.seconds_last > STANDS_OUT * self.step
            ),
            {
                rank: dict(zip(NAMES, map(float, mean), strict=True))
                for rank, mean in zip(self.there, self.mean, strict=True)
            },
            self.trace.world_size, len(self.usual) if self.marker else 0, self.left_out,
            self.step, tuple(self._notes()),
        )  # fmt: skip

    # ------------------------------------------------------------------------- words of causes

    def _unknown(self) -> tuple[str, str, tuple[str, ...]] | None:
        """The verdict if the trace lacks what another one needs."""
        ranks = self.trace.without_kernels
        if ranks:
            one = len(ranks) == 1
            message = (
                f"{named(ranks)} use{'s' * one} a GPU or another device, but the trace has no "
                f"kernels of {'this rank' if one else 'these ranks'}: they were not recorded. The "
                "times above are those of the CPU, which launches kernels and goes on; they "
                "do not show what the device computes and when it waits."
            )
            return "kernels not recorded", message, (
                "Record the GPU too: torch.profiler.profile(activities=[ProfilerActivity.CPU, "
                "ProfilerActivity.CUDA]), or ProfilerActivity.XPU on Intel's GPUs.",
                "If CUDA was among the activities, look for a warning that CUPTI did not start: "
                "another profiler, such as Nsight or DCGM, may use it. Let the schedule have a "
                "step of warmup.",
            )  # fmt: skip
        ranks = self.trace.incomplete
        if ranks:
            message = (
                f"The end of the file of rank {listed(ranks)} is missing, and with it an unknown "
                "part of what is in the times above, so no cause is named."
            )
            return "file incomplete", message, (
                "Wait until the rank has written its file, or record the trace again.",
            )  # fmt: skip
        if self.lost:
            message = (
                f"The times of {self.lost} event{'s' * (self.lost > 1)} cannot be read (see the "
                "notes). What they took is missing in the times above, so no cause is named."
            )
            return "times unreadable", message, ("Record the trace again, or repair the file.",)
        return None

    def _verdict(self, causes: list[Cause], in_turn: float) -> tuple[str, str, tuple[str, ...]]:
        first = max(causes, key=lambda cause: cause.seconds)
        if first.seconds < STANDS_OUT * self.step:
            first = max(causes, key=lambda cause: cause.cost)
        if first.cost >= STANDS_OUT * self.step:
            return first.kind, first.message, first.advice
        share = self.mean.mean(axis=0) / self.step
        if in_turn >= IN_TURN * self.step:
            message = (
                f"The ranks wait {secs(in_turn)}{self.per_step} for each other, but none has more "
                "work than the others: they are late by turns, or work one after the other."
            )
            return "waiting in turn", message, (
                "In a pipeline: use more microbatches, so that fewer stages are idle.",
                "Otherwise: synchronize less often, and give each rank separate CPU cores.",
            )  # fmt: skip
        if share[OTHER] >= UNMARKED:
            message = (
                f"{percent(share[OTHER])} of {self.a_step} is in no span or operator: it is "
                "Python code, or something else that this trace does not show."
            )
            return "unmarked", message, (
                'Mark the parts of a step with dtlab.span: "input", "forward", "backward" and '
                "\"optimizer\". In a profiler's trace, use torch.profiler.record_function.",
            )  # fmt: skip
        message = (
            f"The ranks compute in {percent(share[COMPUTING])} of {self.a_step}. Removing any "
            f"other cause would save less than {percent(STANDS_OUT)} of it."
        )
        return "compute-bound", message, (
            "Compute faster: 16-bit precision, torch.compile, fused kernels, larger matrices.",
            "Or compute on more ranks: at this number of ranks they wait little for each other.",
        )  # fmt: skip

    def _cause(self, kind: str, saved: float, last: float) -> Cause:
        ranks, message, advice = {
            "straggler": self._straggler,
            "input pipeline": self._input,
            "launch gaps": self._launch,
            "exposed communication": self._exposed,
        }[kind]()
        if self.missing and kind == "exposed communication":
            kind = "communication or late ranks"
        return Cause(kind, saved, saved / self.step, last, ranks, message.rstrip(), advice)

    def _straggler(self) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        if not len(self.late):
            return (), "No rank has more work than the others.", ()
        own = self.own.mean(axis=1)
        excess = own[self.late] - _usual(own)
        slow = self.late[excess >= 0.5 * excess.max()]
        mine, usual = self.mean[slow].mean(axis=0), np.delete(self.mean, slow, axis=0).mean(axis=0)
        reason = max(OWN, key=lambda kind: float(mine[kind] - usual[kind]))
        ranks = tuple(self.there[number] for number in slow)
        rank, s = listed(ranks), "s" * (len(ranks) == 1)
        took = f"{secs(mine[reason])}{self.per_step}"
        doing = {
            COMPUTING: f"compute{s} {took}",
            OTHER: f"spend{s} {took} in code that no span or operator shows",
            LAUNCH: f"leave{s} the GPU without kernels for {took}",
        }[reason]
        message = (
            f"{named(ranks)} {doing}, the other ranks {secs(usual[reason], mine[reason])}. "
            + self._waiting_for(*ranks)
        )
        advice = {
            COMPUTING: (
                f"Give rank {rank} as much work as the others: samples, sequence lengths, layers.",
                "If its work is the same, its GPU or CPU is slower: compare clocks and other "
                "programs with those of another rank (nvidia-smi -q -d PERFORMANCE; top).",
            ),
            OTHER: (
                f"Look for what rank {rank} alone does: logs, evaluation, a "
                "checkpoint. Do it less often, or in another thread.",
            ),
            LAUNCH: (
                f"Look for other programs on the CPU cores of rank {rank}, and for code that it "
                "alone runs.",
            ),
        }[reason]
        return ranks, message, advice

    def _input(self) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        waits = self.mean[:, INPUT]
        usual = float(_usual(waits))
        slow = np.flatnonzero(waits > 2 * usual + 0.02 * self.step)
        ranks = tuple(self.there[number] for number in slow)
        general = (
            "Load ahead: DataLoader with num_workers of 2 to 8, prefetch_factor, "
            "persistent_workers=True and pin_memory=True.",
            "Do the work once: decode, tokenize or resize before training, and read large files "
            "instead of many small ones.",
        )
        if not ranks or len(ranks) == len(waits):
            message = f"A rank waits {secs(waits.mean())}{self.per_step} for its next batch."
            return (), message, general
        rest, longest = np.delete(waits, slow).mean(), waits[slow].mean()
        message = (
            f"{named(ranks)} wait{'s' * (len(ranks) == 1)} {secs(longest)}{self.per_step} for "
            f"the next batch, the other ranks {secs(rest, longest)}. " + self._waiting_for(*ranks)
        )
        return ranks, message, (
            f"Compare what rank {listed(ranks)} reads with the other ranks: its disk or network, "
            "the number and size of its files, the cores of its DataLoader's workers.",
            *general,
        )  # fmt: skip

    def _launch(self) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        gaps, uses = float(self.mean[:, LAUNCH].mean()), self.uses
        count = sum(use.gaps for use in uses) / len(uses)
        number, each = about(count), secs(gaps / max(1.0, count))
        message = (
            f"A GPU has no kernel to run for {secs(gaps)}{self.per_step}, in {number} "
            f"gap{'s' * (count >= 1.5)} of {each}, while its CPU runs Python and launches kernels."
        )
        fewer = (
            "Launch fewer, longer kernels: larger batches, torch.compile, CUDA graphs "
            '(mode="reduce-overhead"), fused optimizers.'
        )
        sync = (
            "Look for what the CPU does in the gaps, and for what makes it wait for the GPU: "
            ".item(), .cpu(), printing a tensor."
        )
        return (), message, (fewer, sync) if gaps < _SHORT_GAP * count else (sync, fewer)

    def _exposed(self) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        columns, ranks, steps = self.columns, len(self.there), len(self.lengths)
        seconds: dict[str, float] = defaultdict(float)
        for use in self.uses:
            for row, step, _, exposed in use.waits:
                if step in self.usual:
                    seconds[columns.names[columns.name[row]]] += exposed / ranks / len(self.usual)
        name = max(seconds, key=lambda each: seconds[each], default="")
        rows = np.concatenate([
            [row for row, transfer in use.items if transfer is None and row != BORDER]
            for use in self.uses
        ]).astype(np.int64)  # fmt: skip
        rows = rows[np.array([columns.names[number] == name for number in columns.name[rows]],
                             dtype=bool)]  # fmt: skip
        calls, size = len(rows) / ranks / steps, float(columns.bytes[rows].sum()) / ranks / steps
        carried = f", {as_bytes(size)} together" if size else ""  # a profiler may not know it
        where = f"{name} ({about(calls)}{self.per_step or ' on each rank'}{carried})"
        waits = secs(float(self.mean[:, EXPOSED].mean())) + self.per_step
        if self.missing:
            message = (
                f"A rank waits {waits}, mostly in {where}, for a late rank or for communication."
            )
            return (), message, (
                "Give the files of all ranks, which show which of the two it is. If a rank is "
                "late, faster communication would not help.",
            )  # fmt: skip
        message = (
            f"{'Once all ranks have arrived, a' if ranks > 1 else 'A'} rank waits {waits} for "
            f"communication to end, and computes nothing meanwhile; mostly in {where}."
        )
        flight = sum(max(0.0, columns.end[row] - self.matches.ready[row]) for row in rows.tolist())
        flight /= ranks * steps
        hidden = 1 - min(1.0, seconds[name] / flight) if flight else 0.0
        advice = []
        if hidden < 0.3:
            advice.append(
                "Overlap it with backward: DDP does so if it has several buckets (bucket_cap_mb). "
                "In your own loop, start each all-reduce with async_op=True when its gradients "
                "are there, and wait before the optimizer step."
            )
        if calls > 8 and size / calls < _SMALL:
            each = f" ({as_bytes(size / calls)} each now)" if size else ""
            advice.append(
                f"Send fewer, larger messages{each}: a larger bucket_cap_mb in DDP, or one flat "
                "tensor."
            )
        advice.append(
            "Send less per sample: more samples per rank and step, or accumulation with no_sync; "
            "gradients in 16 bits (bf16_compress_hook)."
        )
        if not self.trace.emulated:
            advice.append("Compare the links with what they should reach: dtlab bench.")
        return (), message, tuple(advice)

    def _waiting_for(self, *ranks: int) -> str:
        """A sentence on how long, and in which operations, other ranks wait for these ranks."""
        columns = self.columns
        seconds: dict[str, float] = defaultdict(float)
        last: dict[int, int] = {}
        for row in np.flatnonzero(self.matches.number >= 0).tolist():
            number = int(self.matches.number[row])
            if number not in last or columns.start[row] > columns.start[last[number]]:
                last[number] = row
        for use in self.uses:
            for row, step, late, _ in use.waits:
                latest = last.get(int(self.matches.number[row]), row)
                to_blame = columns.rank[latest] in ranks and columns.rank[row] not in ranks
                if to_blame and step in self.usual:
                    seconds[columns.names[columns.name[row]]] += late
        total = sum(seconds.values()) / max(1, len(self.there) - len(ranks)) / len(self.usual)
        if total < 0.01 * self.step:
            return ""
        name = max(seconds, key=lambda each: seconds[each])
        whom = "it" if len(ranks) == 1 else "them"
        return f"The others wait {secs(total)} for {whom}, mostly in {name}."

    def _notes(self) -> Iterator[str]:
        trace = self.trace
        yield from trace.notes
        if self.unreadable:
            s = "s" * (self.unreadable > 1)
            yield (
                f"{self.unreadable} step{s} with events whose times cannot be read "
                f"{'are' if s else 'is'} left out."
            )
        if self.missing:
            yield (
                f"The trace has {named(self.there).lower()} of {trace.world_size}. Without the "
                "other ranks, waiting for a late rank and communication cannot be told apart: "
                "both count as communication. Give the files of all ranks."
            )
        if trace.emulated:
            yield f"The links are emulated: {trace.emulated}."
        if trace.dropped:
            yield f"{trace.dropped} events are missing: the recorder's limit was reached."
        if self.lengths.max() > 2 * self.step:
            yield f"Steps differ: the slowest one took {secs(self.lengths.max())}."
        if not self.marker:
            yield (
                "No steps were found, so times are those of the whole trace. Mark steps with "
                'dtlab.span("step"), or call prof.step() in each.'
            )


def _usual(seconds: Floats) -> Floats:
    """The median over the ranks; of an even number, the lower one."""
    return np.asarray(np.sort(seconds, axis=0)[(len(seconds) - 1) // 2])


def _by_segment(use: Use) -> Floats | None:
    """The seconds of a rank's own work, by step and segment; None if the steps differ."""
    step, segment = segments(use)
    table = np.zeros((step.max() + 1, segment.max() + 1))
    np.add.at(table, (step, segment), use.work[:, OWN].sum(axis=1))
    last = np.zeros(len(table), dtype=np.int64)
    np.maximum.at(last, step, segment)
    return table if (last == last[0]).all() else None

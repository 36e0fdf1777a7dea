"""Where the time of a training step went, the likely causes, and what to try.

    Trace ──► steps ──► what each rank did (replay.py) ──► Diagnosis: a table, and causes
                                    └──► the trace replayed without each cause: seconds saved

    straggler              one rank has more work than the others, which wait for it
    exposed communication  all ranks have arrived, and compute nothing until the operation ends
    input pipeline         a rank waits for its next batch
    launch gaps            a GPU is idle while the CPU prepares its next kernel

All limits are shares of the step, so that a slow or busy machine changes no verdict.
"""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dtlab.trace.analysis import Meetings, meetings
from dtlab.trace.columns import COMPUTE, MARK, Columns, Floats, Ints
from dtlab.trace.replay import (
    BORDER,
    COMPUTING,
    EXPOSED,
    INPUT,
    LAUNCH,
    OTHER,
    WAITING,
    Use,
    is_input,
    replay,
    segments,
    uses,
)

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["Cause", "Diagnosis", "diagnose"]

FORMAT = 1  # is increased when a key of the JSON changes or is removed
STANDS_OUT = 0.10  # share of the step that a cause costs
WORTH_A_LINE = 0.05
IN_TURN = 0.25  # share of the step that ranks wait for each other without a straggler
UNMARKED = 0.25  # share of the step that no event shows
_FEW_STEPS = 3  # with fewer steps, the first one counts too, and with one more the slowest
_BY_CHANCE = 3.0  # standard errors by which a rank must be late, on average over the steps
_SMALL = 1e6  # bytes: a smaller message takes about as long as an empty one
_SHORT_GAP = 1e-3  # seconds: launching a kernel takes microseconds, Python code milliseconds
_WIDTH: Final = 98  # characters
_NAMES: Final = ("compute", "input", "launch gaps", "other", "waiting", "communication")
OWN: Final = (COMPUTING, OTHER, LAUNCH)  # what a rank does by itself, without its input
_ORDER: Final = (COMPUTING, INPUT, WAITING, EXPOSED, LAUNCH, OTHER)


@dataclass(frozen=True)
class Cause:
    """Something that makes steps longer.

    `seconds` is how much shorter a step would be without it, and `share` the same as a share of
    the step. `seconds_last` is how much shorter it would be if all other causes were removed
    already: more than `seconds` if another cause hides this one. `ranks` are the ranks that cause
    it; empty if all do. `advice` lists what to try, the most promising first.
    """

    kind: str
    seconds: float
    share: float
    seconds_last: float
    ranks: tuple[int, ...]
    message: str
    advice: tuple[str, ...]

    @property
    def cost(self) -> float:
        """The larger one of `seconds` and `seconds_last`."""
        return max(self.seconds, self.seconds_last)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Where the time of a step went; `print` it, or show it at the end of a notebook's cell.

    `seconds[rank]` are the seconds per step of each kind of time; they add up to the rank's step.
    `causes` are sorted by the seconds that a step would save without them. `verdict` is the kind
    of the first one, if it stands out, or "compute-bound", "waiting in turn" or "unmarked".
    `steps` is the number of steps that count, 0 if none were found; the first and the slowest are
    left out if there are enough.
    """

    verdict: str
    message: str
    advice: tuple[str, ...]
    causes: tuple[Cause, ...]
    seconds: dict[int, dict[str, float]]
    world_size: int
    steps: int
    steps_left_out: int
    step_seconds: float
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(_lines(self))

    def as_json(self) -> str:
        """Return one JSON object; keys name their units, and times are seconds per step."""
        content = {"format": FORMAT, **asdict(self)}
        content["ranks"] = [
            {"rank": rank, **{f"{kind.replace(' ', '_')}_seconds": each[kind] for kind in each}}
            for rank, each in content.pop("seconds").items()
        ]
        return json.dumps(content, indent=2)


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
        self.marker, borders = _steps(self.columns, self.there)
        self.borders = borders[:, 1:] if borders.shape[1] > _FEW_STEPS else borders
        steps = self.borders.shape[1] - 1
        self.uses = uses(self.columns, self.matches, self.there, list(self.borders))
        seconds = np.array([use.seconds for use in self.uses])  # rank, step, kind
        self.lengths = seconds.sum(axis=2).mean(axis=0)
        self.usual = np.arange(steps)  # a hiccup in one step says nothing about the others
        if steps > _FEW_STEPS:
            self.usual = np.delete(self.usual, self.lengths.argmax())
        self.left_out = borders.shape[1] - 1 - len(self.usual)
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
        verdict, message, advice = self._verdict(causes, in_turn)
        return Diagnosis(
            verdict, message, advice,
            tuple(
                cause
                for cause in causes
                if cause.seconds > WORTH_A_LINE * self.step
                or cause.seconds_last > STANDS_OUT * self.step
            ),
            {
                rank: dict(zip(_NAMES, map(float, mean), strict=True))
                for rank, mean in zip(self.there, self.mean, strict=True)
            },
            self.trace.world_size, len(self.usual) if self.marker else 0, self.left_out,
            self.step, tuple(self._notes()),
        )  # fmt: skip

    # ------------------------------------------------------------------------- words of causes

    def _verdict(self, causes: list[Cause], in_turn: float) -> tuple[str, str, tuple[str, ...]]:
        first = max(causes, key=lambda cause: cause.seconds)
        if first.seconds < STANDS_OUT * self.step:
            first = max(causes, key=lambda cause: cause.cost)
        if first.cost >= STANDS_OUT * self.step:
            return first.kind, first.message, first.advice
        share = self.mean.mean(axis=0) / self.step
        if in_turn >= IN_TURN * self.step:
            message = (
                f"The ranks wait {_ms(in_turn)} per step for each other, but none has more work "
                "than the others: they are late by turns, or work one after the other."
            )
            return "waiting in turn", message, (
                "In a pipeline: use more microbatches, so that fewer stages are idle.",
                "Otherwise: synchronize less often, and give each rank separate CPU cores.",
            )  # fmt: skip
        if share[OTHER] >= UNMARKED:
            message = (
                f"{_share(share[OTHER])} of a step is in no span or operator: it is Python code, "
                "or something else that this trace does not show."
            )
            return "unmarked", message, (
                'Mark the parts of a step: with dtlab.span("input"), "forward", "backward" and '
                '"optimizer"; in a profiler\'s trace with torch.profiler.record_function.',
            )  # fmt: skip
        message = (
            f"The ranks compute in {_share(share[COMPUTING])} of a step. Removing any other cause "
            f"would save less than {_share(STANDS_OUT)} of it."
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
            return (), "No rank has more work than the others in every step.", ()
        own = self.own.mean(axis=1)
        excess = own[self.late] - _usual(own)
        slow = self.late[excess >= 0.5 * excess.max()]
        mine, usual = self.mean[slow].mean(axis=0), np.delete(self.mean, slow, axis=0).mean(axis=0)
        reason = max(OWN, key=lambda kind: float(mine[kind] - usual[kind]))
        ranks = tuple(self.there[number] for number in slow)
        rank, s = _list(ranks), "s" * (len(ranks) == 1)
        took = f"{_ms(mine[reason])} per step"
        doing = {
            COMPUTING: f"compute{s} {took}",
            OTHER: f"spend{s} {took} in code that no span or operator shows",
            LAUNCH: f"leave{s} the GPU without kernels for {took}",
        }[reason]
        message = (
            f"{_ranks(ranks)} {doing}, the other ranks {_ms(usual[reason], mine[reason])}. "
            + self._waiting_for(*ranks)
        )
        advice = {
            COMPUTING: (
                f"Give rank {rank} as much work as the others: samples, sequence lengths, layers.",
                "If its work is the same, its GPU or CPU is slower: compare clocks and other "
                "programs with those of another rank (nvidia-smi -q -d PERFORMANCE; top).",
            ),
            OTHER: (
                f"Look for what rank {rank} alone does in each step: logs, evaluation, a "
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
            return (), f"A rank waits {_ms(waits.mean())} per step for its next batch.", general
        rest, longest = np.delete(waits, slow).mean(), waits[slow].mean()
        message = (
            f"{_ranks(ranks)} wait{'s' * (len(ranks) == 1)} {_ms(longest)} per step for the "
            f"next batch, the other ranks {_ms(rest, longest)}. " + self._waiting_for(*ranks)
        )
        return ranks, message, (
            f"Compare what rank {_list(ranks)} reads with the other ranks: its disk or network, "
            "the number and size of its files, the cores of its DataLoader's workers.",
            *general,
        )  # fmt: skip

    def _launch(self) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
        gaps, uses = float(self.mean[:, LAUNCH].mean()), self.uses
        count = sum(use.gaps for use in uses) / len(uses)
        message = (
            f"A GPU has no kernel to run for {_ms(gaps)} per step, in {_count(count)} gaps of "
            f"{_ms(gaps / max(1.0, count))}, while its CPU runs Python and launches kernels."
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
        carried = f", {_bytes(size)} together" if size else ""  # a profiler may not know it
        where = f"{name} ({_count(calls)} per step{carried})"
        waits = _ms(float(self.mean[:, EXPOSED].mean()))
        if self.missing:
            message = (
                f"A rank waits {waits} per step, mostly in {where}, for a late rank or for "
                "communication."
            )
            return (), message, (
                "Give the files of all ranks, which show which of the two it is. If a rank is "
                "late, faster communication would not help.",
            )  # fmt: skip
        message = (
            f"{'Once all ranks have arrived, a' if ranks > 1 else 'A'} rank waits {waits} per "
            f"step for communication to end, and computes nothing meanwhile; mostly in {where}."
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
            each = f" ({_bytes(size / calls)} each now)" if size else ""
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
        return f"The others wait {_ms(total)} for {whom}, mostly in {name}."

    def _notes(self) -> Iterator[str]:
        trace = self.trace
        if self.missing:
            yield (
                f"The trace has {_ranks(self.there).lower()} of {trace.world_size}. Without the "
                "other ranks, waiting for a late rank and communication cannot be told apart: "
                "both count as communication. Give the files of all ranks."
            )
        if trace.emulated:
            yield f"The links are emulated: {trace.emulated}."
        if trace.dropped:
            yield f"{trace.dropped} events are missing: the recorder's limit was reached."
        if self.lengths.max() > 2 * self.step:
            yield f"Steps differ: the slowest one took {_ms(self.lengths.max())}."
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


# Steps ------------------------------------------------------------------------------------------


def _steps(columns: Columns, ranks: Sequence[int]) -> tuple[str, Floats]:
    """The span that marks steps, "" if there is none, and the borders of each rank's steps."""
    names = np.array([_marker(name) for name in columns.names], dtype=object)[columns.name]
    spans = np.isin(columns.role, (COMPUTE, MARK))
    for marker in ("ProfilerStep", "step", "optimizer", "input", "forward"):
        marks = [np.flatnonzero(spans & (names == marker) & (columns.rank == r)) for r in ranks]
        count = min(map(len, marks))  # a profiler may stop in the middle of a step
        if not count or "microbatch" in columns.extras[marks[0][0]]:  # several in a step
            continue
        borders = []
        for rank, every in zip(ranks, marks, strict=True):
            rows = every[:count]
            mine = columns.rank == rank
            first, last = columns.start[mine].min(), columns.end[mine].max()
            if marker == "optimizer":
                borders.append([first, *columns.end[rows]])
            else:
                whole = marker in ("ProfilerStep", "step")
                last = columns.end[rows].max() if whole else last
                borders.append([*columns.start[rows], last])
        return marker, np.maximum.accumulate(np.array(borders), axis=1)
    events = [np.flatnonzero(columns.rank == rank) for rank in ranks]
    return "", np.array([(columns.start[mine].min(), columns.end[mine].max()) for mine in events])


def _marker(name: str) -> str:
    """The kind of step marker that a span with this name is."""
    if name.startswith("ProfilerStep"):
        return "ProfilerStep"
    if name.startswith("Optimizer.step"):
        return "optimizer"
    return "input" if is_input(name) else name


# Text -------------------------------------------------------------------------------------------


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    step = diagnosis.step_seconds
    ranks = f"{diagnosis.world_size} rank{'s' * (diagnosis.world_size > 1)}"
    if diagnosis.steps:
        counted = f"{diagnosis.steps} step{'s' * (diagnosis.steps > 1)} of {_ms(step)}"
        without = ["", " (without the first)", " (without the first and the slowest)"]
        left_out = without[diagnosis.steps_left_out]
        yield f"{ranks}, {counted}{left_out}. Where a step went, in {_table_unit(step)[0]}:"
    else:
        yield f"{ranks}, {_ms(step)}. Where the time went, in {_table_unit(step)[0]}:"
    yield ""
    yield from _table(diagnosis)
    yield ""
    for note in diagnosis.notes:
        yield from _wrapped(f"Note: {note}", "      ")
    if diagnosis.notes:
        yield ""
    found = [cause for cause in diagnosis.causes if cause.kind == diagnosis.verdict]
    for cause in found:
        yield from _cause_lines("Likely cause", cause, step)
    if not found:
        yield from _wrapped(f"Result: {diagnosis.verdict}. {diagnosis.message}")
        yield from _tries(diagnosis.advice)
    for cause in diagnosis.causes:
        if cause not in found:
            yield from _cause_lines("Also", cause, step)


def _cause_lines(title: str, cause: Cause, step: float) -> Iterator[str]:
    yield from _wrapped(f"{title}: {cause.kind}. {cause.message}")
    saves = f"Without it, a step would be {_ms(cause.seconds)} ({_share(cause.share)}) shorter"
    if cause.seconds_last > 1.5 * cause.seconds + 0.02 * step:
        saves += f"; {_ms(cause.seconds_last)} if the other causes were gone too"
    yield from _wrapped(f"  {saves}.")
    yield from _tries(cause.advice)


def _tries(advice: Sequence[str]) -> Iterator[str]:
    for each in advice:
        yield from _wrapped(f"  try: {each}", "       ")


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(diagnosis: Diagnosis) -> Iterator[str]:
    shown = [
        kind for kind in (_NAMES[number] for number in _ORDER)
        if kind != "launch gaps" or any(each[kind] for each in diagnosis.seconds.values())
    ]  # fmt: skip
    _, factor = _table_unit(diagnosis.step_seconds)
    yield " " * 9 + "".join(f"{kind:>{len(kind) + 3}}" for kind in shown)
    for rank, each in diagnosis.seconds.items():
        yield _row(f"rank {rank}", shown, each, factor)
    total = {kind: np.mean([each[kind] for each in diagnosis.seconds.values()]) for kind in shown}
    if len(diagnosis.seconds) > 1:
        yield _row("mean", shown, total, factor)
    shares = {kind: total[kind] / diagnosis.step_seconds * 100 for kind in shown}
    yield _row("share", shown, shares, 1, " %")
    yield ""
    yield "waiting: another rank has not arrived yet. communication: all ranks have arrived, and"
    yield "this one computes nothing until the operation ends. input: waits for the next batch."


def _row(
    head: str, kinds: Sequence[str], values: dict[str, Any], factor: float, unit: str = ""
) -> str:
    cells = ""
    for kind in kinds:
        number = values[kind] * factor
        text = f"{number:.0f}{unit}" if unit else f"{number:.1f}"
        cells += f"{text:>{len(kind) + 3}}"
    return f"{head:<9}{cells}"


def _unit(seconds: float) -> tuple[str, float]:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return unit, factor
    return "µs", 1e6


def _table_unit(seconds: float) -> tuple[str, float]:
    """A unit in which one decimal is enough for the parts of a step."""
    return _unit(seconds / 10)


def _ms(seconds: float, beside: float = 0.0) -> str:
    """The seconds in a unit that suits them, or else the larger value `beside` them."""
    unit, factor = _unit(beside or seconds) if seconds else ("ms", 1e3)
    number = round(seconds * factor, 3)
    return f"{number:.3g} {unit}" if number < 999.5 else f"{seconds:.0f} s"


def _share(share: float) -> str:
    return f"{share * 100:.0f} %"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _count(number: float) -> str:
    return f"{number:.0f}" if abs(number - round(number)) < 0.05 else f"{number:.1f}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {_list(ranks)}"


def _list(ranks: Sequence[int]) -> str:
    if len(ranks) < 2:
        return "".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"

"""Creates a `DeadlockError` from a finding of the watcher."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from dtlab import torch_internals
from dtlab.errors import DeadlockError, MismatchError, Waiting, place_in_words
from dtlab.ranks.protocol import Finding, Frame, OpInfo, Outcome
from dtlab.ranks.watch import locate
from dtlab.ranks.watch.matching import unequal_sizes
from dtlab.ranks.words import ranks_in_words, wrapped

POINT_TO_POINT = ("send", "recv")
NEIGHBOURS = (
    "Check the neighbours: if rank a sends to rank b (dst=b), rank b must receive from rank a "
    "(src=a)."
)

DDP_FORWARD = (
    "In its forward, DDP broadcasts the module's buffers, such as BatchNorm's statistics, and "
    "after the first backward pass the order of its buckets. To validate on one rank, call the "
    "module that DDP wraps: model.module(...)."
)
# Functions that only pass a call on, and files in which the learner's line calls a collective.
PASS_ON = ("wrapper", "wrapped", "inner", "decorate_context", torch_internals.COMPILED_CALL)
CALLS = (
    torch_internals.C10D_FILE,
    torch_internals.LOGGER_FILE,
    torch_internals.FUNCTIONAL_FILE,
)
# Parts of PyTorch that communicate.
MAKERS = (
    os.path.join("torch", "distributed", ""),
    os.path.join("torch", "nn", "parallel", ""),
    torch_internals.SYNC_BATCH_NORM_FILE,
)


def deadlock_error(finding: Finding, values: list[Any], stdout: list[str]) -> DeadlockError:
    """The error for a finding of the watcher."""
    explain = {
        "standstill": _standstill,
        "collective": _different_collectives,
        "message": _different_message,
        "stranger": _stranger,
        "new_group": _different_groups,
        "sizes": _different_sizes,
    }[finding.reason]
    headline, advice = explain(finding)
    advice += _different_lines(finding)
    by_ddp = any(map(_is_in_ddps_forward, finding.stacks.values()))
    if finding.apart and by_ddp and DDP_FORWARD not in advice:
        advice += f" {DDP_FORWARD}"
    lines = [wrapped(headline, indent=""), *_lines(finding, len(values))]
    if finding.left and finding.reason == "standstill":
        lines.append(f"  {ranks_in_words(finding.left)} returned from the function already")
    if finding.idle and finding.reason == "standstill":
        verb = "does" if len(finding.idle) == 1 else "do"
        lines.append(f"  {ranks_in_words(finding.idle)} {verb} not run this cell")
    lines.append(wrapped(advice, indent="  "))
    mismatch = None if finding.reason == "standstill" else headline
    kind = DeadlockError if finding.reason == "standstill" else MismatchError
    return kind(
        "\n".join(lines),
        waiting=[waiting_of(op) for op in finding.ops],
        mismatch=mismatch if mismatch is not None else _tags(finding),
        advice=advice,
        values=values,
        stdout=stdout,
    )


def waiting_of(op: OpInfo) -> Waiting:
    """The public record `Waiting` for an operation."""
    where = locate.place(Frame(op.file, locate.line_of(op.name, op.file, op.line), ""))
    where = where if op.line else {}
    waits_in = ""
    is_known = op.wait_file and op.wait_line
    if is_known and (op.wait_file, op.wait_line) != (op.file, op.line):
        waits_in = place_in_words(**locate.place(Frame(op.wait_file, op.wait_line, "")))
    return Waiting(op.rank, op.name, op.partners, **where, waits_in=waits_in)


def call_of(op: OpInfo, world_size: int = 0) -> str:
    """An operation in the learner's notation, with its main arguments: `recv(src=1)`.

    With `world_size`, the group is added if it does not contain all ranks.
    """
    if 0 < len(op.members) < world_size:
        return f"{call_of(op)} on the group of {ranks_in_words(op.members)}"
    inner = op.description.partition("(")[2].removesuffix(")")
    if op.name in POINT_TO_POINT:
        end = "dst" if op.name == "send" else "src"
        peer = f"{end}={op.partners[0]}" if len(op.partners) == 1 else "from any rank"
        tag = f", tag={op.tag}" if op.tag else ""
        return f"{op.name}({peer}{tag})"
    return f"{op.name}({inner})"


def _lines(finding: Finding, world_size: int) -> list[str]:
    """One line for each rank, with a second column for the place in the learner's code."""
    ops = finding.ops if finding.reason == "message" else sorted(finding.ops)
    calls = [f"  rank {op.rank}" for op in ops]  # the headline names the operations
    if finding.reason == "standstill":
        calls = [f"  rank {op.rank} waits in {call_of(op, world_size)}" for op in ops]
    rows = []
    for call, waiting in zip(calls, map(waiting_of, ops), strict=True):
        rows.append((call, waiting.place))
        if waiting.waits_in and finding.reason == "standstill":
            rows.append(("    in wait()", waiting.waits_in))
    width = max((len(left) for left, _ in rows), default=0)
    return [f"{left:<{width}}   {place}".rstrip() for left, place in rows]


# ---------------------------------------------------------------------------- standstill


def _standstill(finding: Finding) -> tuple[str, str]:
    detected = f"detected after {finding.seconds:.1f} s"
    return f"no rank can make progress ({detected}).", pattern(finding)


def pattern(finding: Finding) -> str:
    """The advice for a deadlock: recognises typical mistakes, and says how to correct each."""
    ops = finding.ops
    names = {op.name for op in ops}
    if tags := _tags(finding):
        return f"{tags}. Give both the same tag, or receive messages in the order of the sends."
    absent = [rank for op in ops for rank in op.partners if rank in finding.idle]
    if absent:
        return (
            f"The operation that {ranks_in_words([op.rank for op in ops])} called also needs "
            f"{ranks_in_words(sorted({*absent}))}. Run the cell on all ranks that take part: "
            "%%ranks without numbers means all ranks."
        )
    astray = [op for op in finding.unmatched if op.name == "send"]
    if names == {"recv"} and astray and not finding.left:
        return _astray(finding.ops[0], astray)
    sources = [op.partners for op in ops]
    if names == {"recv"} and len(set(sources)) < len(sources) and not finding.left:
        return f"Several ranks wait for the same rank. {NEIGHBOURS}"
    if names == {"recv"} and not finding.left:
        if finding.exchanged:  # a rank may receive one message more than its neighbour sends
            return (
                "Every rank waits for a message, and no rank sends one. Each receive needs a "
                "send: compare how often each rank sends and receives. If the sends come later, "
                "post them first (isend), then receive."
            )
        return (
            "Every rank receives before it sends, so no rank sends. Post the send first (isend), "
            "then receive."
        )
    if names == {"send"} and not finding.left:
        if finding.exchanged:
            return (
                "Every rank waits until its message is received, and no rank receives. Each send "
                "needs a receive: compare how often each rank sends and receives. If the receives "
                "come later, post the send with isend, receive, then wait for the send."
            )
        return (
            "Every rank sends before it receives, and a send completes only when it is received. "
            "Post the send with isend, receive, then wait for the send."
        )
    if names <= {"send", "recv"}:
        return _missing_partner(finding)
    circle = _circle(ops)
    if circle and not names & {"send", "recv"}:
        return (
            f"The ranks wait for each other on different groups, in a circle: {circle}. Let every "
            "rank call the collectives of its groups in the same order."
        )
    if finding.left:
        return _missing_call(finding)
    groups = {op.group for op in ops}
    if not names & {"send", "recv"} and len(groups) > 1:
        return (
            "The ranks wait on different groups. All members of a group must call its "
            "collectives, ranks that are in several groups all in the same order."
        )
    if not names & {"send", "recv"}:
        return "All members of the group must call its collectives, equally often."
    return (
        "Some ranks are in a collective while others wait for a message. Every member of the "
        "group must call the collective, even the root of a broadcast. All ranks must call it "
        "before the messages, or all after them."
    )


def _astray(waiting: OpInfo, sent: Sequence[OpInfo]) -> str:
    """The advice if messages were sent, but not to the ranks that wait."""
    source = waiting.partners[0] if len(waiting.partners) == 1 else None
    other = next((op for op in sent if op.rank == source), sent[0])
    same = other.rank in waiting.partners and other.partners == (waiting.rank,)
    if same and other.group != waiting.group:
        return (
            f"Rank {other.rank} has sent a message to rank {waiting.rank}, but on another group. "
            "Pass the same group to send and receive."
        )
    return (
        f"A message was sent that no rank receives: rank {waiting.rank} waits for "
        f"{ranks_in_words(waiting.partners)}, and rank {other.rank} sent to rank "
        f"{other.partners[0]}. {NEIGHBOURS}"
    )


def _missing_partner(finding: Finding) -> str:
    for op in finding.ops:
        partner = op.partners[0] if len(op.partners) == 1 else None
        if partner in finding.left and op.name == "recv":
            return f"Rank {partner} is done and never sends what rank {op.rank} waits for."
        if partner in finding.left:
            return f"Rank {partner} is done and never receives what rank {op.rank} sends."
        if op.name == "recv" and partner is None and set(op.partners) <= set(finding.left):
            return f"Rank {op.rank} waits for one more message, but all other ranks are done."
    circle = _circle(finding.ops)
    if circle:
        return (
            f"The ranks wait in a circle: {circle}. {NEIGHBOURS} If all neighbours are right, a "
            "rank waits too early: check the order of the calls."
        )
    return f"Each rank waits for a rank that waits for another one. {NEIGHBOURS}"


def _circle(ops: Sequence[OpInfo]) -> str:
    """A circle of ranks of which each waits for the next, as `0 → 1 → 0`; empty if none."""
    by_rank = {op.rank: op for op in ops}

    def waits_for(rank: int) -> int | None:
        """The lowest rank that this one waits for, and that waits in another operation."""
        op = by_rank[rank]
        partners = op.lacks or op.partners  # a member that has called it may wait elsewhere
        busy = [each for each in partners if each in by_rank and each != rank]
        elsewhere = [
            each
            for each in busy
            if op.name in POINT_TO_POINT or by_rank[each].group != op.group
        ]
        return min(elsewhere, default=None)

    path: list[int] = []
    rank: int | None = min(by_rank, default=None)
    while rank is not None and rank not in path:
        path.append(rank)
        rank = waits_for(rank)
    if rank is None:
        return ""
    return " → ".join(f"rank {each}" for each in [*path[path.index(rank) :], rank])


def _forgotten_group(op: OpInfo, group: str) -> str:
    """A hint that `op` may be meant for a smaller `group`; empty if its line names one."""
    if "group=" in (waiting_of(op).code or ""):
        return ""
    return (
        f"This {op.name} needs {ranks_in_words(op.members)}, all members of its group. If it "
        f"is meant for {group}, pass that group."
    )


def _missing_call(finding: Finding) -> str:
    op = next(op for op in finding.ops if op.name not in POINT_TO_POINT)
    lacks = op.lacks or [rank for rank in op.members if rank != op.rank]
    missing = [rank for rank in finding.left if rank in lacks]
    if not missing:
        return "All members of a group must call its collectives, equally often."
    waiting = tuple(each.rank for each in finding.ops if each.group == op.group)
    hint = _forgotten_group(op, f"the group of {ranks_in_words(waiting)}")
    if hint and 1 < len(waiting) < len(op.members) and waiting in finding.groups:
        return hint
    start = f"{ranks_in_words(missing).capitalize()} did not call this {op.name}"
    if _is_in_ddps_forward(finding.stacks.get(op.rank, ())):
        return f"{start}. {DDP_FORWARD}"
    if library := _made_by(finding.stacks.get(op.rank, ())):
        return (
            f"{start}. {library} makes it, in the line above: every member of its group must run "
            "that line, equally often."
        )
    advice = (
        f"{start}, or {_them(finding, op)} once too often: all members of the group must call "
        "it, equally often. Look for an if, an early return, a loop with fewer rounds, or "
        "another group."
    )
    if re.search(r"\bbackward\(", waiting_of(op).code or ""):
        advice += (
            " The line runs backward. If DDP wraps the module, every rank must run backward "
            "equally often, through the wrapped module; if the numbers of batches differ, use "
            "DDP's join."
        )
    return advice


def _them(finding: Finding, op: OpInfo) -> str:
    same = [each for each in finding.ops if (each.name, each.group) == (op.name, op.group)]
    ranks = sorted({each.rank for each in same})
    return f"{ranks_in_words(ranks)} {'calls' if len(ranks) == 1 else 'call'} it"


def _made_by(stack: Sequence[Frame]) -> str:
    """The function of a library that makes an operation in the learner's line, and its file.

    Empty if the line calls the operation itself.
    """
    own = [number for number, frame in enumerate(stack) if locate.is_learners(frame.file)]
    for frame in stack[max(own, default=-1) + 1 :]:
        folder, _, file = frame.file.rpartition(f"site-packages{os.sep}")
        if frame.file.endswith(CALLS) or not folder:
            continue
        is_torch = file.startswith(os.path.join("torch", ""))
        if frame.function in PASS_ON or (is_torch and not file.startswith(MAKERS)):
            continue
        return f"{frame.function} ({file})"
    return ""


def _is_in_ddps_forward(stack: Sequence[Frame]) -> bool:
    """Whether DDP's forward runs, before or after that of the module that it wraps."""
    return any(
        frame.file.endswith(torch_internals.DDP_FILE)
        and frame.function in torch_internals.DDP_FORWARD
        for frame in stack
    )


def _tags(finding: Finding) -> str | None:
    """A text if a send and a receive would match except for their tags, else None."""
    for op in finding.ops:
        for other in (*finding.ops, *finding.unmatched):
            opposite = {op.name, other.name} == {"send", "recv"}
            facing = op.partners == (other.rank,) and other.partners == (op.rank,)
            if opposite and facing and op.tag != other.tag:
                return (
                    f"rank {op.rank}'s {op.name} has tag {op.tag}, rank {other.rank}'s "
                    f"{other.name} has tag {other.tag}"
                )
    return None


def _different_lines(finding: Finding) -> str:
    """A sentence if ranks called the collective before this in different lines, else empty."""
    if not finding.apart:
        return ""
    lines: dict[str, list[int]] = {}
    one_file = len({op.file for op in finding.apart}) == 1
    for op in sorted(finding.apart):
        place = place_in_words(**{**locate.place(Frame(op.file, op.line, "")), "code": None})
        lines.setdefault(f"line {op.line}" if one_file else place, []).append(op.rank)
    calls = ", ".join(f"{ranks_in_words(ranks)} in {line}" for line, ranks in lines.items())
    op = finding.apart[0]
    return (
        f" The ranks are in different lines of the program: the {op.name} before this was called "
        f"by {calls}."
    )


# ---------------------------------------------------------------------------- polling


def polled_in_vain(running: Sequence[Waiting], outcome: Outcome) -> str:
    """A text if a rank polls an operation that cannot become complete; else empty.

    `running` has what each rank was doing at the time limit.
    """
    done = [rank for rank, end in enumerate(outcome.ranks) if end.state in ("returned", "idle")]
    computing = {each.rank for each in running if each.op == "compute"}
    polled = [(op, lacks) for op, lacks in outcome.polled if op.rank in computing]
    stuck = sorted(outcome.waiting + [op for op, lacks in polled if lacks])
    all_stuck = {each.rank for each in running} <= {op.rank for op in stuck}
    for op, lacks in sorted(polled, key=lambda each: (len(each[1]) > 0, each[0])):
        start = f"Rank {op.rank} polls {call_of(op)} with is_completed()"
        if not lacks:
            return (
                f"{start}. Both ranks have posted this message, but with gloo is_completed() of a "
                "message stays False until wait() is called. Call wait() instead of polling."
            )
        verb = {"send": "receive", "recv": "send"}.get(op.name, "call")
        who = ranks_in_words(lacks)
        faster = "Call wait() instead of polling: then dtlab reports this at once."
        if set(lacks) <= set(done):
            return f"{start}, but {who} returned and did not {verb} it. {faster}"
        if all_stuck:
            polls = [each.rank for each, _ in polled]
            doing = [
                f"rank {each.rank} {'polls' if each.rank in polls else 'waits in'} {call_of(each)}"
                for each in stuck
                if each.rank in lacks
            ]
            rest = [each for each in outcome.posted if each not in stuck]
            cause = pattern(Finding("standstill", stuck, done, rest))
            does = "does" if len(lacks) == 1 else "do"
            return f"{start}, but {who} {does} not {verb} it: {', '.join(doing)}. {cause} {faster}"
    return ""


# ---------------------------------------------------------------------------- mismatches


def _different_collectives(finding: Finding) -> tuple[str, str]:
    kinds: dict[str, list[int]] = {}
    for op in finding.ops:
        kinds.setdefault(op.description, []).append(op.rank)
    calls = " but ".join(f"{ranks_in_words(r)} called {text}" for text, r in kinds.items())
    names = {op.name for op in finding.ops}
    if finding.threads:
        advice = (
            "On this process group, more than one thread calls collectives, so their order can "
            "differ from rank to rank. Give each thread its own group: dist.new_group(). "
            "dcp.async_save saves in such a thread; its argument process_group= takes the group."
        )
    elif len(names) > 1:
        advice = "All members of a group must call the same collectives in the same order."
    else:
        name, without_sizes = names.pop(), {re.sub(r"\[.*?\]", "", text) for text in kinds}
        if len({(op.file, op.line) for op in finding.ops}) > 1:
            advice = (
                f"These are calls in different lines. If they belong together, all ranks must "
                f"pass the same arguments to {name}. If not, a rank skipped a call before, or "
                "made one too many, so that its next call met another one."
            )
        else:
            advice = (
                f"All ranks must pass the same arguments to {name}. Otherwise it hangs or gives "
                "wrong numbers without an error. If the arguments are right, a rank skipped a "
                "call before, or made one too many, so that its next call met another one."
            )
        if any("with strides" in text for text in kinds):
            advice = (
                "The tensors have the same shape, but their elements lie in memory in another "
                "order: gloo takes them in the order of memory, so the numbers would be wrong. "
                "Pass a contiguous copy on every rank, y = x.contiguous(), and copy the result "
                "back with x.copy_(y)."
            )
        op = finding.ops[0]
        if any(op.rank in group and len(group) < len(op.members) for group in finding.groups):
            advice += f" {_forgotten_group(op, 'a smaller group')}".rstrip()
        elif name in ("all_gather", "gather") and len(without_sizes) == 1:
            advice += " If shards differ in size, pad them to the largest, and cut the results."
    return f"{calls}.", advice


def _different_sizes(finding: Finding) -> tuple[str, str]:
    """For an all-to-all: what a rank sends to another one is not what that one expects."""
    unequal = unequal_sizes(*finding.ops[:2])
    assert unequal is not None
    sender, receiver, sent, expected = unequal
    row = sender.sizes[0] if sender.sizes[0] == receiver.sizes[0] else 0
    unit, count = ("row", row) if row else ("element", 1)
    headline = (
        f"in all_to_all, rank {sender.rank} sends {_amount(sent // count, unit)} to rank "
        f"{receiver.rank}, which expects {_amount(expected // count, unit).partition(' ')[0]}."
    )
    to, source = (
        op.members.index(each.rank) for op, each in ((sender, receiver), (receiver, sender))
    )
    if row:
        return headline, (
            f"Number {to} of input_split_sizes on rank {sender.rank} must equal number {source} "
            f"of output_split_sizes on rank {receiver.rank}. If the sizes differ from step to "
            "step, first exchange input_split_sizes by an all_to_all_single of one number for "
            "each rank."
        )
    return headline, (
        f"What each rank sends to another must have as many elements as that rank receives from "
        f"it: tensor {to} of the input list, or an equal share of the input, on rank "
        f"{sender.rank}; tensor {source} of the output list, or an equal share of the output, on "
        f"rank {receiver.rank}."
    )


def _amount(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _different_message(finding: Finding) -> tuple[str, str]:
    send, receive = finding.ops
    sent, into = (op.description.partition("(")[2].removesuffix(")") for op in (send, receive))
    headline = f"rank {send.rank} sends {sent} and rank {receive.rank} receives it into {into}."
    return headline, "Both tensors must have the same dtype and the same number of elements."


def misfit_of_tensors(finding: Finding | None) -> str:
    """A sentence about a call whose tensors differ between ranks; empty if there is none.

    The rank may have gone on with such a tensor, and then raised an exception.
    """
    if finding is None or len({op.name for op in finding.ops}) > 1 + (finding.reason == "message"):
        return ""
    if finding.reason not in ("message", "collective"):
        return ""
    explain = _different_message if finding.reason == "message" else _different_collectives
    headline, advice = explain(finding)
    op = finding.ops[-1]
    where = f" The {op.name} is in {place}." if (place := waiting_of(op).place) else ""
    return f"Calls did not match before this exception: {headline} {advice}{where}"


def _stranger(finding: Finding) -> tuple[str, str]:
    op = finding.ops[0]
    headline = f"rank {op.rank} called {op.name} on a group that it is not in."
    return headline, (
        "Only members of a group may call its collectives; dist.get_rank(group) is -1 on all "
        "other ranks. PyTorch prints a warning and leaves the tensor as it is. The rank would go "
        "on with wrong numbers, so dtlab ends the launch."
    )


def _different_groups(finding: Finding) -> tuple[str, str]:
    kinds: dict[str, list[int]] = {}
    for op in finding.ops:
        kinds.setdefault(op.description, []).append(op.rank)
    if len(kinds) > 1:
        calls = " but ".join(f"{ranks_in_words(r)} called {text}" for text, r in kinds.items())
        headline = f"{calls}."
    else:
        called = [op.rank for op in finding.ops]
        verb = "calls" if len(called) == 1 else "call"
        headline = f"{ranks_in_words(called)} {verb} new_group once more than other ranks."
    advice = "Every rank must call new_group for every group, in the same order, member or not."
    return headline, advice

"""Creates the error for a launch that failed: what happened, where, and what to do."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from traceback import FrameSummary, StackSummary
from typing import Any

from dtlab import torch_internals
from dtlab.errors import (
    Failure,
    RankError,
    RanksError,
    RankTimeoutError,
    RemoteTraceback,
    Waiting,
    place_in_words,
)
from dtlab.ranks.launch.client import Collected
from dtlab.ranks.protocol import Finding, Frame, OpInfo, Outcome, RankEnd, RemoteFailure, Spec
from dtlab.ranks.watch import early, locate
from dtlab.ranks.watch.advice import advice_on
from dtlab.ranks.watch.deadlocks import (
    call_of,
    deadlock_error,
    misfit_of_tensors,
    pattern,
    polled_in_vain,
    waiting_of,
)
from dtlab.ranks.words import ranks_in_words, wrapped

MESSAGE_LIMIT = 2000  # characters
LOOPING = 50  # operations of each rank, from which on a loop without an end is likely
# Parts of gloo's messages when a peer has exited: such an error is a consequence, not a cause.
PEER_GONE = ("third_party/gloo", "onnection closed by peer", "onnection reset by peer")
ADVICE = {
    "memory": "Keep less data in memory on each rank, or raise memory_limit.",
    "exit": "A rank must return from its function, because its peers may still need it.",
    "result": "Return tensors or plain data instead, or nothing.",
    "exception": "",
    "signal": "",
}
CRASHES = {"SIGSEGV": "it crashed: it accessed invalid memory", "SIGABRT": "it aborted"}
# As of PyTorch 2.13, if two operations end at once, two threads of ProcessGroupGloo (runLoop)
# assign the same std::string without a lock. A string of more than 15 characters is freed twice.
FUNCTIONAL = (torch_internals.FUNCTIONAL_FILE, "torch/distributed/tensor/")
WITHOUT_THE_LOST = (
    "A rank that died leaves the others in operations that cannot end. Only the ranks that "
    "exchange messages with it get an error. They must destroy their process group, so that the "
    "ranks that wait for them get one too; then all can make a new group."
)
GLOOS_DOING = (
    "In a functional collective, as DTensor calls them, this can be a bug of PyTorch: two threads "
    "of its gloo backend store at once which operation ended last. Run it again, and wait for "
    "each result before you start the next collective."
)


def error_of(
    collected: Collected, spec: Spec, stdout: list[str], stderr: list[str]
) -> RanksError | None:
    """The error of a launch, or None if every rank returned."""
    outcome = collected.outcome
    if outcome is None:
        return None
    error = _error_of(collected, outcome, spec, stdout, stderr)
    if error is not None:
        named = error.failures.values() if isinstance(error, RankError) else ()
        notes = [
            text
            for failure, text in _failed_threads(collected)
            if failure not in named and not _is_consequence(failure)
        ]
        stays = what_stays(outcome) if spec.stays else ""
        error.args = ("\n".join(filter(None, [str(error), *notes, stays])),)
    return error


def what_stays(outcome: Outcome) -> str:
    """A text about what a session has lost in a failed turn; empty if it has lost nothing."""
    if outcome.over:
        text = (
            f"The session is closed: {outcome.over}. The variables of its ranks are lost. "
            "session.restart(), or the next %%ranks, starts new ranks."
        )
        return wrapped(text, indent="")
    if outcome.rejoined:
        text = (
            "The ranks keep their variables. Their process group is new, because a collective of "
            "the old one did not finish: the tensor that it was writing may hold anything. "
            "Groups, meshes and wrappers such as DDP that existed before must be created again."
        )
        return wrapped(text, indent="")
    return ""


def _error_of(
    collected: Collected, outcome: Outcome, spec: Spec, stdout: list[str], stderr: list[str]
) -> RanksError | None:
    running = _waiting(outcome)
    failures = _failures(collected, outcome, spec, stderr)
    # An error of gloo about a mismatch, or about ranks that were ended, is a consequence.
    stuck = outcome.finding is not None or outcome.reason == "timeout"
    unfit = _places_of_misfits(outcome)
    if stuck and all(
        _is_consequence(one) or (_may_be_gloos(one) and one.place in unfit)
        for one in failures.values()
    ):
        failures = {}
    if outcome.finding is not None:
        # A thread that failed is the likely reason why ranks wait.
        for rank, cause in _of_threads(collected):
            if not _is_consequence(cause):
                failures.setdefault(rank, cause)
    if misfit := misfit_of_tensors(outcome.finding):
        failures = {rank: _with_advice(each, misfit) for rank, each in failures.items()}
    if failures:
        return rank_error(failures, running, collected.values, stdout, spec)
    if outcome.finding is not None:
        return deadlock_error(outcome.finding, collected.values, stdout)
    if outcome.reason == "timeout":
        text, advice = _timeout_text(running, outcome, spec)
        return RankTimeoutError(
            text,
            running=running,
            advice=advice,
            loops=bool(_still_communicating(running, outcome)),
            values=collected.values,
            stdout=stdout,
        )
    if outcome.reason == "failed":
        unknown = Failure("exception", "failed, and could not report its error")
        failed = dict.fromkeys(outcome.failed_first, unknown)
        return rank_error(failed, running, collected.values, stdout)
    return None


# ---------------------------------------------------------------------------- failures


def rank_error(
    failures: dict[int, Failure],
    running: list[Waiting],
    values: list[Any],
    stdout: list[str],
    spec: Spec | None = None,
) -> RankError:
    """The error for `failures`, whose first entry is the cause; `running` ranks were ended."""
    first = next(iter(failures.values()))
    same = [rank for rank, failure in failures.items() if failure == first]
    happened = _what_happened(first)
    if first.kind == "memory" and spec is not None and spec.memory_limit:
        happened += f", and memory_limit allows each rank {spec.memory_limit:,} bytes in all."
    if len(same) > 1:
        happened = happened.replace("was ended by", "were ended by", 1)
    lines = [_wrapped_once(f"{ranks_in_words(same)} {happened}"), *_places(first)]
    for rank, failure in failures.items():
        if rank not in same:
            text = "then lost its peer" if _has_lost_its_peer(failure) else _what_happened(failure)
            lines += [_wrapped_once(f"rank {rank} {text}"), *_places(failure)]
    for waiting in running:
        if waiting.rank not in failures:
            fate = "interrupted" if spec is not None and spec.stays else "ended"
            lines.append(f"rank {waiting.rank} was {_doing(waiting)} and was {fate}")
            lines.extend([f"  {waiting.place}"] if waiting.place else [])
    if first.advice or ADVICE[first.kind]:
        lines.append(wrapped(first.advice or ADVICE[first.kind], indent=""))
    error = RankError("\n".join(lines), failures=failures, values=values, stdout=stdout)
    error.__cause__ = RemoteTraceback(first.traceback) if first.traceback else None
    return error


def _wrapped_once(text: str) -> str:
    """Wraps a text, unless it already has line breaks."""
    return text if "\n" in text else wrapped(text, indent="")


def _places(failure: Failure) -> list[str]:
    """The learner's line, and the calling line if it is in another cell or file."""
    caller = f"called in {failure.caller}" if failure.caller else ""
    return [f"  {place}" for place in (failure.place, caller) if place]


def _failures(
    collected: Collected, outcome: Outcome, spec: Spec, stderr: list[str]
) -> dict[int, Failure]:
    """All failures, first that of the rank that caused the others; no interrupted ranks."""
    failures: dict[int, Failure] = {}
    finding = outcome.finding
    # If others wait for a rank that failed, it had failed before they were interrupted.
    had_left = finding.left if finding is not None and finding.reason == "standstill" else ()
    for rank, end in enumerate(outcome.ranks):
        if spec.stays and end.state == "stopped" and rank not in had_left:
            continue
        if rank in collected.failures:
            failures[rank] = of_exception(collected.failures[rank])
        elif end.state == "died" and rank not in outcome.lost:
            op = next((op for op in outcome.waiting if op.rank == rank), None)
            failures[rank] = _of_death(end, stderr[rank], op)
    order = outcome.failed_first + sorted(set(failures) - set(outcome.failed_first))
    order.sort(key=lambda rank: rank in failures and _has_lost_its_peer(failures[rank]))  # stable
    return {rank: failures[rank] for rank in order if rank in failures}


def is_about_a_lost_peer(error: RankError) -> bool:
    """Whether all failures are lost connections to other ranks."""
    return all(map(_has_lost_its_peer, error.failures.values()))


def _places_of_misfits(outcome: Outcome) -> set[str]:
    """The lines of operations that do not match; gloo may refuse them before the watcher does."""
    finding = outcome.finding
    ops = finding.ops if finding is not None and finding.reason != "standstill" else ()
    return {waiting_of(op).place for op in ops if op.line}


def _is_consequence(failure: Failure) -> bool:
    """Whether a failure is only gloo's report of a lost peer or an unexpected message."""
    return any(text in failure.message for text in PEER_GONE)


def _may_be_gloos(failure: Failure) -> bool:
    """Whether gloo may have caused a failure in an operation that does not match.

    It raises an exception, or writes a message of another size into memory that is not its own,
    and then the rank crashes.
    """
    has_crashed = failure.kind == "signal" and any(name in failure.message for name in CRASHES)
    return failure.kind == "exception" or has_crashed


def _has_lost_its_peer(failure: Failure) -> bool:
    """Whether a failure is only gloo's report of a lost peer.

    A check of gloo's own that failed ("enforce fail") is a cause: of what peers report.
    """
    return _is_consequence(failure) and "enforce fail" not in failure.message


def of_exception(remote: RemoteFailure) -> Failure:
    """The `Failure` for a rank's exception, with the line of the learner's code."""
    frames = remote.chain[0][0] if remote.chain else []
    message = locate.with_cells(remote.message)
    if remote.kind == "exit":
        message = f"left by {message.replace('SystemExit: ', 'sys.exit(').rstrip()})"
        message = message.replace("SystemExit)", "sys.exit()")
    caller = locate.calling_frame(frames)
    learners = locate.learner_frame(frames)
    if remote.kind == "result" and learners and not locate.is_learners(learners.file):
        learners = None  # it is the pickler's, and the function has returned
    place = locate.place(learners)
    return Failure(
        remote.kind,
        message[:MESSAGE_LIMIT],
        traceback=_traceback_text(remote),
        caller=place_in_words(**locate.place(caller)) if caller else "",
        advice=advice_on(message, learners) if learners else "",
        **place,
    )


def _with_advice(failure: Failure, text: str) -> Failure:
    """The failure with further advice, if an exception is the cause."""
    if failure.kind != "exception" or _has_lost_its_peer(failure):
        return failure
    return replace(failure, advice=f"{failure.advice} {text}".lstrip())


def _of_death(end: RankEnd, stderr: str, op: OpInfo | None) -> Failure:
    """The `Failure` for a rank that ended without reporting an exception.

    A rank that was killed has written no stack; `op` is the operation that it waited for, if any.
    """
    frame = locate.learner_frame(end.stack)
    wait = ""
    if op is not None and frame is None:
        frame = Frame(op.file, op.line, "") if op.line else None
        wait = f" while it waited in {call_of(op)}"
    where = locate.place(frame)
    code = os.waitstatus_to_exitcode(end.status or 0)
    if code >= 0:
        return Failure("exit", f"left by os._exit({code})", **where)
    name = signal.Signals(-code).name
    killed = "by the system because memory ran out, or by another process"
    explained = CRASHES | {"SIGKILL": killed}
    meaning = f" ({explained[name]})" if name in explained else ""
    reason = _why_it_aborted(stderr) if name == "SIGABRT" else ""
    functional = any(part in frame.file for part in FUNCTIONAL for frame in end.stack)
    advice = GLOOS_DOING if functional and name in CRASHES else ""
    message = f"was ended by {name}{wait}{meaning}{reason}"
    return Failure("signal", message, advice=advice, **where)


def _why_it_aborted(stderr: str) -> str:
    """The message that C++ prints when an exception aborts the process."""
    reasons = [line.split("what():")[1] for line in stderr.splitlines() if "what():" in line]
    return f":{reasons[-1][:MESSAGE_LIMIT].rstrip()}" if reasons else ""


def _traceback_text(remote: RemoteFailure) -> str:
    parts = []
    for frames, message in reversed(remote.chain):
        stack = StackSummary.from_list([FrameSummary(f.file, f.line, f.function) for f in frames])
        parts.append("Traceback (most recent call last):\n" + "".join(stack.format()) + message)
    return "\n\nwhich led to\n\n".join(parts)


def _what_happened(failure: Failure) -> str:
    verb = {"exception": "raised ", "memory": "ran out of memory: ", "result": ""}
    return verb.get(failure.kind, "") + failure.message


# ---------------------------------------------------------------------------- warnings


def warnings_of(collected: Collected) -> list[str]:
    """Texts of warnings: lost ranks, failed threads, tensors touched too early, lost sends."""
    texts = thread_warnings(collected) + touched_too_early(collected)
    outcome = collected.outcome
    if outcome is None:
        return texts
    for rank in outcome.lost:
        failure = _of_death(outcome.ranks[rank], "", None)
        text = f"warning: rank {rank} {_what_happened(failure)}. The others went on without it."
        texts.insert(0, "\n".join([_wrapped_once(text), *_places(failure)]))
    for op in outcome.unreceived:
        texts.append(
            f"warning: no rank received the message of rank {op.rank}: {call_of(op)}."
            f"\n  {waiting_of(op).place}"
        )
    return texts


def thread_warnings(collected: Collected) -> list[str]:
    """Texts of warnings about exceptions that ended threads of ranks."""
    return [f"warning: {text}" for _, text in _failed_threads(collected)]


def _failed_threads(collected: Collected) -> list[tuple[Failure, str]]:
    """Each exception that ended threads of ranks, and a text about it."""
    ranks_of: dict[Failure, list[int]] = {}
    for rank, failure in _of_threads(collected):
        ranks_of.setdefault(failure, []).append(rank)
    texts = []
    for failure, ranks in ranks_of.items():
        text = f"a thread of {ranks_in_words(ranks)} {_what_happened(failure)}"
        texts.append((failure, "\n".join([_wrapped_once(text), *_places(failure)])))
    return texts


def _of_threads(collected: Collected) -> list[tuple[int, Failure]]:
    """The rank and the failure of each thread that an exception has ended."""
    failed = collected.thread_failures.items()
    return [(rank, of_exception(remote)) for rank, remote in failed]


_Line = tuple[str, int]  # file and line
_CALLS = {"send": "isend", "recv": "irecv"}  # other names are those of collectives
_CONSEQUENCES = {
    "send": "The receiver may get the old or the new values.",
    "recv": "The message may arrive earlier or later than this line.",
}


def touched_too_early(collected: Collected) -> list[str]:
    """Texts of warnings about tensors that were touched before their operation was complete.

    Ranks that do the same in the same lines share a warning.
    """
    record_of = {record.rank: record for record in collected.records}
    found: dict[tuple[str, str, _Line, _Line], dict[int, int]] = {}  # peers, by rank
    for rank, touch in early.too_early(collected.records, collected.touches):
        record = record_of[rank]
        name, _, peer, *_, file, line = record.comm[touch.row].tolist()
        issued = record.files[file] if file >= 0 else "", line
        key = record.names[name], touch.kind, issued, (touch.file, touch.line)
        found.setdefault(key, {}).setdefault(rank, peer)
    return [
        _touch_in_words(name, kind, issued, touched, peers)
        for (name, kind, issued, touched), peers in found.items()
    ]


def _touch_in_words(
    name: str,
    kind: str,
    issued: _Line,
    touched: _Line,
    peers: dict[int, int],
) -> str:
    call = _CALLS.get(name, f"{name}(async_op=True)")
    if name in _CALLS and len(peers) == 1:
        call += f"({'dst' if name == 'send' else 'src'}={next(iter(peers.values()))})"
    who = ranks_in_words(list(peers))
    if kind == "forgotten":
        what = f"{who} never waited for {call}."
    elif kind in ("read", "changed"):
        what = f"{who} {kind} the tensor of {call} before wait()."
    else:
        what = f"{who} passed the tensor of {call} to {kind} before wait()."
        kind = "passed"
    next_use = "change" if name == "send" else "use"
    advice = (
        f"Call wait() on the object that {call.partition('(')[0]} returned before you {next_use} "
        "the tensor."
    )
    consequence = _CONSEQUENCES.get(name, "The tensor may hold old values, the result, or both.")
    if kind == "forgotten" and name == "recv":
        consequence = "The function may return before the message arrives."
    lines = [wrapped(f"warning: {what} {consequence} {advice}", indent="")]
    for label, (file, line) in ("issued", issued), (kind, touched):
        if line:
            place = place_in_words(**locate.place(Frame(file, line, "")))
            lines.append(f"  {label + ':':<8} {place}")
    return "\n".join(lines)


# ---------------------------------------------------------------------------- time limit


def _waiting(outcome: Outcome) -> list[Waiting]:
    """What the ranks that were ended at the time limit were doing."""
    stopped = []
    for rank, end in enumerate(outcome.ranks):
        if end.state == "stopped":
            frame = locate.learner_frame(end.stack)
            is_known = frame is not None and locate.is_learners(frame.file)
            where = locate.place(frame) if is_known else {}
            stopped.append(Waiting(rank, locate.operation(end.stack), **where))
    announced = {op.rank: waiting_of(op) for op in outcome.waiting}
    return [announced.get(waiting.rank, waiting) for waiting in stopped]


def _doing(waiting: Waiting) -> str:
    return "still running" if waiting.op == "compute" else f"waiting in {waiting.op}"


def _timeout_text(running: list[Waiting], outcome: Outcome, spec: Spec) -> tuple[str, str]:
    """The message, and what keeps the ranks running if their operations tell it."""
    if not running:
        text = (
            f"the results did not arrive: to pickle and send them took over {spec.timeout:g} s.\n"
            "Return less, or tensors and plain data instead of objects."
        )
        return text, ""
    busy = [waiting.rank for waiting in running if waiting.op == "compute"]
    lines = [f"the time limit of {spec.timeout:g} s has passed."]
    calls = {op.rank: call_of(op, spec.world_size) for op in outcome.waiting}
    posted = {op.rank: op for op in outcome.posted if op.rank in busy}
    polled = {op.rank: op for op, _ in outcome.polled if op.rank in busy}
    for waiting in running:
        doing = f"waiting in {calls[waiting.rank]}" if waiting.rank in calls else _doing(waiting)
        lines.append(f"  rank {waiting.rank} was {doing}   {waiting.place}".rstrip())
        lines += [f"    in wait()   {waiting.waits_in}"] if waiting.waits_in else []
        if op := polled.get(waiting.rank) or posted.get(waiting.rank):
            does = "polls" if waiting.rank in polled else "has posted"
            lines.append(f"    {does} {call_of(op, spec.world_size)}   {waiting_of(op).place}")
    done = [rank for rank, end in enumerate(outcome.ranks) if end.state == "returned"]
    idle = [rank for rank, end in enumerate(outcome.ranks) if end.state == "idle"]
    if done:
        lines.append(f"  {ranks_in_words(done)} had returned")
    if idle:
        lines.append(f"  {ranks_in_words(idle)} took no part")
    for rank in outcome.lost:
        lines.append(f"  rank {rank} {_what_happened(_of_death(outcome.ranks[rank], '', None))}")
    others = [waiting.rank for waiting in running if waiting.op != "compute"]
    waits_for: dict[tuple[int, ...], list[int]] = {}
    longer = f"pass a larger {'%%ranks --timeout' if spec.stays else 'timeout= to launch'}"
    in_vain = polled_in_vain(running, outcome)
    advice = (
        (WITHOUT_THE_LOST if outcome.lost and others else "")
        or in_vain
        or _still_communicating(running, outcome)
        or _in_backward(running, outcome, longer)
    )
    if not (advice or busy or outcome.active) and len(calls) == len(running):
        left = [rank for rank, end in enumerate(outcome.ranks) if end.state == "returned"]
        advice = pattern(Finding("standstill", outcome.waiting, left, outcome.posted))
    if advice:
        lines.append(wrapped(advice, indent=""))
        if outcome.active and not in_vain:
            lines.append(f"If they only need more time, {longer}.")
        return "\n".join(lines), advice
    for op in outcome.waiting if busy else ():
        needs = [rank for rank in op.lacks or op.partners if rank in busy and rank != op.rank]
        if needs and op.rank in others:
            waits_for.setdefault(tuple(needs), []).append(op.rank)
    for awaited, ranks in waits_for.items():
        verb = "waits" if len(ranks) == 1 else "wait"
        lines.append(f"{ranks_in_words(ranks)} {verb} for {ranks_in_words(awaited)}.".capitalize())
    if busy:
        lines.append(
            f"If the function only needs more time, {longer}. Otherwise look for a lock, a join "
            "or a loop that never ends."
        )
    return "\n".join(lines), ""


def _in_backward(running: list[Waiting], outcome: Outcome, longer: str) -> str:
    """A text if ranks are inside backward, although no operation of theirs is open."""
    open_ops = {op.rank for op in (*outcome.waiting, *outcome.posted)}
    inside = [
        each.rank
        for each in running
        if (stack := outcome.ranks[each.rank].stack)
        and stack[-1].file.endswith(torch_internals.BACKWARD_FILE)
        and each.rank not in open_ops
    ]  # fmt: skip
    if not inside or len(inside) < len(running):
        return ""
    verb = "is" if len(inside) == 1 else "are"
    return (
        f"{ranks_in_words(inside).capitalize()} {verb} inside backward, and no operation is open. "
        f"If only more time is needed, {longer}. If DDP has a communication hook, the Future that "
        "it returns must become complete: return work.get_future() of an asynchronous collective, "
        "or call set_result() on it."
    )


def _still_communicating(running: list[Waiting], outcome: Outcome) -> str:
    """A text if ranks called operations until the time limit, as in a loop without an end."""
    calls = [outcome.calls[waiting.rank] for waiting in running] if outcome.active else []
    if not calls or min(calls) < LOOPING:
        return ""
    return (
        f"The ranks still communicate: each has called at least {min(calls):,} operations. Look "
        "for a loop that does not end: is its condition ever false, on every rank?"
    )

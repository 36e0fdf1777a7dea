"""The watcher against the oracle on random SPMD programs: on paper, and on real ranks.

`make bench` runs 2,000 on real ranks; `dtlab.ranks.watch.matching` alone takes 2,000 in a second.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dtlab
from dtlab.errors import RanksError
from dtlab.ranks.watch.board import (
    CALL,
    COLLECTIVE,
    ISSUE,
    LEFT,
    RECV,
    SEND,
    SOURCE,
    WAIT,
    Record,
    number_of,
)
from dtlab.ranks.watch.matching import Machine, Op
from tests import oracle
from tests.oracle import Program, Verdict, programs, random_program, run_program, verdicts, worlds

REPRODUCIBLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# ----------------------------------------------------------------------- the machine alone


class Fed:
    """A `Machine` that gets the events of a program's ranks, in any order and in any portions.

    `sources` has the source of each receive from any source. Ranks are followed as far as they get
    on a backend that buffers, which is further than the strict rules allow. With `in_two`, a
    blocking operation is issued and then waited for, as in most backends.
    """

    def __init__(self, program: Program, sources: oracle.Sources, in_two: bool = False) -> None:
        self.program, self.in_two = program, in_two
        self.machine = Machine(program.world_size, self._describe)
        ran = oracle.reach(program, sources, buffered=True)
        self.records = [self._of_rank(r, ran[r], sources) for r in range(program.world_size)]
        self.alarms = 0  # how often it seemed, before the end, that no rank could continue

    def _of_rank(self, rank: int, ran: int, sources: oracle.Sources) -> list[Record]:
        """The records of a rank that has done `ran` operations, and may be in the next."""
        records, numbers = [], {}
        ops = self.program.ranks[rank]
        for index, op in enumerate(ops[: ran + 1]):
            if op.kind == "wait":
                index = numbers[op.handle]
                records.append(_record(WAIT, index))
                records += self._source(rank, index, sources)
                continue
            numbers[op.handle] = index
            signature = number_of(str(op.description))
            kind = ISSUE if self.in_two or op.kind in oracle.POSTED else CALL
            message = {"peer": op.peer, "tag": op.tag, "text": index, "role": _role(op.kind)}
            records.append(_record(kind, index, op.group, signature, **message))
            if kind == ISSUE and op.kind not in oracle.POSTED:
                records.append(_record(WAIT, index))
            if op.kind not in oracle.POSTED:
                records += self._source(rank, index, sources)
        return records + ([_record(LEFT, ran)] if ran == len(ops) else [])

    def _source(self, rank: int, index: int, sources: oracle.Sources) -> list[Record]:
        """The record of the source, written once a receive from any source has been waited for."""
        source = sources.get((rank, index))
        return [] if source is None else [_record(SOURCE, index, peer=source)]

    def _describe(self, rank: int, record: Record) -> Op:
        op = self.program.ranks[rank][record.text]
        name = op.kind.removeprefix("i").removesuffix("_any")
        return Op(rank, record, name, self.program.groups[op.group], str(op), "program.py")

    def feed(self, rng: random.Random) -> None:
        """Feed it all."""
        left = [list(records) for records in self.records]
        largest = rng.choice((1, 3, 1000))
        while unread := [rank for rank, records in enumerate(left) if records]:
            rank = rng.choice(unread)
            count = rng.randint(1, largest)
            self.machine.feed(rank, left[rank][:count])
            del left[rank][:count]
            if any(left):
                self.alarms += self.verdict() != "finish"

    def verdict(self, asleep: bool = False) -> str:
        """What the watcher would say now: an error, or "finish" for nothing as yet.

        `asleep`: the operating system says that no rank does anything any more.
        """
        blocked = self.machine.blocked()
        misfit = self.machine.misfit if self.machine.free() else self.machine.likely_misfit()
        if misfit is not None:
            return "mismatch"
        if any(self.machine.could_come(op) for op in blocked) and not asleep:
            return "finish"
        return "standstill" if blocked and not self.machine.free() else "finish"


def _role(kind: str) -> int:
    """How an operation of a program is matched."""
    return SEND if "send" in kind else RECV if "recv" in kind else COLLECTIVE


def _record(kind: int, number: int, group: int = 0, signature: int = 0, **more: int) -> Record:
    fields = {"peer": -1, "tag": 0, "text": 0, "role": COLLECTIVE, **more}
    return Record(kind, number, 0, group, 0, signature, place=0, **fields)


def machine_agrees(program: Program, rng: random.Random, times: int = 3) -> None:
    """Feed the machine `times` in random order; it must say what the oracle says."""
    possible = verdicts(program)
    for _ in range(times):
        fed = Fed(program, rng.choice(worlds(program)), in_two=rng.random() < 0.5)
        fed.feed(rng)
        said = fed.verdict(asleep=True)
        assert said in _sayings(possible), _explain(program, possible, said)
        if possible == {"finish"}:
            assert fed.alarms == 0, _explain(program, possible, "an alarm on the way")


def _sayings(possible: frozenset[Verdict]) -> set[str]:
    """What the machine may answer. It stops at a mismatch, so it never says both."""
    return {verdict.partition(",")[0] for verdict in possible}


def _explain(program: Program, possible: frozenset[Verdict], said: str) -> str:
    return f"the oracle says {sorted(possible)}, the watcher {said}\n{program}"


@pytest.mark.slow
def test_2000_programs_agree_with_the_oracle_in_any_order_of_events() -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        machine_agrees(random_program(rng), rng)


@pytest.mark.slow
def test_the_programs_are_of_all_kinds() -> None:
    """A quarter each only finish, stand still, or mismatch; every operation occurs."""
    ends: Counter[Verdict] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(2000):
        program = random_program(random.Random(seed))
        possible = verdicts(program)
        if len(possible) == 1:
            ends.update(possible)
        kinds.update(op.kind for ops in program.ranks for op in ops)
    for end in ("finish", "standstill", "mismatch"):
        assert ends[end] >= 500, ends
    for kind in oracle.KINDS:
        assert kinds[kind] >= 100, kinds


@pytest.mark.proof
@pytest.mark.slow
def test_the_oracle_is_right_about_programs_small_enough_to_try_every_interleaving() -> None:
    tried: Counter[frozenset[Verdict]] = Counter()
    for seed in range(1200):
        program = random_program(random.Random(seed))
        if math.prod(len(ops) + 1 for ops in program.ranks) < 2000:
            possible = verdicts(program)
            assert possible == oracle.verdicts_of_every_interleaving(program), program
            tried[possible] += 1
    assert len(tried) > 4 and tried.total() > 100, tried


@pytest.mark.slow
@settings(REPRODUCIBLE, max_examples=100)
@given(programs(), st.randoms(use_true_random=False))
def test_programs_that_hypothesis_shrinks_agree_too(program: Program, rng: random.Random) -> None:
    machine_agrees(program, rng, times=1)


# ----------------------------------------------------------------------- real ranks


def said_on_real_ranks(program: Program, timeout: float = 10.0) -> str:
    """What `launch` makes of it: a verdict, or an error that no program should give."""
    quiet = io.StringIO()  # gloo's last words where a message does not fit
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            size = program.world_size
            run = dtlab.launch(run_program, program, world_size=size, timeout=timeout)
    except dtlab.DeadlockError as error:
        return "mismatch" if error.mismatch is not None else "standstill"
    except RanksError as error:
        return f"{type(error).__name__}: {error}"
    right = run.values == [len(ops) for ops in program.ranks]
    return "finish" if right else f"nothing, but returned {run.values}"


def fits(said: str, possible: frozenset[Verdict]) -> bool:
    """Whether the answer is right.

    A `DeadlockError` also names tags that do not fit as a `mismatch`, so a standstill may be
    called one, but no mismatch a standstill.
    """
    right: set[str] = set(possible)
    if any("standstill" in verdict for verdict in possible):
        right |= {"standstill", "mismatch"}
    return said in right


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(REPRODUCIBLE, max_examples=60, phases=[Phase.generate])
@given(program=oracle.unshrinkable_programs())
def test_programs_on_real_ranks_end_as_the_oracle_says(program: Program) -> None:
    possible = verdicts(program)
    said = said_on_real_ranks(program)
    assert fits(said, possible), _explain(program, possible, said)

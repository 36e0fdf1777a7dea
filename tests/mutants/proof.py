"""The proof of a part: its check runs on every mutant and known answer, in worker processes."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, Literal, NamedTuple, TypeVar

from dtlab.checks import Criterion, Part, find_part
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.trials import Observation
from dtlab.checks.questions.answers import Questions
from dtlab.ranks.system import die_with_parent
from tests.known_answers import Answer, Answers, answers_of
from tests.mutants.engine import Mutant, mutants
from tests.mutants.sources import Solution, solution_of
from tests.staying import BENCH

__all__ = ["Fate", "Place", "Proof", "fate_of", "in_workers", "losses_of", "proof_of"]

SEEDS = (1, 2)  # for right answers; wrong ones and mutants have 0
ENOUGH, A_LINE = 30, 2  # mutants of a part of Level II; for a line, where it is a small blank

Key = TypeVar("Key")


class Place(NamedTuple):
    """What a result belongs to: a mutant by its number, an answer by its name, the solution."""

    kind: Literal["mutant", "answer", "solution"]
    which: int | str = ""


class Fate(NamedTuple):
    """What became of a mutant: the criteria that it lost, and what follows from that."""

    mutant: Mutant
    losses: Sequence[str]
    verdict: Literal["killed", "equivalent", "survived", "not equivalent"]

    @property
    def trouble(self) -> str:
        """What is wrong with that; empty if nothing."""
        if self.verdict in ("killed", "equivalent"):
            return ""
        mutant = self.mutant
        return f"{self.verdict}: line {mutant.line}, {mutant.mutator}: {mutant.change}"


def fate_of(mutant: Mutant, losses: Sequence[str], equivalent: Mapping[str, str]) -> Fate:
    """What follows from the losses of a mutant; `equivalent` has reasons by change."""
    if mutant.change in equivalent:
        return Fate(mutant, losses, "not equivalent" if losses else "equivalent")
    return Fate(mutant, losses, "killed" if losses else "survived")


@dataclass
class Proof:
    """The calls that check one part, and the results so far, by their place in `calls`.

    `solution` is the source of the solution's cell, from which the mutants were made; None where
    answers are values.
    """

    part: Part
    solution: str | None
    mutants: Sequence[Mutant]
    answers: Answers | None
    results: dict[Place, list[str]] = field(default_factory=dict)

    @property
    def calls(self) -> Mapping[Place, Callable[[], list[str]]]:
        """The calls that return a mutant's losses, or the objections to a known answer."""
        name, source = self.part.name, self.solution
        solution = {} if source is None else {Place("solution"): partial(losses_of, name, source)}
        mutants = enumerate(partial(losses_of, name, mutant.source) for mutant in self.mutants)
        answers = ((one, partial(objections_to, name, one)) for one in self.known)
        return (
            {Place("answer", answer): call for answer, call in answers}
            | solution
            | {Place("mutant", number): call for number, call in mutants}
        )

    def name_of(self, place: Place) -> str:
        """What a place is called where its number may change: a mutant by its change."""
        if place.kind == "mutant":
            return self.mutants[int(place.which)].change
        return f"{place.which}"

    def is_settled(self, place: Place) -> bool:
        """Whether it has been judged and nothing is wrong with it."""
        if place not in self.results:
            return False
        found = self.results[place]
        if place.kind == "mutant":
            return not fate_of(self.mutants[int(place.which)], found, self.equivalent).trouble
        return not found

    @property
    def known(self) -> dict[str, Answer]:
        """Wrong answers, then right ones, by their names."""
        return self.answers.named if self.answers is not None else {}

    @property
    def equivalent(self) -> Mapping[str, str]:
        """Why no check can tell some mutants from the solution, by their change."""
        return self.answers.equivalent if self.answers is not None else {}

    @property
    def fates(self) -> list[Fate]:
        """The fates of the mutants that are judged so far."""
        judged = (
            (self.results.get(Place("mutant", i)), one) for i, one in enumerate(self.mutants)
        )
        return [fate_of(one, lost, self.equivalent) for lost, one in judged if lost is not None]

    @property
    def objections(self) -> dict[str, list[str]]:
        """The objections to each known answer that is judged so far, by its name."""
        places = (Place("answer", one) for one in self.known)
        return {str(one.which): self.results[one] for one in places if one in self.results}

    @property
    def troubles(self) -> list[str]:
        """What keeps this from being a proof, one sentence each."""
        changes = {mutant.change for mutant in self.mutants}
        lost = self.results.get(Place("solution"), [])
        return [
            *([f"the solution itself loses {', '.join(lost)}"] if lost else []),
            *(fate.trouble for fate in self.fates if fate.trouble),
            *(f"no such mutant: {one}" for one in self.equivalent if one not in changes),
            *self._too_little(),
            *(f"{name}: {off}" for name, all_off in self.objections.items() for off in all_off),
        ]

    def _too_little(self) -> Iterator[str]:
        if self.part.level == 2 and self.solution is not None:
            enough = min(ENOUGH, A_LINE * len(_written(self.solution)))
            if len(self.mutants) < enough:
                yield f"{len(self.mutants)} mutants; {enough} or more are asked for"
        if self.answers is None:
            yield f"no file {self.part.symbol}.py of wrong answers"


def _written(cell: str) -> list[str]:
    """The lines that a learner writes of a solution cell."""
    blanks = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell, re.DOTALL)
    lines = "".join(blanks or [cell]).splitlines()
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def proof_of(part: Part) -> Proof:
    """The proof of `part`, with nothing judged yet; values drawn for a learner have no mutants."""
    source = None if isinstance(part.check, Questions) else solution_of(part).source
    return Proof(part, source, mutants(source) if source else [], answers_of(part))


def losses_of(name: str, source: str) -> list[str]:
    """The criteria of the part that a solution cell with this source loses, one at least."""
    part = find_part(name)
    try:
        answer = _solution(name).answer(source, part.symbol)
    except Exception as error:  # noqa: BLE001 - a mutant may raise anything
        return [f"{type(error).__name__} in the cell"]
    if isinstance(part.check, Check) and callable(answer):
        criteria = _judged_to_first_mistake(part.check, answer)
    else:
        criteria = part.check.run(part.symbol, answer, bench=BENCH)
    lost = [one.name for one in criteria if one.status == "lost"]
    return lost or [f"{one.name} ({one.status})" for one in criteria if one.status != "ok"]


def _judged_to_first_mistake(check: Check, answer: Callable[..., Any]) -> list[Criterion]:
    """Run a check as `Check.run` does, but only until a trial loses a criterion."""
    seen: list[Observation] = []
    for trial in check.trials(0):
        seen.append(BENCH.observe(trial, answer))
        if seen[-1].mistakes and any(one.status == "lost" for one in check.settle(seen)):
            return check.settle(seen)
    seen += [BENCH.observe(trial, own) for trial, own in check.then(seen)]
    return check.settle(seen)


def objections_to(name: str, answer_name: str) -> list[str]:
    """What is off with the report on one of the known answers to a part, on fresh ranks.

    A right answer is judged with other seeds than a wrong one, as by a grader.
    """
    answers = answers_of(find_part(name))
    assert answers is not None
    answer = answers.named[answer_name]
    seeds = (0,) if answer in answers.wrong else SEEDS
    reports = (answers.check(answer, seed) for seed in seeds)
    return [off for report in reports for off in answers.objections(answer, report)]


@cache
def _solution(name: str) -> Solution:
    return solution_of(find_part(name))


def in_workers(calls: Mapping[Key, Callable[[], Any]], workers: int) -> Iterator[tuple[Key, Any]]:
    """Results of the calls as they come, each call in one of so many fresh processes.

    Where the caller stops early, or Ctrl-C comes, the workers are ended and the rest is dropped.
    """
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_stay)
    try:
        keys = {pool.submit(call): key for key, call in calls.items()}
        for done in as_completed(keys):
            yield keys[done], done.result()
    except BaseException:
        for worker in list((pool._processes or {}).values()):  # 3.14 has `terminate_workers`
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _stay() -> None:
    """Ctrl-C is for the process that prints; a worker ends with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()

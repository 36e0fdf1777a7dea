"""A broken training script: what a learner says of it, and the mended one.

What is handed in is {"diagnosis": {"symptom": ..., "line": ...}, "mended": function}. Where the
symptom is to be proved by a number, the diagnosis has a "number" too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dtlab.errors import RankTimeoutError
from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.mends import Mend
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.checking.warm import warm_up
from dtlab.grading.parts import Part
from dtlab.grading.questions.declared import formula
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.questions.quantities import short
from dtlab.grading.report import Criterion
from dtlab.grading.scripts.lines import judge_line
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.symptoms import Scene, Symptom

__all__ = ["MendScript", "Proof", "proof", "script_part"]

_DIAGNOSIS = "the diagnosis is {}. Write {{{}}}."
_ENTRIES = {"symptom": '"symptom": "..."', "number": '"number": number', "line": '"line": number'}
_TOO_SLOW = blocked(
    "the script as it was handed out did not come to its end in time: the machine is busy with "
    "something else. Run the check again."
)
_SGD = Optimizer(0.1)
_UNUSED = "its judge is split up"


def _never(seen: Observation, said: Any) -> Verdict:
    raise NotImplementedError(_UNUSED)


@dataclass(frozen=True)
class Proof:
    """A number that proves a symptom: what is measured in a run, and the number that is right."""

    measure: Callable[[Scene], Mapping[str, Any]]
    number: Number

    def judge(self, said: Any, scene: Scene) -> Verdict:
        """The verdict on a number that was given."""
        return self.number.judge(said, self.measure(scene))


def proof(
    measure: Callable[[Scene], Mapping[str, Any]],
    right: str,
    hint: str,
    wrong: Mapping[str, str],
    *,
    unit: str = "",
    tolerance: float = 0,
) -> Proof:
    """A number by formulas in what is measured: the right one, and known mistakes with why."""
    mistakes = tuple(Mistake(formula(value), why) for value, why in wrong.items())
    return Proof(measure, Number(formula(right), mistakes, hint, unit, tolerance))


@dataclass(frozen=True)
class MendScript(Mend):
    """How the part of a broken training script is checked: the diagnosis, then the mended one.

    The symptom, one of `symptoms`, and the number of `proof` are compared with what is seen of
    the script in `scene`. `lines` are the texts of the lines that are at fault, and `look` says
    where to look for them. `optimizer` is what the script steps with.
    """

    judge: Callable[[Observation, Any], Verdict] = field(default=_never, init=False)
    symptoms: Mapping[str, Symptom] = field(default_factory=dict)
    lines: Sequence[str] = ()
    look: str = ""
    optimizer: Optimizer = _SGD
    proof: Proof | None = None

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """See `Mend`; each entry of the diagnosis is a criterion."""
        if bench is HERE:
            warm_up()

        @cache
        def scene() -> Scene:
            return Scene(bench.observe(self.scene, self.broken), self.optimizer)

        points = self.diagnosis_points / len(self._judges)
        rules = [
            Rule(name, points, lambda _, judge=judge: judge(answer["diagnosis"], scene))  # type: ignore[misc]
            for name, judge in self._judges.items()
        ]
        if not isinstance(answer, Mapping) or not {"diagnosis", "mended"} <= set(answer):
            waiting = blocked("judged once that is settled")
            why = f'{symbol} has to be a dict: {symbol} = {{"diagnosis": ..., "mended": ...}}'
            rest = [other.closed(waiting) for other in (*rules[1:], *self.check.rules)]
            return [rules[0].closed(lost(why)), *rest]
        mended = self.check.run("mended", answer["mended"], seed, learner, bench)
        return [*(rule.settle([]) for rule in rules), *mended]

    @property
    def broken(self) -> Callable[..., Any]:
        """The broken script."""
        module, _, name = self.program.rpartition(".")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    @property
    def _judges(self) -> dict[str, Callable[[Any, Callable[[], Scene]], Verdict]]:
        """What judges each entry of a diagnosis, in the order of the criteria."""
        number = {"number": self._number} if self.proof is not None else {}
        return {"symptom": self._symptom, **number, "line": self._line}

    def _symptom(self, diagnosis: Any, scene: Callable[[], Scene]) -> Verdict:
        if not isinstance(diagnosis, Mapping):
            entries = ", ".join(_ENTRIES[name] for name in self._judges)
            return lost(_DIAGNOSIS.format(type(diagnosis).__name__, entries))
        said = diagnosis.get("symptom")
        if said is None or said == "":
            return blocked("not answered yet")
        name = " ".join(said.casefold().replace("_", " ").split()) if type(said) is str else ""
        if name not in self.symptoms:
            return lost(f"{short(said)} is no symptom. There are: {', '.join(self.symptoms)}.")
        if isinstance(scene().one.error, RankTimeoutError):
            return _TOO_SLOW
        found, words = self.symptoms[name].find(scene()), scene().one.trial.words()
        if found.seen:
            return ok(f"{words}: {found.words}")
        return lost(
            f"{words}: that is not what happens to the script as it was handed out: "
            f"{found.words}. Run it again, and compare what it prints with the table."
        )

    def _number(self, diagnosis: Any, scene: Callable[[], Scene]) -> Verdict:
        assert self.proof is not None
        if not isinstance(diagnosis, Mapping):
            return blocked("judged once the diagnosis has its form")
        if diagnosis.get("number") is None:
            return blocked("not answered yet")
        if scene().one.error is not None:
            return _TOO_SLOW
        return self.proof.judge(diagnosis["number"], scene())

    def _line(self, diagnosis: Any, scene: Callable[[], Scene]) -> Verdict:
        if not isinstance(diagnosis, Mapping):
            return blocked("judged once the diagnosis has its form")
        return judge_line(self.broken, diagnosis.get("line"), self.lines, self.look)


def script_part(
    name: str,
    title: str,
    minutes: int,
    difficulty: int,
    program: str,
    scene: Trial,
    check: Check,
    symptoms: Mapping[str, Symptom],
    lines: Sequence[str],
    look: str,
    *,
    optimizer: Optimizer = _SGD,
    proof: Proof | None = None,
) -> Part:
    """The part of Level III for a broken script: each entry of the diagnosis has a point."""
    mend = MendScript(
        program,
        scene,
        check,
        diagnosis_points=2 if proof is None else 3,
        symptoms=symptoms,
        lines=lines,
        look=look,
        optimizer=optimizer,
        proof=proof,
    )
    return Part(name, 3, title, minutes, difficulty, mend)

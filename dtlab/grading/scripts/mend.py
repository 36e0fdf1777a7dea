"""The check of a broken training script: a learner's diagnosis and the mended script.

The answer is {"diagnosis": {"symptom": ..., "number": ..., "line": ...}, "mended": function}. A
part without symptoms to choose from has no "symptom", and one without a proof no "number".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from dtlab.errors import RankTimeoutError
from dtlab.grading.checking.bench import HERE, Bench, warm_up
from dtlab.grading.checking.checks import UNANSWERED, Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.declared import formula
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.questions.quantities import short
from dtlab.grading.report import Criterion
from dtlab.grading.scripts.lines import judge_line
from dtlab.grading.scripts.mends import Mend
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.symptoms import Scene, Symptom

__all__ = ["MendScript", "Proof", "proof", "script_part"]

_ENTRIES = {"symptom": '"symptom": "..."', "number": '"number": number', "line": '"line": number'}
_TOO_SLOW = blocked(
    "the original script did not finish in time: the machine is busy with something else. Run "
    "the check again."
)
_SGD = Optimizer(0.1)


@dataclass(frozen=True)
class Proof:
    """A number that proves a symptom: how a run is measured, and the right number."""

    measure: Callable[[Scene], Mapping[str, Any]]
    number: Number

    def judge(self, answer: Any, scene: Scene) -> Verdict:
        """Judges a number."""
        known = {"case": scene.case, "ranks": len(scene.results)}
        return self.number.judge(answer, {**known, **self.measure(scene)})


def proof(
    measure: Callable[[Scene], Mapping[str, Any]],
    right: str,
    hint: str,
    wrong: Mapping[str, str],
    *,
    unit: str = "",
    tolerance: float = 0,
) -> Proof:
    """Creates a `Proof` from formulas in the measured values: the right number, known mistakes.

    The formulas may also use the `case` and the number of `ranks`.
    """
    mistakes = tuple(Mistake(formula(value), why) for value, why in wrong.items())
    return Proof(measure, Number(formula(right), mistakes, hint, unit, tolerance))


@dataclass(frozen=True)
class MendScript(Mend):
    """The check of a part with a broken training script: the diagnosis, then the mended script.

    The symptom, one of `symptoms`, and the number of `proof` are compared with the observation of
    the script in `scene`. `lines` are the texts of the faulty lines, and `look` says where to look
    for them. `optimizer` is the script's optimizer.
    """

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
        if bench is HERE:
            warm_up()
        return super().run(symbol, answer, seed, learner, bench)

    def rules(self, answer: Mapping[str, Any], bench: Bench) -> list[Rule]:
        """Returns a rule for each entry of the diagnosis."""

        @cache
        def scene() -> Scene:
            return Scene(bench.observe(self.scene, self.broken), self.optimizer)

        def judge(name: str, _: Any) -> Verdict:
            return self._judged(name, answer["diagnosis"], scene)

        return [Rule(name, 1, partial(judge, name)) for name in self._entries]

    @property
    def _entries(self) -> list[str]:
        """The entries of a diagnosis, each of which is a criterion."""
        left_out = {"symptom": not self.symptoms, "number": self.proof is None}
        return [name for name in _ENTRIES if not left_out.get(name)]

    def _judged(self, name: str, diagnosis: Any, scene: Callable[[], Scene]) -> Verdict:
        """Judges an entry of the diagnosis."""
        if not isinstance(diagnosis, Mapping):
            form = ", ".join(_ENTRIES[entry] for entry in self._entries)
            wrong = f"the diagnosis is {type(diagnosis).__name__}. Write {{{form}}}."
            is_first = name == self._entries[0]
            return lost(wrong) if is_first else blocked("judged once the diagnosis has its form")
        entry = diagnosis.get(name)
        if entry is None or (type(entry) is str and not entry):
            return UNANSWERED
        if name == "line":
            return judge_line(self.broken, entry, self.lines, self.look)
        if name == "symptom":
            return self._symptom(entry, scene)
        assert self.proof is not None
        return _TOO_SLOW if scene().one.error is not None else self.proof.judge(entry, scene())

    def _symptom(self, entry: Any, scene: Callable[[], Scene]) -> Verdict:
        name = " ".join(entry.casefold().replace("_", " ").split()) if type(entry) is str else ""
        if name not in self.symptoms:
            return lost(f"{short(entry)} is no symptom. There are: {', '.join(self.symptoms)}.")
        observation = scene().one
        if isinstance(observation.error, RankTimeoutError):
            return _TOO_SLOW
        shown, description = self.symptoms[name].find(scene())
        if shown:
            return ok(f"{observation.trial.words()}: {description}")
        return lost(
            f"{observation.trial.words()}: that is not what happens with the original script: "
            f"{description}. Run it again, and compare its output with the table."
        )


def script_part(
    name: str,
    title: str,
    minutes: int,
    difficulty: int,
    program: str,
    scene: Trial,
    trials: Callable[[int], Sequence[Trial]],
    criteria: tuple[Rule, ...],
    symptoms: Mapping[str, Symptom],
    lines: Sequence[str],
    look: str,
    **more: Any,
) -> Part:
    """Creates the part of a broken script: see `Part` and `MendScript`.

    The mended script runs in `trials`, and `criteria` judge it; each diagnosis entry has a point.
    """
    more.update(symptoms=symptoms, lines=lines, look=look)
    mend = MendScript(program, scene, Check(trials, criteria), **more)
    return Part(name, 3, title, minutes, difficulty, mend)

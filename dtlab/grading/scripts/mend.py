"""A broken training script: what a learner says of it, and the mended one.

What is handed in is {"diagnosis": {"symptom": ..., "line": ...}, "mended": function}. Where the
symptom is to be proved by a number, the diagnosis has a "number" too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from dtlab.errors import RankTimeoutError
from dtlab.grading.checking.bench import HERE, Bench, warm_up
from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
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
    "the script as it was handed out did not come to its end in time: the machine is busy with "
    "something else. Run the check again."
)
_SGD = Optimizer(0.1)


@dataclass(frozen=True)
class Proof:
    """A number that proves a symptom: what is measured in a run, and the number that is right."""

    measure: Callable[[Scene], Mapping[str, Any]]
    number: Number

    def judge(self, said: Any, scene: Scene) -> Verdict:
        """The verdict on a number that was given."""
        known = {"case": scene.case, "ranks": len(scene.results)}
        return self.number.judge(said, {**known, **self.measure(scene)})


def proof(
    measure: Callable[[Scene], Mapping[str, Any]],
    right: str,
    hint: str,
    wrong: Mapping[str, str],
    *,
    unit: str = "",
    tolerance: float = 0,
) -> Proof:
    """A number by formulas in what is measured: the right one, and known mistakes with why.

    They may use the `case` and the number of `ranks` too.
    """
    mistakes = tuple(Mistake(formula(value), why) for value, why in wrong.items())
    return Proof(measure, Number(formula(right), mistakes, hint, unit, tolerance))


@dataclass(frozen=True)
class MendScript(Mend):
    """How the part of a broken training script is checked: the diagnosis, then the mended one.

    The symptom, one of `symptoms`, and the number of `proof` are compared with what is seen of
    the script in `scene`. `lines` are the texts of the lines that are at fault, and `look` says
    where to look for them. `optimizer` is what the script steps with.
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
        """See `Mend`."""
        if bench is HERE:
            warm_up()
        return super().run(symbol, answer, seed, learner, bench)

    def rules(self, answer: Mapping[str, Any], bench: Bench) -> list[Rule]:
        """Each entry of the diagnosis is a criterion."""

        @cache
        def scene() -> Scene:
            return Scene(bench.observe(self.scene, self.broken), self.optimizer)

        def judge(name: str, _: Any) -> Verdict:
            return self._judged(name, answer["diagnosis"], scene)

        return [Rule(name, 1, partial(judge, name)) for name in self._entries]

    @property
    def _entries(self) -> list[str]:
        """The entries of a diagnosis, each of which is a criterion."""
        return [name for name in _ENTRIES if name != "number" or self.proof is not None]

    def _judged(self, name: str, diagnosis: Any, scene: Callable[[], Scene]) -> Verdict:
        """The verdict on an entry of the diagnosis."""
        if not isinstance(diagnosis, Mapping):
            form = ", ".join(_ENTRIES[entry] for entry in self._entries)
            wrong = f"the diagnosis is {type(diagnosis).__name__}. Write {{{form}}}."
            is_first = name == "symptom"
            return lost(wrong) if is_first else blocked("judged once the diagnosis has its form")
        said = diagnosis.get(name)
        if said is None or (type(said) is str and not said):
            return blocked("not answered yet")
        if name == "line":
            return judge_line(self.broken, said, self.lines, self.look)
        if name == "symptom":
            return self._symptom(said, scene)
        assert self.proof is not None
        return _TOO_SLOW if scene().one.error is not None else self.proof.judge(said, scene())

    def _symptom(self, said: Any, scene: Callable[[], Scene]) -> Verdict:
        name = " ".join(said.casefold().replace("_", " ").split()) if type(said) is str else ""
        if name not in self.symptoms:
            return lost(f"{short(said)} is no symptom. There are: {', '.join(self.symptoms)}.")
        one = scene().one
        if isinstance(one.error, RankTimeoutError):
            return _TOO_SLOW
        seen, words = self.symptoms[name].find(scene())
        if seen:
            return ok(f"{one.trial.words()}: {words}")
        return lost(
            f"{one.trial.words()}: that is not what happens to the script as it was handed out: "
            f"{words}. Run it again, and compare what it prints with the table."
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
    """The part of a broken script: see `Part` and `MendScript`.

    The mended one is run in `trials`, and judged by `criteria`; each entry has a point.
    """
    more.update(symptoms=symptoms, lines=lines, look=look)
    mend = MendScript(program, scene, Check(trials, criteria), **more)
    return Part(name, 3, title, minutes, difficulty, mend)

"""The check of a broken training script: a learner's diagnosis and the fixed script.

The answer is {"diagnosis": {"line": ...}, "fixed": function}. If a number must prove the fault,
the diagnosis also has a "number".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from dtlab.checks.functions.bench import HERE, Bench, warm_up
from dtlab.checks.functions.checks import UNANSWERED, Check, Rule, Verdict, blocked, lost
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.checks.programs.broken import Fix
from dtlab.checks.programs.lines import judge_line
from dtlab.checks.programs.reference import Optimizer
from dtlab.checks.programs.run import named
from dtlab.checks.questions.declared import formula
from dtlab.checks.questions.kinds import Mistake, Number
from dtlab.checks.report import Criterion

__all__ = ["FixScript", "Proof", "Scene", "proof", "script_part", "unmoved"]

_ENTRIES = {"number": '"number": number', "line": '"line": number'}
_TOO_SLOW = blocked(
    "the original script did not finish in time: the machine is busy with something else. Run "
    "the check again."
)
_SGD = Optimizer(0.1)


@dataclass(frozen=True)
class Scene:
    """A run of a broken script, which steps with `optimizer`."""

    one: Observation
    optimizer: Optimizer

    @property
    def case(self) -> Any:
        """The case, with the inputs of the script."""
        return self.one.trial.cases[0]

    @property
    def results(self) -> list[Any]:
        """The result of each rank, if the ranks finished."""
        return self.one.results[0]


@dataclass(frozen=True)
class Proof:
    """A number that proves a fault: how a run is measured, and the right number."""

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
class FixScript(Fix):
    """The check of a part with a broken training script: the diagnosis, then the fixed script.

    `lines` are the texts of the faulty lines, any of which is right, and `look` says where to look
    for them. With a `proof`, the number is compared with the observation of the script in `scene`.
    `optimizer` is the script's optimizer.
    """

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

        points = 2 // len(self._entries)
        return [Rule(name, points, partial(judge, name)) for name in self._entries]

    @property
    def _entries(self) -> list[str]:
        """The entries of a diagnosis, each of which is a criterion."""
        return ["line"] if self.proof is None else ["number", "line"]

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
        assert self.proof is not None
        return _TOO_SLOW if scene().one.error is not None else self.proof.judge(entry, scene())


def script_part(
    name: str,
    title: str,
    minutes: int,
    difficulty: int,
    program: str,
    scene: Trial,
    trials: Callable[[int], Sequence[Trial]],
    criteria: tuple[Rule, ...],
    lines: Sequence[str] = (),
    look: str = "",
    **more: Any,
) -> Part:
    """Creates the part of a broken script: see `Part` and `FixScript`.

    The fixed script runs in `trials`, and `criteria` judge it. The diagnosis has two points: for
    the line, or one for the line and one for the number.
    """
    more.update(lines=lines, look=look)
    fix = FixScript(program, scene, Check(trials, criteria), **more)
    return Part(name, 3, title, minutes, difficulty, fix)


def unmoved(scene: Scene, rank: int = 0) -> list[str]:
    """Returns the parameters whose part on the rank has only values of the initial parameter."""
    import torch

    start, after = named(scene.case.model()), scene.results[rank]["after"]
    parts = ((name, part) for name, part in after.items() if part.numel())
    return [name for name, part in parts if bool(torch.isin(part, start[name]).all())]

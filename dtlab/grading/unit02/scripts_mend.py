"""A broken training script: what a learner says of it, and the mended one.

What is handed in is {"diagnosis": {"symptom": ..., "line": ...}, "mended": function}.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtlab.grading.bench import HERE, Bench
from dtlab.grading.checks import Rule, Verdict, blocked, lost, ok
from dtlab.grading.mends import Mend
from dtlab.grading.questions.quantities import short
from dtlab.grading.report import Criterion
from dtlab.grading.trials import Observation
from dtlab.grading.unit02.scripts_lines import judge_line
from dtlab.grading.unit02.scripts_reference import Optimizer
from dtlab.grading.unit02.scripts_symptoms import SYMPTOMS, find

__all__ = ["MendScript", "warm_up"]

_DIAGNOSIS = 'the diagnosis is {}. Write {{"symptom": "...", "line": number}}.'
_SGD = Optimizer(0.1)
_UNUSED = "its judge is split in two"
_WARM_UP, _PAUSE = 60.0, 0.2  # seconds for imports; that a server needs to hear of them


def _never(seen: Observation, said: Any) -> Verdict:
    raise NotImplementedError(_UNUSED)


@dataclass(frozen=True)
class MendScript(Mend):
    """How the part of a broken training script is checked: symptom and line, then the mended one.

    The symptom is compared with what is seen of the script in `scene`. `lines` are the texts of
    the lines that are at fault, and `look` says where to look for them. `optimizer` is what the
    script steps with, `passes` its forward passes in a step.
    """

    judge: Callable[[Observation, Any], Verdict] = field(default=_never, init=False)
    lines: Sequence[str] = ()
    look: str = ""
    optimizer: Optimizer = _SGD
    passes: int = 1

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """See `Mend`; the diagnosis makes two criteria."""
        if bench is HERE:
            warm_up()
        each = self.diagnosis_points / 2
        symptom = Rule("symptom", each, lambda _: self._symptom(answer["diagnosis"], bench))
        line = Rule("line", each, lambda _: self._line(answer["diagnosis"]))
        if not isinstance(answer, Mapping) or not {"diagnosis", "mended"} <= set(answer):
            waiting = blocked("judged once that is settled")
            why = f'{symbol} has to be a dict: {symbol} = {{"diagnosis": ..., "mended": ...}}'
            rest = [other.closed(waiting) for other in (line, *self.check.rules)]
            return [symptom.closed(lost(why)), *rest]
        mended = self.check.run("mended", answer["mended"], seed, learner, bench)
        return [symptom.settle([]), line.settle([]), *mended]

    @property
    def broken(self) -> Callable[..., Any]:
        """The broken script."""
        module, _, name = self.program.rpartition(".")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def _symptom(self, diagnosis: Any, bench: Bench) -> Verdict:
        if not isinstance(diagnosis, Mapping):
            return lost(_DIAGNOSIS.format(type(diagnosis).__name__))
        said = diagnosis.get("symptom")
        if said is None or said == "":
            return blocked("not answered yet")
        name = " ".join(said.casefold().replace("_", " ").split()) if type(said) is str else ""
        if name not in SYMPTOMS:
            return lost(f"{short(said)} is no symptom. There are: {', '.join(SYMPTOMS)}.")
        seen = bench.observe(self.scene, self.broken)
        found = find(name, seen, self.optimizer, self.passes)
        if found.seen:
            return ok(f"{seen.trial.words()}: {found.words}")
        return lost(
            f"{seen.trial.words()}: that is not what happens to the script as it was handed out: "
            f"{found.words}. Run it again, and compare what it prints with the table."
        )

    def _line(self, diagnosis: Any) -> Verdict:
        if not isinstance(diagnosis, Mapping):
            return blocked("judged once the diagnosis has its form")
        return judge_line(self.broken, diagnosis.get("line"), self.lines, self.look)


def warm_up() -> None:
    """Have the server of ranks import what the first optimizer needs, once and not in every rank.

    A rank that does it takes seconds, which would count as those of an answer.
    """
    from dtlab.ranks.launch import launch

    for _ in range(3):
        if launch(_optimizers_are_there, world_size=1, trace=False, timeout=_WARM_UP).values[0]:
            return
        time.sleep(_PAUSE)


def _optimizers_are_there() -> bool:
    """Runs on a rank."""
    import importlib
    import sys

    found = "torch._dynamo" in sys.modules
    importlib.import_module("torch._dynamo")
    return found

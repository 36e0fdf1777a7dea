"""Runs one case of a check again: its timeline, what ranks print, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dtlab.errors import DeadlockError, DtlabError, RankTimeoutError
from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Faulty, fault
from dtlab.grading.checking.numbered import numbered, printed_words
from dtlab.grading.checking.trials import UNREADABLE, Observation, observe
from dtlab.grading.report import Criterion, as_text
from dtlab.ranks.system import in_a_kernel

if TYPE_CHECKING:
    from dtlab.show import Figure

__all__ = ["offer", "replay"]

_MOST = 200  # lines that are shown of what the ranks print


def replay(check: Check, name: str, fn: Callable[..., Any], number: int) -> None:
    """Runs a case of a check on its ranks, and shows what happens. Points do not change.

    If the case has labelled data, they replace its random inputs. Raises `DtlabError` if the part
    `name` has no case of this number.
    """
    cases = [(trial, case) for trial in check.trials(0) for case in trial.cases]
    if not 1 <= number <= len(cases):
        raise DtlabError(f"{name} has cases 1 to {len(cases)}, but no case {number}.")
    trial, case = cases[number - 1]
    shown, legend = case.labelled()
    check.prepare()
    observation = observe(replace(trial, cases=[shown]), fn)
    print(f"Case {number} of {name}: {observation.trial.words()}. {legend}".rstrip())
    if words := printed_words(numbered([observation]), most=_MOST):
        print(words)
    from dtlab.show.notebook import show_bundle

    for figure in _figures(observation):
        show_bundle(figure._repr_mimebundle_()[0])
    print("\n".join(_wrong(check, observation)) or "The result of this case is right.")


def _figures(observation: Observation) -> Iterator[Figure]:
    """The timeline; if the ranks hang, what each of them waits for."""
    from dtlab.show.figures import timeline, waits

    if observation.trace is not None and observation.trace.events:
        yield timeline(observation.trace, title=f"Timeline of {observation.trial.words()}")
    if isinstance(observation.error, DeadlockError):
        yield waits(observation.error.waiting, observation.trial.world_size)
    if isinstance(observation.error, RankTimeoutError):
        yield waits(observation.error.running, observation.trial.world_size)


def _wrong(check: Check, observation: Observation) -> list[str]:
    """What is wrong with the case, each message once."""
    by_case = isinstance(observation.trial.cases[0], Faulty)
    faults = [fault([observation], rule.name) for rule in check.rules] if by_case else []
    messages = faults if by_case else observation.mistakes
    return list(dict.fromkeys(as_text(text) for text in messages if text not in ("", UNREADABLE)))


def offer(
    check: Check, name: str, fn: Callable[..., Any], criteria: Sequence[Criterion]
) -> None:
    """Shows a button "Run this case" for each lost criterion, below the report in JupyterLab."""
    lost = [criterion for criterion in criteria if criterion.case]
    if not (lost and in_a_kernel()):
        return
    import ipywidgets as widgets
    from IPython import get_ipython

    from dtlab.show.notebook import Kept, has_front_end, show_bundle

    if not has_front_end():
        return

    place = widgets.Output()

    def run(number: int, _: Any) -> None:
        place.clear_output()
        with place:
            replay(check, name, fn, number)

    buttons = []
    for criterion in lost:
        words = f"Run this case: {criterion.name}"
        buttons.append(widgets.Button(description=words, layout=widgets.Layout(width="auto")))
        buttons[-1].on_click(partial(run, criterion.case))
    row = widgets.HBox(buttons, layout=widgets.Layout(flex_flow="row wrap"))
    events = get_ipython().events

    def show(*_: Any) -> None:
        events.unregister("post_run_cell", show)
        Kept("", "Run this case: see the calls in the report.")
        bundle = widgets.VBox([row, place])._repr_mimebundle_()
        show_bundle({**bundle, "text/plain": "Run this case"})

    events.register("post_run_cell", show)  # the report is the value of the cell, and comes first

"""Runs one case of a check again: its timeline, what ranks print, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dtlab.checks.functions.checks import Check, Judging
from dtlab.checks.functions.criteria import Faulty, fault
from dtlab.checks.functions.numbered import numbered, printed_words
from dtlab.checks.functions.trials import UNREADABLE, Observation, observe
from dtlab.checks.report import Criterion, as_text
from dtlab.errors import DeadlockError, DtlabError, RankTimeoutError
from dtlab.ranks.system import has_front_end
from dtlab.ranks.words import wrapped

if TYPE_CHECKING:
    from dtlab.show import Figure

__all__ = ["offer", "replay", "wrong_in"]

_TOGETHER = "No fault shows in this case alone. The report judges several cases together."
_MOST = 200  # lines that are shown of what the ranks print


def replay(
    check: Check, name: str, fn: Callable[..., Any], number: int | None = None
) -> None:
    """Runs a case of a check on its ranks, and shows what happens. Points do not change.

    Without a `number`, it runs the first case and says how to choose another. If the case has
    labelled data, they replace its random inputs. Raises `DtlabError` if the part `name` has no
    case of this number.
    """
    cases = [(trial, case) for trial in check.trials(0) for case in trial.cases]
    is_chosen = number is not None
    number = 1 if number is None else number
    if not 1 <= number <= len(cases):
        raise DtlabError(f"{name} has cases 1 to {len(cases)}, but no case {number}.")
    trial, case = cases[number - 1]
    shown, legend = case.labelled()
    check.prepare()
    one = observe(replace(trial, cases=[shown]), fn)
    symbol = getattr(fn, "__name__", name)
    if why := check.unwritten(one, symbol):
        print(why)
        return
    title = f"Case {number} of {len(cases)} of {name}: {one.trial.words()}. {legend}"
    print(wrapped(title.rstrip(), indent=""))
    if len(cases) > 1 and not is_chosen:
        call = f'dtlab.practice("{name}", {symbol}, case=2)'
        print(f"For another one, pass its number, 1 to {len(cases)}, as in {call}.")
    if words := printed_words(numbered([one]), most=_MOST):
        print(words)
    from dtlab.show.notebook import show_bundle

    for figure in _figures(one):
        show_bundle(figure._repr_mimebundle_()[0])
    for rank, words in enumerate(shown.beside(one.results[0])) if one.results else ():
        print(f"rank {rank}: {words}")
    found = wrong_in(check, one, is_first=number == 1)
    alone = number == 1 or _judges_cases_alone(check)
    print("\n".join(found) or ("The result of this case is right." if alone else _TOGETHER))
    print("".join(f"{warning}\n" for warning in one.warnings), end="")


def _figures(one: Observation) -> Iterator[Figure]:
    """The timeline, and the case's figures; if the ranks hang, what each of them waits for.

    In a loop without an end no rank waits, and the message tells the line of each rank.
    """
    from dtlab.show.figures import timeline, waits

    if one.trace is not None and one.trace.events:
        yield timeline(one.trace, title=f"Timeline of {one.trial.words()}")
    if one.results:
        yield from one.trial.cases[0].figures(one.results[0])
    if isinstance(one.error, DeadlockError):
        yield waits(one.error.waiting, one.trial.world_size)
    if isinstance(one.error, RankTimeoutError) and not one.error.loops:
        yield waits(one.error.running, one.trial.world_size)


def wrong_in(check: Check, one: Observation, *, is_first: bool) -> list[str]:
    """What is wrong with a case, each message once.

    Criteria that judge several cases together judge at most the first one alone, but may have
    a judge of a single case besides.
    """
    by_case = isinstance(one.trial.cases[0], Faulty)
    messages = [fault([one], rule.name) for rule in check.rules] if by_case else one.mistakes
    lost: list[str] = []
    if is_first or _judges_cases_alone(check):  # the ranks may also have sent or held too much
        lost = [found.message for found in check.settle([one]) if found.status == "lost"]
    elif not one.mistakes:
        lost = [rule.judge.alone([one]) for rule in check.rules if isinstance(rule.judge, Judging)]
    messages = [text for text in messages if not any(each.startswith(text) for each in lost)]
    found = dict.fromkeys(as_text(text) for text in [*messages, *lost])
    return [text for text in found if text not in ("", UNREADABLE)]


def _judges_cases_alone(check: Check) -> bool:
    return all(getattr(rule.judge, "by_case", False) for rule in check.rules)


def offer(
    check: Check, name: str, fn: Callable[..., Any], criteria: Sequence[Criterion]
) -> None:
    """Shows a button "Run this case" for each lost criterion, below the report in JupyterLab."""
    lost = [criterion for criterion in criteria if criterion.case]
    if not (lost and has_front_end()):
        return
    import ipywidgets as widgets
    from IPython import get_ipython

    from dtlab.show.notebook import Kept, show_bundle

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

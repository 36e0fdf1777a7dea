"""`dtlab review`: asks again, after days, what the learner did not know.

There are three kinds of cards: a guess of a lesson that was off by more than a factor of 2, the
questions of the self-check of each lesson that the learner has begun, and each known mistake that
was made in several parts. When a card is due, FSRS computes from the answers so far: a card that
was always known returns after 2 days, then after 11, and so on; one that was not known returns
much sooner. `dtlab.stored` keeps the answers on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import fsrs

from dtlab.checks.course import Course
from dtlab.checks.learners import best_shares, stored_mistakes
from dtlab.checks.progress import tasks_in
from dtlab.errors import DtlabError
from dtlab.predict.units import counted
from dtlab.stored import append, entries, stored

__all__ = ["Card", "due_cards", "review"]

_FIRST = timedelta(days=1)  # after the guess
# Without steps of minutes: what is due again today would be asked again in the same sitting.
_SCHEDULER = fsrs.Scheduler(learning_steps=(), relearning_steps=(), enable_fuzzing=False)


@dataclass(frozen=True)
class Card:
    """A question with its answer; `source` says where in the course it comes from."""

    source: str
    question: str
    answer: str
    begins: datetime | None = None  # when it is due for the first time; None means at once


def review(
    ask: Callable[[str], str] = input,
    tell: Callable[[str], object] = print,
    *,
    most: int = 10,
    now: datetime | None = None,
) -> None:
    """Ask the questions that are due, `most` of them at most, and store whether each was known.

    `ask` shows a prompt and returns what the learner typed. The end of the input, Ctrl-C or "q"
    stops; what was answered before is kept. `now` is the time, for tests.
    """
    now = now or datetime.now(UTC)
    cards = due_cards(now)
    for number, card in enumerate(cards[:most], 1):
        tell(f"\n{number} of {min(len(cards), most)}   {card.source}\n\n{card.question}\n")
        try:
            ask("Think of the answer, and press Enter to see it. ")
            tell(f"\n{card.answer}\n")
            known = _asked_whether_known(ask)
        except (EOFError, KeyboardInterrupt):
            known = None
        if known is None:
            tell("\nStopped. The answers before this question are kept.")
            return
        _answered(card, known, now)
    tell(_outlook(now, left=len(cards[most:]), asked=bool(cards)))


def due_cards(now: datetime | None = None) -> list[Card]:
    """Return the cards that are due, the one that has waited longest first."""
    now = now or datetime.now(UTC)
    times = _times()
    return sorted((card for card in times if times[card] <= now), key=lambda card: times[card])


def _asked_whether_known(ask: Callable[[str], str]) -> bool | None:
    """Return whether the learner knew the answer; None if the learner stops."""
    replies = {"y": True, "yes": True, "n": False, "no": False, "q": None, "quit": None}
    while True:
        reply = ask("Did you know it? y, n, or q to stop: ").strip().lower()
        if reply in replies:
            return replies[reply]


def _outlook(now: datetime, left: int, asked: bool) -> str:
    if left:
        return f"Still due: {counted(left, 'question')}. Go on with: dtlab review"
    coming = sorted(_times().values())
    if not coming:
        return (
            "Nothing to review yet. Guesses that were off by more than a factor of 2 come here, "
            "and the self-checks of lessons that you have begun."
        )
    days = max(1, -(-(coming[0] - now) // timedelta(days=1)))
    done = "Done for today." if asked else "Nothing is due today."
    return f"{done} The next question comes in {counted(days, 'day')}."


# Where cards come from ---------------------------------------------------------------------------


def _cards() -> Iterator[Card]:
    yield from _wrong_guesses()
    yield from _self_checks()
    for mistake, parts in stored_mistakes().items():
        if len(parts) > 1:
            yield Card(
                "a mistake that you repeated",
                f"In {' and in '.join(parts)} you made the same mistake: {mistake.rstrip('.')}.\n"
                "What is right instead?",
                f"Run the check of {parts[-1]} again. It shows the simple version.",
            )


def _wrong_guesses() -> Iterator[Card]:
    for entry in entries("guess"):
        with suppress(KeyError, TypeError, ValueError):
            if entry["right"]:
                continue
            answer, options, lesson = entry["answer"], entry["options"], entry["lesson"]
            yield Card(
                f"a guess in lesson {lesson[:2]}" if lesson else "a guess",
                entry["guess"] + (f"\n({' / '.join(options)})" if options else ""),
                answer if options else f"{answer:.4g} {entry['unit']}".strip(),
                datetime.fromtimestamp(entry["time"], UTC) + _FIRST,
            )


def _self_checks() -> Iterator[Card]:
    """Yield the questions of the self-checks of lessons with a guess or a task that is done."""
    guessed = {lesson[:2]: time for lesson, time in reversed(stored("lesson", "time", float))}
    practised = {name.removeprefix("practice/") for name in best_shares()}
    with suppress(DtlabError):
        course = Course.find()
        for unit in course.units():
            number = unit[:2]
            text = _text_of(course, unit)
            if number not in guessed and practised.isdisjoint(tasks_in(text)):
                continue
            begins = datetime.fromtimestamp(guessed.get(number, 0), UTC) + _FIRST
            section = text.partition("\n## Self-check")[2]
            asked, _, answers = section.partition("</summary>")
            answers = answers.partition("</details>")[0]
            pairs = zip(_numbered(asked), _numbered(answers), strict=False)
            for place, (question, answer) in enumerate(pairs, 1):
                yield Card(f"lesson {number}, self-check {place}", question, answer, begins)


def _text_of(course: Course, unit: str) -> str:
    """Return the sources of all cells of a lesson; "" if it cannot be read."""
    with suppress(DtlabError, OSError, ValueError, KeyError):
        notebook = (course.material / course.lesson(unit)).read_text(encoding="utf-8")
        return "\n".join("".join(cell["source"]) for cell in json.loads(notebook)["cells"])
    return ""


def _numbered(text: str) -> list[str]:
    """Return the items of a numbered list in Markdown, each as one line."""
    items = re.findall(r"^\d+\. (.*(?:\n {2,}\S.*)*)", text, re.MULTILINE)
    return [" ".join(item.split()) for item in items]


# When they are due -------------------------------------------------------------------------------


def _times() -> dict[Card, datetime]:
    """Return when each card is due."""
    states, at_once = _states(), datetime.fromtimestamp(0, UTC)
    return {
        card: state.due if (state := states.get(_key(card))) else card.begins or at_once
        for card in _cards()
    }


def _states() -> dict[str, fsrs.Card]:
    return dict(stored("review", "state", fsrs.Card.from_dict))


def _answered(card: Card, known: bool, now: datetime) -> None:
    state = _states().get(_key(card)) or fsrs.Card(due=now)
    rating = fsrs.Rating.Good if known else fsrs.Rating.Again
    state, _ = _SCHEDULER.review_card(state, rating, now)
    try:
        append({"review": _key(card), "state": state.to_dict()})
    except (OSError, RuntimeError) as error:
        raise DtlabError(
            f"the answer cannot be stored: {error}. Free some space, or make your data folder "
            "writable, and type dtlab review again."
        ) from error


def _key(card: Card) -> str:
    return f"{card.source}: {card.question}"

"""`dtlab review`: what was guessed wrong, self-checks and mistakes return after days."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dtlab.checks.learners import record, record_mistakes
from dtlab.checks.review import due_cards, review
from dtlab.cli import main
from dtlab.show.guess import Guess

NOW = datetime.now(UTC)
LESSON = "/course/my/notebooks/02_data_parallelism.ipynb"


@pytest.fixture(autouse=True)
def no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("JPY_SESSION_NAME", LESSON)


def guessed(value: float | str, answer: float | str, **options: tuple[str, ...]) -> None:
    """A guess that was made and revealed."""
    asked = Guess("How many MB?", "" if options else "MB", options.get("options"))
    asked.commit(value)
    asked.reveal(answer)


def replies(*typed: str) -> Callable[[str], str]:
    """What a learner types; then the input ends."""
    left: Iterator[str] = iter(typed)

    def ask(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ask


def asked_in(days: float, *typed: str, most: int = 10) -> str:
    """What `dtlab review` shows so many days from now, to a learner who types this."""
    told: list[object] = []
    review(replies(*typed), told.append, most=most, now=NOW + timedelta(days=days))
    return "\n".join(map(str, told))


def guesses_due(days: float) -> list[str]:
    due = due_cards(NOW + timedelta(days=days))
    return [card.answer for card in due if card.source.startswith("a guess")]


def test_a_guess_that_was_far_off_returns_on_the_next_day() -> None:
    guessed(10, 48)
    assert not guesses_due(0.5)
    assert guesses_due(1.1) == ["48 MB"]
    (card,) = (card for card in due_cards(NOW + timedelta(days=2)) if "guess" in card.source)
    assert card.source == "a guess in lesson 02"


@pytest.mark.parametrize(("value", "answer"), [(48, 48), (30, 48), (95, 48), (0, 0)])
def test_a_guess_within_a_factor_of_two_does_not_return(value: float, answer: float) -> None:
    guessed(value, answer)
    assert not guesses_due(9)


def test_a_wrong_option_returns_with_the_options() -> None:
    guessed("ring", "tree", options=("ring", "tree"))
    shown = asked_in(2, "", "y", "q")
    assert "How many MB?\n(ring / tree)" in shown
    assert "\ntree\n" in shown


def test_a_guess_is_stored_once() -> None:
    guessed(10, 48)
    guessed(11, 48)
    assert guesses_due(2) == ["48 MB"]


def test_what_was_known_returns_later_each_time_and_what_was_not_soon() -> None:
    guessed(10, 48)
    asked_in(2, *["", "yes"] * 6)  # this guess, and the self-check of its lesson
    assert not guesses_due(3)
    assert guesses_due(4.1)
    asked_in(4.1, *["", "y"] * 6)
    assert not guesses_due(12)
    assert guesses_due(16)
    asked_in(16, *["", "n"] * 6)
    assert guesses_due(20)


def test_the_self_check_of_a_lesson_returns_once_the_lesson_is_begun() -> None:
    assert not due_cards(NOW + timedelta(days=9))
    guessed(48, 48)
    cards = due_cards(NOW + timedelta(days=2))
    assert [card.source for card in cards] == [f"lesson 02, self-check {n}" for n in range(1, 6)]
    assert all(card.question and card.answer and "\n" not in card.question for card in cards)


def test_a_practice_task_begins_a_lesson_too() -> None:
    record("practice/my_rows", 1, 1)
    assert {card.source[:9] for card in due_cards(NOW)} == {"lesson 00"}


def test_a_mistake_in_two_parts_returns() -> None:
    record_mistakes("02/fix", ["the sum, not the mean."])
    assert not due_cards(NOW)
    record_mistakes("05/gather", ["the sum, not the mean."])
    shown = asked_in(0, "", "y")
    assert "In 02/fix and in 05/gather you made the same mistake: the sum, not the mean." in shown


def test_it_stops_at_q_and_keeps_what_was_answered() -> None:
    guessed(48, 48)
    shown = asked_in(2, "", "maybe", "y", "", "q")
    assert "1 of 5" in shown
    assert "2 of 5" in shown
    assert "3 of 5" not in shown
    assert "Stopped. The answers before this question are kept." in shown
    assert len(due_cards(NOW + timedelta(days=2))) == 4


def test_most_limits_a_sitting_and_the_rest_stays_due() -> None:
    guessed(48, 48)
    assert "Still due: 3 questions." in asked_in(2, "", "y", "", "y", most=2)
    assert "Done for today. The next question comes in 2 days." in asked_in(2, *["", "y"] * 3)
    assert "Nothing is due today. The next question comes in 2 days." in asked_in(2)


def test_the_command_and_progress_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    guessed(48, 48)
    assert main(["review"]) == 0
    assert "Nothing is due today. The next question comes in 1 day." in capsys.readouterr().out
    assert main(["progress"]) == 0
    assert "dtlab review" not in capsys.readouterr().out
    record_mistakes("02/fix", ["twice."])
    record_mistakes("05/gather", ["twice."])
    assert main(["progress"]) == 0
    assert "Due for review: 1 question   dtlab review" in capsys.readouterr().out
    assert main(["review", "--most", "0"]) == 1
    assert "--most 0 must be at least 1" in capsys.readouterr().err

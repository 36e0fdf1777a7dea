"""The ten questions of lesson 00, and the advice that follows from the answers."""

from __future__ import annotations

import pytest

from dtlab.units.unit00.lesson.preflight import QUESTIONS, preflight


def test_there_are_ten_questions_with_one_right_option_each() -> None:
    assert len(QUESTIONS) == 10
    for asked in QUESTIONS:
        assert asked.options.count(asked.right) == 1
        assert len(set(asked.options)) == len(asked.options) >= 3


def test_the_advice_lists_what_to_read_in_the_order_of_the_course() -> None:
    asked = preflight()
    assert asked.advice.startswith("Answer some")
    asked.answer(7, "activations")
    asked.answer(1, "new weights")
    asked.answer(2, "I am not sure")
    asked.answer(5, "all of them")
    lines_of = asked.advice.splitlines()
    assert lines_of[0].startswith("1 of 4 answered as this course would. Read first")
    reads = [line.strip() for line in lines_of[1:] if not line.startswith("    ")]
    assert reads == [QUESTIONS[0].read, QUESTIONS[6].read]
    assert sum("question 2:" in line for line in lines_of) == 1


def test_all_answers_right_gives_nothing_to_read() -> None:
    asked = preflight()
    for number, one in enumerate(QUESTIONS, 1):
        asked.answer(number, one.right)
    assert "Read first" not in asked.advice
    assert "10 of 10" in asked.advice


def test_an_answer_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="none of: new weights"):
        preflight().answer(1, "42")
    with pytest.raises(ValueError, match="questions 1 to 10"):
        preflight().answer(0, "42")


def test_the_form_has_a_named_field_for_each_question_and_tells_the_advice() -> None:
    import ipywidgets

    asked = preflight()
    form = asked._form()
    fields = [each for each in form.children if isinstance(each, ipywidgets.Dropdown)]
    assert [each.description for each in fields] == [f"Question {n}" for n in range(1, 11)]
    fields[3].value = "14 GB"
    assert asked.answers == {4: "14 GB"}
    assert "this lesson" in form.children[-1].value
    bundle = asked._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"].count("\n") == 9

"""`dtlab.guess`: its question, the values that it understands, and its words for a distance."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import dtlab
from dtlab.show import Guess, guess
from dtlab.show.guess import calibration, distance_words
from dtlab.show.guess_form import form

LESSONS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def told(made: Guess, capsys: pytest.CaptureFixture[str], *answer: Any) -> str:
    """What `reveal` prints."""
    capsys.readouterr()
    made.reveal(*answer)
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("guessed", "actual", "words"),
    [
        (24, 24, ""),
        (24, 24.0000000004, ""),
        (23.99, 23.9913, ""),  # four digits of a number that is not whole
        (1110, 1111, "close, less than 1 % too low"),  # all digits of one that is
        (23, 24, "close, 4 % too low"),
        (26.4, 24, "close, 10 % too high"),
        (27, 24, "12 % too high"),
        (18, 24, "25 % too low"),
        (13, 24, "46 % too low"),
        (12, 24, "yours is half of it"),
        (48, 24, "yours is twice as much"),
        (8, 24, "too low by a factor of 3"),
        (115, 24, "too high by a factor of 4.8"),
        (24_000, 24, "too high by a factor of 1000, so look at the unit"),
        (24e-6, 24, "too low by a factor of 1000000, so look at the unit"),
        (-24, 24, "the sign is wrong"),
        (-12, -24, "yours is half of it"),
        (4, 0, "off by 4"),
        (0, 2.5, "off by 2.5"),
        (0, 0, ""),
    ],
)
def test_words_for_a_distance(guessed: float, actual: float, words: str) -> None:
    assert distance_words(guessed, actual) == words


@pytest.mark.parametrize(
    ("guessed", "actual", "words"),
    [
        (20, 10.76, "9.2 points too high"),
        (9.76, 10.76, "1 point too low"),
        (4000, 12, "4000 points too high"),
        (10.76, 10.7612, ""),
    ],
)
def test_the_distance_of_percentages_is_in_points(
    guessed: float, actual: float, words: str
) -> None:
    assert distance_words(guessed, actual, "%") == words


def test_the_answer_is_printed_with_the_guess(capsys: pytest.CaptureFixture[str]) -> None:
    made = guess("How many MB does rank 0 send?", unit="MB", value=16)
    assert capsys.readouterr().out == "How many MB does rank 0 send? Your guess: 16 MB.\n"
    assert told(made, capsys, 48) == ("You guessed 16 MB; it is 48 MB: too low by a factor of 3.")
    assert told(made, capsys, 16.0, "Three times S.") == (
        "You guessed 16 MB, and that is right. Three times S."
    )


def test_a_run_without_a_guess_continues(capsys: pytest.CaptureFixture[str]) -> None:
    made = guess("How many?", unit="MB")
    assert capsys.readouterr().out == "Guess: How many?\n"
    assert made.value is None
    assert told(made, capsys, 24, "A ring.") == "No guess was made. It is 24 MB. A ring."


@pytest.mark.parametrize(
    ("low", "high", "tendency"),
    [(4, 4, ""), (2, 0, ""), (5, 3, ""), (4, 1, "low"), (0, 3, "high")],
)
def test_a_tendency_is_told_only_if_the_counts_clearly_differ(
    low: int, high: int, tendency: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made = [guess("How many?", value=value) for value in [1] * low + [5] + [25] * high]
    for each in made:
        each.reveal(5)
    monkeypatch.setitem(calibration.__globals__, "kernel_variables", lambda: made)
    capsys.readouterr()
    calibration()
    out = capsys.readouterr().out
    assert (f"You tend to guess too {tendency}." if tendency else "") in out
    assert ("You tend" in out) == bool(tendency)


def test_choices(capsys: pytest.CaptureFixture[str]) -> None:
    made = guess("Which is faster?", options=["ring", "server"])
    assert capsys.readouterr().out == "Guess: Which is faster? (ring / server)\n"
    assert told(made, capsys, "ring") == "No guess was made. It is “ring”."
    made.commit("server")
    assert told(made, capsys, "ring") == "You chose “server”; it is “ring”."
    assert told(made, capsys, "server") == "You chose “server”, and that is right."
    with pytest.raises(ValueError, match="'tree' is none of the options: “ring”, “server”"):
        made.reveal("tree")
    with pytest.raises(ValueError, match="'tree' is none of the options"):
        guess("Which?", options=["ring", "server"], value="tree")
    with pytest.raises(ValueError, match="at least two"):
        guess("Which?", options=["ring"])


@pytest.mark.parametrize(
    ("typed", "value"),
    [("12", 12), ("12 MB", 12), (" 12MB ", 12), ("4e6", 4e6), ("-0.5", -0.5), (7, 7), (1.5, 1.5)],
)
def test_numbers_are_kept_as_they_were_typed(typed: Any, value: float) -> None:
    kept = guess("How many?", unit="MB", value=typed).value
    assert kept == value
    assert type(kept) is type(value)


@pytest.mark.parametrize("typed", ["", "twelve", "12 kg", "1,5", "nan", "inf"])
def test_what_is_no_number_is_refused_and_leaves_no_guess(typed: str) -> None:
    made = guess("How many?", unit="MB")
    made.commit(5)
    with pytest.raises(ValueError, match="is not a number in MB. Use digits and a point"):
        made.commit(typed)
    assert made.value is None


@pytest.mark.parametrize(
    ("unit", "typed", "value"),
    [("GB/s", "400 Gb/s", 50), ("MB", "250 kB", 0.25), ("MB", "2 GB", 2000), ("B", "1 kB", 1000)],
)
def test_a_number_in_another_unit_is_converted(unit: str, typed: str, value: float) -> None:
    made = guess("How many?", unit=unit)
    made.commit(typed)
    assert made.value == pytest.approx(value)


@pytest.mark.parametrize("answer", ["ring", None, float("nan")])
def test_an_answer_that_is_no_number_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="the answer must be a number, not"):
        guess("How many?", value=3).reveal(answer)


def test_a_script_has_no_guess_from_an_earlier_call() -> None:
    first = dtlab.guess("How many?")
    first.commit(3)
    assert repr(first) == "<How many? 3>"
    assert repr(dtlab.guess("How many?")) == "<How many? no guess yet>"


@pytest.mark.proof
@pytest.mark.slow
def test_a_cell_that_runs_again_keeps_the_guess_made_in_it() -> None:
    ask = "import dtlab\nsent = dtlab.guess('How many?', unit='MB')"
    cells = [
        ask,
        "other = dtlab.guess('How much?', unit='MB'); other.commit(9)\nsent.commit(12)",
        ask,
        "print(sent.value, sent.revealed); sent.reveal(24)",
        ask,
        "print(sent.value, sent.revealed)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    before, after = notebook.cells[3].outputs[0].text, notebook.cells[5].outputs[0].text
    assert (before, after) == ("12 False\n", "12 True\n")


# ------------------------------------------------------------------------------- the lessons


def lesson_cells(path: Path) -> list[ast.Module]:
    cells = nbformat.read(path, as_version=4).cells
    return [ast.parse(cell.source) for cell in cells if cell.cell_type == "code"]


def guesses(cell: ast.Module) -> list[str]:
    """The names that get a guess in this cell."""
    return [
        node.targets[0].id
        for node in ast.walk(cell)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value).startswith("dtlab.guess(")
    ]


def reveals(cell: ast.Module) -> dict[str, ast.Call]:
    """The calls of `reveal` in this cell, by the name of their guess."""
    calls = (node for node in ast.walk(cell) if isinstance(node, ast.Call))
    named = (call for call in calls if isinstance(call.func, ast.Attribute))
    return {ast.unparse(call.func.value): call for call in named if call.func.attr == "reveal"}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_answer_to_a_guess_comes_in_a_later_cell_and_is_computed_there(path: Path) -> None:
    """An answer that can be read below the question is no answer to a guess."""
    asked: set[str] = set()
    for cell in lesson_cells(path):
        answers = reveals(cell)
        assert answers.keys() <= asked
        for name, call in answers.items():
            known = [node for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)]
            assert known, f"{name}.reveal({ast.unparse(call.args[0])}) can be read without a run"
            asked.remove(name)
        asked.update(guesses(cell))
    assert not asked


# ---------------------------------------------------------------------------------- the form


def parts(box: Any) -> tuple[list[Any], Any]:
    """The controls of a form, and the line that says what was understood."""
    question, row, status = box.children
    assert "How many?" in question.value
    return list(row.children), status


def test_a_number_is_committed_from_the_field_and_by_the_button() -> None:
    made = Guess("How many?", "MB", None)
    (field, unit, button), status = parts(form(made))
    assert unit.value == "MB"
    assert field.continuous_update is False  # so that Enter commits, and not each key
    field.value = "twelve"
    assert made.value is None
    assert "&#x27;twelve&#x27; is not a number in MB" in status.value
    field.value = "12"
    assert made.value == 12
    assert "Your guess is 12 MB. The next cell shows the answer." in status.value
    field.value = "13"
    button.click()
    assert made.value == 13


def test_a_choice_is_committed_by_its_button() -> None:
    made = Guess("How many?", "", ["one", "many"])
    buttons, status = parts(form(made))
    assert [button.description for button in buttons] == ["one", "many"]
    buttons[0].click()
    buttons[1].click()
    assert made.value == "many"
    assert [button.icon for button in buttons] == ["", "check"]
    assert "Your guess is “many”" in status.value


def test_a_form_shown_again_has_the_guess_and_accepts_another_until_the_answer() -> None:
    made = Guess("How many?", "MB", None)
    made.commit(12)
    (field, _, _), status = parts(form(made))
    assert (field.value, field.disabled) == ("12", False)
    assert "Your guess is 12 MB. The next cell" in status.value
    field.value = "13"
    assert made.value == 13
    made.reveal(24)
    (field, _, button), status = parts(form(made))
    assert (field.value, field.disabled, button.disabled) == ("13", True, True)
    assert "Click" not in status.value


def test_a_choice_shown_again_is_marked() -> None:
    made = Guess("How many?", "", ["one", "many"])
    made.commit("many")
    buttons, _ = parts(form(made))
    assert [button.icon for button in buttons] == ["", "check"]


def test_after_the_answer_a_guess_stays_as_it_is() -> None:
    made = Guess("How many?", "", None)
    controls, _ = parts(form(made))
    made.reveal(5)
    assert not any(control.disabled for control in controls if hasattr(control, "disabled"))
    controls[0].value = "4"
    made.reveal(5)
    assert all(control.disabled for control in controls if hasattr(control, "disabled"))


def test_a_form_has_the_colours_of_the_page() -> None:
    import ipywidgets

    made = Guess("How many?", "MB", None)
    (field, unit, button), status = parts(form(made))
    field.value = "3"
    assert "color" not in status.value
    assert "background" not in status.value
    assert isinstance(unit, ipywidgets.Label)
    assert button.style.button_color is None


@pytest.mark.proof
@pytest.mark.slow
def test_without_a_front_end_no_cell_waits_for_a_guess() -> None:
    cells = [
        "import dtlab\nsent = dtlab.guess('How many?', unit='MB')",
        "print('continues')\nsent.reveal(24, 'A ring.')",
        "sent.commit('12')\nsent.reveal(24)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (kept, asked), (_, answer), (later,) = (cell.outputs for cell in notebook.cells)
    assert kept.data["text/plain"] == "Guess: How many? Your guess: 12 MB."  # what it held last
    assert asked.data["text/plain"] == "Guess: How many?"
    assert "application/vnd.jupyter.widget-view+json" in asked.data
    assert answer.data["text/plain"] == "No guess was made. It is 24 MB. A ring."
    assert "<b>No guess was made. It is 24 MB.</b> A ring." in answer.data["text/html"]
    assert "background" not in answer.data["text/html"]
    assert "color:inherit" in answer.data["text/html"]
    assert later.data["text/plain"] == "You guessed 12 MB; it is 24 MB: yours is half of it."


@pytest.mark.slow
def test_with_a_front_end_the_answer_waits_for_the_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "lesson.ipynb")
    cells = [
        "import dtlab\nsent = dtlab.guess('How many?', unit='MB')\n"
        "kind = dtlab.guess('Which?', options=['ring', 'tree'])\n"
        "idle = dtlab.guess('How many are idle?')",
        "print('24 MB')\nsent.reveal(24, 'A ring.')",
        "kind.reveal('ring', {'tree': 'A tree sends more.', 'ring': 'Each rank sends alike.'})",
        "sent.commit('12')",
        "kind.commit('tree')\nidle.commit('3')\nidle.reveal(0)",
        "dtlab.calibration()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    remark, printed, kept, form = notebook.cells[1].outputs
    assert remark.data == {"text/html": "", "text/plain": ""}  # nothing is hidden any more
    assert printed.text == "24 MB\n"
    assert form.data["text/plain"] == "Predict first: How many?"  # this is all before the guess
    assert kept.data["text/plain"] == (
        "You guessed 12 MB; it is 24 MB: yours is half of it. A ring."
    )
    chosen = notebook.cells[2].outputs[1].data["text/plain"]
    assert chosen == "You chose “tree”; it is “ring”. A tree sends more."
    summary = notebook.cells[5].outputs[0].data["text/plain"]
    assert "You made 3 of 3 predictions." in summary
    assert "Not compared: 1 prediction whose answer was 0." in summary
    assert "within a factor of 2  # 1" in summary
    assert "You were right in 0 of 1 choice." in summary

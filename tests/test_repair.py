"""After any edit of the cells, the repaired notebook is sound and keeps its points."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.preprocessors import SaveCells
from nbgrader.utils import compute_checksum

from dtlab.classroom.repair.repaired import repair
from tests.handed_in import (
    LEVEL_2,
    PARTS,
    RELEASED,
    UNIT,
    Tree,
    answer,
    at,
    code,
    data,
    demand_sound,
    earned,
    markdown,
    mine,
    place,
    tree,
    work,
)

Sanitize = Callable[[NotebookNode], NotebookNode]

FIRST, SECOND, THIRD, FOURTH = PARTS
CHECK = f"{FIRST}-check"

# What learners do to cells --------------------------------------------------------------------


def without(*names: str) -> Callable[[Tree], None]:
    def change(notebook: Tree) -> None:
        notebook["cells"] = [one for one in notebook["cells"] if one.get("id") not in names]

    return change


def set_marks(name: str, **marks: object) -> Callable[[Tree], None]:
    return lambda notebook: at(notebook, name)["metadata"]["nbgrader"].update(marks)


def set_fields(name: str, **fields: object) -> Callable[[Tree], None]:
    return lambda notebook: at(notebook, name).update(fields)


def moved(name: str, to: int) -> Callable[[Tree], None]:
    def change(notebook: Tree) -> None:
        notebook["cells"].insert(to, notebook["cells"].pop(place(notebook, name)))

    return change


def again(name: str, to: int, source: str | None = None) -> Callable[[Tree], None]:
    """A copy as Jupyter pastes it: with nbgrader's metadata, and a new id."""

    def change(notebook: Tree) -> None:
        twin = copy.deepcopy(at(notebook, name)) | {"id": "pasted"}
        twin["source"] = twin["source"] if source is None else source
        notebook["cells"].insert(to, twin)

    return change


def exchanged(one: str, other: str, *keys: str) -> Callable[[Tree], None]:
    def change(notebook: Tree) -> None:
        first, second = at(notebook, one), at(notebook, other)
        for key in keys:
            first[key], second[key] = second[key], first[key]

    return change


def split(notebook: Tree) -> None:
    at(notebook, FIRST)["source"] = "def helper():  # mine\n    pass"
    notebook["cells"].insert(place(notebook, FIRST) + 1, code(answer(FIRST), "second-half"))


def merged_with_the_next(notebook: Tree) -> None:
    at(notebook, FIRST)["source"] += "\n\n" + answer(SECOND)
    without(SECOND)(notebook)


def merged_into_its_check(notebook: Tree) -> None:
    check = at(notebook, CHECK)
    check["source"] = answer(FIRST) + "\n\n" + "".join(check["source"])
    without(FIRST)(notebook)


def written_into_its_check(notebook: Tree) -> None:
    at(notebook, CHECK)["source"][:0] = [answer(FIRST), "\n"]
    at(notebook, FIRST)["source"] = at(tree(LEVEL_2), FIRST)["source"]


def both(*changes: Callable[[Tree], None]) -> Callable[[Tree], None]:
    def change(notebook: Tree) -> None:
        for one in changes:
            one(notebook)

    return change


def nameless(*names: str) -> Callable[[Tree], None]:
    """Cells that have lost metadata and id, as other editors leave them."""

    def change(notebook: Tree) -> None:
        for name in names:
            cell = at(notebook, name)
            cell["metadata"] = {}
            del cell["id"]

    return change


HACK = "dtlab.check = lambda *_: 1000"
DEEP: Any = 1
for _ in range(100):
    DEEP = [DEEP]
EARLIER = f"The cell '{FIRST}' went missing"
LOST = f"The cell '{CHECK}' went missing; the released version was inserted."
OTHER = f"The cell '{CHECK}' had another text; the released one counts."
MARKS = f"The cell '{CHECK}' had another name, kind, points or lock; the released ones count."
OWN_MARKS = MARKS.replace(CHECK, FIRST)
NAMED = f"The cell '{FIRST}' lacked a name for grading"
ABOVE = f"The cell '{CHECK}' stood above the answer, and was moved below it."
TWICE = f"The cell '{FIRST}' occurred more than once; the last one that is filled in counts."

ALL = PARTS
BUT_FIRST = PARTS[1:]

CASES: dict[str, tuple[Callable[[Tree], None], str, tuple[str, ...]]] = {
    "graded cell deleted": (without(CHECK), LOST, ALL),
    "graded cell doubled": (again(CHECK, 3), f"The cell '{CHECK}' occurred more than", ALL),
    "graded cell edited": (set_fields(CHECK, source=HACK), OTHER, ALL),
    "graded cell moved up": (moved(CHECK, 0), ABOVE, ALL),
    "graded cell moved down": (moved(CHECK, -1), "", ALL),
    "points raised": (set_marks(CHECK, points=1000), MARKS, ALL),
    "points that are none": (set_marks(CHECK, points="many"), MARKS, ALL),
    "graded cell unlocked": (set_marks(CHECK, locked=False), MARKS, ALL),
    "graded cell as a solution": (set_marks(CHECK, solution=True), MARKS, ALL),
    "old schema": (set_marks(CHECK, schema_version=1), MARKS, ALL),
    "graded cell renamed": (set_marks(CHECK, grade_id="x"), MARKS, ALL),
    "graded cell unknown to all": (
        both(set_marks(CHECK, grade_id="x"), set_fields(CHECK, id="x")),
        MARKS,
        ALL,
    ),
    "graded cell as text": (set_fields(CHECK, cell_type="markdown"), MARKS, ALL),
    "checks exchange names": (
        exchanged(CHECK, f"{SECOND}-check", "metadata", "id"), "had another name", ALL,
    ),
    "answers exchange names": (exchanged(FIRST, SECOND, "metadata", "id"), ABOVE, ALL),
    "answers exchange names, and no check": (
        both(exchanged(FIRST, SECOND, "metadata", "id"), without(CHECK, f"{SECOND}-check")),
        "went missing", ALL,
    ),
    "answer and check exchange names": (exchanged(FIRST, CHECK, "metadata", "id"), NAMED, ALL),
    "answer and other check exchange": (
        exchanged(FIRST, f"{SECOND}-check", "metadata", "id"), NAMED, ALL,
    ),
    "answer deleted": (without(FIRST), EARLIER, BUT_FIRST),
    "answer and check deleted": (
        without(FIRST, CHECK), f"The cells '{FIRST}' and '{CHECK}' went missing", BUT_FIRST,
    ),
    "answer of another kind": (set_fields(FIRST, cell_type="markdown"), OWN_MARKS, ALL),
    "answer flagged as graded": (set_marks(FIRST, grade=True, points=9), OWN_MARKS, ALL),
    "answer moved down": (moved(FIRST, 99), ABOVE, ALL),
    "answer moved down, no check": (both(moved(FIRST, 99), without(CHECK)), LOST, ALL),
    "answer again, and better": (
        both(set_fields(FIRST, source=answer(FIRST, "0")), again(FIRST, 99, answer(FIRST))),
        TWICE, ALL,
    ),
    "answer again, but empty": (
        again(FIRST, 99, "".join(at(tree(LEVEL_2), FIRST)["source"])), TWICE, ALL,
    ),
    "answer split": (split, "", ALL),
    "answer split, no check": (both(split, without(CHECK)), LOST, ALL),
    "answers merged": (merged_with_the_next, f"The cell '{SECOND}' went missing", ALL),
    "answer merged into its check": (merged_into_its_check, NAMED, ALL),
    "answer written into its check": (written_into_its_check, NAMED, ALL),
    "answer without metadata": (set_fields(FIRST, metadata={}), OWN_MARKS, ALL),
    "answer without id": (
        lambda notebook: at(notebook, FIRST).pop("id"), "One cell had no id", ALL,
    ),
    "answer with another id": (set_fields(FIRST, id="mine"), OWN_MARKS, ALL),
    "answer without any name": (nameless(FIRST), NAMED, ALL),
    "answer without any name, no check": (both(nameless(FIRST), without(CHECK)), NAMED, ALL),
    "nothing has a name": (
        nameless(*PARTS, *(f"{part}-check" for part in PARTS)), "lacked a name for grading", ALL,
    ),
    "kind unknown": (set_fields("own-0", cell_type="sql"), "One cell had a kind that", ALL),
    "kind a list": (set_fields(FIRST, cell_type=["code"]), "One cell had a kind that", ALL),
    "source a number": (set_fields(FIRST, source=5), "One cell had no text", BUT_FIRST),
    "source a dict": (set_fields(FIRST, source={"a": "b"}), "had no text", BUT_FIRST),
    "source of numbers": (set_fields(CHECK, source=[1, 2]), LOST, ALL),
    "no source": (lambda notebook: at(notebook, CHECK).pop("source"), LOST, ALL),
    "cell a number": (lambda notebook: notebook["cells"].insert(4, 7), "had no text", ALL),
    "metadata a list": (set_fields(FIRST, metadata=[1]), "invalid metadata", ALL),
    "metadata null": (set_fields(CHECK, metadata=None), "invalid metadata", ALL),
    "metadata deep": (
        lambda notebook: at(notebook, FIRST)["metadata"].update(x=DEEP), "invalid metadata", ALL,
    ),
    "metadata not of notebooks": (
        lambda notebook: at(notebook, FIRST)["metadata"].update(tags=5), "invalid metadata", ALL,
    ),
    "metadata that cannot be written": (
        lambda notebook: at(notebook, FIRST)["metadata"].update(x="\ud800", y=float("nan")),
        "invalid metadata", ALL,
    ),
    "nbgrader's metadata a list": (set_fields(FIRST, metadata={"nbgrader": [1]}), OWN_MARKS, ALL),
    "attachments that are none": (
        set_fields("notes", attachments=[1]), "One cell had attachments", ALL,
    ),
    "fields unknown": (set_fields(FIRST, colour="red"), "One cell had fields", ALL),
    "id twice": (set_fields("own-1", id="own-0"), "One cell had an id that another", ALL),
    "id of an answer": (set_fields("own-1", id=SECOND), "One cell had an id that another", ALL),
    "id of a check": (set_fields("own-1", id=CHECK), "One cell had an id that another", ALL),
    "id that is none": (set_fields("own-1", id="a b"), "One cell had no id", ALL),
    "role of another assignment": (
        set_fields("own-1", metadata={"nbgrader": {"grade": True, "grade_id": "x"}}),
        "One cell had a role that", ALL,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sanitize]:
    """What nbgrader makes of a submission before it runs it, with a real gradebook."""
    url = f"sqlite:///{tmp_path_factory.mktemp('gradebook')}/gradebook.db"
    about = {"notebook": "level-2", "assignment": "01", "student": "ada", "db_url": url}

    def run(notebook: NotebookNode) -> NotebookNode:
        result = copy.deepcopy(notebook)
        for step in Autograde.sanitize_preprocessors.default():
            result, _ = step().preprocess(result, {"nbgrader": about})
        return result

    with pytest.MonkeyPatch.context() as patch:  # nbgrader calls alembic
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        with Gradebook(url, "dtlab") as book:
            book.add_assignment("01")
        SaveCells().preprocess(copy.deepcopy(LEVEL_2), {"nbgrader": about})
        yield run


@pytest.mark.proof
@pytest.mark.sample(20)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_point_and_no_line_is_lost(case: str, sanitized: Sanitize) -> None:
    change, words, parts = CASES[case]
    notebook = work()
    change(notebook)
    repaired = repair(data(notebook), LEVEL_2)
    demand_sound(repaired)
    assert repaired.readable
    assert earned(repaired.notebook) == parts
    assert words in "\n".join(repaired.notes) if words else repaired.notes == ()
    assert mine(repaired.notebook.cells) == mine(notebook["cells"])
    assert HACK not in [one.source for one in repaired.notebook.cells]
    assert sanitized(repaired.notebook) == repaired.notebook


# Where cells go -------------------------------------------------------------------------------


def ids(notebook: Tree, *changes: Callable[[Tree], None]) -> list[str]:
    for change in changes:
        change(notebook)
    return [one.id for one in repair(data(notebook), LEVEL_2).notebook.cells]


def test_a_restored_check_is_placed_after_its_answer() -> None:
    names = ids(work(), without(CHECK))
    assert names[names.index(FIRST) + 1] == CHECK


def test_a_check_stays_where_the_learner_has_it() -> None:
    names = ids(work(), again(CHECK, -1), moved(CHECK, 12))
    assert names.index(CHECK) == 12
    assert names.count(CHECK) == 1


def test_a_check_is_never_placed_above_its_answer() -> None:
    names = ids(work(), moved(CHECK, 0), moved(FIRST, 20))
    assert names[names.index(FIRST) + 1] == CHECK


def test_a_restored_answer_is_in_its_old_place_above_its_check() -> None:
    names = ids(work(), without(FIRST))
    assert names[names.index(f"{FIRST}-hints") + 1] == FIRST
    names = ids(work(), without(FIRST), moved(CHECK, 0))
    assert names[:2] == [FIRST, CHECK]


def test_an_answer_restored_with_its_check_is_placed_at_the_end() -> None:
    lost = [THIRD, f"{THIRD}-check", FIRST, CHECK]
    assert ids(work(), without(*lost))[-4:] == [FIRST, CHECK, THIRD, f"{THIRD}-check"]


def test_an_empty_answer_never_follows_what_defines_it() -> None:
    names = ids(work(), merged_with_the_next)
    assert names.index(SECOND) < names.index(FIRST) < names.index(f"{SECOND}-check")


# Notebooks with other roles -------------------------------------------------------------------


def role(name: str, **marks: object) -> dict[str, dict[str, object]]:
    roles = {"grade": False, "solution": False, "locked": False, "task": False}
    return {"nbgrader": roles | {"grade_id": name, "schema_version": 3} | marks}


ESSAY = new_notebook(
    metadata=LEVEL_2.metadata,
    cells=[
        new_code_cell("def given(): ...", id="given", metadata=role("given", locked=True)),
        new_markdown_cell(
            "Write.", id="essay", metadata=role("essay", grade=True, solution=True, points=5)
        ),
        new_code_cell(
            "# Draw.", id="figure", metadata=role("figure", grade=True, solution=True, points=3)
        ),
        new_markdown_cell("Do.", id="do", metadata=role("do", task=True, locked=True, points=2)),
    ],
)


def essay(**sources: str) -> Tree:
    notebook = tree(ESSAY)
    for name, source in sources.items():
        at(notebook, name)["source"] = source
    return notebook


def texts(notebook: Tree) -> list[str]:
    repaired = repair(data(notebook), ESSAY)
    demand_sound(repaired, ESSAY)
    return [f"{one.id}: {one.source}" for one in repaired.notebook.cells]


def test_hand_graded_cells_keep_their_text_and_points() -> None:
    notebook = essay(given="hack()", essay="I think.", figure="plot()", do="Done.")
    for name in ("given", "essay", "figure", "do"):
        set_marks(name, points=1000)(notebook)
    assert texts(notebook) == [
        "given: def given(): ...", "essay: I think.", "figure: plot()", "do: Done.",
    ]  # fmt: skip


def test_of_two_texts_the_last_one_that_is_written_counts() -> None:
    notebook = essay(essay="I think.")
    again("essay", 9, "Write.")(notebook)
    assert texts(notebook)[1] == "essay: I think."
    again("essay", 9, "I thought again.")(notebook)
    assert texts(notebook)[-1] == "essay: I thought again."
    assert texts(notebook)[1] == "cell-1: I think."


def test_given_and_hand_graded_cells_are_restored_in_their_places() -> None:
    notebook = essay(essay="I think.", do="Done.")
    without("given", "figure")(notebook)
    assert texts(notebook) == [
        "given: def given(): ...", "essay: I think.", "figure: # Draw.", "do: Done.",
    ]  # fmt: skip


# Sound notebooks ------------------------------------------------------------------------------


def saved(notebook: Tree) -> Tree:
    """The notebook as JupyterLab saves it once it was run."""
    notebook["metadata"]["language_info"]["version"] = "3.12.1"
    notebook["metadata"]["widgets"] = {"state": {"a": [{}] * 9}}
    for number, cell in enumerate(notebook["cells"]):
        cell["metadata"]["slideshow"] = {"slide_type": ""}
        if cell["cell_type"] == "code":
            cell["execution_count"] = number
            text = {"output_type": "stream", "name": "stdout", "text": ["Ünicode 🎲\n", "]}"]}
            cell["outputs"] = [text] * 3
    return notebook


@pytest.mark.parametrize("level", RELEASED)
def test_a_sound_notebook_stays_as_it_is(level: str) -> None:
    released = RELEASED[level]
    notebook = tree(released)
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = "# \u2028 Ünicode \x0c 🎲\n\n\tx = '''\n'''\n"
    notebook["cells"][3:3] = [code("mine()", "my-own"), markdown("", attachments={})]
    notebook["cells"] += [{"cell_type": "raw", "source": "", "metadata": {}, "id": "raw"}]
    repaired = repair(data(saved(copy.deepcopy(notebook))), released)
    demand_sound(repaired, released)
    assert repaired.notes == ()
    assert repaired.readable
    for before, after in zip(notebook["cells"], repaired.notebook.cells, strict=True):
        before["source"] = "".join(before["source"])
        if not before["metadata"].get("nbgrader", {}).get("locked"):
            assert after.metadata.pop("slideshow") == {"slide_type": ""}
        assert after == before


def test_pictures_stay() -> None:
    notebook = work()
    at(notebook, "notes")["attachments"] = {"a.png": {"image/png": "aGVsbG8="}}
    repaired = repair(data(notebook), LEVEL_2)
    assert repaired.notes == ()
    assert at(repaired.notebook, "notes").attachments == {"a.png": {"image/png": "aGVsbG8="}}


def test_the_stamp_of_dtlab_stays() -> None:
    notebook = work()
    notebook["metadata"]["dtlab"] = {"release": "0123"}
    repaired = repair(data(notebook), LEVEL_2)
    assert repaired.notes == ()
    assert repaired.notebook.metadata.dtlab == {"release": "0123"}
    notebook["metadata"]["dtlab"] = {"release": DEEP}
    assert "dtlab" not in repair(data(notebook), LEVEL_2).notebook.metadata


def test_what_was_handed_out_is_not_touched() -> None:
    before = copy.deepcopy(LEVEL_2)
    for submitted in (None, data(work()), data({"cells": [markdown("x")]})):
        repaired = repair(submitted, LEVEL_2)
        for cell in repaired.notebook.cells:
            cell.metadata["changed"] = cell.source = "changed"
            cell.metadata.get("nbgrader", {})["points"] = 1000
        repaired.notebook.metadata.kernelspec.name = "changed"
    assert before == LEVEL_2


# Whatever else --------------------------------------------------------------------------------

NODES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["code", "markdown", "raw", "heading", "cells", FIRST, SECOND, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["cell_type", "source", "metadata", "nbgrader", "tags", "a"]), inner
    ),
    max_leaves=5,
)  # fmt: skip


def everywhere(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a tree, as its container and the key there."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from everywhere(node[key])


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """A notebook in which something was replaced, taken out, doubled or moved."""
    notebook = work()
    for _ in range(draw(st.integers(1, 6))):
        cells = [(notebook["cells"], number) for number in range(len(notebook["cells"]))]
        container, key = draw(st.sampled_from([*everywhere(notebook)]) | st.sampled_from(cells))
        what = draw(st.sampled_from(["replace", "remove", "double", "move"]))
        node = draw(NODES) if what == "replace" else copy.deepcopy(container[key])
        if what != "double":
            del container[key]
        if isinstance(container, list) and what != "remove":
            container.insert(draw(st.integers(0, 50)), node)
        elif what == "replace":
            container[key] = node
        if not isinstance(notebook.get("cells"), list) or not notebook["cells"]:
            break
    return notebook


@pytest.mark.proof
@pytest.mark.slow
@settings(max_examples=150)
@given(notebook=trees())
def test_no_tree_is_too_broken(notebook: Tree) -> None:
    repaired = repair(data(notebook), LEVEL_2)
    demand_sound(repaired)
    cells = notebook.get("cells")
    if isinstance(cells, list):
        left = iter(mine(repaired.notebook.cells))
        assert all(any(one.endswith(text) for one in left) for text in mine(cells))
        names = [one.get("id") for one in cells if isinstance(one, dict)]
        assert repaired.notes or [one.id for one in repaired.notebook.cells] == names


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """A level, and the bytes of a notebook of which some were cut out, doubled, or replaced."""
    level = draw(st.sampled_from([*RELEASED]))
    notebook = data(work() if level == "level-2" else tree(RELEASED[level]))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(notebook)))
        length = draw(st.integers(0, 30) | st.integers(0, len(notebook)))
        end = min(len(notebook), start + length)
        junk = draw(
            st.binary(max_size=10)
            | st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b'{"cell_type":'])
            | st.just(notebook[start:end] * 2)
        )
        notebook = notebook[:start] + junk + notebook[end:]
    return level, notebook


@pytest.mark.proof
@pytest.mark.slow
@settings(max_examples=150)
@given(submitted=files() | st.tuples(st.sampled_from([*RELEASED]), st.binary()))
def test_no_bytes_are_too_broken(submitted: tuple[str, bytes]) -> None:
    level, content = submitted
    demand_sound(repair(content, RELEASED[level]), RELEASED[level])


def test_other_points_in_a_later_release_are_no_change_of_the_learners() -> None:
    heavier = work()
    check = at(heavier, CHECK)
    check["source"] = f"{''.join(check['source'])[:-1]}, points=20)"
    check["metadata"]["nbgrader"] |= {"points": 20, "checksum": "another"}
    given_out = nbformat.reads(data(heavier), as_version=4)
    for handed_in, released in ((work(), given_out), (heavier, LEVEL_2)):
        repaired = repair(data(handed_in), released)
        assert repaired.notes == ()
        expected = next(cell for cell in released.cells if cell.id == CHECK)
        assert next(c for c in repaired.notebook.cells if c.id == CHECK).source == expected.source


# Blank copies, deleted imports, texts outside their cell -----------------------------------------

BLANK = "".join(at(tree(LEVEL_2), FIRST)["source"])
REMARKED = BLANK.replace("# YOUR CODE HERE", "# todo").replace('"""', '"""Hm. ', 1) + "\n\n"


def pasted(source: str, below: str = FIRST, **fields: object) -> Callable[[Tree], None]:
    """A new cell below another one."""

    def change(notebook: Tree) -> None:
        cell = code(source, "pasted") | fields
        notebook["cells"].insert(place(notebook, below) + 1, cell)

    return change


def answered_above(notebook: Tree) -> None:
    """The answer in a new cell above the cell for it, which is as released."""
    at(notebook, FIRST)["source"] = BLANK
    notebook["cells"].insert(place(notebook, FIRST), code(answer(FIRST), "own-answer"))


def answered_with_another(notebook: Tree) -> None:
    """Two answers in the first cell; the second cell is as released."""
    at(notebook, FIRST)["source"] += "\n\n" + answer(SECOND)
    at(notebook, SECOND)["source"] = at(tree(LEVEL_2), SECOND)["source"]


COPIED = "A blank copy of"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (again(FIRST, 9, BLANK), TWICE),
        (again(FIRST, 9, REMARKED), TWICE),
        (pasted(BLANK), COPIED),
        (pasted(REMARKED), COPIED),
        (pasted(BLANK, metadata={"tags": ["x"]}), COPIED),
        (both(pasted(BLANK), pasted(BLANK, id="again")), COPIED),
        (answered_above, "more than once"),
        (both(answered_above, pasted(BLANK)), "more than once"),
        (answered_with_another, f"'{SECOND}' was blank and stood below its answer"),
    ],
    ids=["with its name", "with remarks", "without name", "remarks only", "tagged", "two copies",
         "answer above", "answer above, and a copy", "both answers in one cell"],
)  # fmt: skip
def test_a_blank_below_an_answer_does_not_undo_it(
    change: Callable[[Tree], None], words: str
) -> None:
    notebook = work()
    change(notebook)
    repaired = repair(data(notebook), LEVEL_2)
    demand_sound(repaired)
    assert earned(repaired.notebook) == ALL
    assert words in "\n".join(repaired.notes)
    assert mine(repaired.notebook.cells) == mine(notebook["cells"])


def test_a_blank_that_is_the_only_answer_stays(tmp_path: Path) -> None:
    notebook = work()
    at(notebook, FIRST)["source"] = BLANK
    repaired = repair(data(notebook), LEVEL_2)
    assert repaired.notes == ()
    assert [cell.id for cell in repaired.notebook.cells if cell.source == BLANK] == [FIRST]


HELPERS = new_notebook(
    metadata={"kernelspec": LEVEL_2.metadata.kernelspec},
    cells=[
        new_markdown_cell("# Level", id="title"),
        new_code_cell("import torch\nfrom torch import nn", id="imports"),
        new_code_cell("SIZE = 8", id="sizes"),
        new_code_cell("def net():\n    return nn.Linear(SIZE, 1)", id="helper"),
        new_markdown_cell("## Part 1", id="text"),
        new_code_cell(
            "def answer(x):\n    raise NotImplementedError()", id="answer",
            metadata=role("answer", solution=True),
        ),
        new_code_cell("run = answer(1)  # try it", id="try"),
        new_code_cell(
            "check(answer)", id="answer-check",
            metadata=role("answer-check", grade=True, locked=True, points=1),
        ),
    ]
)  # fmt: skip
DEEP_ANSWER = "def answer(x):\n    return net()(x)"
TENSOR_ANSWER = "def answer(x):\n    return torch.zeros(x)"


def restored(source: str, *lost: str, **other: str) -> list[str]:
    """The ids in the repaired notebook, after cells were deleted and others changed."""
    notebook = tree(HELPERS)
    at(notebook, "answer")["source"] = source
    for name, text in other.items():
        at(notebook, name)["source"] = text
    without(*lost)(notebook)
    repaired = repair(data(notebook), HELPERS)
    demand_sound(repaired, HELPERS)
    return [*(cell.id for cell in repaired.notebook.cells), *repaired.notes]


def note(*names: str) -> str:
    quoted = [repr(name) for name in names]
    cells = f"cell {quoted[0]}" if len(quoted) == 1 else f"cells {quoted[0]} and {quoted[1]}"
    return f"The {cells} went missing, and other cells need it; the released version was restored."


def test_deleted_imports_and_helpers_are_restored_in_their_places() -> None:
    every = [cell.id for cell in HELPERS.cells]
    assert restored(DEEP_ANSWER, "imports") == [*every, note("imports")]
    assert restored(DEEP_ANSWER, "helper") == [*every, note("helper")]
    assert restored(DEEP_ANSWER, "imports", "sizes", "title")[:3] == ["imports", "sizes", "helper"]
    assert restored(DEEP_ANSWER, "sizes", "helper")[:4] == every[:4]  # one needs the other
    emptied = restored(DEEP_ANSWER, imports="# deleted")
    assert emptied[:3] == ["title", "imports-released", "imports"]


def test_a_cell_that_nothing_needs_stays_deleted() -> None:
    every = [cell.id for cell in HELPERS.cells]
    gone = restored(TENSOR_ANSWER, "sizes", "helper", "try")
    assert gone == [name for name in every if name not in ("sizes", "helper", "try")]
    own = "import torch\n\n\ndef answer(x):\n    run = x  # as in nn\n    return torch.zeros(run)"
    assert restored(own, "imports", "helper", "try") == [
        name for name in every if name not in ("imports", "helper", "try")
    ]
    local = "def answer(net, x):\n    for SIZE in x:\n        print('nn', f\"{SIZE} torch\")"
    assert restored(local, "imports", "sizes", "helper", "try") == [
        "title", "text", "answer", "answer-check"
    ]  # fmt: skip


def test_a_helper_that_the_learner_wrote_anew_counts() -> None:
    """The released helper is not restored too, but the imports that the new one needs are."""
    own_helper = "def net():\n    return nn.Identity()\n"
    names = restored(own_helper + DEEP_ANSWER, "imports", "helper")
    assert names == ["title", "imports", "sizes", "text", "answer", "try", "answer-check",
                     note("imports")]  # fmt: skip


LEVEL_5 = nbformat.read(UNIT.parent / "05_zero_and_fsdp" / "level-3.ipynb", as_version=4)
WRITTEN = "Stage 2, since optimizer states dominate.  # mine"


def by_hand(*changes: Callable[[Tree], None]) -> tuple[bool, tuple[str, ...]]:
    """Whether a person grades the defence, for nbgrader, and the notes."""
    notebook = tree(LEVEL_5)
    for change in changes:
        change(notebook)
    repaired = repair(data(notebook), LEVEL_5)
    demand_sound(repaired, LEVEL_5)
    cell = next(cell for cell in repaired.notebook.cells if cell.id == "defence")
    assert mine(repaired.notebook.cells) == mine(notebook["cells"])
    released = compute_checksum(next(cell for cell in LEVEL_5.cells if cell.id == "defence"))
    return compute_checksum(cell) != released, repaired.notes


def text_below(name: str, source: str = WRITTEN, **fields: object) -> Callable[[Tree], None]:
    def change(notebook: Tree) -> None:
        notebook["cells"].insert(place(notebook, name) + 1, markdown(source, **fields))

    return change


def typed_into(name: str) -> Callable[[Tree], None]:
    def change(notebook: Tree) -> None:
        cell = at(notebook, name)
        cell["source"] = "".join(cell["source"]) + "\n\n" + WRITTEN

    return change


def at_the_end(notebook: Tree) -> None:
    notebook["cells"].append(markdown(WRITTEN))


@pytest.mark.parametrize(
    "change",
    [
        text_below("defence"),
        text_below("defence-text"),
        text_below("defence-hints", cell_type="raw"),
        text_below("defence", f"# My plan\n\n{WRITTEN}"),
        text_below("defence", "![my notes](attachment:a.png)"),
        typed_into("defence-text"),
        typed_into("defence-hints"),
        pasted(f"# {WRITTEN}", "defence"),  # a comment, in a code cell
        at_the_end,
        both(without("defence", "defence-text", "defence-hints"), at_the_end),
    ],
    ids=["below", "above", "raw", "with a heading", "picture", "in the question", "in the hints",
         "comment", "at the end", "cells deleted"],
)  # fmt: skip
def test_a_text_outside_its_cell_is_graded_by_a_person(change: Callable[[Tree], None]) -> None:
    graded, notes = by_hand(change)
    assert graded
    assert "So a person grades this part." in notes[-1]


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        text_below("defence", "  \n"),
        text_below("title", "# Ada's notebook"),
        pasted("1 + 1", "learner"),
        without("defence-hints"),
        moved("defence-hints", -1),
    ],
    ids=["nothing", "spaces", "at the top", "in another part", "hints deleted", "hints moved"],
)
def test_without_a_text_no_person_needs_to_grade(change: Callable[[Tree], None]) -> None:
    graded, notes = by_hand(change)
    assert not graded
    assert not any("person" in note for note in notes)


def test_an_answer_in_its_cell_is_left_as_it_is() -> None:
    graded, notes = by_hand(typed_into("defence"), text_below("defence", "More."))
    assert graded
    assert notes == ()

"""Damaged notebooks and other files: what can be read is read, quickly and within bounds."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable

import pytest

from dtlab.classroom.repair.repaired import Repaired, repair
from tests.handed_in import (
    LEVEL_2,
    PARTS,
    RELEASED,
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
    work,
)

FIRST = PARTS[0]
ALL = len(LEVEL_2.cells) + 4  # with the learner's own


def repaired(submitted: bytes | None) -> Repaired:
    result = repair(submitted, LEVEL_2)
    demand_sound(result)
    return result


# Nothing to be had ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("submitted", "note"),
    [
        (None, "This notebook was not handed in."),
        (b"", "The file is empty."),
        (b"\xff\xfe \n\0", "The file is empty."),
        (bytes(10_000), "The file is empty."),
        (b"print('hello')\n", "The file is no notebook, or damaged: no cell of it could be read."),
        (b"%PDF-1.7\n%\xe2\xe3\n1 0 obj << {} >>", "The file is no notebook, or damaged"),
        (data(work())[:60], "The file is no notebook, or damaged"),
        (b"[" * 1_000_000, "The file is no notebook, or damaged"),
        (b'{"a":' * 1_000_000, "The file is no notebook, or damaged"),
        (b'{"cells":' * 1_000_000, "The file is no notebook, or damaged"),
        (b"[1, 2]", "The file is no notebook"),
        (b'"text"', "The file is no notebook"),
        (b'{"answer": 42}', "The file is JSON, but no notebook: it has no cells."),
        (b'{"cells": []}', "The notebook has no cells that could be used."),
        (b'{"cells": [1, {}, [{}], {"source": 5}]}', "The notebook has no cells that could"),
        (b'{"cells": {}}', "The file is no notebook, or damaged"),
    ],
)
def test_a_file_that_is_no_notebook_is_replaced_by_the_released_one(
    submitted: bytes | None, note: str
) -> None:
    result = repaired(submitted)
    assert not result.readable
    assert len(result.notes) == 1
    assert note in result.notes[0]
    assert result.notebook == LEVEL_2


def test_a_file_over_the_limit_is_not_read() -> None:
    result = repaired(b" " * 200_000_001)
    assert not result.readable
    assert "The file has 200 MB and was not read: the limit is 200 MB." in result.notes[0]


def test_another_assignment_is_named() -> None:
    result = repaired(data(RELEASED["level-3"]))
    assert result.readable
    assert result.notes == (
        "The notebook has no graded cell of this assignment: is it from another assignment?",
    )
    assert [one.id for one in result.notebook.cells if "nbgrader" in one.metadata] == [
        one.id for one in LEVEL_2.cells if "nbgrader" in one.metadata
    ]
    sources = [one.source for one in result.notebook.cells]
    assert sources[: len(RELEASED["level-3"].cells)] == [
        one.source for one in RELEASED["level-3"].cells
    ]


# Damaged --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_whole_cells_in_front_of_a_cut_are_saved() -> None:
    whole = data(work())
    before = 0
    for cut in [*range(0, len(whole), 997), len(whole) - 1]:
        result = repaired(whole[:cut])
        note, *_ = result.notes
        saved = int(note.split()[4].replace("one", "1")) if result.readable else 0
        assert note.startswith("The file is damaged" if saved else "The file is ")
        assert before <= saved <= ALL
        assert mine(result.notebook.cells) == mine(work()["cells"][:saved])
        before = saved
    assert before == ALL


def test_a_cut_file_earns_what_its_whole_cells_earn() -> None:
    notebook = work()
    whole = data(notebook)
    for number, part in enumerate(PARTS):
        cut = whole.index(f'"id": "{part}-check"'.encode())
        assert earned(repaired(whole[:cut]).notebook) == PARTS[: number + 1]


def test_a_cell_is_whole_once_its_source_is() -> None:
    whole = data(work())
    cut = whole.rindex(b"scratch_2 = 2  # mine")
    assert len(mine(repaired(whole[: cut + 21]).notebook.cells)) == len(PARTS) + 3
    fields = whole.rindex(b'"source"', 0, cut) - 1
    assert len(mine(repaired(whole[:fields]).notebook.cells)) == len(PARTS) + 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"source"', b'"source'),
        (b'"source"', b"source"),
        (b'"metadata": {', b'"metadata": '),
        (b'"outputs": []', b'"outputs": ['),
        (b'"outputs": []', b'"outputs": ]'),
        (b'"outputs": []', b'"outputs": [{"text": "\n]'),
    ],
)
def test_one_broken_cell_loses_no_other_cell(old: bytes, new: bytes) -> None:
    whole = data(work())
    start = whole.index(f'"id": "{FIRST}"'.encode())
    broken = whole[:start] + whole[start:].replace(old, new, 1)
    result = repaired(broken)
    assert set(PARTS[1:]) <= set(earned(result.notebook))
    assert len(mine(result.notebook.cells)) >= len(mine(work()["cells"])) - 1
    assert "The file is damaged" in result.notes[0]


def test_lost_imports_are_restored() -> None:
    whole = data(work())
    result = repaired(whole.replace(b'"import torch\\n"', b'"import torch\\n'))
    note = "The cell 'imports' could not be read; the released version was inserted."
    assert note in result.notes
    assert [one.id for one in result.notebook.cells][:3] == ["title", "imports", "rules"]
    notebook = work()
    del notebook["cells"][place(notebook, "imports")]
    result = repaired(data(notebook))
    assert [one.id for one in result.notebook.cells][:3] == ["title", "imports", "rules"]
    assert result.notes[0].startswith("The cell 'imports' went missing, and other cells need it")


@pytest.mark.parametrize("missing", [b",", b"\n"])
def test_signs_that_do_not_matter_may_be_missing(missing: bytes) -> None:
    result = repaired(data(work()).replace(b"," + b"\n", missing))
    assert earned(result.notebook) == PARTS
    assert mine(result.notebook.cells) == mine(work()["cells"])


def test_an_unresolved_merge_is_read() -> None:
    text = data(work()).decode()
    ours = f'   "execution_count": 3,\n   "metadata": {{}},\n   "id": "{FIRST}",\n'
    lines = f'<<<<<<< HEAD\n{ours}=======\n{ours.replace("3", "7")}>>>>>>> of: "them"\n'
    result = repaired(text.replace(f'   "id": "{FIRST}",\n', lines).encode())
    assert earned(result.notebook) == PARTS
    assert "unresolved merge conflicts" in result.notes[0]


def test_what_follows_the_notebook_is_left_out() -> None:
    old = work()
    at(old, FIRST)["source"] = answer(FIRST, "0")
    result = repaired(data(work()) + data(old)[2000:])
    assert earned(result.notebook) == PARTS
    assert result.notes == (
        "The file had other content after the end of the notebook; it was left out.",
    )


def test_a_notebook_in_a_wrapper_is_found() -> None:
    result = repaired(data({"type": "notebook", "content": work()}))
    assert earned(result.notebook) == PARTS
    assert result.readable


# Stored in another way ------------------------------------------------------------------------

TEXT = "Ünicode 🎲 \u2028"


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-8-sig", "UTF-8 with a byte order mark"),
        ("utf-16", "UTF-16"),
        ("utf-16-be", "UTF-16-BE"),
        ("utf-32", "UTF-32"),
    ],
)
def test_other_encodings_are_read(encoding: str, name: str) -> None:
    notebook = work()
    at(notebook, "notes")["source"] += TEXT
    result = repaired(data(notebook).decode().encode(encoding))
    assert result.notes == (f"The file was stored as {name}, and not as plain UTF-8.",)
    assert earned(result.notebook) == PARTS
    assert mine(result.notebook.cells) == mine(notebook["cells"])


def test_bytes_that_are_not_utf_8_are_read_as_windows_has_them() -> None:
    notebook = work()
    at(notebook, "notes")["source"] += "élan vital 🎲"
    result = repaired(data(notebook).replace("é".encode(), b"\xe9").replace(b" vital", b"\x80"))
    assert at(result.notebook, "notes").source == "My notes.  # mineélan€ 🎲"
    assert "bytes that are not valid UTF-8" in result.notes[0]


@pytest.mark.parametrize(
    ("inside", "source"),
    [("\\ud83c", "?"), ("\\ud83c\\udfb2", "🎲"), ("\\d", "\\d"), ("\\\\d", "\\d"), ("\t", "\t")],
)
def test_signs_that_json_does_not_have(inside: str, source: str) -> None:
    result = repaired(data(work()).replace(b"My notes.", inside.encode()))
    assert at(result.notebook, "notes").source == f"{source}  # mine"


@pytest.mark.parametrize("where", ["file", "source", "both"])
def test_line_ends_of_windows(where: str) -> None:
    text = data(work()).decode()
    text = text.replace("\n", "\r\n") if where != "source" else text
    text = text.replace("\\n", "\\r\\n") if where != "file" else text
    result = repaired(text.encode())
    assert earned(result.notebook) == PARTS
    assert result.notebook == repaired(data(work())).notebook
    assert bool(result.notes) == (where != "file")


@pytest.mark.parametrize("minor", range(5))
def test_older_minor_formats_have_no_ids(minor: int) -> None:
    notebook = work() | {"nbformat_minor": minor}
    for cell in notebook["cells"]:
        del cell["id"]
    result = repaired(data(notebook))
    assert result.notes == (f"The notebook was stored in format 4.{minor}, and now is in 4.5.",)
    assert earned(result.notebook) == PARTS
    assert mine(result.notebook.cells) == mine(notebook["cells"])


def older(cell: Tree) -> Tree:
    if cell["cell_type"] == "code":
        cell |= {"input": cell.pop("source"), "language": "python", "prompt_number": 3}
    del cell["id"]
    return cell


@pytest.mark.parametrize("major", [2, 3])
def test_formats_with_worksheets(major: int) -> None:
    notebook = work()
    cells = [*map(older, notebook["cells"])]
    cells += [{"cell_type": "heading", "level": 3, "source": ["The end"], "metadata": {}}]
    sheets = [{"cells": cells[:9]}, {"cells": cells[9:]}]
    old = {"nbformat": major, "nbformat_minor": 0, "metadata": notebook["metadata"]}
    result = repaired(data(old | {"worksheets": sheets}))
    assert result.notes == (f"The notebook was stored in format {major}.0, and now is in 4.5.",)
    assert earned(result.notebook) == PARTS
    assert mine(result.notebook.cells) == mine(work()["cells"])
    assert result.notebook.cells[-1].source == "### The end"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (None, "no kernel"),
        ([1], "no kernel"),
        ({"name": 5}, "no kernel"),
        ({"name": "julia-1.9"}, "the kernel 'julia-1.9'"),
    ],
)
def test_the_kernel_is_python3(spec: object, name: str) -> None:
    notebook = work()
    notebook["metadata"]["kernelspec"] = spec
    result = repaired(data(notebook))
    assert result.notes == (f"The notebook asked for {name}; it runs with 'python3'.",)


def test_a_notebook_that_says_nothing_of_itself() -> None:
    result = repaired(data({"cells": work()["cells"]}))
    assert earned(result.notebook) == PARTS
    assert result.notes[0] == "The notebook was stored in format none, and now is in 4.5."


# Huge -----------------------------------------------------------------------------------------


def printed(text: str) -> Tree:
    return {"output_type": "stream", "name": "stdout", "text": text}


def seconds_for(submitted: bytes) -> float:
    """The seconds of work that a file takes."""
    start = time.process_time()
    repair(submitted, LEVEL_2)
    return time.process_time() - start


def bytes_for(submitted: bytes) -> int:
    """The most memory that a file takes besides itself."""
    tracemalloc.start()
    repair(submitted, LEVEL_2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "output",
    [
        printed("x" * 50_000_000),
        printed("\n" * 25_000_000),
        printed([f"line {number}\n" for number in range(3_000_000)]),
        {"output_type": "display_data", "data": {"a": [[[1, 2], [3, 4]]] * 2_500_000}},
    ],
    ids=["text", "escapes", "lines", "numbers"],
)  # fmt: skip
def test_outputs_of_50_megabytes_cost_no_memory(output: Tree) -> None:
    notebook = work()
    at(notebook, FIRST)["outputs"] = [output]
    submitted = json.dumps(notebook).encode()
    assert len(submitted) > 45e6
    result = repair(submitted, LEVEL_2)
    assert result.notes == ()
    assert earned(result.notebook) == PARTS
    assert bytes_for(submitted) < 5e6
    assert seconds_for(submitted) < 20  # a guard: it takes about one


CELL = b'{"cell_type": "code", '
MANY: dict[str, Callable[[], bytes]] = {
    "open brackets": lambda: b"[" * 5_000_000,
    "brackets": lambda: b"[1]," * 3_000_000,
    "no cells": lambda: b'{"cell_type": 1},' * 300_000,
    "cells in cells": lambda: b'{"id":' * 2_000_000,
    "cells": lambda: (CELL + b'"source": "", "metadata": {"a": [{}]}},') * 50_000,
    "checks": lambda: (
        (
            CELL
            + b'"source": "x", "metadata": {"nbgrader": {"grade_id": "ring_all_reduce-check"}}},'
        )
        * 20_000
    ),
    "lines": lambda: CELL + b'"source": [' + b'"a",' * 3_000_000,
}
LARGE: dict[str, Callable[[], bytes]] = {
    "metadata": lambda: CELL + b'"metadata": {' + b'"a": {"b": [1]},' * 1_000_000 + b"}}",
    "line": lambda: CELL + b'"source": "' + b"a" * 20_000_000 + b'"}',
    "names": lambda: CELL + b'"source": "' + b"a," * 7_000_000 + b'"}',
    "code": lambda: CELL + b'"source": "' + b"a = b c\\n" * 1_500_000 + b'"}',
    "imports": lambda: CELL + b'"source": "' + b"import (\\n" * 1_500_000 + b'"}',
}


def with_first(cell: bytes) -> bytes:
    return data(work()).replace(b'"cells": [', b'"cells": [' + cell + b",", 1)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [*MANY, *LARGE])
def test_a_hostile_file_takes_little_time(kind: str) -> None:
    assert seconds_for(with_first((MANY | LARGE)[kind]())) < 60  # a guard: it takes up to five


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
def test_a_hostile_file_takes_little_memory(kind: str) -> None:
    submitted = with_first(LARGE[kind]())
    assert bytes_for(submitted) < 200e6
    assert repair(submitted, LEVEL_2).notes


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("key", ["outputs", "metadata", "attachments", "source", "id", "colour"])
def test_deep_json_costs_no_cell(key: str) -> None:
    notebook = work()
    own = code("deep = 1  # mine", "deep") if key != "attachments" else markdown("# mine")
    notebook["cells"].append(own | {"zzz": 0})
    deep = b"[" * 100_000 + b"]" * 100_000
    submitted = data(notebook).replace(b'"zzz": 0', f'"{key}": '.encode() + deep)
    result = repaired(submitted)
    assert earned(result.notebook) == PARTS
    assert len(mine(result.notebook.cells)) == len(mine(work()["cells"])) + (key != "source")

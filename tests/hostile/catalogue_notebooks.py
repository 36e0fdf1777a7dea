"""Files that are broken, or not the ones that were handed out: `repair` makes sound ones of them.

Cells that can be read keep their points, and a note says what is wrong with the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

from dtlab.classroom.judging.cells import Limits
from tests.hostile.submissions import Edit, Hostile, as_bytes, cell_of, code, right_answer

__all__ = ["CATALOGUE"]

EVERYTHING = {"reduce_scatter": 8.0}
NOTHING = {"reduce_scatter": 0.0}
RIGHT = right_answer(2, "reduce_scatter")
BLANK = "def reduce_scatter(output, input, group=None):\n    raise NotImplementedError()"


def file(name: str, tries: str, edit: Edit, says: str = "", **others: Any) -> Hostile:
    """A right answer in a file that is not as it should be."""
    fields = {"earns": EVERYTHING, "seconds": 15, **others}
    return Hostile(name=name, tries=tries, edit=edit, says=[says] if says else [], **fields)


def raw(change: Callable[[bytes], bytes | None]) -> Edit:
    """A change of the bytes."""
    return lambda notebook: change(as_bytes(notebook))


def as_json(change: Callable[[dict[str, Any]], Any]) -> Edit:
    """A change of the file's content that nbformat would refuse."""

    def edit(notebook: NotebookNode) -> bytes:
        content = json.loads(as_bytes(notebook))
        return json.dumps(change(content) or content).encode()

    return edit


# Cells ------------------------------------------------------------------------------------------


def with_the_answer_twice(notebook: NotebookNode) -> NotebookNode:
    """The first one is blank; both have the same metadata and id, as copies have."""
    at = notebook.cells.index(cell_of(notebook, "reduce_scatter"))
    blank = notebook.cells[at].copy()
    blank.source = (
        "def reduce_scatter(output, input, group=None):\n    raise NotImplementedError()"
    )
    notebook.cells.insert(at, blank)
    return notebook


def with_the_answer_split(notebook: NotebookNode) -> NotebookNode:
    """A helper in a separate cell, which has taken the metadata along."""
    answer = cell_of(notebook, "reduce_scatter")
    helper = answer.copy()
    helper.id, helper.source = "helper", "def right_of(rank, size):\n    return (rank + 1) % size"
    answer.source = RIGHT.replace("(rank + 1) % size,", "right_of(rank, size),")
    notebook.cells.insert(notebook.cells.index(answer), helper)
    return notebook


def with_all_cells_in_one(notebook: NotebookNode) -> NotebookNode:
    """Merged, the check too."""
    one = notebook.cells[0]
    one.source = "\n\n".join(cell.source for cell in notebook.cells)
    notebook.cells = [one]
    return notebook


def without(cell_id: str) -> Edit:
    """A cell that was deleted."""

    def edit(notebook: NotebookNode) -> NotebookNode:
        notebook.cells.remove(cell_of(notebook, cell_id))
        return notebook

    return edit


def in_another_order(notebook: NotebookNode) -> NotebookNode:
    """The check above the answer, which is above a cell that it needs nothing of."""
    notebook.cells = [notebook.cells[0], *reversed(notebook.cells[1:])]
    return notebook


def with_an_edited_check(notebook: NotebookNode) -> NotebookNode:
    check = cell_of(notebook, "reduce_scatter-check")
    check.source = f"# my points!\nresult = {check.source}\nprint(result)"
    return notebook


def without_metadata(notebook: NotebookNode) -> NotebookNode:
    """The notebook without the metadata that nbgrader needs."""
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = NotebookNode(), f"c{number}"
    notebook.metadata = NotebookNode()
    return notebook


def with_another_kernel(notebook: NotebookNode) -> NotebookNode:
    notebook.metadata.kernelspec = {"name": "julia-1.9", "display_name": "J", "language": "julia"}
    return notebook


def with_outputs_of_50_mb(notebook: NotebookNode) -> NotebookNode:
    more = new_code_cell("1", id="large")
    more.outputs = [new_output("stream", name="stdout", text="x" * 1_000_000) for _ in range(50)]
    notebook.cells.append(more)
    return notebook


def with_magics_and_markdown(notebook: NotebookNode) -> NotebookNode:
    """A cell of another language, one that is empty, and one that is no Python at all."""
    for number, source in enumerate(("%%bash\nls /", "", "this is no Python", "%%nothing\n1")):
        notebook.cells.insert(1, new_code_cell(source, id=f"odd-{number}"))
    return notebook


# The file ---------------------------------------------------------------------------------------


def metadata_of_no_kind(content: dict[str, Any]) -> None:
    """Metadata, outputs and ids as no notebook has them."""
    for cell in content["cells"]:
        cell["metadata"] = {"nbgrader": "yes", "tags": 5, "deep": [[[[]]]]}
        cell["outputs"], cell["execution_count"] = {"x": 1}, "seven"
        cell["id"] = 5
    content["metadata"] = [1, 2]


def format_3(content: dict[str, Any]) -> dict[str, Any]:
    """The notebook in nbformat 3, which was in use ten years ago."""
    cells = [
        {"cell_type": "code", "input": cell["source"], "outputs": [], "language": "python",
         "metadata": cell["metadata"], "prompt_number": 1}
        for cell in content["cells"]
    ]  # fmt: skip
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}


CATALOGUE = [
    file("not JSON", "Is a page that says that one is not logged in.",
         raw(lambda _: b"<!DOCTYPE html><html><body>Log in</body></html>"),
         "The file is no notebook", earns=NOTHING, quick=True),
    file("half a file", "Ends in the middle of the check.",
         raw(lambda data: data[: data.index(b'dtlab.check(') - 1]), "The file is damaged",
         quick=True),
    file("a tenth of a file", "Ends in the middle of the first cell.",
         raw(lambda data: data[: len(data) // 10]), earns=NOTHING),
    file("no file", "Is not there.", lambda _: None, "was not handed in", earns=NOTHING,
         quick=True),
    file("an empty file", "Has no bytes.", raw(lambda _: b""), "empty", earns=NOTHING),
    file("zeros", "Has been zeroed by a disk.", raw(lambda data: bytes(len(data))), earns=NOTHING),
    file("a picture", "Is a picture.",
         raw(lambda _: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 99), earns=NOTHING),
    file("a list", "Is JSON, and no notebook.", raw(lambda _: b"[1, 2, {}]"), earns=NOTHING),
    file("deep JSON", "Is JSON that is 200 000 lists deep.",
         raw(lambda _: b"[" * 200_000), earns=NOTHING),
    file("numbers without end", "Has a number of a million digits.",
         raw(lambda data: data.replace(b'"nbformat": 4', b'"nbformat": ' + b"9" * 1_000_000))),
    file("both sides of a merge", "Holds the marks of an unresolved merge.",
         raw(lambda data: data.replace(b'  {\n   "cell_type"', b'<<<<<<< HEAD\n  {\n   "cell_type"'
                                       , 1)), "unresolved merge conflicts"),
    file("Windows line ends", "Has been edited on Windows.",
         as_json(lambda content: [cell.update(source="".join(cell["source"]).replace("\n", "\r\n"))
                                  for cell in content["cells"]] and None), "line ends of Windows"),
    file("Windows line ends of the file", "Went through a mail program.",
         raw(lambda data: data.replace(b"\n", b"\r\n"))),
    file("byte order mark", "Begins with a byte order mark.",
         raw(lambda data: b"\xef\xbb\xbf" + data), "byte order mark"),
    file("UTF-16", "Was stored as UTF-16.", raw(lambda data: data.decode().encode("utf-16")),
         "UTF-16"),
    file("not UTF-8", "Has bytes in a comment that are no UTF-8.",
         raw(lambda data: data.replace(b"import torch.dist", b"# \xff\xfe\\nimport torch.dist"))),
    file("metadata of no kind", "Has metadata, outputs and ids that no notebook has.",
         as_json(metadata_of_no_kind)),
    file("an old format", "Was stored in format 3.", as_json(format_3), "format 3"),
    file("50 MB of stored outputs", "Has 50 MB of outputs in the file.", with_outputs_of_50_mb,
         seconds=25, quick=True),
    file("another kernel", "Asks for a kernel that is not there.", with_another_kernel,
         "asked for the kernel 'julia-1.9'"),
    file("no metadata", "Went through a tool that drops nbgrader's metadata.", without_metadata),
    file("the answer twice", "Has the answer's cell twice: blank, then filled in.",
         with_the_answer_twice, "more than once"),
    file("no answer", "Has no cell for the answer.", without("reduce_scatter"), "went missing",
         earns=NOTHING),
    file("no check", "Has no cell for the check.", without("reduce_scatter-check"),
         "went missing"),
    file("the answer split", "Has the answer in two cells with the same metadata.",
         with_the_answer_split),
    file("all in one cell", "Has all of its cells in one.", with_all_cells_in_one,
         limits=Limits()),
    file("another order", "Has its check above its answer.", in_another_order,
         "stood above the answer"),
    file("an edited check", "Has something else around its check.", with_an_edited_check,
         "had another text"),
    file("odd cells", "Has empty cells, cells of another language, and cells that are no Python.",
         with_magics_and_markdown, "SyntaxError"),
    Hostile(
        "an answer with a mistake in it",
        "Has an answer that cannot be compiled, beside one that is right.",
        {"reduce_scatter": 8.0, "ring_all_reduce": 0.0},
        15,
        answers={"ring_all_reduce": "def ring_all_reduce(tensor, group=None)\n    pass"},
        says=["ring_all_reduce is not defined", "SyntaxError"],
    ),
    Hostile(
        "another assignment's",
        "Is the notebook of another level.",
        {"results": 0.0},
        15,
        edit=lambda _: as_bytes(Hostile("", "", EVERYTHING, 1).handed_out()),
        says=["is it from another assignment?"],
    ),
    Hostile(
        "an answer in another cell",
        "Has its answer in a new cell, and the answer's cell as it was handed out.",
        NOTHING,
        15,
        before=code("import torch", RIGHT),
        answers={"reduce_scatter": BLANK},
        says=["is not written yet"],
    ),
]  # fmt: skip

"""Points without an answer: by changing the code that counts them, by objects that equal anything,
or by editing the file.

All of it is legal Python. None of it may earn what the answer itself does not.
"""

from __future__ import annotations

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

from tests.hostile.submissions import Hostile, cell_of

__all__ = ["CATALOGUE"]

BLANK = "def reduce_scatter(output, input, group=None):\n    raise NotImplementedError()"
DOES_NOTHING = "def reduce_scatter(output, input, group=None):\n    pass"
ANYTHING = """
    class Anything:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __bool__(self): return True
        def __float__(self): return 1.0
        def __call__(self, *args, **kwargs): return self
        def __getattr__(self, name): return self
        def __iter__(self): return iter([self] * 3)
        def __len__(self): return 3
    """
NOTHING = {"reduce_scatter": 0.0}
EVERYTHING = {"reduce_scatter": 8.0}
NO_RESULTS = {"results": 0.0}
LEVEL_1 = ["broadcast", "scatter", "gather", "reduce", "all_reduce", "all_gather",
           "reduce_scatter", "all_to_all"]  # fmt: skip


# Edits of the file ------------------------------------------------------------------------------


def with_forged_outputs(notebook: NotebookNode) -> NotebookNode:
    """Insert the output of a check that has passed, although it did not run."""
    check = cell_of(notebook, "reduce_scatter-check")
    check.outputs = [new_output("execute_result", data={"text/plain": "8.0"}, execution_count=9)]
    check.metadata.nbgrader.score = 8
    notebook.metadata.nbgrader = {"score": 100, "autograded": True}
    return notebook


def with_thousand_points(notebook: NotebookNode) -> NotebookNode:
    cell_of(notebook, "reduce_scatter-check").metadata.nbgrader.points = 1000
    return notebook


def with_another_name(notebook: NotebookNode) -> NotebookNode:
    cell_of(notebook, "reduce_scatter-check").metadata.nbgrader.grade_id = "ring_all_reduce-check"
    return notebook


def with_one_more_graded_cell(notebook: NotebookNode) -> NotebookNode:
    check = cell_of(notebook, "reduce_scatter-check")
    more = new_code_cell('dtlab.check("01/results", results)', id="more")
    more.metadata.nbgrader = {**check.metadata.nbgrader, "grade_id": "more", "points": 50}
    notebook.cells.append(more)
    return notebook


def with_another_check(notebook: NotebookNode) -> NotebookNode:
    cell_of(notebook, "reduce_scatter-check").source = "100.0"
    return notebook


CATALOGUE = [
    # What counts the points, changed ------------------------------------------------------------
    Hostile(
        "dtlab.check replaced",
        "Has its own dtlab.check say that all is right, and answers nothing.",
        NOTHING,
        10,
        before="""
            import dtlab
            from dtlab.checks import parts, report

            class Full(report.Report):
                score = max_score = 8.0

            dtlab.check = parts.check = lambda *args, **kwargs: Full("reduce_scatter", ())
            report.Report.score = 8.0
            """,
        answers={"reduce_scatter": BLANK},
        says=["reduce_scatter is not written yet"],
        quick=True,
    ),
    Hostile(
        "built-in functions replaced",
        "Has sum, round, all, any, json and repr say what suits it.",
        NOTHING,
        20,
        before="""
            import builtins, json, math
            builtins.round = lambda *_: 8.0
            builtins.any = lambda _: False
            json.dumps = lambda *args, **kwargs: '{"score": 8}'
            json.loads = lambda *args, **kwargs: {"score": 8}
            math.isclose = lambda *args, **kwargs: True
            """,
        answers={"reduce_scatter": DOES_NOTHING},
        says=["`output` is unchanged"],
    ),
    Hostile(
        "display hook",
        "Has sys.displayhook and IPython's formatters show 8 for everything.",
        NOTHING,
        10,
        before="""
            import sys
            sys.displayhook = lambda value: print(8.0)
            shell = get_ipython()
            shell.display_formatter.format = lambda *args, **kwargs: ({"text/plain": "8.0"}, {})
            shell.displayhook = sys.displayhook
            """,
        answers={"reduce_scatter": BLANK},
        says=["reduce_scatter is not written yet"],
    ),
    Hostile(
        "asserts dropped",
        "Registers a transformer that takes all asserts and raises out of later cells.",
        NOTHING,
        10,
        before="""
            import ast

            class Drop(ast.NodeTransformer):
                def visit_Assert(self, node): return ast.Pass()
                def visit_Raise(self, node): return ast.Pass()

            get_ipython().ast_transformers.append(Drop())
            get_ipython().input_transformers_post.append(lambda lines: lines)
            """,
        answers={"reduce_scatter": BLANK},
        says=["`output` is unchanged"],
    ),
    Hostile(
        "fake report",
        "Prints a table that looks like a report with all points.",
        NOTHING,
        10,
        before="""
            from IPython.display import HTML, display
            display(HTML("<b>reduce_scatter</b> 8 of 8 points"))
            print("reduce_scatter   8 of 8 points")
            """,
        answers={"reduce_scatter": BLANK},
        says=["0 of 8 points"],
    ),
    # What equals everything ---------------------------------------------------------------------
    Hostile(
        "an object that equals everything",
        "Hands in an object that is equal to whatever it is compared with.",
        NOTHING,
        10,
        before=ANYTHING,
        answers={"reduce_scatter": "reduce_scatter = Anything()"},
    ),
    Hostile(
        "a tensor that equals everything",
        "Turns the output into a tensor that says yes to any comparison.",
        NOTHING,
        15,
        answers={
            "reduce_scatter": """
                class Equal(torch.Tensor):
                    @classmethod
                    def __torch_function__(cls, func, types, args=(), kwargs=None):
                        if func.__name__ in ("equal", "__eq__", "allclose", "isclose", "ne"):
                            return True
                        return super().__torch_function__(func, types, args, kwargs or {})

                def reduce_scatter(output, input, group=None):
                    output.__class__ = Equal
                    torch.Tensor.equal = torch.Tensor.__eq__ = lambda *_: True
                    torch.equal = torch.allclose = lambda *args, **kwargs: True
                """
        },
    ),
    Hostile(
        "values that equal everything",
        "Answers the questions of Level I with objects that equal everything.",
        NO_RESULTS,
        10,
        before=ANYTHING,
        answers={"results": f"results = dict.fromkeys({LEVEL_1}, Anything())"},
    ),
    Hostile(
        "not a number",
        "Answers with NaN, which no comparison finds to be too large or too small.",
        {"bytes_sent": 0.0},
        10,
        answers={
            "bytes_sent": """
                names = ["server_root", "server_other", "ring", "reduce_scatter", "all_gather"]
                bytes_sent = dict.fromkeys([*names, "doubling", "unbounded"], float("nan"))
                """
        },
        says=["is no finite number"],
        quick=True,
    ),
    # What the file says of itself ---------------------------------------------------------------
    Hostile(
        "points in the file",
        "Is handed in with outputs, scores and a grade already in it.",
        NOTHING,
        10,
        answers={"reduce_scatter": BLANK},
        edit=with_forged_outputs,
    ),
    Hostile(
        "a thousand points",
        "Says in the metadata of the graded cell that it is worth 1000 points.",
        EVERYTHING,
        15,
        edit=with_thousand_points,
        says=["had another name, kind, points or lock"],
    ),
    Hostile(
        "another part's name",
        "Gives its graded cell the name of a part that is worth more.",
        EVERYTHING,
        15,
        edit=with_another_name,
        says=["had another name, kind, points or lock"],
    ),
    Hostile(
        "one more graded cell",
        "Adds a graded cell, worth 50 points.",
        EVERYTHING,
        15,
        edit=with_one_more_graded_cell,
        says=["had a role that is not in this assignment", "NameError"],
    ),
    Hostile(
        "another check",
        "Writes its points into the graded cell, instead of the check.",
        NOTHING,
        10,
        answers={"reduce_scatter": BLANK},
        edit=with_another_check,
        says=["had another text; the released one counts"],
    ),
]

"""`dtlab.practice` names a blank, shows what ranks print, and runs a case of a part again."""

from __future__ import annotations

import html
import json
import linecache
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import dtlab
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.numbered import case_of, numbered
from dtlab.checks.functions.replay import wrong_in
from dtlab.checks.functions.trials import BEGIN, Observation, Trial
from dtlab.checks.parts import Part, check, find_part, known_parts
from dtlab.checks.practice import practice
from dtlab.checks.programs.training import FixScript
from dtlab.checks.report import Report
from dtlab.errors import DtlabError, MismatchError, RankTimeoutError, Waiting
from dtlab.units.unit01.calls import AllReduce, Answer
from tests.known_answers import answers_of
from tests.staying import BENCH


def average(value: float) -> float:
    raise NotImplementedError


def average_of_five() -> float:
    return average(5)


def raises_in_a_lambda() -> Any:
    return (lambda: average_of_five())()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handed_in", "arguments"), [(average, (5,)), (average_of_five, ()), (raises_in_a_lambda, ())]
)
def test_the_function_that_is_not_written_is_named(handed_in: Any, arguments: Any) -> None:
    report = practice(handed_in, *arguments, returns=[5, 5])
    remark, criterion = report.criteria
    assert remark.message == "average is not written yet: it still raises NotImplementedError."
    assert (criterion.status, criterion.message) == ("open", "the result is right")


def test_what_raises_something_else_is_no_blank() -> None:
    def divided() -> float:
        return 1 / 0

    (criterion,) = practice(divided, returns=[0.0]).criteria
    assert "not written" not in criterion.message
    assert "ZeroDivisionError" in criterion.message


def test_the_first_wrong_element_is_named() -> None:
    def four() -> list[bool]:
        return [True, True, False, False]

    (criterion,) = practice(four, returns=[[True, True, True, False]]).criteria
    assert criterion.message.endswith("The first wrong one is element 2: False, not True.")


@pytest.mark.slow
def test_the_result_of_each_rank_is_shown_and_bounded() -> None:
    def numbers(size: int) -> list[int]:
        return [dist.get_rank()] * size

    (criterion,) = practice(numbers, 100, returns=[[0] * 100, [2] * 100, [2] * 100]).criteria
    wrong, *others = criterion.message.splitlines()
    ones, twos = (f"[{', '.join([number] * 12)}, ...]" for number in "12")
    assert wrong.endswith(f"rank 1 returns {ones} and should return {twos}.")
    assert [line[:14] for line in others] == ["rank 0 returns", "rank 2 returns"]
    assert others[1].endswith(f"{twos}, as it should.")


def test_a_constant_is_not_right_for_other_arguments() -> None:
    def double(value: int) -> int:
        return 6

    (criterion,) = practice(double, 3, returns=[6], again=[((5,), [10])]).criteria
    assert criterion.status == "lost"
    assert criterion.message == "called with 5, it returns 6 and should return 10."
    right = practice(lambda value: 2 * value, 3, returns=[6], again=[((5,), [10])])
    assert right.criteria[0].status == "ok"


@pytest.mark.slow
def test_a_known_mistake_is_named_and_kept() -> None:
    def summed() -> float:
        return 10.0

    known = {"is the mean": [1.0, 1.0], "is the sum, not the mean": ([10, 10], "Divide it.")}
    (criterion,) = practice(summed, returns=[5.0, 5.0], known=known).criteria
    assert criterion.message.endswith("The result is the sum, not the mean. Divide it.")
    assert criterion.mistake == "is the sum, not the mean"


def returns_nothing() -> None:
    pass


def plus_one() -> int:
    return returns_nothing() + 1  # type: ignore[func-returns-value, operator, no-any-return]


def adds_nothing(value: int) -> int:
    return value + None  # type: ignore[operator]


def test_a_result_that_the_cell_cannot_use_is_a_sentence() -> None:
    (criterion,) = practice(plus_one, returns=[3]).criteria
    assert criterion.message.endswith(
        "plus_one calls returns_nothing. If this line uses what returns_nothing returns: is that "
        "what the text asks for, in the form that it asks for?"
    )


def test_a_function_that_calls_no_other_is_not_said_to_do_so() -> None:
    (criterion,) = practice(adds_nothing, 1, returns=[3]).criteria
    assert "TypeError" in criterion.message
    assert "calls" not in criterion.message


# What ranks print -------------------------------------------------------------------------------


def talkative(value: int) -> int:
    rank = dist.get_rank()
    for line in range(30 if rank == 1 else 1):
        print(f"line {line} of {value}", "x" * 300 * (rank == 0))
    return value * rank


@pytest.mark.slow
def test_what_ranks_print_is_shown_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    practice(talkative, 3, returns=[0, 4])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Printed with 2 ranks, as called here:"
    assert lines[1].startswith("rank 0: line 0 of 3 xxx")
    assert len(lines[1]) < 220
    assert lines[2:4] == ["rank 1: line 0 of 3 ", "rank 1: line 1 of 3 "]
    assert lines[-1] == "rank 1: ... 10 more lines"
    assert len(lines) == 23


def prints_and_fails(tensor: torch.Tensor, group: Any = None) -> None:
    print(len(tensor), "elements on", dist.get_world_size())
    if dist.get_world_size() == 2:
        raise ValueError("two")


@pytest.mark.slow
def test_the_lines_of_the_lost_case_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    report = check("01/ring_all_reduce", prints_and_fails)
    where = report.criteria[0].message.partition(": ValueError")[0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Printed with {where} (")
    assert lines[1] == f"rank 0: {where.split()[2]} elements on 2"


@pytest.mark.slow
def test_nothing_is_shown_where_answers_are_graded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dtlab.checks.functions.bench.graded_student", lambda: "ada")
    practice(talkative, 3, returns=[0, 4])
    assert capsys.readouterr().out == ""


# A lost case, run again -------------------------------------------------------------------------


def receives_first(tensor: torch.Tensor, group: Any = None) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    print("I hold", tensor[:3].tolist())
    if size > 1:
        dist.recv(tensor, (rank + 1) % size)


def sends_nothing(module: Any, group: Any = None) -> None:
    """An answer that sends nothing."""


def shown_by(call: str, fn: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """What the call in a report shows."""
    assert re.fullmatch(r'dtlab\.practice\("\d\d/(\w+)", \1, case=\d+\)', call)
    capsys.readouterr()
    symbol = call.split('"')[1].partition("/")[2]
    assert eval(call, {"dtlab": dtlab, symbol: fn}) is None
    return capsys.readouterr().out


def calls_in(report: Report) -> list[str]:
    return re.findall(r"Run this case: (.*)", str(report))


@pytest.mark.slow
def test_a_case_that_hangs_is_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    report = check("01/ring_all_reduce", receives_first)
    (call,) = calls_in(report)  # criteria that are blocked have no case
    assert html.escape(call) in report._repr_html_()
    out = shown_by(call, receives_first, capsys)
    assert out.startswith("Case 1 of 17 of 01/ring_all_reduce: 4 ranks, 1,048,576 elements. ")
    assert "values of rank 1 are missing, 363 has them twice, and" in " ".join(out.split())
    assert max(map(len, out.partition("Printed")[0].splitlines())) < 100
    assert "rank 2: I hold [100.0, 200.0, 300.0]" in out
    assert "What each rank waits for: rank 0 waits in recv for rank 1; rank 1" in out
    assert "Post the send first" in out


@pytest.mark.slow
def test_a_wrong_case_is_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown_by(
        calls_in(check("02/average_gradients", sends_nothing))[0], sends_nothing, capsys
    )
    assert re.match(r"Case 1 of \d+ of 02/average_gradients: 4 ranks, three layers.\nTime", out)
    assert out.count("is the rank's own. No all-reduce") == 1


CELLS = [
    "import dtlab, torch, torch.distributed as dist\n"
    "def average_gradients(module, group=None):\n"
    "    for parameter in module.parameters():\n"
    "        dist.all_reduce(parameter.grad.clone(), group=group)",
    'dtlab.check("02/average_gradients", average_gradients)',
    "from ipywidgets.widgets.widget import _instances\n"
    "[button for button in _instances.values() if hasattr(button, 'click')][0].click()",
]


@pytest.mark.slow
def test_buttons_below_the_report_run_a_case_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "level-2.ipynb")  # as under JupyterLab
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    *_, report, kept, buttons = notebook.cells[1].outputs  # a notice may come first
    assert report.data["text/plain"].startswith("average_gradients   1 of 5 points\n  lost")
    assert "text/html" in report.data
    assert "dtlab-kept" in kept.data["text/html"]  # no error of a widget on the next day
    assert "application/vnd.jupyter.widget-view+json" in buttons.data
    widgets = json.dumps(notebook.metadata.widgets)
    assert "Run this case: gradients" in widgets
    assert "Timeline of 4 ranks" in widgets  # shown below the buttons


def without_group(tensor: torch.Tensor, group: Any = None) -> None:
    dist.all_reduce(tensor)


@pytest.mark.slow
def test_a_case_in_groups_shows_the_hint_of_the_report_and_names_group_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dtlab.practice("01/ring_all_reduce", without_group, case=17)
    out = capsys.readouterr().out
    assert "groups (0, 2, 3) and (1, 4). Here global rank r holds" in " ".join(out.split())
    assert "rank 0 (group rank 0): elements 0 to 6 hold the values of ranks 0 to 4, not" in out
    assert "Pass group to every call of torch.distributed" in out
    assert "global ranks: in the group of ranks 0, 2 and 3, rank 3 is group rank 2." in out


def one_round_more(output: torch.Tensor, input: torch.Tensor, group: Any = None) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size if size > 1 else 0):
        sending = dist.isend(passing, (rank + 1) % size)
        arriving = torch.empty_like(passing)
        dist.recv(arriving, (rank - 1) % size)
        sending.wait()
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


@pytest.mark.slow
def test_a_wrong_case_also_shows_why_the_other_criteria_are_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dtlab.practice("01/reduce_scatter", one_round_more, case=1)
    out = capsys.readouterr().out
    assert "rank 0: output[0:5] holds 4448, 5560, 6672, 7784, 1112; wanted are 1111, 2222, " in out
    assert "rank 3: output[0:5] holds 6333," in out
    assert out.count("rank 0: this is chunk 3 of the sum, with the chunk of rank 0 twice") == 1
    assert out.count("each rank sent 4.2 MB; a ring needs") == 1
    assert out.count("4 rounds on 4 ranks; a ring needs N-1 = 3.") == 1


def always_a_ring(nbytes: float, cluster: Any) -> str:
    return "ring"


def never_waits(output: torch.Tensor, input: torch.Tensor, group: Any = None) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = input.chunk(size)
    passing = chunks[rank - 1].clone()
    for step in range(size - 1):
        dist.isend(passing, group=group, group_dst=(rank + 1) % size)
        arriving = torch.empty_like(passing)
        dist.recv(arriving, group=group, group_src=(rank - 1) % size)
        passing = arriving + chunks[(rank - 2 - step) % size]
    output.copy_(passing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "fn", "number", "fault"),
    [
        ("01/choose", always_a_ring, 2, "over 16 sizes, your choices take 15.696 times as long"),
        ("01/reduce_scatter", never_waits, 4, "does not wait for its dist.isend in line"),
    ],
)
def test_a_case_that_is_run_again_shows_the_fault_of_the_report(
    part: str, fn: Any, number: int, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in str(check(part, fn))
    capsys.readouterr()
    dtlab.practice(part, fn, case=number)
    out = capsys.readouterr().out
    assert fault in out
    assert "No fault shows in this case alone" not in out


def test_a_case_of_choose_compares_each_choice_with_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dtlab.practice("01/choose", always_a_ring, case=1)
    out = capsys.readouterr().out
    assert "\n   1.0 MB: ring 140.0 µs; best: hierarchical 37.0 µs\n" in out
    assert "the step takes 155.7 ms" in out
    assert "16 sizes" not in out


def blank(tensor: torch.Tensor, group: Any = None) -> None:
    raise NotImplementedError


def test_a_case_of_a_blank_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    dtlab.practice("01/ring_all_reduce", blank, case=5)
    out = capsys.readouterr().out
    assert out == "blank is not written yet: it still raises NotImplementedError.\n"


def shown_at_the_limit(
    running: list[Waiting], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    **more: Any,
) -> str:  # fmt: skip
    """What `practice` shows of a case whose ranks reach the time limit in these places."""

    def observe(trial: Trial, fn: Any) -> Observation:
        return Observation(trial, error=RankTimeoutError("too long", running=running, **more))

    monkeypatch.setattr("dtlab.checks.functions.replay.observe", observe)
    dtlab.practice("01/ring_all_reduce", blank)
    return capsys.readouterr().out


LINE: dict[str, Any] = {"file": "mine.py", "line": 7, "code": "while True:"}


def test_without_a_number_the_first_case_runs_and_says_how_to_choose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown_at_the_limit([Waiting(0, "compute", **LINE)], monkeypatch, capsys)
    assert out.startswith("Case 1 of 17 of 01/ring_all_reduce: 4 ranks")
    assert 'pass its number, 1 to 17, as in dtlab.practice("01/ring_all_reduce", blank, ca' in out


@pytest.mark.parametrize("operation", ["compute", "barrier"])
def test_in_an_endless_loop_no_rank_waits(
    operation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = [Waiting(rank, operation, **LINE) for rank in range(4)]
    out = shown_at_the_limit(running, monkeypatch, capsys, loops=operation != "compute")
    assert "What each rank waits for" not in out
    where = "" if operation == "compute" else ", now in barrier"
    assert f"ranks 0 to 3 are still running{where}   mine.py, line 7:   while True:" in out


def test_a_rank_in_a_loop_is_shown_if_others_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = [Waiting(0, "compute", **LINE), Waiting(1, "recv", (0,), **LINE)]
    out = shown_at_the_limit(running, monkeypatch, capsys)
    assert "rank 0 is still running; rank 1 waits in recv for rank 0" in out


@pytest.mark.parametrize("file", ["<frozen posixpath>", linecache.__file__])
def test_a_line_of_a_library_is_not_quoted(file: str) -> None:
    running = [Waiting(0, "compute", file=file, line=71, code="path = join(a, *p)")]
    one = Observation(Trial(1, [AllReduce(0, 4)]), error=RankTimeoutError("", running=running))
    assert "rank 0 is still running\n" in one.trouble


# A missing wait ---------------------------------------------------------------------------------


def without_wait(mine: int) -> list[int]:
    theirs = torch.zeros(1000, dtype=torch.int64)
    sending = dist.isend(torch.full((1000,), mine + dist.get_rank()), 1 - dist.get_rank())
    dist.irecv(theirs, 1 - dist.get_rank())
    first = theirs[:1] + 0
    sending.wait()
    return first.tolist()


def test_a_receive_without_wait_is_named_in_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (criterion,) = practice(without_wait, 10, returns=[[-1], [-1]]).criteria
    assert criterion.status == "lost"
    assert "warning: ranks 0 and 1 read the tensor of irecv before wait()." in criterion.message
    assert ":   dist.irecv(theirs, 1 - dist.get_rank())" in criterion.message
    assert ":   first = theirs[:1] + 0" in criterion.message
    assert "warning" not in capsys.readouterr().out


def swap_without_wait() -> torch.Tensor:
    theirs, other = torch.empty(1), 1 - dist.get_rank()
    dist.isend(torch.full((1,), float(other)), other)
    dist.recv(theirs, other)
    return theirs


def test_a_send_without_wait_is_named_beside_a_right_result() -> None:
    (criterion,) = practice(swap_without_wait, returns=[[0.0], [1.0]]).criteria
    assert criterion.status == "ok"
    assert "by luck" in criterion.message
    assert "does not wait for its dist.isend in line" in criterion.message


def examples_of_rank(count: int) -> range:
    return range(dist.get_rank(), count, 2)


def test_a_result_that_cannot_be_sent_is_named_with_its_function() -> None:
    (criterion,) = practice(examples_of_rank, 4, returns=[[0, 2], [1, 3]]).criteria
    assert "examples_of_rank returns a range, which a rank cannot send back." in criterion.message


def forgets_to_wait(tensor: torch.Tensor, group: Any = None) -> None:
    if dist.get_world_size() == 2:
        arrived = torch.empty_like(tensor)
        sending = dist.isend(tensor.clone(), 1 - dist.get_rank())
        dist.irecv(arrived, 1 - dist.get_rank())
        tensor += arrived
        sending.wait()


@pytest.mark.slow
def test_a_case_that_is_run_again_tells_of_a_receive_without_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dtlab.practice("01/ring_all_reduce", forgets_to_wait, case=5)
    assert "1 read the tensor of irecv before wait()." in capsys.readouterr().out


# Sizes of chunks --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_mistake_one_minus_rank_gets_no_advice_on_rounds() -> None:
    known = answers_of(find_part("01/ring_all_reduce"))
    message = known.check(known.named["sends_to_one_minus_rank"]).criteria[0].message
    assert "If you wrote 1 - rank" in message
    assert "Right on 1 and 2 ranks only" not in message


def test_chunks_of_other_lengths_are_named() -> None:
    cases = [AllReduce(0, 6), AllReduce(0, 7), AllReduce(0, 1)]
    headline = "rank 1 sends float32[3] and rank 0 receives it into float32[4]."
    error = MismatchError(headline, waiting=[], mismatch=headline)
    one = Observation(Trial(2, cases), error=error, printed=[f"{BEGIN}0\n{BEGIN}1\n"] * 2)
    (mistake,) = one.mistakes
    assert mistake.startswith("2 ranks, 7 elements: the calls of the ranks do not match.\nrank 1")
    assert "cannot be divided by 2: with tensor_split, chunk 0 has 4 elements, a" in mistake
    assert "chunk 1 has 3. Give each receive buffer the length" in mistake
    few = AllReduce(0, 2).advice("5 ranks, 2 elements: a (0) must match the size of tensor b (1)")
    assert "chunks 0 and 1 have 1 element, and chunks 2 to 4 have none." in few
    assert "looks for its place" in AllReduce(0, 8).advice("2 ranks: 1 is not in list")
    assert AllReduce(0, 8).advice(f"2 ranks, 8 elements: {headline}") == ""
    assert AllReduce(0, 7).advice("2 ranks, 7 elements: a rank sends to itself") == ""


# The return value of a collective ---------------------------------------------------------------


def uses_the_return_value(value: float) -> float:
    gradient = torch.tensor(value)
    gradient = dist.all_reduce(gradient)  # type: ignore[assignment, no-untyped-call]
    return float(gradient / 2)


def returns_the_return_value(value: float) -> Any:
    return dist.all_reduce(torch.tensor(value))


def reduced_to_rank_0() -> list[float]:
    gradient = torch.tensor([3.0, 1.0])
    dist.reduce(gradient, dst=0)  # type: ignore[no-untyped-call]
    return list(gradient.tolist())


def test_reduce_in_place_of_all_reduce_is_named() -> None:
    (criterion,) = practice(reduced_to_rank_0, returns=[[6.0, 2.0]] * 2).criteria
    assert criterion.earned == 0
    assert "You call dist.reduce: only rank dst gets the sum." in criterion.message


@pytest.mark.parametrize(("returned", "earned"), [(0.30000001192092896, 1), (0.3001, 0)])
def test_a_float_may_differ_by_rounding_only(returned: float, earned: int) -> None:
    (criterion,) = practice(lambda: [[2, returned]], returns=[[[2.0, 0.3]]]).criteria
    assert criterion.earned == earned


@pytest.mark.parametrize("fn", [uses_the_return_value, returns_the_return_value])
def test_the_return_value_of_all_reduce_is_nothing(fn: Any) -> None:
    (criterion,) = practice(fn, 4.0, returns=[4.0, 4.0]).criteria
    assert "dist.all_reduce returns None: it writes its result into a tensor" in criterion.message


def test_a_case_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DtlabError, match="has cases 1 to 17, but no case 18"):
        dtlab.practice("01/ring_all_reduce", receives_first, case=18)
    with pytest.raises(DtlabError, match="01/results has no cases to run"):
        dtlab.practice("01/results", {}, case=1)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_labelled_inputs_show_whose_values_a_sum_contains(size: int) -> None:
    call, legend = AllReduce(1, size).labelled()
    assert "the last digit of a sum comes from rank 0" in legend
    inputs = call.inputs(4)
    assert sum(inputs.values())[0] == 1111  # type: ignore[index]
    assert (inputs[0] + inputs[2] + inputs[2])[0] == 201
    wrong = call.wrong(Answer(inputs[0] + 2 * inputs[2]), 0, inputs)
    assert "the values of ranks 0 and 2 only, those of rank 2 twice" in wrong


def test_a_message_belongs_to_the_case_whose_words_it_begins_with() -> None:
    right, wrong = AllReduce(1, 7), AllReduce(2, 7)
    groups = AllReduce(3, 7, groups=((0, 1),))
    answers = [[Answer(tensor) for tensor in (right.inputs(2)[0] + right.inputs(2)[1],) * 2]] * 2
    trials = [Trial(2, [right, wrong]), Trial(2, [groups]), Trial(3, [right])]
    found = [answers, answers[:1], [[Answer(right.inputs(3)[0])] * 3]]
    cases = numbered([Observation(*each) for each in zip(trials, found, strict=True)])

    def number(message: str) -> int:
        case = case_of(message, cases)
        assert case is not None
        return case.number

    assert number("2 ranks, 7 elements, rank 0: element 3 is 4.") == 2  # not the right one before
    assert number("2 ranks, 7 elements, groups (0, 1): stuck") == 3
    assert number("3 ranks: 4 kB left rank 0") == 4
    assert number("each rank sent 0 bytes") == 1
    assert case_of("2 ranks", []) is None


# A case of a right answer ------------------------------------------------------------------------

ON_RANKS = [
    part
    for part in known_parts()
    if isinstance(part.check, Check) and not isinstance(part.check, FixScript)
]


@pytest.mark.slow
@pytest.mark.parametrize("part", ON_RANKS, ids=lambda part: part.name)
def test_no_fault_is_found_in_a_case_of_a_right_answer(part: Part) -> None:
    """This holds even for criteria that judge several cases together."""
    # Not while this module is imported, since ranks that get its functions import it too.
    known, judging = answers_of(part), part.check
    assert known is not None
    assert isinstance(judging, Check)
    judging.prepare(BENCH)
    cases = [(trial, case) for trial in judging.trials(0) for case in trial.cases]
    for number in {1, 2, len(cases)} & {*range(1, len(cases) + 1)}:
        trial, case = cases[number - 1]
        one = BENCH.observe(replace(trial, cases=[case.labelled()[0]]), known.right[0])
        assert wrong_in(judging, one, is_first=number == 1) == []

"""The checks give the points that are earned, and say why the others are not."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtlab.checks import Criterion, Report, check, find_part, known_parts
from dtlab.checks.functions.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.checks.functions.trials import Case, Observation, Trial, observe
from dtlab.checks.report import Reference
from dtlab.checks.words import amount
from dtlab.errors import DeadlockError, DtlabError, Failure, RankError, RankTimeoutError, Waiting
from dtlab.trace import Event, Trace
from dtlab.units.unit01.calls import (
    AllReduce,
    Answer,
    Broadcast,
    Call,
    HierarchicalAllReduce,
    ReduceScatter,
    draw_groups,
)
from dtlab.units.unit01.judges import Message
from dtlab.units.unit01.tree_broadcast import rounds_of

ROOT = Path(__file__).parent.parent

# Reports ------------------------------------------------------------------------------

REPORT = Report(
    "ring_all_reduce",
    (
        Criterion("result", 4, 4, "ok", "the sum is right"),
        Criterion("bytes", 3, 0, "lost", "each rank sent <25.2 MB>\npass one chunk"),
        Criterion("rounds", 3, 0, "blocked", "judged once the call returns"),
    ),
)


def test_report_reads_well_in_a_terminal() -> None:
    assert str(REPORT) == (
        "ring_all_reduce   4 of 10 points\n"
        "  ok       4/4  the sum is right\n"
        "  lost     0/3  each rank sent <25.2 MB>\n"
        "                pass one chunk\n"
        "  blocked  0/3  judged once the call returns"
    )
    assert repr(REPORT) == str(REPORT)


def test_report_counts_its_points() -> None:
    assert (REPORT.score, REPORT.max_score, REPORT.passed) == (4, 10, False)
    assert Report("part", REPORT.criteria[:1]).passed


def test_report_is_a_table_that_takes_the_colours_of_the_page() -> None:
    table = REPORT._repr_html_()
    assert "&lt;25.2 MB&gt;" in table
    assert "color:inherit" in table
    open_ = Report("part", (Criterion("result", 1, 0, "open", "the sum is right"),))._repr_html_()
    for status in ("ok", "lost", "blocked", "open"):
        assert f">{status}</span>" in table + open_  # a word says it, not colour alone


NAMED = "your `group=None` < `input`: a ` alone\nand `two\nlines` stay"


def test_code_in_a_message_is_code_in_the_table_and_plain_in_a_terminal() -> None:
    report = Report("part", (Criterion("result", 1, 0, "lost", NAMED),))
    table, text = report._repr_html_(), str(report)
    code = '<code style="color:inherit;background:none;padding:0">{}</code>'
    assert f"your {code.format('group=None')} &lt; {code.format('input')}: a ` alone" in table
    assert "your group=None < input: a ` alone\n" in text
    assert "and `two\n" in text
    assert "`two" in table
    assert report.criteria[0].message == NAMED


def test_code_in_a_message_cannot_bring_tags_along() -> None:
    message = "rank 0 returns `<img src=x onerror='go()'>` and <b>"
    table = Report("part", (Criterion("result", 1, 0, "lost", message),))._repr_html_()
    assert "<img" not in table
    assert ">&lt;img src=x onerror=&#x27;go()&#x27;&gt;</code> and &lt;b&gt;" in table


def test_a_grid_in_a_message_keeps_its_columns() -> None:
    grid = "        0   1   2\nrank 0 0F0     0B0\nrank 1 1F0 1B0 1F1"
    message = f"no rank can continue:\n{grid}\nWho waits for `1F0`?"
    table = Report("part", (Criterion("runs", 1, 0, "lost", message),))._repr_html_()
    (shown,) = re.findall(r"<code[^>]*white-space:pre;[^>]*>(.*?)</code>", table, re.DOTALL)
    assert shown == grid
    assert "no rank can continue:<code" in table
    assert "</code>Who waits for <code" in table


def test_a_criterion_without_points_is_a_remark() -> None:
    remark = Criterion("part", 0, 0, "blocked", "unknown answer 'speed'")
    report = Report("part", (*REPORT.criteria[:1], remark))
    assert (report.passed, report.score, report.max_score) == (True, 4, 4)
    assert str(report).splitlines()[1:] == [
        "  ok       4/4  the sum is right",
        "  blocked       unknown answer 'speed'",
    ]
    assert "4 of 4</td>" in report._repr_html_()
    assert "0 of 0" not in report._repr_html_()


def test_report_is_nbgraders_number_in_a_kernel_and_text_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert REPORT._repr_mimebundle_()["text/plain"] == str(REPORT)
    monkeypatch.setattr("dtlab.checks.report.in_a_kernel", lambda: True)
    bundle = REPORT._repr_mimebundle_()
    assert float(bundle["text/plain"]) == REPORT.score
    assert bundle["text/html"] == REPORT._repr_html_()
    monkeypatch.setattr("dtlab.checks.report.has_front_end", lambda: True)
    assert REPORT._repr_mimebundle_()["text/plain"] == str(REPORT)  # a person may read it
    monkeypatch.setattr("dtlab.checks.report.graded_student", lambda: "ada")
    assert float(REPORT._repr_mimebundle_()["text/plain"]) == REPORT.score


def test_a_passed_part_is_shown_next_to_the_librarys_version() -> None:
    reference = Reference.of("dtlab.collectives.ring_all_reduce")
    report = Report("ring_all_reduce", REPORT.criteria[:1], reference)
    last = str(report).splitlines()[-1]
    assert last.startswith("  The library's version: dtlab.collectives.ring_all_reduce, dtlab/")
    assert re.search(r"dtlab/collectives.py, line \d+$", last)
    table = report._repr_html_()
    assert "<details" in table
    assert "def ring_all_reduce(" in table
    assert "def naive_all_reduce(" not in table
    assert '<code style="color:inherit;background:none;padding:0">dtlab.coll' in table
    assert "<details" not in REPORT._repr_html_()


@pytest.mark.parametrize(
    "name", [part.reference for part in known_parts() if part.reference is not None]
)
def test_references_are_functions_and_classes_of_the_library(name: str) -> None:
    symbol = name.rpartition(".")[2]
    assert re.search(rf"^(def|class) {symbol}[(:]", Reference.of(name).source, re.MULTILINE)


# Parts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("01/ring_allreduce", r"Did you mean '01/ring_all_reduce'\? Parts of unit 01: 01/"),
        ("03/plan", r"Did you mean '03/reach'\? Parts of unit 03: "),  # called as its function is
        ("ring_all_reduce", r"Did you mean '01/ring_all_reduce'\? Known parts: 00/"),
    ],
)
def test_an_unknown_part_lists_those_of_its_unit(name: str, words: str) -> None:
    with pytest.raises(DtlabError, match=words) as error:
        check(name, print)
    assert ("05/" in str(error.value)) == (name[2] != "/")


def test_a_part_with_an_earlier_name_says_how_to_renew_the_notebook() -> None:
    """This is for cells in a learner's copy of an earlier release."""
    renew = r"\. To renew a notebook of an earlier release: dtlab start 01 --renew$"
    with pytest.raises(DtlabError, match=renew):
        check("01/earlier_name", {"diagnosis": {}, "fixed": print})


def test_parts_and_their_graded_cells_agree() -> None:
    cells: dict[tuple[str, str], Any] = {}  # by unit and id
    for notebook in (ROOT / "solutions").glob("*/*.ipynb"):
        for cell in json.loads(notebook.read_text())["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade"):
                cells[notebook.parent.name[:2], cell["id"]] = cell
    for part in known_parts():
        cell = cells.pop((part.unit, part.grade_id))
        assert cell["metadata"]["nbgrader"]["points"] == part.points
        assert part.by_hand or "".join(cell["source"]) == part.call
    assert not cells, "graded cells without a part"


@pytest.mark.slow
def test_the_catalogue_does_not_load_torch() -> None:
    code = (
        "import sys, dtlab.checks as g; list(g.known_parts()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


# Checks as data ------------------------------------------------------------------------------


def test_a_criterion_is_lost_or_blocked_without_taking_another_down() -> None:
    verdicts = {"a": ok("good"), "b": lost("bad"), "c": blocked("not judged")}
    rules = tuple(Rule(name, 2, lambda _, v=verdict: v) for name, verdict in verdicts.items())
    criteria = Check(trials=lambda seed: [], rules=rules).run("part", print)
    assert [(one.status, one.earned) for one in criteria] == [
        ("ok", 2),
        ("lost", 0),
        ("blocked", 0),
    ]
    assert [one.message for one in criteria] == ["good", "bad", "not judged"]


def test_an_answer_that_is_no_function_gets_one_sentence() -> None:
    report = check("01/ring_all_reduce", 3)
    assert report.score == 0
    assert "is int here, not a function" in report.criteria[0].message
    assert {one.status for one in report.criteria[1:]} == {"blocked"}


def not_written(tensor: torch.Tensor, group: Any = None) -> None:
    raise NotImplementedError


@pytest.mark.slow
def test_before_anything_is_written_each_criterion_is_open_and_says_what_it_demands() -> None:
    assert str(check("01/tree_broadcast", not_written)) == (
        "tree_broadcast   0 of 6 points\n"
        "  open       tree_broadcast is not written yet: it still raises NotImplementedError.\n"
        "  open  0/2  all ranks have the source's tensor, on up to 9 ranks\n"
        "  open  0/1  right on groups of some of the ranks too\n"
        "  open  0/1  each rank receives the tensor once\n"
        "  open  0/2  log2 N rounds, rounded up"
    )


def takes_nothing() -> None:
    """Stands for an answer with other arguments."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01/ring_all_reduce", "02/average_gradients"])
def test_the_quoted_line_is_the_learners_where_the_call_itself_fails(name: str) -> None:
    message = check(name, takes_nothing).criteria[0].message
    assert "takes_nothing() takes 0 positional arguments" in message
    where = message.splitlines()[1]
    assert re.fullmatch(r".*test_grading.py, line \d+:   def takes_nothing.. -> None:", where)


def test_a_line_of_a_check_is_not_quoted_where_ranks_hang() -> None:
    file = str(ROOT / "dtlab" / "units" / "unit01" / "calls.py")
    waiting = [Waiting(0, "recv", (1,), file=file, line=9, code="fn(*given)", cell=None)]
    error = DeadlockError("stuck", waiting=waiting, advice="Look.")
    trouble = Observation(Trial(1, [OneStep(0)]), error=error).trouble
    assert trouble.splitlines()[1:] == ["rank 0 is in recv", "Look."]


def test_every_criterion_says_what_it_demands() -> None:
    checks = [(part.name, getattr(part.check, "check", part.check)) for part in known_parts()]
    rules = [(name, r) for name, one in checks if isinstance(one, Check) for r in one.rules]
    assert len(rules) > 200
    assert not [(name, r.name) for name, r in rules if r.right == r.name]


# Cases on real ranks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OneStep(Case):
    """A case of another kind than a collective's: a module is handed in, and trained."""

    seed: int

    def __str__(self) -> str:
        return "one step"

    def given(self, rank: int, world_size: int) -> tuple[float, float]:
        return float(self.seed), rank + 1.0

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[float, float]) -> torch.Tensor:
        weight, value = given
        module = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(module.weight, weight)
        wrapped = fn(module)
        wrapped(torch.full((1, 1), value)).sum().backward()
        return module.weight.grad

    def mistake(self, results: Sequence[torch.Tensor]) -> str:
        grads = [result.item() for result in results]
        return "" if grads == [1.5, 1.5] else f"gradients {grads}"


def with_averaged_gradients(module: torch.nn.Module) -> torch.nn.Module:
    def average(gradient: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()

    for parameter in module.parameters():
        parameter.register_hook(average)
    return module


def judge_mistakes(seen: Sequence[Observation]) -> Verdict:
    wrong = [sentence for one in seen for sentence in one.mistakes]
    return lost(wrong[0]) if wrong else ok("right")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (with_averaged_gradients, "right"),
        (lambda module: module, "2 ranks, one step, gradients [1.0, 2.0]"),
        (lambda module: None, "2 ranks, one step: TypeError: 'NoneType' object is not callable"),
    ],
)
def test_a_case_may_be_of_any_kind(answer: Callable[..., Any], message: str) -> None:
    one_step = Check(
        trials=lambda seed: [Trial(2, [OneStep(seed)])], rules=(Rule("step", 1, judge_mistakes),)
    )
    (criterion,) = one_step.run("wrapped", answer, seed=7)
    assert criterion.message.startswith(message)


def noted(tensor: torch.Tensor, group: Any = None) -> Any:
    """Leaves in the tensor which ranks of the world the group has."""
    tensor.fill_(sum(10**rank for rank in dist.get_process_group_ranks(group)))
    if len(tensor) == 3:
        raise ValueError("three")


@pytest.mark.slow
def test_groups_run_at_the_same_time_and_failures_name_their_case() -> None:
    calls = [AllReduce(0, 2), AllReduce(0, 2, groups=((0, 3), (1, 2)))]
    seen = observe(Trial(4, calls), noted)
    assert [[int(answer.result[0]) for answer in case] for case in seen.results] == [
        [1111] * 4,
        [1001, 110, 110, 1001],
    ]
    failed = observe(Trial(2, [AllReduce(0, 2), AllReduce(0, 3)]), noted)
    assert failed.failed_case == 1
    assert failed.mistakes[0].startswith("2 ranks, 3 elements: ValueError: three")


# Judges of the ring, on observations made up ---------------------------------------------------

RIGHT = AllReduce(0, 8)


def ring_events(*, ways: int = 1, pieces: int = 1) -> list[Event]:
    """What a perfect ring on 4 ranks sends: in one direction, or half in each."""
    return [
        Event(rank, "comm", "send", ((rank + way) % 4,), (1 << 20) // ways // pieces, float(step))
        for step in range(6 * pieces)
        for rank in range(4)
        for way in (1, -1)[:ways]
    ]


def judged(
    events: Sequence[Event], *, wire: Sequence[int | None] = (), finished: tuple[str, ...] = ()
) -> dict[str, Criterion]:
    """The criteria of a part whose calls on 4 ranks, in the world and in groups, were right."""
    seen = []
    for call in (RIGHT, AllReduce(0, 8, groups=((0, 2), (1, 3)))):
        inputs = call.inputs(4)
        sums = [sum(inputs[member] for member in call.members(rank, 4)) for rank in range(4)]
        names = frozenset(finished)
        answers = [[Answer(torch.as_tensor(each), finished=names) for each in sums]]
        trace = Trace(events, world_size=4, wire=wire)
        seen.append(Observation(Trial(4, [call]), answers, trace))
    rules = find_part("01/ring_all_reduce").check.rules
    return {rule.name: rule.settle(seen) for rule in rules}


@pytest.mark.parametrize("wire", [[], [6 << 20] * 4, [int(6.1 * 2**20)] * 4])
def test_the_operating_systems_count_may_agree_or_be_missing(wire: list[int]) -> None:
    assert {one.status for one in judged(ring_events(), wire=wire).values()} == {"ok"}


@pytest.mark.parametrize("wire", [12 << 20, int(6.2 * 2**20), 5 << 20])
def test_a_trace_that_the_operating_system_contradicts_is_the_failure(wire: int) -> None:
    criteria = judged(ring_events(), wire=[6 << 20, 6 << 20, wire, 6 << 20])
    assert f"rank 2 handed 6.3 MB to dist.send or dist.isend, but {amount(wire)} left it" in (
        criteria["result"].message
    )
    assert [one.status for one in criteria.values()] == ["lost"] + ["blocked"] * 4


def test_small_messages_may_have_headers_as_large_as_themselves() -> None:
    events = [Event(0, "comm", "send", (1,), 4, float(n)) for n in range(1000)]
    criteria = judged([*events, *ring_events()], wire=[(6 << 20) + 1000 * 76, None, None, None])
    assert criteria["result"].status == "ok"


def test_a_right_sum_for_which_too_little_came_is_the_failure() -> None:
    criteria = judged([event for event in ring_events() if event.peers != (2,)])
    assert "of the 32 bytes that it needs, only 0 bytes arrived" in criteria["result"].message
    assert [one.status for one in criteria.values()] == ["lost"] + ["blocked"] * 4


def test_a_finished_collective_earns_nothing() -> None:
    for criteria in (
        judged([*ring_events(), Event(1, "comm", "all_gather", (0, 2, 3), 8)]),
        judged(ring_events(), finished=("dtlab.collectives.tree_broadcast",)),
    ):
        assert sum(one.earned for one in criteria.values()) == 0
        assert [one.status for one in criteria.values()] == ["lost"] + ["blocked"] * 4


def test_both_directions_at_once_are_as_many_rounds_as_one() -> None:
    assert judged(ring_events(ways=2))["rounds"].status == "ok"
    assert judged(ring_events(pieces=2))["rounds"].message.startswith("12 rounds on 4 ranks")


@pytest.mark.parametrize(("blocked", "status"), [([], "lost"), ([(0.0, 0.1)], "ok"), (None, "ok")])
def test_messages_must_be_waited_for(blocked: list[Any] | None, status: str) -> None:
    extra = {} if blocked is None else {"blocked": blocked}
    events = [*ring_events(), Event(3, "comm", "recv", (2,), 4, extra=extra)]
    criterion = judged(events)["result"]
    assert criterion.status == status
    assert ("rank 3 does not wait for its dist.irecv" in criterion.message) == (status == "lost")


# Rounds of a tree ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "rounds"),
    [
        ([], 0),
        ([(0, 1), (0, 2), (1, 3), (0, 4), (1, 5)], 3),
        ([(0, 1), (0, 2), (0, 4), (1, 3), (1, 5)], 3),  # as it may be seen
        ([(0, 1), (0, 2), (0, 3)], 3),
        ([(0, 1), (1, 2), (2, 3)], 3),
        ([(0, 1), (0, 2), (1, 2), (2, 3)], 3),  # 2 had it in round 2
    ],
)
def test_a_rank_sends_one_message_in_a_round(sent: list[tuple[int, int]], rounds: int) -> None:
    assert rounds_of([Message(*pair, 4, "float32") for pair in sent]) == rounds


# What is tried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [4, 5, 6])
def test_groups_are_never_the_first_ranks(world_size: int) -> None:
    for seed in range(50):
        groups = draw_groups(random.Random(seed), world_size, world_size // 2 + 1)
        assert sorted(rank for group in groups for rank in group) == list(range(world_size))
        for group in groups:
            assert list(group) == sorted(group) != list(range(len(group)))


BUILT = [part for part in known_parts() if (part.unit, part.level) == ("01", 2)]
LEVEL_2 = [part for part in BUILT if isinstance(part.check.trials(0)[-1].cases[0], Call)]


@pytest.mark.parametrize("part", LEVEL_2, ids=lambda part: part.name)
def test_other_seeds_try_other_values_of_the_same_kind(part: Any) -> None:
    plans = [part.check.trials(seed) for seed in range(20)]
    assert len({str(plan) for plan in plans}) == 20
    for *others, last in plans:
        (grouped,) = last.cases
        assert grouped.groups
        assert {trial.world_size for trial in others} >= {1, 2, 3, 4}
        for trial in others:
            assert not any(call.groups for call in trial.cases)
        if isinstance(grouped, ReduceScatter):
            assert all(grouped.size % len(group) == 0 for group in grouped.groups)
            for trial in others:
                assert all(call.size % trial.world_size == 0 for call in trial.cases)
        if isinstance(grouped, HierarchicalAllReduce):
            assert all(len(group) % grouped.ranks_per_node == 0 for group in grouped.groups)


# What is said about wrong sums -----------------------------------------------------------------


def sum_of(call: Call, *ranks: int) -> torch.Tensor:
    inputs = call.inputs(3)
    return torch.stack([inputs[rank] for rank in ranks]).sum(dim=0)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((0, 1), "hold the values of ranks 0 and 1 only"),
        ((0, 1, 2, 1), "hold the values of ranks 0 to 2, those of rank 1 twice"),
        ((2, 2), "hold the values of rank 2 only, those of rank 2 twice"),
        ((), "hold nothing but zeros"),
    ],
)
def test_the_message_on_a_wrong_sum_names_the_ranks_in_it(
    ranks: tuple[int, ...], words: str
) -> None:
    call = AllReduce(1, 9)
    right = sum_of(call, 0, 1, 2)
    wrong = right.clone()
    wrong[3:6] = sum_of(call, *ranks)[3:6] if ranks else 0
    results = [Answer(right), Answer(wrong), Answer(right)]
    assert call.mistake(results) == f"rank 1: elements 3 to 5 {words}."
    seen = Observation(Trial(3, [call]), [results])
    assert seen.mistakes == [f"3 ranks, 9 elements, rank 1: elements 3 to 5 {words}."]


def test_values_from_outside_the_group_are_recognised() -> None:
    call = AllReduce(1, 4, groups=((0, 2), (1,)))
    everyone, pair = sum_of(call, 0, 1, 2), sum_of(call, 0, 2)
    results = [Answer(pair), Answer(sum_of(call, 1)), Answer(everyone)]
    words, cause = call.mistake(results).split("\n")
    assert words == (
        "rank 2 (group rank 1): elements 0 to 3 hold the values of ranks 0 to 2, not those of "
        "ranks 0 and 2."
    )
    assert cause.endswith("in the group of ranks 0 and 2, rank 2 is group rank 1.")
    assert str(call) == "4 elements, groups (0, 2) and (1)"


def test_the_return_value_affects_only_the_message() -> None:
    call = AllReduce(0, 5)
    right, before = sum_of(call, 0, 1, 2), call.inputs(3)
    unchanged = [Answer(before[rank], right) for rank in range(3)]
    assert "you return the right sum but leave `tensor` unchanged" in call.mistake(unchanged)
    assert not call.mistake([Answer(right, before[0])] * 3)


def test_a_broadcast_must_return_the_sources_values() -> None:
    call = Broadcast(0, 5, seat=2)
    source, other = call.inputs(3)[2], call.inputs(3)[1]
    assert not call.mistake([Answer(source)] * 3)
    assert call.mistake([Answer(source), Answer(other), Answer(source)]) == (
        "rank 1: elements 0 to 4 hold the values of rank 1, not those of rank 2.\n`tensor` is "
        "unchanged: receive into it, or copy the received values into it."
    )
    assert [call.needs(rank, 3) for rank in range(3)] == [20, 20, 0]
    assert str(Broadcast(0, 5, ((1, 3, 4), (0, 2)), seat=-1)).endswith("src=4 and 2")


def test_a_reduce_scatter_must_return_the_ranks_chunk() -> None:
    call = ReduceScatter(0, 6)
    chunks = sum_of(call, 0, 1, 2).chunk(3)
    right = [Answer(chunk, input=call.inputs(3)[rank]) for rank, chunk in enumerate(chunks)]
    assert not call.mistake(right)
    assert call.rank_of_changed_input(right) is None
    assert call.rank_of_changed_input([*right[:2], Answer(chunks[2], input=chunks[0])]) == 2
    for wrong, words in (
        (chunks[1], "chunk 1 of the sum, and rank 0 must have chunk 0. A chunk makes N-1"),
        (torch.full((2,), call.before), "`output` is unchanged"),
        (chunks[0] + call.before, "this is the sum plus the old content of `output`"),
        (chunks[0] / 3, "this is the average"),
        (torch.zeros(5), "the tensor is (5,) of torch.float32 now"),
    ):
        assert words in call.mistake([Answer(wrong), *right[1:]])
    assert [call.needs(rank, 3) for rank in range(3)] == [8] * 3


def test_an_unknown_number_is_shown_with_the_right_one() -> None:
    call = AllReduce(0, 2)
    words = call.mistake([Answer(call.inputs(1)[0] + 0.5)])
    assert words.startswith("rank 0: element 0 is ")
    assert "and should be" in words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (12_345, "12 kB"), (6_291_456, "6.3 MB")],
)
def test_amounts_have_units_that_suit_them(count: int, words: str) -> None:
    assert amount(count) == words


def test_a_crash_names_size_message_and_line() -> None:
    failure = Failure(
        "exception", "ValueError: no\n(in case 1 of this check)", "a.py", 4, "f()", 2
    )
    trial = Trial(3, [AllReduce(0, 6), AllReduce(0, 7)])
    seen = Observation(trial, error=RankError("...", failures={1: failure}))
    assert seen.trouble == "3 ranks, 7 elements: rank 1: ValueError: no\ncell 2, line 4:   f()"
    assert seen.mistakes == [seen.trouble]


def test_a_wrong_call_of_the_check_names_the_cell_of_the_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rank has only the file's name; the notebook has the number of its cell."""
    monkeypatch.setattr("dtlab.ranks.watch.locate._cell_numbers", lambda: {"/tmp/k/12.py": 3})
    for file, where in (("/tmp/k/12.py", "cell 3"), ("/tmp/k/a.py", "/tmp/k/a.py")):
        note = f"TypeError: no\n(the answer is defined in {file}, line 2:   def f(x):)"
        failure = Failure("exception", "TypeError: no", pytest.__file__, 4, traceback=note)
        seen = Observation(Trial(1, [AllReduce(0, 6)]), error=RankError("", failures={0: failure}))
        assert seen.trouble.splitlines()[1].startswith(f"{where}, line 2")


def test_a_hang_names_ranks_operations_and_the_usual_cause() -> None:
    waiting = [Waiting(rank, "recv", (1 - rank,), "a.py", 4, "dist.recv(b)", 2) for rank in (0, 1)]
    stuck = DeadlockError("", waiting=waiting), RankTimeoutError("", running=waiting)
    for error, within in zip(stuck, ("", " within 4 s"), strict=True):
        words = Observation(Trial(2, [AllReduce(0, 4)]), error=error).trouble
        assert f"2 ranks, 4 elements: the ranks did not finish{within}." in words
        assert "ranks 0 and 1 are in recv   cell 2, line 4:   dist.recv(b)" in words
        assert "post isend, then receive" in words

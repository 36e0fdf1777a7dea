"""Level III of unit 02: broken training scripts, their faulty lines, and their judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dtlab.checks import Part, find_part
from dtlab.checks.functions.bench import HERE, warm_up
from dtlab.checks.functions.checks import UNANSWERED
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.cases import Seen, Training
from dtlab.checks.programs.judges import copies_differ, not_shared_out
from dtlab.checks.programs.lines import judge_line
from dtlab.checks.programs.reference import (
    Optimizer,
    averaged_after_each_step,
    in_one_process,
    mean,
    off,
    steps_of,
)
from dtlab.checks.programs.training import FixScript
from dtlab.training.models import MLP
from dtlab.units.unit02 import scripts
from dtlab.units.unit02.script_4 import Damaged, other_steps
from dtlab.units.unit02.script_8 import OnCards, wrong_cards
from tests.known_answers import answers_of
from tests.staying import BENCH

pytestmark = pytest.mark.unit("02")

PARTS = [find_part(f"02/script_{number}") for number in range(1, 9)]
OPTIMIZERS = {
    "sgd": (Optimizer(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (Optimizer(0.05, 0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": (
        Optimizer(2e-3, adam=True, eps=1e-3),
        lambda p: torch.optim.Adam(p, lr=2e-3, eps=1e-3),
    ),
}


def fix_of(part: Part) -> FixScript:
    """The check of a part."""
    assert isinstance(part.check, FixScript)
    return part.check


def name_of(part: Part) -> str:
    """How pytest names a case."""
    return part.symbol


each_part = pytest.mark.parametrize("part", PARTS, ids=name_of)


@pytest.fixture(scope="module")
def warm() -> None:
    """The server of ranks has imported what optimizers need."""
    warm_up()


def test_every_part_has_five_points_and_all_take_73_minutes() -> None:
    assert [part.points for part in PARTS] == [5] * 8
    assert sum(part.minutes for part in PARTS) == 73


# Broken scripts ---------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixed", "piece"),
    [
        ("only_the_clearing_is_fixed", "the sum over the microbatches"),
        ("only_the_division_is_fixed", "it counts as one of several"),
    ],
)
def test_fixing_one_of_two_faults_changes_what_is_seen(
    fixed: str, piece: str, warm: None
) -> None:
    part = find_part("02/script_6")
    known = answers_of(part)
    assert known is not None
    answer = next(one for one in known.wrong if one.__name__ == fixed)()
    first, second = (
        part.check.run(part.symbol, {**answer, "fixed": fn}, bench=BENCH)
        for fn in (fix_of(part).broken, answer["fixed"])
    )
    assert [one.name for one in first if one.status == "lost"] == ["training"]
    assert [one.name for one in second if one.status == "lost"] == ["training"]
    assert piece in second[-1].message
    assert piece not in first[-1].message


@pytest.mark.sample(1)
@pytest.mark.sample(3)
@pytest.mark.slow
@each_part
def test_the_broken_script_earns_nothing(part: Part, warm: None) -> None:
    answer = {"diagnosis": {"line": None}, "fixed": fix_of(part).broken}
    criteria = part.check.run(part.symbol, answer, bench=BENCH)
    assert (criteria[0].name, criteria[0].status) == ("line", "open")
    first_is_right = part.symbol in ("script_5", "script_6")  # equal copies; traffic
    wanted = ["ok", "lost"] if first_is_right else ["lost", "blocked"]
    assert [one.status for one in criteria[1:]] == wanted


def nothing(*_: Any) -> None:
    """Stands for a script that does nothing."""


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("said", [3, "drift", [], {"line": object()}, {"line": 70}])
def test_a_strange_diagnosis_only_loses_points(said: Any, warm: None) -> None:
    criteria = PARTS[0].check.run("script_1", {"diagnosis": said, "fixed": nothing}, bench=BENCH)
    assert criteria[0].status == "lost"
    assert criteria[0].message


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, 3, nothing, {}, {"fixed": nothing}])
def test_an_answer_that_is_no_dict_of_both_is_explained(answer: Any, warm: None) -> None:
    criteria = PARTS[0].check.run("script_1", answer, bench=BENCH)
    fault = 'has no key "diagnosis"' if isinstance(answer, dict) else "must be a dict"
    assert criteria[0].message.startswith(f"script_1 {fault}: ")
    assert [one.status for one in criteria] == ["lost", "blocked", "blocked"]


@pytest.mark.sample(3)
@pytest.mark.slow
@each_part
def test_a_script_that_does_nothing_earns_nothing(part: Part, warm: None) -> None:
    criteria = fix_of(part).check.run("fixed", nothing, bench=BENCH)
    assert [one.status for one in criteria] == ["lost", "blocked"], criteria


# Lines ------------------------------------------------------------------------------------------

LINE = ["dist.all_reduce(parameter.grad)", "parameter.grad /= dist.get_world_size()"]


@pytest.mark.parametrize(
    "said",
    [
        18, 19, 18.0, torch.tensor(18), "18", " line 19: ", "Line 18", "all_reduce",
        "  dist.all_reduce( parameter.grad )  # here", "parameter.grad/=dist.get_world_size()",
    ],
)  # fmt: skip
def test_a_line_may_be_named_in_many_ways(said: Any) -> None:
    assert judge_line(scripts.train_5, said, LINE, "Look.").status == "ok"


def test_an_empty_line_does_nothing() -> None:
    from dtlab.units.unit07.replicas_script import train_replicas

    verdict = judge_line(train_replicas, 8, ["optimizer.step()"], "Look.")
    assert (verdict.status, verdict.message) == (
        "lost", "line 8, counted from def, has no code. Look."
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "piece"),
    [
        (4, "`dist.broadcast(parameter.data, src=0)` (line 4, counted from def) does"),
        (4, "should here. Look."),
        (0, "train_5 has no line 0"),
        (99, "train_5 has no line 99"),
        (-1, "train_5 has no line -1"),
        (6.5, "train_5 has no line 6.5"),
        ([6], "train_5 has no line"),
        ("there", "train_5 has no line"),
        ("dist.", "lines have that text"),
        ("for", "train_5 has no line"),
        ("optimizer.step()", "does what it should here"),
    ],
)
def test_the_message_on_a_wrong_line_says_where_to_look(said: Any, piece: str) -> None:
    verdict = judge_line(scripts.train_5, said, LINE, "Look.")
    assert verdict.status == "lost"
    assert piece in verdict.message
    assert "all_reduce" not in verdict.message


@pytest.mark.parametrize("said", [None, ""])
def test_a_line_that_is_not_filled_in_waits(said: Any) -> None:
    assert judge_line(scripts.train_5, said, LINE, "Look.") == UNANSWERED


# One process ------------------------------------------------------------------------------------


def torchs_own(
    case: Training, steps: list[list[int]], make: Callable[..., Any], zero: bool
) -> torch.Tensor:
    """Parameters after the steps, by torch.optim."""
    model = MLP(64, case.hidden, 10).double()
    vector_to_parameters(case.start(0).double(), model.parameters())
    optimizer = make(model.parameters())
    images, labels = case.data
    for step in steps:
        if zero:
            optimizer.zero_grad()
        F.cross_entropy(model(images[step].double()), labels[step]).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("piled_up", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process_is_what_torch_makes_of_the_whole_batch(name: str, piled_up: bool) -> None:
    ours, theirs = OPTIMIZERS[name]
    case, steps = Training(3, 60), [list(range(k, k + 12)) for k in range(0, 60, 12)]
    shared = [[[step[:6]], [step[6:]]] for step in steps]
    got = in_one_process(case, [mean(step) for step in shared], ours, piled_up=piled_up)
    assert off(got, torchs_own(case, steps, theirs, not piled_up), case.start(0)) < 1e-9


def test_averaging_parameters_is_averaging_gradients_with_sgd_and_not_with_adam() -> None:
    case = Training(4, 60)
    steps = [[[list(range(k, k + 6))], [list(range(k + 6, k + 12))]] for k in range(0, 60, 12)]
    for name, same in (("sgd", True), ("momentum", True), ("adam", False)):
        optimizer = OPTIMIZERS[name][0]
        wanted = in_one_process(case, [mean(step) for step in steps], optimizer)
        far = off(averaged_after_each_step(case, steps, optimizer), wanted, case.start(0))
        assert (far < 1e-9) == same, name
        assert same or far > 1e-2


def test_steps_are_what_ranks_do_together() -> None:
    case = Training(0, 12, epochs=2)
    one = seen([[0, 1], [2, 3], [4, 5], [6, 7]])
    other = seen([[8], [9]])
    assert steps_of(case, [one, other]) == [
        [[[0, 1]], [[8]]], [[[2, 3]], []], [[[4, 5]], [[9]]], [[[6, 7]], []]
    ]  # fmt: skip
    assert steps_of(replace(case, passes=2), [one, one])[0] == [[[0, 1], [2, 3]]] * 2


# Judges -----------------------------------------------------------------------------------------


def seen(passes: list[list[int]], after: float = 0.0, cards: list[int] | None = None) -> Seen:
    """What a rank did, with a model of two parameters."""
    row = torch.full((2,), after, dtype=torch.float64)
    return Seen(passes, torch.zeros(len(passes), 2, dtype=torch.float64), row, cards or [])


NO_TRACE = Observation(Trial(2, []))


@pytest.mark.parametrize(
    ("passes", "piece"),
    [
        ([[[0, 1], [2, 3]], [[2, 3], [0, 1]]], ""),
        ([[[0, 1], [2, 0]], [[2, 3], [3, 1]]], ""),
        ([[[0, 1, 2, 3]] * 2] * 2, "every rank goes through all 4 samples"),
        ([[[0, 1], [0, 1]], [[2], [2]]], "1 of 4 samples are in no rank's"),
        ([[[0, 1], [0, 1]], [[2, 3], [2, 3]]], "in the order of epoch 0"),
        ([[[0, 1], [1, 0]], [[2, 3], [3, 2]]], "only their order is new"),
        ([[[0, 1, 2], [0, 1, 3]], [[1, 2, 3], [1, 2, 0]]], "takes 2 samples more than once"),
        ([[[0, 1], [2, 3]], [[2, -1], [0, 1]]], "images that are not in the data"),
        ([[[0, 1], [2, 3]], [[2, 3]]], "rank 1 makes 1 forward pass in 2 epochs"),
        ([[[0, 1], [2, 3]], []], "rank 1 makes 0 forward passes"),
    ],
)
def test_samples_are_divided_or_the_message_says_why_not(
    passes: list[list[list[int]]], piece: str
) -> None:
    said = not_shared_out(Training(0, 4), [seen(own) for own in passes], NO_TRACE)
    assert piece in said
    assert bool(piece) == bool(said)


def test_a_share_may_be_filled_up_by_less_than_a_sample_for_each_rank() -> None:
    ranks = [seen([[0, 1]]), seen([[2, 3]]), seen([[4, 0]])]
    assert not not_shared_out(Training(0, 5, epochs=1), ranks, NO_TRACE)


def test_a_step_that_only_one_rank_leaves_out_is_named() -> None:
    case = Damaged(1, 4, epochs=1)  # sample 1 is damaged
    ranks = [[[0], [1]], [[2], [3]]]

    def rank(passes: list[list[int]], rows: list[float]) -> Seen:
        before = torch.tensor(rows)[:, None]
        return Seen(passes, before[:-1], before[-1], [])

    def said(rows: list[float]) -> str:
        return other_steps(case, [rank(ranks[0], [0, 1, 1]), rank(ranks[1], rows)], NO_TRACE)

    assert not said([0, 1, 1])
    assert "rank 1 makes step 1, counted from 0, in which a loss is NaN" in said([0, 1, 2])
    assert "rank 1 leaves out step 0, counted from 0, in which all losses" in said([0, 0, 0])
    assert "NaN is in the parameters of rank 1" in said([0, 1, float("nan")])


@pytest.mark.parametrize(
    ("cards", "piece"),
    [
        ([[0], [0], [1], [1]], ""),
        ([[0], [1], [0], [1]], "rank 1 requests card 1, which rank 3 on its node has too"),
        ([[0], [0], [1], []], "rank 3 requests no card"),
        ([[0], [0], [2, 1], [1]], "rank 2 requests card 2."),
    ],
)
def test_ranks_dealt_round_the_nodes_have_their_cards(cards: list[list[int]], piece: str) -> None:
    case = OnCards(0, 8, nodes=2, round=True)
    said = wrong_cards(case, [seen([[0]], cards=own) for own in cards], NO_TRACE)
    assert piece in said
    assert bool(piece) == bool(said)


def test_copies_are_compared_bit_by_bit() -> None:
    case = Training(0, 4)
    start = case.start(0).double()

    def rank(after: torch.Tensor) -> Seen:
        return Seen([[0]], start[None], after, [])

    first = rank(start + 1)
    assert not copies_differ(case, [first, rank(start + 1)], NO_TRACE)
    assert "by rounding only" in copies_differ(case, [first, rank(start + 1 + 1e-12)], NO_TRACE)
    assert "10.0% of the distance" in copies_differ(case, [first, rank(start + 1.1)], NO_TRACE)
    other = Seen([[0]], start[None] + 1, start + 2, [])
    assert "in their first forward pass" in copies_differ(case, [first, other], NO_TRACE)


@pytest.mark.slow
def test_a_scene_is_run_where_the_answer_is(warm: None) -> None:
    part = PARTS[2]
    seen_here = HERE.observe(fix_of(part).scene, fix_of(part).broken)
    assert seen_here.error is None
    (results,) = seen_here.results
    assert all(isinstance(one, Seen) and len(one.passes) == 8 for one in results)

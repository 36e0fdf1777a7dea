"""Level III of unit 03: four runs that fail in silence, and a target error to reach."""

from __future__ import annotations

import ast
import inspect
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD
from torch.utils.data import TensorDataset

import dtlab
from dtlab.checks import Part, find_part
from dtlab.checks.functions.bench import warm_up
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.cases import OnDigits, Seen, Training
from dtlab.checks.programs.reference import Optimizer, gradient_of, in_one_process, mean, off
from dtlab.checks.programs.training import FixScript
from dtlab.training.datasets import Split, digits
from dtlab.training.learning_rate import WarmupThenDecay
from dtlab.training.models import MLP
from dtlab.units.unit03 import reach
from dtlab.units.unit03.reach import (
    BATCH,
    FIRST,
    MEMORY,
    RANKS,
    SAMPLES,
    TARGET,
    Setting,
)
from dtlab.units.unit03.reach_training import train_by
from dtlab.units.unit03.run_4 import one_recipe
from dtlab.units.unit03.run_trials import (
    accumulated,
    moved_within_an_update,
    moves,
    of_rates,
    other_rates,
    schedule,
)
from tests.known_answers import answers_of
from tests.mutants.sources import solution_of
from tests.staying import BENCH

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "solutions" / "03_batch_size_and_learning_rate" / "level-3.ipynb"
RUNS = [find_part(f"03/run_{number}") for number in range(1, 5)]
REACH = find_part("03/reach")


def fix_of(part: Part) -> FixScript:
    """The check of a run."""
    assert isinstance(part.check, FixScript)
    return part.check


def scene_of(part: Part) -> OnDigits:
    """What the broken script of a run is given."""
    (case,) = fix_of(part).scene.cases
    assert isinstance(case, OnDigits)
    return case


def fixed(part: Part) -> Callable[..., Any]:
    """The fixed script of the solution."""
    solution = solution_of(part)
    answer = solution.answer(solution.source, part.symbol)["fixed"]
    assert callable(answer)
    return answer  # type: ignore[no-any-return]


each_run = pytest.mark.parametrize("part", RUNS, ids=lambda part: part.symbol)


@pytest.fixture(scope="module")
def warm() -> None:
    """The server of ranks has imported what optimizers need."""
    warm_up()


# The notebook shows what the checks run ---------------------------------------------------------


def cell(name: str) -> str:
    """The source of a cell of Level III."""
    cells = {one["id"]: one for one in json.loads(NOTEBOOK.read_text())["cells"]}
    return "".join(cells[name]["source"])


def without_types(source: str) -> str:
    """A function, as it is without type hints."""
    tree = ast.parse(source)
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
    return ast.unparse(tree)


def test_the_notebook_shows_the_loop_that_carries_plans_out() -> None:
    assert without_types(cell("plan-loop")) == without_types(inspect.getsource(train_by))


@each_run
def test_the_notebook_runs_what_the_check_measures(part: Part) -> None:
    case, script = scene_of(part), fix_of(part).broken.__name__
    more = ", ".join(f"{one:g}" for one in case.more)
    assert f"runs.{script}, {case.epochs}, {more}, world_size=2)" in cell(f"{part.symbol}-run")
    assert f"manual_seed({case.seed}))[:{case.samples}]" in cell("watch")
    assert f"MLP(64, {case.hidden}, 10" in cell("watch")
    assert 2 * case.passes * case.micro_batch == 512


def test_the_notebook_says_what_is_to_be_reached() -> None:
    text = cell("plan-say") + cell("plan-text")
    assert f"`plan({BATCH}, 8 * 12942, {RANKS}, {MEMORY})`" in text
    assert f"at most {FIRST:g} %" in text
    assert f"at most {TARGET:g} %" in text
    assert 8 * len(digits().train) == SAMPLES


def test_all_parts_have_40_points_and_take_75_minutes() -> None:
    assert [part.points for part in RUNS] == [5] * 4
    assert REACH.points == 20
    assert sum(part.minutes for part in (*RUNS, REACH)) == 75


# What the runs do to the error ------------------------------------------------------------------


def errors(script: Callable[..., Any], case: OnDigits, seeds: Sequence[int]) -> list[float]:
    """Runs on a rank: test errors in % of a script, for each seed."""
    data, found = digits(), []
    images, labels = data.test.tensors
    for seed in seeds:
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))
        model = MLP(64, case.hidden, 10, seed=seed)
        train = TensorDataset(*data.train[order[: case.samples]])
        script(model, train, case.epochs, *case.more)
        with torch.no_grad():
            found.append(100 * float((model(images).argmax(1) != labels).float().mean()))
    return found


@pytest.mark.proof
@pytest.mark.slow
@each_run
def test_a_broken_run_learns_less(part: Part, warm: None) -> None:
    def on_two(script: Callable[..., Any]) -> float:
        case = scene_of(part)
        run = dtlab.launch(
            errors, script, case, range(5), world_size=2, backend="gloo", trace=False, timeout=90
        )
        return float(statistics.mean(error for of_rank in run.values for error in of_rank))

    assert on_two(fix_of(part).broken) > on_two(fixed(part)) + 0.5


# Answers ----------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.slow
@each_run
def test_the_broken_run_earns_nothing(part: Part, warm: None) -> None:
    criteria = part.check.run(
        part.symbol, {"diagnosis": {"line": None}, "fixed": fix_of(part).broken}, bench=BENCH
    )
    assert [one.status for one in criteria] == ["open", "lost", "blocked"]
    assert criteria[0].name == "line"


def nothing(*_: Any) -> None:
    """Stands for a script that does nothing."""


@pytest.mark.sample(2)
@pytest.mark.slow
@each_run
def test_a_script_that_does_nothing_earns_nothing(part: Part, warm: None) -> None:
    criteria = fix_of(part).check.run("fixed", nothing, bench=BENCH)
    assert [one.status for one in criteria] == ["lost", "blocked"], criteria


@pytest.mark.slow
@pytest.mark.parametrize("said", [3, "rate gone", [], {"line": object()}])
def test_a_strange_diagnosis_only_loses_points(said: Any, warm: None) -> None:
    criteria = RUNS[0].check.run("run_1", {"diagnosis": said, "fixed": None}, bench=BENCH)
    assert criteria[0].status == "lost"
    assert criteria[0].message


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, 3, {}, {"fixed": nothing}])
def test_an_answer_that_is_no_dict_of_both_is_explained(answer: Any, warm: None) -> None:
    criteria = RUNS[0].check.run("run_1", answer, bench=BENCH)
    fault = 'has no key "diagnosis"' if isinstance(answer, dict) else "must be a dict"
    assert criteria[0].message.startswith(f"run_1 {fault}: ")
    assert [one.status for one in criteria] == ["lost"] + ["blocked"] * 2


# Rates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("updates", [1, 6, 9, 64])
def test_the_judges_schedule_is_the_librarys(updates: int) -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    theirs = WarmupThenDecay(optimizer, 3 * updates // 8, updates, start_factor=1 / 16)
    ours = schedule(0.8, updates, 1 / 16)
    assert ours == pytest.approx([0.8 * theirs.factor(step) for step in range(updates)])


STEPS = [[[[12 * k + j for j in range(3)], [12 * k + j for j in range(3, 6)]],
          [[12 * k + j for j in range(6, 9)], [12 * k + j for j in range(9, 12)]]]
         for k in range(5)]  # fmt: skip
RATES = (0.05, 0.1, 0.2, 0.1, 0.0)


def trained(case: Training, rates: Sequence[float], momentum: float = 0.9) -> list[Seen]:
    """What two ranks do that step with these rates, two microbatches an update."""
    weights, rows = [mean(step) for step in STEPS], []
    for count in range(len(STEPS)):
        rows += 2 * [in_one_process(case, weights[:count], Optimizer(rates, momentum))]
    end = in_one_process(case, weights, Optimizer(rates, momentum))
    return [
        Seen([part for step in STEPS for part in step[rank]], torch.stack(rows), end, [])
        for rank in (0, 1)
    ]


CASE = Training(3, 60, epochs=1, passes=2, micro_batch=3)
NO_TRACE = Observation(Trial(2, []))


def test_the_rate_of_an_update_is_measured_by_how_far_it_goes() -> None:
    found = moves(CASE, trained(CASE, RATES)[0], STEPS)
    assert [move.rate for move in found] == pytest.approx(list(RATES), abs=1e-9)
    assert max(move.astray for move in found) < 1e-6


def test_one_process_takes_a_rate_for_each_step() -> None:
    rates = [0.1, 0.02, 0.3]
    weights = [mean(step) for step in STEPS[:3]]
    now, velocity = CASE.start(0).double(), 0
    for rate, step in zip(rates, weights, strict=True):
        velocity = 0.9 * velocity + gradient_of(CASE, now, step)
        now = now - rate * velocity
    assert off(in_one_process(CASE, weights, Optimizer(rates, 0.9)), now, CASE.start(0)) < 1e-12


@pytest.mark.parametrize(
    ("rates", "momentum", "piece"),
    [
        ((0.05, 0.1, 0.2, 0.2, 0.2), 0.9, "update 3 of 5, counted from 0"),
        (RATES, 0.0, "update 1 of 5"),
    ],
)
def test_other_wrong_rates_get_different_messages(
    rates: Sequence[float], momentum: float, piece: str
) -> None:
    judge = other_rates(lambda case, ranks: RATES, of_rates)
    assert piece in judge(CASE, trained(CASE, rates, momentum), NO_TRACE)


def test_parameters_that_move_within_an_update_are_named() -> None:
    first, second = trained(CASE, RATES)
    assert not moved_within_an_update(CASE, [first, second], NO_TRACE)
    rows = first.before.clone()
    rows[3] += 1e-6
    said = moved_within_an_update(CASE, [replace(first, before=rows), second], NO_TRACE)
    assert "before its microbatch 2 of 2" in said


@pytest.mark.parametrize("trials", [accumulated, one_recipe], ids=["linear", "recipe"])
def test_known_mistakes_differ_in_every_trial(trials: Any) -> None:
    """No two factors that people come by are the same, whatever is drawn."""
    for seed in range(200):
        for trial in trials(seed):
            (case,) = trial.cases
            assert isinstance(case, Training)
            ranks, batch = trial.world_size, trial.world_size * case.passes * case.micro_batch
            times = batch / 32
            assert case.samples % batch == 0
            assert case.updates(ranks) * 3 // 8 >= 2, "a warm-up that shows"
            factors = {ranks, case.passes, ranks * case.passes, math.sqrt(times), 1.0, 16.0}
            apart = min(abs(one / times - 1) for one in factors)
            assert apart > 0.02
            if trials is one_recipe:
                assert abs(case.more[1] / (0.05 * times) - 1) > 0.02


# The target -------------------------------------------------------------------------------------


def plan_of_the_solution() -> Callable[..., dict[str, Any]]:
    """`plan` as the solution has it."""
    solution = solution_of(REACH)
    answer = solution.answer(solution.source, "plan")
    assert callable(answer)
    return answer  # type: ignore[no-any-return]


def asked(seed: int, plan: Callable[..., Any]) -> Observation:
    """The settings of a seed, and what is planned for them, without a rank."""
    (trial,) = REACH.check.trials(seed)  # type: ignore[attr-defined]
    results = [[case.opened(type(case).on_rank(plan, case.given(0, 1)))] for case in trial.cases]
    return Observation(trial, results)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_the_arithmetic_of_the_solution_is_right_in_all_settings(seed: int) -> None:
    seen = asked(seed, plan_of_the_solution())
    assert not seen.mistakes
    assert [trial.world_size for trial, _ in reach._carry_out([seen])] == [2, 2]
    settings = seen.trial.cases[1:]
    assert all(isinstance(case, Setting) and case.samples % case.batch for case in settings)


def test_seeds_of_the_trainings_are_drawn() -> None:
    seeds = {asked(seed, plan_of_the_solution()).trial.cases[0].seeds for seed in range(20)}  # type: ignore[attr-defined]
    assert len(seeds) == 20
    assert all(len(set(each)) == 6 for each in seeds)


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"rate": None}, "for 'rate': it must be a number"),
        ({"rate": -0.5}, "-0.5 for 'rate'"),
        ({"rate": math.nan}, "nan for 'rate'"),
        ({"rate": True}, "True for 'rate'"),
        ({"updates": 0}, "0 for 'updates'"),
        ({"warmup": -1}, "-1 for 'warmup'"),
        ({"warmup": 203}, "a warm-up of 203 updates, but only 202"),
        ({"micro_batch": 0}, "0 for 'micro_batch'"),
        ({"decay": 3}, "3 for 'decay'"),
        ({"decay": ["cosine"]}, "for 'decay'"),
        ({"travel_in": ["last"]}, "by their numbers from 0"),
        ({}, ""),
    ],
)
def test_the_message_on_a_wrong_plan_says_what_is_wrong(
    change: dict[str, Any], piece: str
) -> None:
    plan = plan_of_the_solution()
    seen = asked(0, lambda *given: {**plan(*given), **change})
    assert bool(piece) == bool(seen.mistakes)
    assert all(piece in one for one in seen.mistakes[:1])


@pytest.mark.parametrize("returned", [3, "plan", object()])
def test_an_answer_that_is_no_dict_is_explained(returned: Any) -> None:
    seen = asked(0, lambda *given: returned)
    assert "Return a dict" in seen.mistakes[0]


PLAN = {
    "micro_batch": 64, "micro_batches": 4, "travel_in": [3], "updates": 12, "rate": 0.1,
    "warmup": 4, "start_factor": 0.5, "decay": "cosine",
}  # fmt: skip


def in_two_ways(data: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs on a rank: parameters of a plan on both ranks, and of the same on each by itself."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    whole = {**PLAN, "micro_batch": 512, "micro_batches": 1, "travel_in": [0]}
    together = train_by(PLAN, data, 5)[2]
    return together, train_by(whole, data, 5, alone[dist.get_rank()])[2]


@pytest.mark.slow
def test_two_ranks_with_accumulation_train_as_one_rank_at_once(warm: None) -> None:
    run = dtlab.launch(in_two_ways, digits(), world_size=2, backend="gloo")
    (together, alone), (other, _) = run.values
    assert together.equal(other)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert not together.equal(alone), "only up to rounding"


def test_more_samples_than_eight_epochs_are_refused() -> None:
    def on_rank() -> None:
        train_by({**PLAN, "updates": 203}, digits(), 0)

    with pytest.raises(dtlab.RankError, match="more than there are in 8 epochs"):
        dtlab.launch(on_rank, world_size=2, backend="gloo")


def medians(plans: Mapping[str, dict[str, Any]], seeds: Sequence[int]) -> dict[str, list[float]]:
    """Runs on a rank: test errors of its seeds by each plan."""
    alone, data = [dist.new_group([rank]) for rank in range(dist.get_world_size())], digits()
    rank, size = dist.get_rank(), dist.get_world_size()
    return {
        name: [train_by(plan, data, seed, alone[rank])[0] for seed in seeds[rank::size]]
        for name, plan in plans.items()
    }


@pytest.mark.proof
@pytest.mark.slow
def test_the_target_tells_the_rules_apart(warm: None) -> None:
    known = answers_of(REACH)
    assert known is not None
    by_name = {answer.__name__: answer for answer in (*known.wrong, *known.right)}
    names = ("nothing_scaled", "by_the_square_root", "linear_without_a_warm_up",
             "linear_with_a_long_warm_up")  # fmt: skip
    at_once = {"micro_batch": 512, "micro_batches": 1, "travel_in": [0]}
    plans = {name: {**by_name[name](512, SAMPLES, 2, 64), **at_once} for name in names}
    run = dtlab.launch(
        medians, plans, range(5), world_size=2, backend="gloo", trace=False, timeout=100
    )
    found = {name: [error for one in run.values for error in one[name]] for name in names}
    none, root, linear, warmed = (found[name] for name in names)
    assert min(none) > FIRST
    assert all(max(warmed) < low for low in (min(none), statistics.median(root)))
    assert statistics.median(warmed) < TARGET < statistics.median(root) < FIRST
    assert statistics.median(linear) > TARGET

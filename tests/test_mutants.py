"""The mutators do what their drawings show, and the proof tells good checks from bad ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dtlab.checks import Criterion, Part, known_parts
from dtlab.checks.functions.bench import HERE, Bench
from tests import proof as command
from tests.known_answers import Answers
from tests.mutants.catalogue import MUTATORS, Mutator
from tests.mutants.engine import Mutant, mutants
from tests.mutants.proof import Place, Proof, fate_of, proof_of
from tests.mutants.sources import Solution, solution_of
from tests.proof import fingerprint

pytest_plugins = "pytester"

ROOT = Path(__file__).parent.parent
CHECKED = [part for part in known_parts() if not part.by_hand]

# Mutators ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutator", MUTATORS, ids=lambda mutator: mutator.name)
def test_a_mutator_does_what_it_is_drawn_to_do(mutator: Mutator) -> None:
    drawn = ast.unparse(ast.parse(mutator.after))
    assert drawn in [mutant.source for mutant in mutants(mutator.before, [mutator])]


def made_by(name: str, source: str) -> list[str]:
    """Everything that the mutators of this name make of one line or more."""
    chosen = [mutator for mutator in MUTATORS if mutator.name == name]
    return [mutant.source for mutant in mutants(source, chosen)]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("term dropped", "2 * (size - 1)", ["2", "size - 1", "2 * size", "2 * 1"]),
        ("loop one round longer", "range(1, size)", ["range(1, size + 1)"]),
        ("loop starts one later", "range(a, b)", ["range(a + 1, b)"]),
        ("loop runs backwards", "reversed(a)", ["a"]),
        ("argument left out", "dist.get_rank(group)", ["dist.get_rank()"]),
        ("index shifted by one", "a[k]", ["a[k + 1]", "a[k - 1]"]),
        ("slice shifted by one", "a[i:]", ["a[i + 1:]", "a[i - 1:]"]),
        ("no copy", "torch.empty_like(a)", ["a"]),
        ("rebinding for in place", "a.add_(b)", ["a = a.add(b)"]),
        ("rebinding for in place", "a.copy_(b)", ["a = b"]),
        ("condition negated", "if not a:\n    f()", ["if a:\n    f()"]),
        ("condition always true", "while a:\n    f()", []),
        ("constant one larger", "f(True, 'text')", []),
        ("statement removed", "while a:\n    f()", ["pass", "while a:\n    pass"]),
    ],
)
def test_what_a_mutator_makes_of_a_line(name: str, before: str, after: list[str]) -> None:
    assert sorted(made_by(name, before)) == sorted(after)


# Where they are applied -------------------------------------------------------------------------

CELL = '''
def total(numbers, start=0):
    """The sum of `numbers`."""
    ### BEGIN SOLUTION
    found = start
    for one in numbers:
        found += one
    return found
    ### END SOLUTION
'''


def test_only_what_a_learner_writes_is_changed() -> None:
    for mutant in mutants(CELL):
        assert mutant.source.startswith(ast.unparse(ast.parse(CELL))[:60])
        assert 5 <= mutant.line <= 8


def test_a_cell_without_marks_is_changed_all_over_but_its_docstring_stays() -> None:
    sources = [mutant.source for mutant in mutants('"""Adds."""\ntotal = a + b')]
    assert len(sources) == 4
    assert all(source.startswith('"""Adds."""') for source in sources)


def test_mutants_are_distinct_and_none_is_the_solution() -> None:
    sources = [mutant.source for mutant in mutants(CELL)]
    assert len(set(sources)) == len(sources) >= 10
    assert ast.unparse(ast.parse(CELL)) not in sources
    assert not made_by("arguments swapped", "f(a, a)")


def test_a_change_to_an_unbound_name_is_no_mutant() -> None:
    assert not made_by("a neighbouring name", "left = 1\nf(left)")
    assert made_by("statement removed", "left = 1\nf(left)") == ["left = 1"]


@pytest.mark.parametrize(
    ("before", "name", "change"),
    [
        ("a = 1\nb = a + 2", "plus for minus", "b = a + 2 -> b = a - 2"),
        ("f()\nb.wait()\ng()", "wait removed", "b.wait() -> nothing"),
        ("for x in a:\n    f()", "first round only", "f() -> f(); break"),
        ("f()\ng()", "statements swapped", "f(); g() -> g(); f()"),
        (
            "f()\nif a:\n    b()\n    c()\n    d()",
            "statement removed",
            "if a:; b(); ... -> nothing",
        ),
    ],
)
def test_a_change_is_described_by_the_lines_that_differ(
    before: str, name: str, change: str
) -> None:
    chosen = [mutator for mutator in MUTATORS if mutator.name == name]
    assert change in [mutant.change for mutant in mutants(before, chosen)]


def test_the_same_change_of_two_lines_gets_two_names() -> None:
    chosen = [mutator for mutator in MUTATORS if mutator.name == "plus for minus"]
    changes = [mutant.change for mutant in mutants("f(a + 1)\ng()\nf(a + 1)", chosen)]
    assert changes == [f"line {line}: f(a + 1) -> f(a - 1)" for line in (1, 3)]


def test_a_long_line_is_cut_to_what_is_round_the_change() -> None:
    words = ", ".join(f"word_{number}" for number in range(40))
    chosen = [mutator for mutator in MUTATORS if mutator.name == "plus for minus"]
    (mutant,) = mutants(f"f({words}, a + b, {words})", chosen)
    assert mutant.change == (
        "... word_37, word_38, word_39, a + b, word_0, word_1, word_2, word_3, ... -> "
        "... word_37, word_38, word_39, a - b, word_0, word_1, word_2, word_3, ..."
    )


# Solutions of notebooks -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [part for part in CHECKED if part.level > 1], ids=lambda part: part.name
)
def test_the_solution_of_a_part_is_found_with_what_it_needs(part: Part) -> None:
    solution = solution_of(part)
    assert solution.answer(solution.source, part.symbol) is not None
    assert "dtlab.launch" not in solution.prelude(solution.source)


def test_a_name_that_is_defined_is_not_bound_again() -> None:
    cells = ("given = {'size': 1}", "twice = 2 * given['size']")
    solution = Solution("total = given['size'] + twice", cells)
    assert solution.answer(solution.source, "total", given={"size": 10}) == 30


@pytest.mark.proof
@pytest.mark.parametrize(
    "part", [part for part in CHECKED if part.level > 1], ids=lambda part: part.name
)
def test_a_mutant_of_a_solution_is_known_by_its_change(part: Part) -> None:
    proof = proof_of(part)
    changes = [mutant.change for mutant in proof.mutants]
    assert len(set(changes)) == len(changes)
    assert {*proof.equivalent} <= {*changes}


# The proof of a toy part ------------------------------------------------------------------------

THREE_NUMBERS, NO_NUMBERS = ([1, 2, 3], 6), ([], 0)
SAME_SUM = {
    "for one in numbers: -> for one in reversed(numbers):": "any order gives the sum",
    "found += one -> found = found + one": "numbers are immutable",
}


class ToyCheck:
    """Adds up numbers in this process; `cases` are all that it looks at."""

    points = 1.0

    def __init__(self, *cases: tuple[list[int], int]) -> None:
        self.cases = cases

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Whether the sums are right."""
        try:
            right = all(answer(numbers) == total for numbers, total in self.cases)
        except Exception:  # noqa: BLE001 - a mutant may raise anything
            right = False
        return [Criterion("sum", 1, float(right), "ok" if right else "lost", "the sum")]


def toy(
    *cases: tuple[list[int], int],
    equivalent: Mapping[str, str] = SAME_SUM,
    solution: str = CELL,
) -> Proof:
    """The proof of a part whose check looks at these cases."""
    part = Part("00/total", 3, "Adding", 5, 1, ToyCheck(*cases))
    answers = Answers(part, {sum_of_two: {"sum": "the sum"}}, [sum], equivalent)
    return Proof(part, solution, mutants(solution), answers)


def sum_of_two(numbers: list[int]) -> int:
    """Wrong: leaves the rest out."""
    return sum(numbers[:2])


def judged(proof: Proof) -> Proof:
    """The proof with all of its results, made here instead of in workers."""
    proof.results = {place: result_of(proof, place) for place in proof.calls}
    return proof


def result_of(proof: Proof, place: Place) -> list[str]:
    """What a worker would find."""
    assert proof.answers is not None
    assert proof.solution is not None
    if place.kind == "answer":
        answer = proof.known[str(place.which)]
        return proof.answers.objections(answer, proof.answers.check(answer))
    source = proof.solution if place.kind == "solution" else proof.mutants[int(place.which)].source
    criteria = proof.part.check.run("total", Solution(source, "").answer(source, "total"))
    return [one.name for one in criteria if one.status == "lost"]


def test_a_mutant_is_killed_equivalent_or_a_trouble() -> None:
    mutant = Mutant("plus for minus", 1, "a -> b", "b")
    listed = {"a -> b": "it says the same"}
    assert fate_of(mutant, ["sum"], {}).verdict == "killed"
    assert fate_of(mutant, [], {}).verdict == "survived"
    assert fate_of(mutant, [], listed).verdict == "equivalent"
    assert fate_of(mutant, ["sum"], listed).verdict == "not equivalent"


def test_a_strict_check_kills_every_mutant() -> None:
    proof = judged(toy(THREE_NUMBERS, NO_NUMBERS))
    assert [fate.verdict for fate in proof.fates].count("equivalent") == len(SAME_SUM)
    assert not proof.troubles


def test_a_hole_in_a_check_is_a_trouble_that_names_the_change() -> None:
    troubles = judged(toy(([5], 5))).troubles
    assert "survived: line 6, first round only: found += one -> found += one; break" in troubles


def test_the_list_of_equivalent_mutants_is_held_to_what_it_says() -> None:
    equivalent = SAME_SUM | {
        "found += one -> found -= one": "which it is not",
        "found += one -> found *= one": "which no mutator makes",
    }
    troubles = judged(toy(THREE_NUMBERS, NO_NUMBERS, equivalent=equivalent)).troubles
    assert troubles == [
        "not equivalent: line 7, plus for minus: found += one -> found -= one",
        "no such mutant: found += one -> found *= one",
    ]


def test_a_solution_that_is_wrong_itself_proves_nothing() -> None:
    wrong = CELL.replace("+=", "-=")
    assert (
        judged(toy(THREE_NUMBERS, solution=wrong)).troubles[0] == "the solution itself loses sum"
    )


def test_an_answer_that_is_judged_otherwise_is_a_trouble() -> None:
    assert "sum_of_two: sum should be lost and is not" in judged(toy(NO_NUMBERS)).troubles


# The command ------------------------------------------------------------------------------------


@dataclass
class Command:
    """`make proof` of a toy unit, judged in this process."""

    proof: Proof
    monkeypatch: pytest.MonkeyPatch
    folder: Path
    judged: list[Place] = field(default_factory=list)

    def run(self, *words: str, stop_after: int | None = None, files: str = "as they are") -> int:
        """The exit status; Ctrl-C comes after so many results."""
        self.judged.clear()
        fresh = replace(self.proof, results={})

        def in_this_process(
            calls: Mapping[tuple[str, Place], Any], workers: int
        ) -> Iterator[tuple[tuple[str, Place], list[str]]]:
            for key in calls:
                if len(self.judged) == stop_after:
                    raise KeyboardInterrupt
                self.judged.append(key[1])
                yield key, result_of(fresh, key[1])

        self.monkeypatch.setattr(command, "known_parts", lambda: [fresh.part])
        self.monkeypatch.setattr(command, "proof_of", lambda _: fresh)
        self.monkeypatch.setattr(command, "in_workers", in_this_process)
        self.monkeypatch.setattr(command, "fingerprint", lambda _: files)
        self.monkeypatch.setattr(command, "FOLDER", self.folder)
        return command.main([self.proof.part.name, *words])


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The proof of a check that lets nothing pass."""
    return Command(toy(THREE_NUMBERS, NO_NUMBERS), monkeypatch, tmp_path)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_the_command_prints_a_proof(good: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert good.run() == 0
    words, count = printed(capsys), len(good.proof.mutants)
    assert "killed sum 7 plus for minus found += one -> found -= one" in words
    assert "sum_of_two sum yes" in words
    assert f"all 2 2 {count} {count - 2} 2 0 100.0 %" in words
    assert "found += one -> found = found + one numbers are immutable" in words


def test_the_command_fails_where_a_mutant_survives_and_repeats_only_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Command(toy(([5], 5)), monkeypatch, tmp_path)
    assert bad.run() == 1
    assert "00/total: survived: line 6, first round only" in printed(capsys)
    assert bad.run() == 1
    survived = [fate for fate in judged(toy(([5], 5))).fates if fate.trouble]
    wrong_answers = ["sum_of_two"]  # this check takes nothing from it
    assert len(bad.judged) == len(survived) + len(wrong_answers)


def test_an_interrupted_command_continues_where_it_was(
    good: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert good.run(stop_after=6) == 130
    words = printed(capsys)
    assert "all 2 2 3 2 1 0 100.0 %" in words
    assert "continues from here" in words
    assert good.run() == 0
    assert len(good.judged) == len(good.proof.calls) - 6
    assert f"all 2 2 {len(good.proof.mutants)}" in printed(capsys)
    assert good.run() == 0
    assert not good.judged


def test_a_proof_begins_anew_once_files_have_changed(
    good: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    good.run()
    assert good.run("--keep", files="changed") == 0
    assert not good.judged
    assert good.run(files="changed") == 0
    assert len(good.judged) == len(good.proof.calls)
    assert "files have changed" in printed(capsys)


def test_the_known_answers_can_be_checked_alone(
    good: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert good.run("--only", "answers") == 0
    assert "all 2 2 0 0 0 0" in printed(capsys)


def test_the_command_refuses_unknown_units_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    for unknown in ("99", "01/nothing"):
        assert command.main([unknown]) == 2
        assert f"{unknown!r} is no unit and no part. Units: 00, 01" in capsys.readouterr().err


def test_tests_that_passed_are_not_repeated(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makeconftest("""
        from tests.journal import JournalPlugin, left_out, passed_before, pytest_addoption
        def pytest_configure(config):
            passed_before.cache_clear()
            if config.getoption("--journal"):
                config.pluginmanager.register(JournalPlugin(config.getoption("--journal")))
        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if not left_out(item)]
    """)
    pytester.makepyfile(test_unit05_x="""
        import pathlib
        def test_passes(): pass
        def test_fails_once():
            seen = pathlib.Path("seen")
            first = not seen.exists()
            seen.touch()
            assert not first
    """)
    pytester.makepyfile(test_other="def test_of_no_unit(): pass")
    pytester.syspathinsert(ROOT)
    alone = ("-p", "no:rerunfailures")  # it opens a port
    journal = tmp_path / "journal"
    words = ("--unit=05", f"--journal={journal}", *alone)
    pytester.runpytest(*words).assert_outcomes(passed=1, failed=1)
    with journal.open("a") as file:  # as if the process had been killed while it wrote
        file.write('{"test": "test_unit05')
    pytester.runpytest(*words).assert_outcomes(passed=1)
    assert pytester.runpytest(*words).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    pytester.runpytest("--unit=none", *alone).assert_outcomes(passed=1)


def test_a_fingerprint_changes_with_the_files_of_its_unit_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "ROOT", tmp_path)
    files = {
        "dtlab/launch.py": {"04", "05", "none"},
        "dtlab/units/unit05/gather.py": {"05", "none"},
        "tests/test_unit04_fit.py": {"04", "05", "none"},
        "tests/known_answers/05_zero/gather.answers": {"05", "none"},
        "solutions/04_precision/level-1.ipynb": {"04", "none"},
        "notebooks/05_zero.ipynb": {"05", "none"},
    }
    for name, units in files.items():
        before = {unit: fingerprint(unit) for unit in ("04", "05", "none")}
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        assert {unit for unit in before if fingerprint(unit) != before[unit]} == units, name


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in the course's folder."""
    return subprocess.run(
        [sys.executable, *words], check=False, cwd=ROOT, capture_output=True, text=True
    )


WORKERS = """
from functools import partial
from tests.mutants.proof import in_workers

if __name__ == "__main__":
    calls = {number: partial(pow, number, 2) for number in range(40)}
    assert dict(in_workers(calls, 2)) == {number: number**2 for number in range(40)}
    results = in_workers(calls, 1)
    print(*next(results))
    results.close()
"""


@pytest.mark.slow
def test_workers_give_back_what_they_have_done_and_drop_the_rest_when_stopped(
    script: Path,
) -> None:
    script.write_text(WORKERS)
    run = python("-c", f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, ["0", "0"], "")


@pytest.mark.slow
def test_a_part_whose_answers_are_values_is_proved_from_the_command_line() -> None:
    run = python("-m", "tests.proof", "01/step", "--workers", "1")
    assert run.returncode == 0, run.stderr
    assert "gradient_mistake_1" in run.stdout

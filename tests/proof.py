"""`make proof UNIT=05`: the whole proof of a unit, or of everything where no unit is named.

For each unit, in this order:

    tests      those marked `proof`: all seeds and repetitions of the effects, the lesson in full
               and in the browser, and every notebook in a separate kernel
    answers    every known answer, wrong or right, on fresh ranks
    mutants    every mutant of every reference solution, on ranks that stay

and after the units the tests that belong to none of them ("none"): the whole catalogue of hostile
submissions, several nodes, Ray, all random programs of the watcher.

Results are written to `.proof/` as they come. A run that was interrupted continues where it
stopped, and a run that found something wrong repeats only that, as long as the files that the
unit depends on are the same. `--keep` continues although they have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dtlab.checks import Part, known_parts
from dtlab.ranks.system import usable_cpus
from tests.journal import Journal
from tests.mutants.proof import Place, Proof, in_workers, proof_of

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".proof"
NO_UNIT = "none"  # what belongs to the course as a whole
STAGES = ("tests", "answers", "mutants")
INTERRUPTED = 130  # exit status


def main(words: Sequence[str] | None = None) -> int:
    """Prove the named units; 0 where all is well, 1 where not, 130 after Ctrl-C."""
    arguments = _arguments(words)
    parts = [part for part in known_parts() if not part.by_hand]
    units = [*sorted({part.unit for part in parts}), NO_UNIT]
    named = arguments.what
    chosen = [unit for unit in units if not named or named.partition("/")[0] == unit]
    if named != NO_UNIT:
        parts = [part for part in parts if named in ("", part.unit, part.name)]
    if not chosen or ("/" in named and not parts):
        print(f"{named!r} is no unit and no part. Units: {', '.join(units)}.", file=sys.stderr)
        return 2
    stages = STAGES if "/" not in named else STAGES[1:]
    status = 0
    for unit in chosen:
        proof = UnitProof(
            unit,
            [part for part in parts if part.unit == unit],
            journal_of(unit, arguments.keep),
        )
        try:
            for stage in arguments.only or stages:
                proof.run(stage, arguments.workers)
        except LookupError as error:
            print(f"\n{error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(*proof.table(), sep="\n")
            print("\nInterrupted. The same command continues from here.")
            return INTERRUPTED
        print(*(proof.details() if "/" in named else ()), *proof.table(), sep="\n", flush=True)
        status = status or int(bool(proof.troubles))
    return status


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", default="", help="a unit (05), a part (05/gather), or none; else all"
    )
    parser.add_argument(
        "--only", action="append", choices=STAGES, help="this stage alone; may be given twice"
    )
    parser.add_argument(
        "--keep", action="store_true", help="continue although files have changed since"
    )
    cpus = max(1, int(usable_cpus()))
    parser.add_argument("--workers", type=int, default=cpus, help=f"processes at a time ({cpus})")
    return parser.parse_args(words)


# What is known already --------------------------------------------------------------------------


def fingerprint(unit: str) -> str:
    """Changes with every file that the proof of `unit` depends on."""
    found = hashlib.sha256()
    folders = [ROOT / name for name in ("dtlab", "tests", "notebooks", "solutions", "exercises")]
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        is_source = path.suffix in (".py", ".ipynb", ".answers")
        kept = is_source and ".ipynb_checkpoints" not in path.parts
        about = re.search(r"/(?:unit)?(\d\d)(?:_[^/]*)?(?:/|\.ipynb$)", f"{path}")
        other = unit != NO_UNIT and about is not None and about[1] != unit
        if kept and not other:
            found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def journal_of(unit: str, keep: bool) -> Journal:
    """The results of a unit so far; none if its files have changed since, unless `keep`."""
    journal, now = Journal(FOLDER / f"{unit}.jsonl"), fingerprint(unit)
    known = journal.entries[:1]
    if known and (keep or known[0].get("fingerprint") == now):
        return journal
    if known:
        print(f"{unit}: files have changed since the last proof, so it begins anew.")
    FOLDER.mkdir(exist_ok=True)
    journal.path.unlink(missing_ok=True)
    journal.write(fingerprint=now)
    return journal


# The proof of one unit --------------------------------------------------------------------------


@dataclass
class UnitProof:
    """The three stages of one unit, and the table of their results."""

    unit: str
    parts: Sequence[Part]
    journal: Journal
    proofs: dict[str, Proof] = field(init=False)

    def __post_init__(self) -> None:
        self.proofs = {part.name: proof_of(part) for part in self.parts}
        for entry in self.journal.entries:
            if "part" in entry and entry["part"] in self.proofs:
                place = _place_of(self.proofs[entry["part"]], entry)
                if place is not None:
                    self.proofs[entry["part"]].results[place] = entry["found"]

    def run(self, stage: str, workers: int) -> None:
        """Run what a stage lacks, and what had failed. Raises KeyboardInterrupt."""
        begun = time.monotonic()
        try:
            if stage == "tests":
                self._run_tests(workers)
            else:
                self._judge(stage, workers)
        finally:
            self.journal.write(stage=stage, seconds=round(time.monotonic() - begun, 1))

    def _run_tests(self, workers: int) -> None:
        print(f"\n{self.unit}: tests", flush=True)
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-m", "proof", f"--unit={self.unit}"),
            *(f"--journal={self.journal.path}", "-n", str(workers), "--dist", "worksteal"),
        ]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C reached it too
            raise
        if status == 2:  # interrupted, or a file that cannot be collected
            raise KeyboardInterrupt

    def _judge(self, stage: str, workers: int) -> None:
        kinds = ("answer",) if stage == "answers" else ("solution", "mutant")
        calls = {
            (name, place): call
            for name, proof in self.proofs.items()
            for place, call in proof.calls.items()
            if place.kind in kinds and not proof.is_settled(place)
        }
        what = f"{self.unit}: {stage}"
        with tqdm(total=len(calls), desc=what, unit=" checks", leave=False) as bar:
            for (name, place), found in in_workers(calls, workers):
                proof = self.proofs[name]
                proof.results[place] = found
                which = proof.name_of(place)
                self.journal.write(part=name, kind=place.kind, which=which, found=found)
                bar.update()

    @property
    def tests(self) -> dict[str, bool]:
        """Whether each test that has run passed, by its id."""
        entries = [entry for entry in self.journal.entries if "test" in entry]
        return {entry["test"]: entry["passed"] for entry in entries}

    @property
    def troubles(self) -> list[str]:
        """What is wrong, one sentence each."""
        return [
            *(f"{test} failed" for test, passed in self.tests.items() if not passed),
            *(f"{name}: {one}" for name, proof in self.proofs.items() for one in proof.troubles),
        ]

    def table(self) -> Iterator[str]:
        """The results of each part, those of the tests, and the total time."""
        rows = [_counts(name, [proof]) for name, proof in self.proofs.items()]
        head = ("part", "answers", "as they should", "mutants", "killed", "equivalent", "survived",
                "score")  # fmt: skip
        yield f"\nUnit {self.unit}" if self.unit != NO_UNIT else "\nNo unit"
        total = [_counts("all", list(self.proofs.values()))] if rows else []
        yield from _table(head, [*rows, *total])
        tests = self.tests
        yield f"  tests: {len(tests)} ran, {list(tests.values()).count(False)} failed"
        seconds: Counter[str] = Counter()
        for entry in self.journal.entries:
            if "stage" in entry:
                seconds[entry["stage"]] += entry["seconds"]
        times = ", ".join(f"{stage} {spent / 60:.1f}" for stage, spent in seconds.items())
        yield f"  minutes: {times}"
        yield from (f"  {trouble}" for trouble in self.troubles)

    def details(self) -> Iterator[str]:
        """The result of each known answer and each mutant, for the author of a check."""
        for name, proof in self.proofs.items():
            yield f"\n{name}"
            wrong = proof.answers.wrong if proof.answers else {}
            losses = {one: ", ".join(wrong.get(answer, ())) for one, answer in proof.known.items()}
            yield from _table(
                ("answer", "loses", "as it should"),
                [
                    (answer, losses[answer] or "nothing", "NO" if objections else "yes")
                    for answer, objections in proof.objections.items()
                ],
            )
            yield from _table(
                ("mutant", "loses", "line", "mutator", "change"),
                [
                    (verdict, ", ".join(lost) or "nothing", f"{one.line}", one.mutator, one.change)
                    for one, lost, verdict in proof.fates
                ],
            )
            yield from _table(("equivalent", "because"), list(proof.equivalent.items()))


def _place_of(proof: Proof, entry: dict[str, Any]) -> Place | None:
    """Where a result of the journal belongs; None where there is no such mutant any more."""
    places = {(place.kind, proof.name_of(place)): place for place in proof.calls}
    return places.get((entry["kind"], entry["which"]))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lines with their columns under each other; none where there are no rows."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=True)]
        yield "  ".join(["", *cells]).rstrip()


def _counts(name: str, proofs: Sequence[Proof]) -> tuple[str, ...]:
    fates = [fate for proof in proofs for fate in proof.fates]
    answers = [objections for proof in proofs for objections in proof.objections.values()]
    verdicts = Counter(fate.verdict for fate in fates)
    killed, alike, survived = (verdicts[one] for one in ("killed", "equivalent", "survived"))
    score = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else ""
    counts = (len(answers), answers.count([]), len(fates), killed, alike, survived)
    return (name, *map(str, counts), score)


if __name__ == "__main__":
    sys.exit(main())

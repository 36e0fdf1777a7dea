"""`make mutants UNIT=01`: proves a unit's checks, and prints what came of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from dtlab.grading import known_parts
from dtlab.ranks.system import usable_cpus
from tests.mutants.catalogue import MUTATORS
from tests.mutants.proof import Proof, in_workers, proof_of


def main(words: Sequence[str] | None = None) -> int:
    """Prove the checks of a unit; the exit status is 0 where they hold, 130 where interrupted."""
    arguments = _arguments(words)
    if arguments.list:
        print(*MUTATORS, sep="\n")
        return 0
    named = (part for part in known_parts() if part.name.startswith(arguments.what))
    parts = [part for part in named if not part.by_hand]
    if not parts:
        print(f"no part begins with {arguments.what!r}", file=sys.stderr)
        return 2
    started = time.monotonic()
    proofs = [proof_of(part) for part in parts]
    finished = _judge(proofs, arguments.workers, without_mutants=arguments.answers)
    for proof in proofs:
        print(*_tables(proof), sep="\n")
    print(*_summary(proofs, time.monotonic() - started), sep="\n")
    if not finished:
        print("Interrupted: this is what had been judged.")
        return 130
    return int(any(proof.troubles for proof in proofs))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "what", nargs="?", default="", help="a unit (01) or a part (01/step); all if left out"
    )
    parser.add_argument("--list", action="store_true", help="print the mutators and stop")
    parser.add_argument("--answers", action="store_true", help="known answers only, no mutants")
    cpus = max(1, int(usable_cpus()))
    parser.add_argument("--workers", type=int, default=cpus, help=f"checks at a time ({cpus})")
    return parser.parse_args(words)


def _judge(proofs: list[Proof], workers: int, without_mutants: bool = False) -> bool:
    """Fill in the results; whether it came to the end."""
    calls = {
        (number, place): call
        for number, proof in enumerate(proofs)
        for place, call in proof.calls.items()
        if not (without_mutants and place.kind == "mutant")
    }
    with tqdm(total=len(calls), unit=" checks", leave=False) as bar:
        try:
            for (number, place), result in in_workers(calls, workers):
                proofs[number].results[place] = result
                bar.update()
        except KeyboardInterrupt:
            return False
    return True


def _tables(proof: Proof) -> Iterator[str]:
    """What became of each known answer and of each mutant."""
    yield f"\n{proof.part.name}"
    answers = proof.answers
    expected = {one.__name__: lost for one, lost in answers.wrong.items()} if answers else {}
    yield from _table(
        ("answer", "loses", "as it should"),
        [
            (name, ", ".join(expected.get(name, {})) or "nothing", "NO" if objections else "yes")
            for name, objections in proof.objections.items()
        ],
    )
    yield from _table(
        ("mutant", "loses", "line", "mutator", "change"),
        [
            (verdict, ", ".join(lost) or "nothing", str(one.line), one.mutator, one.change)
            for one, lost, verdict in proof.fates
        ],
    )
    changes = {fate.mutant.change for fate in proof.fates}
    reasons = [(change, why) for change, why in proof.equivalent.items() if change in changes]
    yield from _table(("equivalent", "because"), reasons)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lines with their columns under each other."""
    if rows:
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for row in ("", head, *rows):
            cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=False)]
            yield "  ".join(["", *cells]).rstrip()


def _summary(proofs: Sequence[Proof], seconds: float) -> Iterator[str]:
    """The troubles, the counts of each part, and the score of all."""
    for proof in proofs:
        yield from (f"{proof.part.name}: {trouble}" for trouble in proof.troubles)
    rows = [_counts(proof.part.name, [proof]) for proof in proofs]
    head = ("part", "answers", "as they should", "mutants", "killed", "equivalent", "survived")
    yield from _table((*head, "score"), [*rows, _counts("all", proofs)])
    yield f"{seconds / 60:.1f} minutes"


def _counts(name: str, proofs: Sequence[Proof]) -> tuple[str, ...]:
    fates = [fate for proof in proofs for fate in proof.fates]
    answers = [objections for proof in proofs for objections in proof.objections.values()]
    verdicts = Counter(fate.verdict for fate in fates)
    killed, survived = verdicts["killed"], verdicts["survived"]
    score = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else ""
    counts = (
        len(answers),
        answers.count([]),
        len(fates),
        killed,
        verdicts["equivalent"],
        survived,
    )
    return (name, *map(str, counts), score)


if __name__ == "__main__":
    sys.exit(main())

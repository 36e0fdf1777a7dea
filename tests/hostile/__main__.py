"""`python -m tests.hostile [GLOB ...]`: judge the hostile submissions, and print a table.

Names are compared with the globs; without one, all are judged. Ends with 1 where something is not
as it should be.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence

from tqdm import tqdm

from tests.hostile import CATALOGUE, HONEST
from tests.hostile.judging import Judging, Outcome, table
from tests.hostile.submissions import Hostile


def main(globs: Sequence[str]) -> int:
    """Judges those that are meant, and the honest one last."""
    chosen = [one for one in CATALOGUE if any(fnmatch.fnmatch(one.name, glob) for glob in globs)]
    begun, outcomes = time.monotonic(), list(_judged([*chosen, HONEST]))
    print(table(outcomes))
    wrong = sum(bool(one.objections) for one in outcomes)
    print(f"\n{len(outcomes)} submissions, {wrong} not as they should be, "
          f"{time.monotonic() - begun:.0f} s")  # fmt: skip
    return 1 if wrong else 0


def _judged(entries: Sequence[Hostile]) -> list[Outcome]:
    outcomes = []
    with Judging() as judging, tqdm(entries, unit="submission", leave=False) as bar:
        for entry in bar:
            bar.set_description(entry.name[:30].ljust(30))
            outcomes.append(judging.judge(entry))
            if outcomes[-1].objections:
                bar.write(table(outcomes[-1:]))
    return outcomes


if __name__ == "__main__":
    # All that is left behind in here counts, so it is this run's own.
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="dtlab-hostile-")
    try:
        code = main(sys.argv[1:] or ["*"])
    finally:
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    sys.exit(code)

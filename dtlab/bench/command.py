"""The command `dtlab bench`: measure, print, write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtlab.bench.results import Results
from dtlab.bench.runner import bench, leads
from dtlab.errors import DtlabError

__all__ = ["bench_and_tell"]

_PICTURES = (".png", ".svg")


def bench_and_tell(*, json: Path | None, figure: Path | None, **wishes: Any) -> bool:
    """`bench(**wishes)`, printed and written to files by rank 0; whether all went well.

    It did not where it was stopped, or a result was wrong.
    Raises: DtlabError as `bench` does, and, before it begins, for files that cannot be written.
    """
    if leads():
        _check_places(json, figure)
    results = bench(**wishes)
    if leads():
        _tell(results, json, figure)
    return not (results.stopped or results.wrong)


def _tell(results: Results, json: Path | None, figure: Path | None) -> None:
    print(results.table())
    if results.links():
        print(f"\nThe links behind these times, to paste into a cell:\n\n{results.paste()}")
    if json is not None:
        json.write_text(results.to_json() + "\n")
    if figure is not None:
        results.save_figure(figure)


def _check_places(json: Path | None, figure: Path | None) -> None:
    for path in (json, figure):
        if path is not None and not path.absolute().parent.is_dir():
            raise DtlabError(f"there is no folder {path.parent}, in which {path.name} would be.")
        if path is not None and path.is_dir():
            raise DtlabError(f"{path} is a folder. Name a file.")
    if figure is not None and figure.suffix.lower() not in _PICTURES:
        allowed = " or ".join(_PICTURES)
        raise DtlabError(f"the figure's name has to end in {allowed}; {figure.name} does not.")

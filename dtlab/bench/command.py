"""The command `dtlab bench`: measures, prints the results, and writes them to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtlab.bench.results import Results
from dtlab.bench.runner import bench, leads
from dtlab.errors import DtlabError

__all__ = ["bench_and_tell"]

_PICTURES = (".png", ".svg")


def bench_and_tell(*, json: Path | None, figure: Path | None, **wishes: Any) -> bool:
    """Run `bench(**wishes)`; rank 0 prints the results and writes the files.

    Returns False if the benchmark was stopped or a result was wrong.
    Raises: DtlabError as `bench` does, and, before it starts, for files that cannot be written.
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
        print(f"\nThe links that fit these times, to paste into a cell:\n\n{results.paste()}")
    if json is not None:
        json.write_text(results.to_json() + "\n")
    if figure is not None:
        results.save_figure(figure)


def _check_places(json: Path | None, figure: Path | None) -> None:
    for path in (json, figure):
        if path is not None and not path.absolute().parent.is_dir():
            raise DtlabError(f"{path.name} cannot be written: there is no folder {path.parent}.")
        if path is not None and path.is_dir():
            raise DtlabError(f"{path} is a folder. Give the name of a file.")
    if figure is not None and figure.suffix.lower() not in _PICTURES:
        allowed = " or ".join(_PICTURES)
        raise DtlabError(f"the figure's name must end in {allowed}; {figure.name} does not.")

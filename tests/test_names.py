"""Names of files and of functions: the field's words, one for each thing, and no images."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from dtlab.checks import known_parts

LIBRARY = Path(__file__).parent.parent / "dtlab"
FILES = sorted(path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))

IMAGES = {
    "absent", "careful", "doorkeeper", "enclosure", "harmless", "mend", "mended", "room", "sealed",
    "walls", "warden",
}  # fmt: skip
# Two files of a room may have one name if their folders tell what differs.
TOLD_APART = {
    "parallel": {
        "buckets": "of gradients that are averaged, and of gradients that are sharded",
        "layers": "of a transformer, and of a field in tiles",
        "shards": "of parameters on ranks, and of parameters on servers",
        "state": "of an optimizer in shards, and of sharded weights",
    },
    "ranks": {"supervisor": "of a launch, and of a session"},
    "units": {
        "runs": "trainings that several parts of the unit run",
        "runs_scripts": "broken programs of the unit",
        "shares": "of the samples, in two units",
        "training": "what the parts of the unit train",
    },
}


def same_names() -> Iterator[tuple[str, str, list[Path]]]:
    """A room, a base name that occurs in it twice or more, and where."""
    found = defaultdict(list)
    for path in FILES:
        if len(path.parts) > 2 and path.stem != "__init__":
            found[path.parts[0], path.stem].append(path)
    return ((*key, paths) for key, paths in found.items() if len(paths) > 1)


def is_told_apart(room: str, name: str, paths: list[Path]) -> bool:
    """Whether the folders say what differs."""
    if room == "show":  # a widget is a front of the figure of this name
        return {path.parts[1] for path in paths} <= {"figures", "widgets"}
    if room == "units":  # a module is named after its part
        parts = {part.name for part in known_parts()}
        if all(f"{path.parts[1][-2:]}/{name}" in parts for path in paths):
            return True
    return name in TOLD_APART.get(room, {})


def test_a_name_occurs_twice_in_a_room_only_if_the_folders_say_what_differs() -> None:
    unclear = [paths for room, name, paths in same_names() if not is_told_apart(room, name, paths)]
    assert not unclear


def test_the_exceptions_are_needed() -> None:
    needed = {(room, name) for room, name, _ in same_names()}
    listed = {(room, name) for room, names in TOLD_APART.items() for name in names}
    assert listed <= needed


def defined(path: Path) -> Iterator[str]:
    """The file's name, and the names of its classes and functions."""
    yield path.stem
    for node in ast.walk(ast.parse((LIBRARY / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name


def test_nothing_is_named_by_an_image() -> None:
    found = []
    for path in FILES:
        for name in defined(path):
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}
            found += [f"{path}: {name}"] if words & IMAGES else []
    assert not found


def test_only_units_import_or_name_a_unit() -> None:
    knows = re.compile(r"\bdtlab\.units\.unit\d\d|^unit\d\d$|^\d\d/\w+$")
    found = []
    for path in FILES:
        if path.parts[0] == "units":
            continue
        for node in ast.walk(ast.parse((LIBRARY / path).read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.value] if isinstance(node, ast.Constant) else []
            names = [name for name in names if isinstance(name, str) and " " not in name]
            found += [f"{path}: {name}" for name in names if knows.search(name)]
    assert not found

"""README, CONTRIBUTING and the pages of docs/: their sizes, links, the files that they name, and
README's commands and cells, which are run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dtlab import cli
from dtlab.checks.parts import known_parts

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FOLDERS = (".", "docs", "docs/site", "notebooks")
PAGES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))

# Folders in which a name in a page is looked for, after the page's own.
EXAMPLE = "solutions/01_ranks_and_collectives"
BASES = [ROOT / base for base in (".", "dtlab", "dtlab/units", "deploy", EXAMPLE)]
# What commands or learners make: in a clone, in a course folder, and in examples.
MADE = re.compile(
    r"""my/|\.venv|\.proof/|build/|dist/|~|/|\.\.\.|
    (source|release|submitted|downloaded|autograded|feedback|verdicts|exchange|hub|week-1)/|
    (gradebook\.db|timestamp\.txt|my_script\.py|train\.py|level-2\.ipynb|\d\d_level_\d\.ipynb|
     Level_2\.ipynb|01_level_2\.html|.*\.(png|json|json\.gz|csv|out|whl|zip))$""",
    re.VERBOSE,
)
# Words with a slash or a dot that are no files.
OTHERS = {"01/02/2027", "1/2", "Europe/Berlin", "NET/IB", "NET/IB/0/GDRDMA", "NET/Socket"}
EXAMPLES = {"01/scatter", "NN/name", "NN/part"}  # parts of docs/authors.md that stand for others


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The names that GitHub and MyST give the headings of a page."""
    headings = re.findall(
        r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings}


def links(text: str) -> Iterator[str]:
    text = without_code(text)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)
    yield from re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "most"), [("README.md", 8000), ("CONTRIBUTING.md", 8000)])
def test_it_stays_short(name: str, most: int) -> None:
    size = (ROOT / name).stat().st_size
    assert size <= most, f"{name} has {size} bytes. What is longer belongs into a page of docs/"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(page: Path) -> None:
    # docs/site/ is copied to the root of the site, next to docs/ and notebooks/.
    home = ROOT if page.parent.name == "site" else page.parent
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        address, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", address):
            continue
        target = (home / address).resolve() if address else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def named(text: str) -> Iterator[str]:
    """The words of a page that look like a file, a folder, or a part."""
    roots = "|".join(sorted(path.name for path in ROOT.iterdir() if path.name.isalpha()))
    yield from re.findall(rf"(?<![\w/.~-])(?:{roots})/[\w/.<>-]*[\w/]", text)
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_code(text)):
        for word in code.split():
            if re.fullmatch(
                r"[\w.~<>*-]*(/[\w.<>*-]*)+|[\w-]+\.(py|ipynb|md|toml|sh|sbatch|db)", word
            ):
                yield word


@cache
def part_names() -> frozenset[str]:
    return frozenset(part.name for part in known_parts())


def exists(word: str, page: Path) -> bool:
    if re.fullmatch(r"(\d\d|NN)/\w+", word):
        return word in part_names() | EXAMPLES
    word = word.replace("NN_name", "[0-9][0-9]_*").replace("NN", "[0-9][0-9]")
    pattern = re.sub(r"<\w+>", "*", word).rstrip("/")
    patterns = [pattern, f"{pattern}.*"] if page.parent.name == "site" else [pattern]
    bases = [page.parent, *BASES]
    return any(any(base.glob(pattern)) for base in bases for pattern in patterns)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_files_that_it_names_exist(page: Path) -> None:
    words = {word for word in named(page.read_text(encoding="utf-8")) if word not in OTHERS}
    missing = {word for word in words if not MADE.match(word) and not exists(word, page)}
    assert not missing


def test_a_name_without_a_file_is_found() -> None:
    text = "`units/unit01/call.py`, `grading.md`, (tests/mark.py), `01/rings`, `tests/marks.py`"
    words = set(named(text))
    assert {word for word in words if not exists(word, README)} == {
        "units/unit01/call.py", "grading.md", "tests/mark.py", "01/rings"
    }  # fmt: skip


def test_readers_of_code_find_the_simple_versions_first() -> None:
    files = [word for word in named(README.read_text(encoding="utf-8")) if word.endswith(".py")]
    assert files[0] == "dtlab/simple.py"


def shell_lines(page: Path) -> list[str]:
    blocks = re.findall(r"^ *```(.*?)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.strip() for name, block in blocks if not name for line in block.splitlines()]
    return [line for line in lines if re.match(r"(make|dtlab|nbgrader|git|pip|source|cd) ", line)]


def check_command(words: list[str]) -> None:
    """`make` has the target, without running it; `dtlab` has the command and its arguments."""
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[0] == "dtlab":
        named_alone = [*words[1:2], "--help"] if len(words) == 2 else words[1:]
        try:
            cli._parser().parse_known_args(named_alone)
        except SystemExit as left:
            assert not left.code, words


def test_every_command_of_the_readme_can_be_typed() -> None:
    lines = shell_lines(README)
    assert lines == ["make lab", "make test"]
    for line in lines:
        check_command(shlex.split(line))
    workflow = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in workflow.splitlines(), "the second one is what .ci/run runs"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    text = without_code(page.read_text(encoding="utf-8"))
    inline = re.findall(r"(?<!`)`((?:make|dtlab) [a-z][^`\n]*)`", text)
    for line in [*shell_lines(page), *inline]:
        line = re.sub(r"<[^>]+>|FOLDER|TRACE\.\.\.|(?<==)address", "1", line)
        words = shlex.split(line, comments=True)
        if "&&" in words:
            words = words[: words.index("&&")]
        if (
            words[:1] == ["dtlab"]
            and len(words) == 2
            and words[1] in ("grade", "release", "reset")
        ):
            continue  # the name of a command, without its arguments
        check_command(words)


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
for text in {cells!r}:
    shell.run_cell(text, store_history=True)
shell.run_cell("print(run.values, run.trace.bytes_wire(0) > 0)")
"""


@pytest.mark.slow
def test_the_cells_of_the_readme_do_what_it_says() -> None:
    text = README.read_text(encoding="utf-8")
    cells = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(cells) == 2
    done = subprocess.run(
        [sys.executable, "-c", CELLS.format(cells=cells)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    shown = re.sub(r"\x1b\[\d*m", "", done.stdout + done.stderr)
    four = ", ".join(["tensor([6., 6., 6.])"] * 4)
    assert f"[{four}] True" in shown, shown
    explained = re.search(r"^```\n(DeadlockError.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert explained is not None
    first, *others = explained[1].rstrip().splitlines()
    pattern = re.escape(first).replace(r"0\.2", r"\d\.\d") + "\n" + re.escape("\n".join(others))
    assert re.search(pattern, shown), shown

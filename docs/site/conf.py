"""Settings of the site: MyST-NB on Sphinx, with the PyData theme. `make site` builds it.

MyST-NB runs the lessons and keeps their outputs in a cache, so that a lesson which has not changed
is not run again. The pages need no other host: MathJax and the theme's fonts come along.

DTLAB_REPOSITORY=owner/name      the repository on GitHub, for links to it and to Colab; without
                                 it these links are left out
DTLAB_WHEEL=https://...          the wheel's address, for pip and for the first cell on Colab
"""

import json
import os
import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project, author = "dtlab", "the dtlab authors"
release = version = version_of("dtlab")
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline"]
templates_path, html_static_path = ["_templates"], ["_static"]
exclude_patterns = ["README.md"]
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type", "toc.not_included"]

# Lessons are run, exercises and the GPU lab are shown as they are.
nb_execution_mode = os.environ.get("DTLAB_SITE_EXECUTION", "cache")
nb_execution_cache_path = str(Path(__file__).parent.parent / "site-outputs")
nb_execution_excludepatterns = ["exercises/*/*", "notebooks/gpu_lab*"]
nb_execution_timeout, nb_execution_raise_on_error = 900, True
nb_ipywidgets_js: dict[str, Any] = {}  # what stands below a widget is its picture
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

html_theme, html_title = "pydata_sphinx_theme", "dtlab"
html_css_files = ["dtlab.css"]
ALONE = ("docs/*", "CONTRIBUTING", "search")
html_sidebars: dict[str, Any] = {page: [] for page in ALONE}  # they have no pages beside them
html_show_sourcelink, html_sourcelink_suffix = False, ""  # a notebook is downloaded as it is
REPOSITORY = os.environ.get("DTLAB_REPOSITORY", "")
html_theme_options: dict[str, Any] = {
    "navbar_align": "left",
    "show_toc_level": 2,
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["lesson_links", "page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
if REPOSITORY:
    html_theme_options["github_url"] = f"https://github.com/{REPOSITORY}"
NO_WHEEL = "<address of the wheel>"
WHEEL = os.environ.get("DTLAB_WHEEL", NO_WHEEL)
html_context = {"repository": REPOSITORY}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them
autodoc_default_options = {"members": True, "undoc-members": False, "exclude-members": "set"}

# The API reference: a page for each group of modules.
PAGES = {
    "Launching ranks": ["dtlab", "dtlab.errors", "dtlab.collectives"],
    "Traces": ["dtlab.trace", "dtlab.profiling.diagnosis"],
    "Parallel training": [
        "dtlab.parallel.data", "dtlab.parallel.zero", "dtlab.parallel.tensor",
        "dtlab.parallel.pipeline", "dtlab.parallel.context", "dtlab.parallel.domain",
        "dtlab.parallel.expert", "dtlab.parallel.mesh", "dtlab.parallel.gpt",
        "dtlab.parallel.server",
    ],
    "Training": [
        "dtlab.training.datasets", "dtlab.training.models", "dtlab.training.accumulation",
        "dtlab.training.learning_rate", "dtlab.training.precision", "dtlab.training.compression",
        "dtlab.training.checkpoint",
    ],
    "Predictions": ["dtlab.predict", "dtlab.schedules"],
    "Figures": ["dtlab.show"],
}  # fmt: skip


def write_reference(app: Any) -> None:
    """Write the pages of the API reference."""
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    names = {title: title.lower().replace(" ", "_") for title in PAGES}
    listed = "\n".join(names.values())
    intro = "# API reference\n\nWhat the lessons import, from the docstrings of the library.\n\n"
    toctree = "```{toctree}\n:maxdepth: 1\n\n" + listed + "\n```\n"
    (folder / "index.md").write_text(intro + toctree)
    for title, modules in PAGES.items():
        blocks = [f"# {title}\n"]
        for module in modules:
            members = ":members:\n:imported-members:" if _is_facade(module) else ":members:"
            blocks.append(f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n")
            if module == "dtlab":  # these have their place on other pages
                members += "\n:exclude-members: Cluster, Event, Link, Trace, span"
            blocks[-1] += "".join(f"   {line}\n" for line in members.splitlines()) + "```\n"
        (folder / f"{names[title]}.md").write_text("\n".join(blocks))


def write_for_colab(app: Any) -> None:
    """Write the lessons to colab/, each with a first cell that installs dtlab."""
    folder = Path(app.outdir) / "colab"
    folder.mkdir(parents=True, exist_ok=True)
    install = f'%pip install -q "dtlab[lab] @ {WHEEL}"'
    cell = {"cell_type": "code", "id": "install", "metadata": {}, "outputs": [],
            "execution_count": None, "source": [install]}  # fmt: skip
    for path in (Path(app.srcdir) / "notebooks").glob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["cells"].insert(1, cell)  # below the title
        (folder / path.name).write_text(json.dumps(notebook, indent=1), encoding="utf-8")


def name_the_wheel(app: Any, page: str, source: list[str]) -> None:
    """Put the wheel's address into a page."""
    source[0] = source[0].replace(NO_WHEEL, WHEEL)


def _is_facade(module: str) -> bool:
    import importlib

    return Path(importlib.import_module(module).__file__ or "").name == "__init__.py"


def as_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring into reStructuredText: `names`, tables and indented examples are code."""
    found: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        rows = paragraph.strip("\n").split("\n")
        drawn = any(re.search(r"\S {3,}\S|[─│►◄▼]", row) for row in rows)
        if drawn or all(row.startswith("    ") for row in rows):
            found += ["::", "", *(f"    {row}" for row in rows), ""]
        else:
            rows = [row.replace("|", "\\|") for row in rows]
            found += [re.sub(r"(?<![`\w:])`([^`]+)`(?!`)", r"``\1``", row) for row in rows] + [""]
    lines[:] = found


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("builder-inited", write_for_colab)
    app.connect("source-read", name_the_wheel)
    app.connect("autodoc-process-docstring", as_rst)

# make lab      install into .venv if needed, and open JupyterLab on the lessons
# make check    lint, types, layers and the quick tests, in 3 to 5 minutes: before each commit
# make test     all that a change must not break: before you propose it
# make proof UNIT=05   the whole proof of a unit, or of all: when its checks or its lesson change
# make mutants UNIT=05  of that, the mutants of the reference solutions alone
# make grading     of that, the hostile submissions alone; and grading against plain nbgrader
# make bench    speed, as ratios against PyTorch's own in the same run
# make notebooks   normalise all notebooks, and generate exercises/ from solutions/ again
# make wheel    build the package that learners install, into dist/
# make site     run all lessons, and build the site from them and from docs/, into build/site
# make clean    remove .venv and what tools left behind
#
# WORKERS=1               files of tests that run at a time (2)
# PYTHON=python3.12       the Python to build .venv with (3.11 to 3.13)
# TORCH_INDEX=<address>   where to get PyTorch from, as its install selector tells
# TORCH=torch==2.13.0     a certain PyTorch of those that pyproject.toml allows

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.dtlab-installed
TORCH ?= $(shell sed -n 's/^ *"\(torch[<>=!~][^"]*\)".*/\1/p' pyproject.toml)
PORT ?= 8888
WORKERS ?= 2
COURSE ?= $(CURDIR)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start hundreds of processes. Where each compiled dtlab anew they took a tenth longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lab check test proof bench mutants grading notebooks exercises wheel site clean

lab: $(READY)
	@cd "$(COURSE)" && $(CURDIR)/$(BIN)/dtlab lab --port $(PORT) $(LAB_OPTIONS)

PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

check: $(READY)
	$(BIN)/ruff check dtlab tests docs deploy notebooks/several_nodes.py nbgrader_config.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "not slow and not browser and not proof and not busy"

test: $(READY)
	$(BIN)/ruff check dtlab tests docs deploy notebooks/several_nodes.py nbgrader_config.py
	$(PYTEST) --durations=10 -m "not proof and not busy"
	$(BIN)/python -m pytest -q -m busy

proof: $(READY)
	$(BIN)/python -m tests.proof $(UNIT)

bench: $(READY)
	$(BIN)/python -m tests.benchmarks $(BENCH)

mutants: $(READY)
	$(BIN)/python -m tests.proof $(UNIT) --only mutants

grading: $(READY)
	$(BIN)/python -m tests.hostile
	$(BIN)/python -m tests.benchmarks.grading

notebooks: $(READY)
	$(BIN)/python -m dtlab release

exercises: notebooks

wheel: $(READY)
	$(BIN)/python -m build -q -o dist

# The pages of the site, as Sphinx reads them: docs/site/ is at the root, with all else beside it.
PAGES := build/site-source
site: $(READY)
	$(BIN)/pip install -q -e ".[dev,site]"
	rm -rf $(PAGES) && mkdir -p $(PAGES)/docs
	cp -r docs/site/. README.md CONTRIBUTING.md notebooks exercises $(PAGES)
	cp docs/*.md docs/*.png $(PAGES)/docs
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/site-cache $(PAGES) build/site
	@echo "The site is in build/site: open build/site/index.html."

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .proof gradebook.db

# Without an NVIDIA GPU, PyTorch comes first and alone: the rest then finds it there and does not
# ask for the CUDA build.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit( \
	  f"dtlab needs Python 3.11 to 3.13; $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.12")'
	@echo "Installing dtlab into $(VENV); this takes a minute or two, once."
	$(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH_INDEX)" ]; then $(BIN)/pip install -q "$(TORCH)" --index-url "$(TORCH_INDEX)"; \
	elif ! command -v nvidia-smi >/dev/null 2>&1; then $(BIN)/pip install -q "$(TORCH)"; fi
	$(BIN)/pip install -q -e ".[dev]"
	@touch $(READY)

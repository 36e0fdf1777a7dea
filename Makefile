# make lab      install into .venv if needed, and open JupyterLab on the lessons
# make check    lint, types, layers and the quick tests: under two minutes
# make test     everything but the whole proof of the checks, of which it has a sample
# make bench    speed, as ratios against PyTorch's own in the same run
# make mutants UNIT=01   prove the checks of a unit, or of all: wrong answers and mutants
# make notebooks   normalise all notebooks, and generate exercises/ from solutions/ again
# make clean    remove .venv and what tools left behind
#
# PYTHON=python3.12       the Python to build .venv with (3.11 to 3.13)
# TORCH_INDEX=<address>   where to get PyTorch from, as its install selector tells

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.dtlab-installed
TORCH ?= torch==2.13.0
PORT ?= 8888
COURSE ?= $(CURDIR)
FIRST := notebooks/01_ranks_and_collectives.ipynb
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: lab check test bench mutants notebooks exercises clean

lab: $(READY)
	$(BIN)/jupyter lab --ServerApp.root_dir="$(COURSE)" --ip=127.0.0.1 --port=$(PORT) \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  --LabApp.default_url=/lab/tree/$(FIRST) $(if $(filter 0,$(shell id -u)),--allow-root) \
	  $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),,--no-browser) $(LAB_OPTIONS)

check: $(READY)
	$(BIN)/ruff check dtlab tests nbgrader_config.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m "not slow and not browser and not proof"

test: $(READY)
	$(BIN)/ruff check dtlab tests nbgrader_config.py
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --durations=10 -m "not proof"

bench: $(READY)
	$(BIN)/python -m tests.benchmarks

mutants: $(READY)
	$(BIN)/python -m tests.mutants $(UNIT)

notebooks: $(READY)
	$(BIN)/python -m dtlab release

exercises: notebooks

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache gradebook.db

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

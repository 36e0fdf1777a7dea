# make lab      install into .venv if needed, and open JupyterLab on the lessons
# make check    lint, types, layers and the quick tests: under two minutes
# make test     everything but the whole proof of the checks, of which it has a sample
# make bench    speed, as ratios against PyTorch's own in the same run
# make mutants UNIT=01   prove the checks of a unit, or of all: wrong answers and mutants
# make grading     what hostile and broken submissions come to; grading against plain nbgrader
# make notebooks   normalise all notebooks, and generate exercises/ from solutions/ again
# make clean    remove .venv and what tools left behind
#
# WORKERS=1               files of tests that run at a time (2)
# PYTHON=python3.12       the Python to build .venv with (3.11 to 3.13)
# TORCH_INDEX=<address>   where to get PyTorch from, as its install selector tells

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.dtlab-installed
NO_NEWS := $(VENV)/share/jupyter/lab/settings/overrides.json
TORCH ?= torch==2.13.0
PORT ?= 8888
WORKERS ?= 2
COURSE ?= $(CURDIR)
# What fails beside other tests, on a machine that may be slow for seconds, is asked once more,
# alone. Both runs are in the output, and who fails twice has failed.
AGAIN = { [ $$? = 1 ] && echo "Once more, alone:" && \
  $(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none --maxfail 1; }
FIRST := notebooks/00_one_gpu_is_not_enough.ipynb
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start hundreds of processes. Where each compiled dtlab anew they took a tenth longer.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lab check test bench mutants grading notebooks exercises clean

# Its terminals shall find dtlab on this PATH: left to itself, a server whose output is not a
# terminal opens login shells, and those may set another.
lab: $(READY) $(NO_NEWS)
	$(BIN)/jupyter lab --ServerApp.root_dir="$(COURSE)" --ip=127.0.0.1 --port=$(PORT) \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  --ServerApp.terminado_settings=shell_command="$${SHELL:-/bin/sh}" \
	  --LabApp.default_url=/lab/tree/$(FIRST) $(if $(filter 0,$(shell id -u)),--allow-root) \
	  $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),,--no-browser) $(LAB_OPTIONS)

check: $(READY)
	$(BIN)/ruff check dtlab tests notebooks/several_nodes.py nbgrader_config.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not browser and not proof"

test: $(READY)
	$(BIN)/ruff check dtlab tests notebooks/several_nodes.py nbgrader_config.py
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --durations=10 -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not proof" \
	  || $(AGAIN)

bench: $(READY)
	$(BIN)/python -m tests.benchmarks $(BENCH)

mutants: $(READY)
	$(BIN)/python -m tests.mutants $(UNIT)

grading: $(READY)
	$(BIN)/python -m tests.hostile
	$(BIN)/python -m tests.benchmarks.grading

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

# JupyterLab asks every newcomer whether to fetch news of Jupyter. This is its file for defaults,
# and makes the default no; whoever wants news says so under Settings, Notifications. A file that
# is there already is left alone.
$(NO_NEWS): | $(READY)
	@mkdir -p $(@D)
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' > $@

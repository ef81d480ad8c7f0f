# Each command does its set-up on a fresh machine: a virtual environment in .venv with the versions
# of constraints.txt, made anew only when those or pyproject.toml change. `make demo` installs what
# the demo needs, every other target the rest too.

PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/demo-installed
INSTALLED := .venv/installed
# A process for each core, each with whole test files: their fixtures are trained once. conftest.py
# puts those that take longest first.
IN_PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo bench test fast lint types layers docs figures tabpfn clean

demo: $(DEMO)  ## train, contaminate, compare: one table and one figure
	$(BIN)/mindist demo

bench: $(INSTALLED)  ## ratios to other ways of doing the same: tables and figures in results/bench/full
	$(BIN)/mindist bench $(BENCH)

# ArviZ writes a file when it is first imported on a day: two processes at once would collide.
test: lint types layers docs  ## what CI runs
	$(BIN)/python -W ignore -c 'import arviz'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_PARALLEL)

fast: $(INSTALLED)  ## the tests without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_PARALLEL) -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports

docs: $(INSTALLED)  ## the site, in docs/_build/html; a warning is an error
	KERAS_BACKEND=torch OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

figures: $(INSTALLED)  ## draw the figures of the docs again
	$(BIN)/python docs/landing_figure.py
	$(BIN)/python docs/architecture_figure.py
	$(BIN)/python tests/pages.py docs/tutorials/*.md

tabpfn: $(INSTALLED)  ## fetch the checkpoint that NPE-PFN needs, and check its hash
	$(BIN)/python scripts/fetch_tabpfn.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist docs/_build

# torch comes first, at its pinned version, so that no other package picks the build.
$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("mindist needs Python 3.10 or newer, found %d.%d; choose another one: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[demo]'
	@touch $@

$(INSTALLED): $(DEMO) paper/pyproject.toml
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' -e 'paper[pfn]'
	@touch $@

# The two commands of the README are `make quickstart` and `make test`; both need Python and a package index alone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test check bench soak clean

quickstart: $(VENV)/.core
	@$(BIN)/python examples/quickstart.py

test: check
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/run.py
	@$(BIN)/python benchmarks/evals.py
	@$(BIN)/python benchmarks/loader.py --directory scratch/loader --json benchmarks/results/loader.json
	@$(BIN)/python benchmarks/packing.py --directory scratch/packing --json benchmarks/results/packing.json

soak: $(VENV)/.dev
	@$(BIN)/python benchmarks/soak.py

clean:
	rm -rf $(VENV) quickstart

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tokenriver needs Python 3.11 or newer, not " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.core

# `make demo` and `make test` set everything up by themselves, in .venv. Only Python 3.11 or newer and make are needed.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -q

.PHONY: setup demo test quick clocks check format lint types imports bench build clean

# The models are asked for each time: they live outside .venv, and are there at once when they are there already.
setup: $(STAMP)
	@$(BIN)/mmspec models get reference-lm >/dev/null
	@$(BIN)/mmspec models get reference-vlm >/dev/null

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed: make setup PYTHON=/path/to/python3.11' >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo 'Installing the dependencies; the first time this takes a few minutes.'
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/mmspec demo

bench: setup
	$(BIN)/mmspec bench text

test: setup
	$(PYTEST)

quick: setup
	$(PYTEST) -m 'not slow'

# The quick tests by clocks that lie: whatever a machine is busy with, outcomes stay.
clocks: setup
	for clock in noisy dear free stalled; do $(PYTEST) -m 'not slow' --clock $$clock || exit 1; done

check: setup lint types imports test

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

build: setup
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

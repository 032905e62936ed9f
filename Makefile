# Each target sets up what it needs: on a fresh machine, `make demo` and `make test` are all there is to type.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SCALE ?= 21
# Fixtures of a file share their servers, so a file stays with one worker. In the order of folders the files that take
# longest come early; xdist's own order, by number of tests, would leave the examples to the end.
# A worker that died is not replaced: the run ends, as xdist would wait for ever for the rest of the dead one's file.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Tests start some thousand processes: where bytecode may not be written, each would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test test-slow test-bounds soak scale test-all lint format types imports docs bench bench-network bench-check clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is older than Python 3.11; run make PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setup   $(VENV)   (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[pyg,ray,beam,docs,dev]' -c constraints.txt
	@touch $(READY)

setup: $(READY) ## Make the environment; every other target does so by itself

demo: $(READY) ## Cut Cora into four parts, serve them, train on two ranks
	@$(BIN)/python examples/demo.py

test: test-bounds ## Run every default test, the kernels' also with bounds checks
	@$(BIN)/python -m tests.warm
	@$(BIN)/python -m pytest -q $(PARALLEL)

test-slow: $(READY) ## Run whole scripts, clusters and servers that are paused; some minutes
	@$(BIN)/python -m pytest -q $(PARALLEL) -m slow

test-bounds: $(READY) ## Run the kernel tests with every array index checked
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.cache/numba-bounds $(BIN)/python -m pytest -q $(PARALLEL) tests/kernels

soak: $(READY) ## Kill and restart servers under load, send a million damaged requests, run the default tests with new seeds; over an hour
	@$(BIN)/python -m pytest -q -m soak --new-seeds
	@$(BIN)/python -m pytest -q $(PARALLEL) --new-seeds

test-all: $(READY) ## Run every test, the slow and the large ones too
	@$(BIN)/python -m pytest -q -m ''

lint: $(READY) ## Check style and spelling
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/typos

format: $(READY) ## Rewrite the code in the project's style
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

types: $(READY) ## Check types
	@$(BIN)/mypy

imports: $(READY) ## Check that rooms import downwards only, and that no modules import each other in a circle
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.circles

scale: $(READY) ## Write parts of half a billion edges, measure memory of whole verbs; a quarter of an hour, 60 GB of disk
	@$(BIN)/python -m pytest -q -m scale

docs: $(READY) ## Build the site into docs/_build/html, offline; a warning is an error
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

bench: $(READY) ## Measure; SCALE=16 takes a minute, the default 21 a few; PEER="graphbolt=PYTHON graphlearn=PYTHON" adds peers
	@$(BIN)/python -m benchmarks.run --scale $(SCALE) $(PEER:%=--peer %)

bench-network: $(READY) ## Measure two trainers on two hosts, made of network namespaces, with limited rates and a delay
	@$(BIN)/python -m benchmarks.network --scale $(SCALE) --threads 2

bench-check: $(READY) ## Check that every benchmark runs, and that no way to sample is far slower than plain sampling; two minutes
	@$(BIN)/python -m pytest -q -m bench

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks build dist
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

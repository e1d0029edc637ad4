# Two targets do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
C_SOURCES := $(wildcard ipc/*.c ipc/*.h sml/*.c sml/*.h) ipc/_ring_build.py sml/_pool_build.py $(wildcard dsec/buffer/*.c dsec/buffer/*.h) dsec/buffer/_delta_build.py

.PHONY: help run test lint types unit sanitize bench simulate soak clean

help: ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON): apt-get install python3 python3-venv python3-dev gcc" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; choose one with PYTHON=python3.12" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(BIN)/python pyproject.toml setup.py constraints.txt $(C_SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(STAMP) ## The main job: eight CartPole agents (CONFIG=… for another).
	$(BIN)/dsec-kernel run $(or $(CONFIG),examples/cartpole.yaml)

test: $(STAMP) ## Everything CI runs.
	# What reads the code and what races threads leave each other a core; the Python tests want both.
	$(MAKE) --jobs 2 --output-sync=target lint types sanitize
	$(MAKE) unit

lint: $(STAMP) ## Style and architecture.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict.
	$(BIN)/mypy

unit: $(STAMP) ## The Python tests.
	# A file's tests stay together, since they share what their fixtures start.
	$(BIN)/python -m pytest -m "not soak" --numprocesses logical --maxprocesses 4 --dist loadfile

sanitize: $(STAMP) ## The C of rings, pool and buffer under address, undefined-behaviour and thread sanitizers.
	$(MAKE) -C tests/ipc/c
	$(MAKE) -C tests/sml/c
	$(MAKE) -C tests/buffer/c

bench: $(STAMP) ## The benchmarks (minutes).
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m bench all

simulate: $(STAMP) ## The kernel in a simulated world: 10,000 seeds, and every planted bug (minutes; SEEDS=A:B).
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),0:10000)
	$(BIN)/python -m tests.simulation --mutants

soak: $(STAMP) ## Long crash loops (tens of minutes).
	$(BIN)/python -m pytest -m soak --timeout 3600

clean: ## Remove what the targets made, the virtual environment too.
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis dsec/ipc/_ring.*.so dsec/ipc/_ring.c dsec/sml/_pool.*.so dsec/sml/_pool.c dsec/buffer/_delta.*.so dsec/buffer/_delta.c

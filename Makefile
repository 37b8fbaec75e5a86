# The same commands by hand and in CI. Everything is installed into .venv; compiled kernels go to ~/.cache (or $NUMBA_CACHE_DIR).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# the same kernels as plain Python: the readable reference
REFERENCE := $(addprefix tests/sim_core/test_,engine.py costs.py moving.py simai_model.py)

.PHONY: sweep test test-long mutants check bench cluster-demo format clean

sweep: $(READY)  ## set up, run the main job, rank it
	$(BIN)/sweep run examples/gpt7b.yaml

test: $(READY)  ## all tests but the long ones
	$(BIN)/pytest -m "not long"
	NUMBA_DISABLE_JIT=1 $(BIN)/pytest $(REFERENCE)

test-long: $(READY)  ## the long ones: more kills, more mutants
	$(BIN)/pytest -m long

mutants: $(READY)  ## faults planted in the sources: which does no test notice (an hour; ARGS="sim_core/engine --all")
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(READY)  ## style, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)  ## the measured claims
	$(BIN)/python benchmarks/bench.py

cluster-demo: $(READY)  ## a Ray cluster of three nodes on this machine, the main job on it
	$(BIN)/python cluster/demo.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + " (make PYTHON=...)")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv results .mypy_cache .pytest_cache .ruff_cache .hypothesis

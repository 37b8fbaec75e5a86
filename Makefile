# The same commands by hand and in CI. Everything is installed into .venv; compiled kernels go to ~/.cache (or $NUMBA_CACHE_DIR).
PYTHON ?= python3
BIN := .venv/bin
# what a run needs; and with it what tests, linters and types need
RUNS := .venv/.runs
READY := .venv/.ready
# uv where it is there: it installs in a fraction of the time
INSTALL = $(if $(shell command -v uv),uv pip install --quiet --python $(BIN)/python,$(BIN)/pip install --quiet --disable-pip-version-check) -c constraints.txt
# the same kernels as plain Python, the readable reference: a minute of tests that reach 9 of 10 lines of sim_core
REFERENCE := $(addprefix tests/readers/test_,op_table_text.py simai_facts.py) $(addprefix tests/sim_core/test_,adapters.py \
	calibration.py costs.py dispatcher.py engine.py lanes.py layer_kinds.py model_operators.py model_readers.py moving.py \
	newer_families.py op_table.py simai_model.py timeline.py trace_files.py)
# tests of sweep in one process each, without a cluster
IN_PROCESS := $(addprefix tests/sweep/,inputs tuning uncertainty calibration compare exporting ranking report starting \
	$(addsuffix .py,test_api test_conditions test_model_command answers/test_explain answers/test_whatif results/test_store \
	search/test_search $(addprefix spec/test_,releases space spec stack_axis)))
# percent of the lines that these tests must reach
FLOOR_SIM_CORE := 88
FLOOR_SWEEP := 75

# on all CPUs, up to four. JOBS=0: in one process
JOBS ?= logical
# a file at a time: what its tests share is made once, not in every process
PARALLEL := -n $(JOBS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# interpreters for `make matrix`, besides those on the PATH
PYTHONS ?= $(wildcard $(HOME)/.pyenv/versions/3.*/bin/python $(HOME)/.local/share/uv/python/*/bin/python3)

.PHONY: help sweep dist reference rooms test coverage test-long mutants check matrix oldest newest audit locked release validate validation bench cluster-demo hooks format clean
.DEFAULT_GOAL := help
# without bytecode each process that a test starts compiles 400 modules anew, for a second
unexport PYTHONDONTWRITEBYTECODE

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

sweep: $(RUNS)  ## set up, run the main job, rank it
	$(BIN)/sweep run examples/llama3_70b_h100.yaml

dist: $(READY)  ## a wheel under dist/, to be installed elsewhere
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .

test: $(READY)  ## all tests except the long ones
	$(BIN)/sweep run examples/fidelity.yaml --quiet --fresh --out .pytest_cache/compiled # compile once, not in every worker
	$(BIN)/pytest $(PARALLEL) -m "not long"

coverage: $(READY)  ## kernels as plain Python, and the part of the lines that quick tests reach (fails below a floor)
	rm -f .coverage .coverage.*
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest $(PARALLEL) -m "not long" $(REFERENCE)
	$(BIN)/coverage run -m pytest $(PARALLEL) -m "not long" $(IN_PROCESS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include 'sim_core/*' --fail-under $(FLOOR_SIM_CORE)
	$(BIN)/coverage report --include 'sweep/*' --fail-under $(FLOOR_SWEEP)

test-long: $(READY)  ## the long ones: more kills, more mutants
	$(BIN)/pytest -m long

mutants: $(READY)  ## 300 faults planted in the sources: which does no test notice (ARGS="sim_core/engine --all")
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(READY)  ## style, types, imports, and the size of each room against its budget
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/budget.py

matrix: $(READY)  ## types, imports and quick tests on each Python from 3.11 to 3.14 that is installed
	$(BIN)/tox run $(if $(strip $(PYTHONS)),--discover $(PYTHONS))

oldest: $(READY)  ## quick tests on the lowest versions of the dependencies that pyproject.toml allows
	mkdir -p .tox
	$(BIN)/python -m tests.oldest > .tox/lowest.txt
	$(BIN)/tox run -e oldest

newest: $(READY)  ## quick tests on the newest versions that there are
	$(BIN)/tox run -e newest --recreate

audit: $(READY)  ## known vulnerabilities of the locked versions (pip-audit, asks PyPI); fails if one cannot be looked up
	$(BIN)/tox run -e audit

locked: $(READY)  ## what the image installs, with hashes (asks PyPI): after constraints.txt has changed
	$(BIN)/python .ci/locked.py

release: $(READY)  ## sdist, wheel and bill of materials of the version that the changelog describes, tried in a fresh environment
	.ci/release

validate: $(READY)  ## measured training runs against their simulation (fails where a figure got worse)
	$(BIN)/python -m docs.made.validation_page --check

validation: $(READY)  ## record the figures anew and remake what docs/ shows of them
	$(BIN)/python -m docs.made.validation_page

reference: $(READY)  ## remake what is made from the code: pages of commands and axes, the columns of plans, tables
	$(BIN)/python -m docs.made.plan_fields
	$(BIN)/python docs/made/commands_page.py
	$(BIN)/python -m docs.made.docs_tables
	$(BIN)/python -m docs.made.schemas

rooms: $(READY)  ## print what every file of the sources is for
	@$(BIN)/python docs/made/rooms_page.py

bench: $(READY)  ## the measured claims
	$(BIN)/python -m benchmarks.bench

cluster-demo: $(RUNS)  ## a Ray cluster of three nodes on this machine, the main job on it
	$(BIN)/python cluster/demo.py

hooks: $(READY)  ## run what CI runs before each commit and push (pre-commit)
	$(BIN)/pre-commit install

format: $(READY)  ## format the code, fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(RUNS): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + " (make PYTHON=...)")'
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[ray]'
	touch $@

$(READY): $(RUNS)
	$(INSTALL) -e '.[dev]'
	touch $@

clean:  ## remove the environment, results and caches
	rm -rf .venv .tox results dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

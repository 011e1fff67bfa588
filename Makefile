# Every target sets itself up in .venv and can be repeated. `make` alone lists them.
#   PYTHON=/path/to/python   the Python to make .venv with (default: the first of 3.11 or newer on PATH)
#   ARGS='-k name -x'        handed to pytest, or to the command that the target runs
#   JOBS=4                   make test: processes that share the tests (default: one for each core, or two more; with ARGS none)
#   SMOKE=1                  make test: only tests without daemons, which need a minute to set up instead of ten
#   KEEP=1                   make run: go on with a light load until Ctrl-C, and leave no files
#   SPARK=1                  make run: end in the Spark pipelines; needs Java 17 or later

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

# Nothing of the caller's Python may leak in.
unexport $(filter-out PYTHON,$(filter PYTHON%,$(.VARIABLES))) VIRTUAL_ENV PYTEST_ADDOPTS MYPYPATH
# An empty HOME sends caches to the file system's root; without one the user database is asked.
ifeq ($(HOME),)
unexport HOME
endif

python := .venv/bin/python
pytest := $(python) -m pytest
# Tests of daemons and of Spark often wait: two processes more than cores keep the cores busy.
jobs := $(or $(JOBS),$(if $(ARGS),0,$(shell expr $$(getconf _NPROCESSORS_ONLN) + $(if $(SMOKE),0,2))))
inputs := setup.cfg setup.py Makefile .ci/environment.py .ci/python
# Linted and typed: of examples and benchmarks, the folders that exist.
typed := nsq $(patsubst %/,%,$(sort $(dir $(wildcard examples/*.py benchmarks/*.py))))
sources := $(typed) tests docs .ci setup.py nsq_command.py $(wildcard pyspark_*.py)

# A .venv that was made for another directory (a copied tree), or whose Python is gone, is made anew.
usable := $(shell test "$$(cat .venv/made-for 2>/dev/null)" = "$$(pwd -P)" && $(python) -I -c '' 2>/dev/null && echo yes)
ifneq ($(usable),yes)
anew := anew
endif

.PHONY: help run test django lint types format coverage packages release docs bench chaos races simulate put-back soak clean anew

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

run: .venv/installed-run $(if $(SPARK),.venv/installed-spark) ## a web shop on a whole NSQ of its own (KEEP=1: goes on until Ctrl-C; SPARK=1), or PARTITIONED=1
	@$(python) -m $(if $(PARTITIONED),examples.ordered,examples.demo $(if $(KEEP),--keep) $(if $(SPARK),--spark)) $(ARGS)

test: $(if $(SMOKE),.venv/installed-test,.venv/installed-all .venv/installed-interop) ## the tests (SMOKE=1: only those without daemons, two minutes with the set-up; ARGS='-k name' goes to pytest)
	@$(pytest) -m 'not chaos$(if $(SMOKE), and not daemons)' -n $(jobs) --dist loadscope --no-loadscope-reorder $(if $(SMOKE),tests/unit tests/behaviour) $(ARGS)

django: .venv/installed-django6 ## the tests of nsq.contrib.django with Django 6, in a second environment
	@if [ -x .venv/django6/bin/python ]; then env -u NSQ_REQUIRE_SPARK -u NSQ_REQUIRE_BROWSER .venv/django6/bin/python -m pytest tests/contrib/django $(ARGS); fi

lint: .venv/installed-dev ## ruff: rules and format; the schemas of .github
	@$(python) -m ruff check --quiet $(sources)
	@$(python) -m ruff format --quiet --check $(sources) || { echo "not formatted: run 'make format'" >&2; exit 1; }
	@$(python) -m check_jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(python) -m check_jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml

types: .venv/installed-all ## mypy --strict, and less strictly over the tests
	@$(python) -m mypy --strict $(typed) tests

format: .venv/installed-dev ## put the code into ruff's format
	@$(python) -m ruff check --quiet --fix-only $(sources)
	@$(python) -m ruff format $(sources)

coverage: .venv/installed-spark ## the branches that the unit tests take, file by file
	@$(python) -m coverage erase
	@$(python) -m coverage run -m pytest -q -m 'not daemons' tests/unit tests/behaviour $(ARGS)
	@$(python) -m coverage run --concurrency=greenlet -m tests.simulation --seeds 1210-1221
	@$(python) -m coverage combine -q
	@$(python) -m coverage report

packages: .venv/installed-dev ## the sdist and the wheel, checked and installed into empty environments, in dist
	@$(python) .ci/packages.py dist

release: .venv/installed-dev ## a release up to its tag: a dry run of half an hour (NSQ_URL=https://…, and TAG=v0.1.0 to set it)
	@$(python) .ci/release.py

docs: .venv/installed-docs ## the pages of docs/ and the reference, as HTML in build/docs
	@$(python) -m sphinx -q -W --keep-going -b html $(ARGS) docs build/docs
	@echo build/docs/index.html

bench: .venv/installed-spark .venv/installed-interop ## the benchmarks (OLD=DIRECTORY: only beside the package in that older checkout)
	@$(python) -m benchmarks $(if $(OLD),--old='$(OLD)') $(ARGS)

chaos: .venv/installed-spark ## make races and simulate; then cut networks, killed daemons, damaged frames (ARGS='-k name': only these tests)
	@$(if $(ARGS),,$(MAKE) races && $(MAKE) simulate)
	@$(pytest) -m chaos $(ARGS)

races: .venv/installed-spark ## tests with a thread switch every microsecond, delays at random lines (LATE=7: others), many random examples
	@NSQ_TEST_SWITCH_INTERVAL=1e-6 $(pytest) -m 'not chaos and not daemons' tests/unit tests/behaviour tests/chaos $(ARGS)
	@NSQ_TEST_LATE=$(or $(LATE),1) $(pytest) -m 'not daemons' tests/unit/producer tests/unit/consumer tests/unit/connection tests/behaviour $(ARGS)
	@NSQ_TEST_EXAMPLES=500 $(pytest) tests/unit -k 'runTest or lives or flipped or garbage' $(ARGS)

simulate: .venv/installed-dev ## client and daemons in virtual time: new seeds for MINUTES=10, or one with its story (SEED=1046)
	@$(python) -m tests.simulation $(if $(SEED),--seed $(SEED),--minutes $(or $(MINUTES),10)) $(ARGS)

put-back: .venv/installed-dev ## hours: old defects, put back one at a time, and whether the simulation finds them (ARGS='NAME --cpu 60')
	@$(python) -m tests.simulation.defects $(ARGS)

soak: .venv/installed-dev ## a steady load for SOAK seconds (1800): memory, threads and descriptors stay flat
	@SOAK=$(or $(SOAK),1800) $(pytest) -m chaos tests/chaos/test_soak.py $(ARGS)

clean: ## remove .venv, caches and build products
	@rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	@find . -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The other clients have environments of their own below .venv.
.venv/installed-interop: .venv/installed-dev $(wildcard tests/interop/requirements/*.txt)

.venv/installed-%: $(inputs) $(anew)
	@found=$$(PYTHON='$(PYTHON)' .ci/python) && "$$found" .ci/environment.py $*

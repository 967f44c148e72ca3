# Everything here needs Python 3.11 and make; pip fetches the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := bin/python -m pip install --quiet --disable-pip-version-check
PIP := $(VENV)/$(PIP_INSTALL) -c constraints.txt

# What the wheel is built from: a newer file means a new installation.
SOURCES := pyproject.toml constraints.txt README.md LICENSE \
  $(shell find cli eval quantkit recipes -type f ! -name '*.pyc')
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable

# An engine is a module and a full list of pinned packages, both called NAME; its tests run it with
# .engines/NAME/bin/python. The list goes in without dependencies, as the engines declare more than
# loading on a CPU takes; torch comes first, as its dependencies differ from one index to the next.
ENGINES := $(patsubst tests/engines/%.txt,.engines/%/.installed,$(wildcard tests/engines/*.txt))

# Tests see the installed wheel, never the checkout; one thread each, as two of them run at a time.
PYTEST := PYTHONSAFEPATH=1 OMP_NUM_THREADS=1 $(BIN)/pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint structure types unit engines browser wheel vendor fmt clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(INSTALLED) ## install, then quantize the embedded model with every method (no network, no GPU)
	$(BIN)/quantkit demo

test: lint types engines browser $(TESTABLE) ## all checks and all tests, engines included: what CI runs
	$(PYTEST) -n 2

lint: $(TESTABLE) ## style, imports between the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

structure: $(TESTABLE) ## packages, the imports between them, and what breaks a bound on size or imports
	$(BIN)/python -m tools.structure

types: $(TESTABLE) ## mypy --strict
	$(BIN)/mypy

unit: $(TESTABLE) ## the tests without the engines
	$(PYTEST) -n 2 --ignore=tests/engines

engines: $(ENGINES) ## environments of the inference engines, one each under .engines/

# Without rights to install one, the tests of the page skip and say so.
browser: ## Debian's chromium, where there is none
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	       && apt-get install -yqq --no-install-recommends chromium fonts-dejavu-core; } \
	  || echo 'no chromium: the tests of the report page are skipped; try: apt-get install chromium' >&2

vendor: ## fetch the chart libraries of the report page again and compare them (needs npm)
	$(PYTHON) tools/vendor.py

wheel: $(TESTABLE) ## build the wheel into dist/
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf build *.egg-info

fmt: $(TESTABLE) ## format and sort imports in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove environments, caches and builds
	rm -rf $(VENV) .engines build dist quantkit-demo.html *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'error: Python 3.11 or newer is needed; try: make PYTHON=python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo 'error: no venv module; try: apt-get install python3-venv' >&2; exit 1; }

# setuptools keeps files of the past in build/, and would pack them.
$(INSTALLED): $(SOURCES) | $(BIN)/python
	rm -rf build
	$(PIP) .
	rm -rf build *.egg-info
	touch $@

$(TESTABLE): $(SOURCES) | $(BIN)/python
	rm -rf build
	$(PIP) '.[test]'
	rm -rf build *.egg-info
	touch $(INSTALLED) $@

.engines/%/.installed: tests/engines/%.txt
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/$(PIP_INSTALL) $$(grep ^torch== $<)
	$(@D)/$(PIP_INSTALL) --no-deps -r $<
	$(@D)/bin/python -c 'import $*'
	touch $@

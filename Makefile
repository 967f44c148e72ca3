# Everything here needs Python 3.11 and make; pip fetches uv, which fetches the rest in a third of pip's time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# Compiled once, as pip does: tests start hundreds of processes, and an environment may keep Python from writing bytecode.
INSTALL := $(UV) pip install --quiet --compile-bytecode --python

# uv reads none of pip's settings: where the wheels are is handed on.
export UV_SYSTEM_CERTS := 1
ifndef UV_FIND_LINKS
export UV_FIND_LINKS := $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

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
# A worker takes neighbours, so that what a module's tests share is made once.
PYTEST := PYTHONSAFEPATH=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# $(call timed,PART,COMMAND) runs the command and prints the seconds that the part took.
timed = @start=$$(date +%s); $(2) && echo "$(1): $$(($$(date +%s) - start)) s"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint structure types unit engines browser wheel vendor fmt clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(INSTALLED) ## install, then quantize the embedded model with every method (no network, no GPU)
	$(BIN)/quantkit demo

test: ## all checks and all tests, engines included: what CI runs
	$(call timed,environments,$(MAKE) --no-print-directory -j2 $(TESTABLE) engines browser)
	$(call timed,lint and types,$(MAKE) --no-print-directory -j2 lint types)
	$(call timed,tests,$(PYTEST) --durations=20)

lint: $(TESTABLE) ## style, imports between the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

structure: $(TESTABLE) ## packages, the imports between them, and what breaks a bound on size or imports
	$(BIN)/python -m tools.structure

types: $(TESTABLE) ## mypy --strict
	$(BIN)/mypy

unit: $(TESTABLE) ## the tests of minutes: without engines, browser and what is marked long
	$(call timed,tests,$(PYTEST) -m 'not long' --ignore=tests/engines --ignore=tests/browser)

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
	$(UV) build --quiet --wheel
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

$(UV): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv

# setuptools keeps files of the past in build/, and uv a wheel of the past: either would install them.
FROM_HERE := $(INSTALL) $(BIN)/python -c constraints.txt --reinstall-package quantkit-deploy
$(INSTALLED): $(SOURCES) | $(UV)
	rm -rf build
	$(FROM_HERE) .
	rm -rf build *.egg-info
	touch $@

$(TESTABLE): $(SOURCES) | $(UV)
	rm -rf build
	$(FROM_HERE) '.[test]'
	rm -rf build *.egg-info
	touch $(INSTALLED) $@

.engines/%/.installed: tests/engines/%.txt | $(UV)
	rm -rf $(@D)
	$(PYTHON) -m venv --without-pip $(@D)
	$(INSTALL) $(@D)/bin/python $$(grep ^torch== $<)
	$(INSTALL) $(@D)/bin/python --no-deps -r $<
	$(@D)/bin/python -c 'import $*'
	touch $@

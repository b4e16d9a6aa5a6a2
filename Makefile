# The words of this project; CI runs the same ones (.ci/run). `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Touched after a complete install, so that a broken one is repeated and a good one is not.
STAMP := $(VENV)/.installed
# Arguments for `make test`, `make bench` and `make demo`, such as ARGS="--seconds 5".
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup fmt check docs test test-slow bench demo clean

help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything into it, once

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot create a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

fmt: $(STAMP) ## format the code and sort the imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

check: $(STAMP) ## lint, format, types, layers, documentation; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict

docs: $(STAMP) ## write the reference pages from the code, and the site into build/site
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict

test: $(STAMP) ## the default suite in two processes, with its slowest tests named
	$(BIN)/pytest -m "not slow" -n 2 --dist loadgroup --durations=10 $(ARGS)

test-slow: $(STAMP) ## the long suites: many crashes, power cuts, large logs
	@command -v mkfs.ext4 >/dev/null && command -v mount >/dev/null || \
	  echo "note: the power-loss tests need mkfs.ext4 and mount, and skip without them: apt-get install e2fsprogs mount"
	@command -v redis-cli >/dev/null || echo "note: tests with redis-cli skip without it: apt-get install redis-tools"
	@command -v npm >/dev/null || echo "note: tests with ioredis and node-redis skip without node: apt-get install nodejs npm"
	@test "$$(id -u)" = 0 || echo "note: the power-loss tests mount a file system and skip unless run as root"
	$(BIN)/pytest -m slow -rs --durations=10 $(ARGS)

bench: $(STAMP) ## measure everything beside the disk, beside servers that are there, beside Spark alone
	$(BIN)/penstock bench log $(ARGS)
	@if command -v redis-server >/dev/null; then $(BIN)/penstock bench stream && $(BIN)/penstock bench topic; \
	  else echo "note: bench stream and bench topic need redis-server: apt-get install redis-server"; fi
	$(BIN)/penstock bench queue
	$(BIN)/penstock bench spark
	$(BIN)/penstock bench source
	$(BIN)/penstock bench graph

demo: $(STAMP) ## kill processes again and again, then count what was lost
	@mkdir -p build
	$(BIN)/penstock demo --keep --folder build $(ARGS)

clean: ## remove what the words above created
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist bench/data
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

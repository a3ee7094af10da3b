# make demo   find a broken GPU in a simulated cluster: sets everything up by itself, exits 0 when it was found
# make test   sets everything up by itself and runs the tests
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-unit test-cluster test-browser control-plane lint bench fuzz lock protos clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nvcre needs Python >= 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)  ## break a GPU in a simulated cluster and find it
	@$(BIN)/python -m nvcre_cli.demo

test: $(STAMP)  ## the tests
	$(BIN)/python -m pytest

test-unit: $(STAMP)  ## only the tests of the rules: the quick ones
	$(BIN)/python -m pytest tests/unit

control-plane: $(STAMP)  ## build a real Kubernetes control plane from pinned Go modules (once; needs Go)
	@$(BIN)/python -m nvcre_local.control_plane build

test-cluster: control-plane  ## the tests that need a real control plane
	$(BIN)/python -m pytest tests/cluster tests/conformance -m cluster

test-browser: $(STAMP)  ## the tests that look at the HTML report in Chromium (on Debian installs it)
	tests/browser/install.sh
	$(BIN)/python -m pytest tests/browser -m browser

lint: $(STAMP)  ## ruff, mypy (strict), import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: control-plane  ## the figures of docs/benchmarks.md
	$(BIN)/python -m pytest tests/bench -m bench -s

FUZZ_SECONDS ?= 30
$(VENV)/.fuzz-installed: $(STAMP) requirements/fuzz.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.lock
	@touch $@

fuzz: $(VENV)/.fuzz-installed  ## hostile input, guided by coverage, FUZZ_SECONDS (30) for each target
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml
lock:  ## renew requirements/*.lock from pyproject.toml (needs uv on PATH)
	$(LOCK) --all-extras --group dev -o requirements/dev.lock
	$(LOCK) --extra agent -c requirements/dev.lock -o requirements/agent.lock
	$(LOCK) --extra coordinator -c requirements/dev.lock -o requirements/coordinator.lock
	$(LOCK) --group fuzz -c requirements/dev.lock -o requirements/fuzz.lock

protos: $(STAMP)  ## renew the generated protobuf code
	PATH=$(CURDIR)/$(BIN):$$PATH protos/generate.sh

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis fuzz-found

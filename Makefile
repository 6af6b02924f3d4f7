# Everything a person or a CI runner types; it needs python3 (3.11 or newer) and make.
#
#   make serve                            the default model on http://127.0.0.1:8000
#   make serve MODEL=org/name PORT=9000   another model, another port
#   make test                             the gates, the tests and the soak, in an environment of
#                                         their own
#
# The environment is .venv. Each install leaves a stamp there, so that nothing is resolved twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HAS_GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
CONFIG ?= configs/$(if $(HAS_GPU),gpu,cpu).toml
HOST ?=
PORT ?=
MODEL ?=
TESTS ?=
BENCH ?=
export SLIPSTREAM_TORCH_INDEX

SERVE_OPTIONS := --config $(CONFIG) $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT))
INSTALL_INPUTS := pyproject.toml constraints/ci.txt scripts/install.py

NEED_PYTHON = command -v $(PYTHON) >/dev/null || { \
	echo "make: $(PYTHON) is missing; install Python 3.11 or newer, or name one: PYTHON=..." >&2; exit 1; }

.DEFAULT_GOAL := help
.PHONY: help install install-test serve test test-long lint format bench bench-serve clean

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Variables: MODEL= HOST= PORT= CONFIG= (serve), TESTS= (test), BENCH= (bench-serve), PYTHON=, SLIPSTREAM_API_KEY=, SLIPSTREAM_TORCH_INDEX="

install: $(VENV)/.installed ## Make .venv with what serving needs.
install-test: $(VENV)/.installed-test

$(VENV)/.installed: $(INSTALL_INPUTS)
	@$(NEED_PYTHON)
	@$(PYTHON) scripts/install.py --venv $(VENV)

$(VENV)/.installed-test: $(INSTALL_INPUTS)
	@$(NEED_PYTHON)
	@$(PYTHON) scripts/install.py --venv $(VENV) --test

serve: install ## Serve MODEL (the default model without it).
	@exec $(BIN)/slipstream serve $(MODEL) $(SERVE_OPTIONS)

lint: install-test ## Run the gates: format, ruff, mypy, layers.
	@scripts/lint $(BIN)

test: lint ## Run the gates, the tests and, beside them, the soak; TESTS= names some tests.
	@$(BIN)/python -m pytest $(or $(TESTS),-p scripts.soak)

test-long: install-test ## Run the tests that take minutes.
	@$(BIN)/python -m pytest -m long --timeout 1800 $(TESTS)

format: install-test ## Format the code and repair what ruff can.
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench: install-test ## Measure the engine on this machine.
	@scripts/bench $(BIN)

bench-serve: install-test ## Measure servers over HTTP; BENCH="--url NAME=URL ...".
	@scripts/bench $(BIN) serve $(BENCH)

clean: ## Remove the environment and what the tools left; the model cache stays.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info

# `make serve` talks to a model, `make test` proves it works. Both first make a virtual environment in .venv and install
# everything into it; a second run finds it there.
#
#   make serve MODEL=path-or-hub-id ARGS="--port 9000"
#   make test ARGS="-k prefix"
#   make install PYTHON=python3.12                                      another interpreter
#   make install TORCH_INDEX=https://download.pytorch.org/whl/cpu       torch without the CUDA libraries

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CLIENTS := .venv-clients

MODEL ?=
ARGS ?=
PYTHON ?=
TORCH_INDEX ?=
PORT ?= 8123

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help install install-node serve test test-quick test-clients lint format bench clean

help:
	@echo "make serve        serve a model at http://127.0.0.1:8000 (MODEL=..., ARGS=...)"
	@echo "make test         run the whole test suite (ARGS=...)"
	@echo "make test-quick   run what takes less than a minute"
	@echo "make test-clients run other projects' clients against a server (ARGS=...); installs them into $(CLIENTS)"
	@echo "make lint         ruff and mypy"
	@echo "make format       let ruff rewrite the files"
	@echo "make bench        measure the default model (ARGS=...)"
	@echo "make install      only make the environment in $(VENV)"
	@echo "make clean        remove the environment and all build output"

install: $(INSTALLED)
	@:

$(INSTALLED): pyproject.toml constraints.txt $(wildcard setup.py kernels/cpu/*.cpp kernels/cpu/*.h)
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" sh .ci/install $(VENV)
	@touch $@

serve: $(INSTALLED)
	@exec $(BIN)/octavo serve $(MODEL) $(ARGS)

# The official OpenAI client for Node, for the tests that use it; without npm they are skipped.
install-node: $(INSTALLED)
	@sh .ci/install-node tests/clients/node/package.json $(VENV)/node

test: $(INSTALLED) install-node
	@sh .ci/test $(BIN)/python $(ARGS)

test-quick: $(INSTALLED)
	@sh .ci/test $(BIN)/python -q -m "not slow and not gpu" $(ARGS)

test-clients: $(INSTALLED) install-node $(CLIENTS)/.installed
	@sh .ci/install-node tests/clients/ai_sdk/package.json $(CLIENTS)/node
	@OCTAVO_TEST_CLIENTS=$(CLIENTS) $(BIN)/python -m pytest tests/clients $(ARGS)

$(CLIENTS)/.installed: tests/clients/python/requirements.txt
	@$(BIN)/python -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check --no-input install -qq \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r $<
	@touch $@

lint: $(INSTALLED)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --num-workers auto

format: $(INSTALLED)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks.serve --start "$(BIN)/octavo serve $(MODEL) --port $(PORT)" \
		--url http://127.0.0.1:$(PORT) --workloads W1,W2,W3 $(ARGS)

clean:
	@rm -rf $(VENV) $(CLIENTS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +
	@rm -f kernels/cpu/*.so

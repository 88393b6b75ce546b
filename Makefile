# `make demo` and `make test` set up everything they need on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Single-threaded workers, one a core; see tests/conftest.py for the second variable.
TEST_ENV := OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16

.PHONY: help demo test lint format clean
help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

$(VENV)/.train: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing lpjepa into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.train
	@echo "installing the test tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.train    ## install, then train three sparse encoders on handwritten digits
	@$(BIN)/lpjepa demo

lint: $(VENV)/.dev    ## ruff and mypy
	@$(BIN)/ruff check --quiet src tests benchmarks examples
	@$(BIN)/ruff format --check --quiet src tests benchmarks examples
	@$(BIN)/mypy --no-error-summary

format: $(VENV)/.dev    ## format the code
	@$(BIN)/ruff check --fix-only --quiet src tests benchmarks examples
	@$(BIN)/ruff format --quiet src tests benchmarks examples

test: $(VENV)/.dev lint    ## install, then lint, type check and run the whole test suite
	@$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

# One command for each common task. `make` alone lists them.

PYTHON ?= python3
PORT ?= 5006
ENGINE ?= lab
ARGS ?=
BIN := .venv/bin
SETUP := $(PYTHON) scripts/setup_env.py

.DEFAULT_GOAL := help
BENCHES := connector scheduler_step worker_probe kv_events stream cluster fuzz lab_overhead tick

.PHONY: help demo setup test lint format types unit engine browser bench docs \
        screenshots lock clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Set up if need be and open the dashboard on the lab, or ENGINE=vllm (PORT=5006)
	@$(BIN)/auxconn demo --engine $(ENGINE) --port $(PORT) $(ARGS)

setup: ## Make .venv with all pinned packages (once, a few minutes, 5 GB)
	@$(SETUP)

test: ## Set up if need be and run everything CI runs
	@$(SETUP) --browser
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not browser" $(ARGS)
	$(BIN)/python -m pytest -m browser $(ARGS)

lint: setup ## Lint, format and types, without the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify notebooks/*.ipynb
	$(MAKE) --no-print-directory types

types: setup ## Type checks alone
	$(BIN)/mypy
	$(BIN)/mypy scripts/*.py bench/*.py

format: setup ## Format the code and strip the notebooks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout notebooks/*.ipynb

unit: setup ## The quick tests alone
	$(BIN)/python -m pytest tests/unit tests/property $(ARGS)

engine: setup ## The tests on vLLM's real objects
	$(BIN)/python -m pytest tests/engine tests/differential $(ARGS)

browser: ## The tests in a headless Chromium
	@$(SETUP) --browser
	$(BIN)/python -m pytest tests/browser $(ARGS)

bench: setup ## Measure everything in docs/performance.md, side by side
	@set -e; for each in $(BENCHES); do \
		echo "== bench.$$each"; $(BIN)/python -m bench.$$each; done

docs: setup ## Write the documents that are made from code
	$(BIN)/python scripts/make_docs.py

screenshots: ## Take the pictures of the documentation anew
	@$(SETUP) --browser
	$(BIN)/python scripts/screenshots.py

lock: ## Resolve requirements/cpu.in into the pins (needs uv, and a CPU torch offered to it)
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile requirements/cpu.in \
	  --override requirements/cpu-overrides.txt --python-version 3.11 \
	  --no-annotate --quiet --output-file requirements/cpu.txt

clean: ## Remove what the tools left, and .venv
	rm -rf .venv .venv.lock build dist out *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first run of a command sets up what it needs in .venv; later runs start at once.
# ARGS passes options, for example: make test ARGS="-k adaptive -x"

.DEFAULT_GOAL := help
BIN := .venv/bin
DEMO := .venv/.ready-demo
DEV := .venv/.ready-dev
CORE := */pollwise/core/*
# What `make coverage` measured of the whole package, without decimals. Raise it when the share grows.
COVERED := 95

.PHONY: help demo test coverage check bench docs soak lock clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO)  ## watch an adaptive worker save polls (ARGS="--seconds 30")
	@$(BIN)/pollwise demo $(ARGS)

test: $(DEV)  ## run the tests; a whole run also requires every branch of core (ARGS="-k name")
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest -q tests/core --cov=src/pollwise/core --cov-report= -n 3
	@$(BIN)/coverage report --skip-covered --include='$(CORE)' --fail-under=100
	@$(BIN)/python -m pytest -q --ignore tests/core -n 3 --dist loadfile --no-loadscope-reorder
else
	@$(BIN)/python -m pytest $(ARGS)
endif

coverage: $(DEV)  ## run all tests with coverage of the whole package, and require at least COVERED percent
	@$(BIN)/python -m pytest -q --cov=src/pollwise --cov-report=term:skip-covered --cov-fail-under=$(COVERED) \
		-n 3 --dist loadfile --no-loadscope-reorder

check: $(DEV)  ## lint, format, types, docs and architecture
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/reference.py --check
	@$(BIN)/python scripts/picture.py --check
	@$(BIN)/python scripts/web_screenshots.py --check
	@$(BIN)/zensical build --strict --config-file mkdocs.yml
	@$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_tidy.py

bench: $(DEV)  ## run every benchmark and write benchmarks/RESULTS.md (ARGS=--quick for short runs)
	@$(BIN)/python benchmarks/run.py $(ARGS)

docs: $(DEV)  ## build the documentation into site/
	@$(BIN)/zensical build --strict --config-file mkdocs.yml

soak: $(DEV)  ## run the long tests, which `make test` leaves out
	@$(BIN)/python -m pytest -m soak --timeout=3600 -o faulthandler_timeout=3660 $(ARGS)

lock: $(DEMO)  ## update requirements/ after a change of pyproject.toml (ARGS=--upgrade for the newest)
	@$(BIN)/python scripts/lock.py $(ARGS)

clean:  ## remove everything that make created, including .venv
	rm -rf .venv .venv-peers build dist site .coverage .coverage.* htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): requirements/demo.txt pyproject.toml scripts/setup
	@scripts/setup demo

$(DEV): requirements/dev.txt pyproject.toml scripts/setup
	@scripts/setup dev

# Everything a newcomer needs: `make demo` and `make test`. Only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test slow lint clean

demo: $(READY)  ## Run the main job on a built-in synthetic stream
	$(BIN)/fairstream demo

test: $(READY)  ## Run the fast tests
	$(BIN)/pytest -n 2

slow: $(READY)  ## Run the tests that take minutes
	$(BIN)/pytest -m slow

lint: $(READY)  ## Style, types, and which room may import which
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)

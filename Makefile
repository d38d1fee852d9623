# Everything a newcomer needs: `make demo` and `make test`. Only Python 3.11+ and make are assumed.
PYTHON ?= python3
DATA ?= $(or $(FAIRSTREAM_DATA),../shared/data)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Python keeps what it has compiled of the tests and of their 300 modules, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test slow lint docs package lock bench clean

demo: $(READY)  ## Run the main job on a built-in synthetic stream
	$(BIN)/fairstream demo

# A module's tests stay in one process, so that what they share is made once.
test: $(READY)  ## Run the fast tests
	$(BIN)/pytest -n 2 --dist loadscope

slow: $(READY)  ## Run the tests that take minutes, or need processes, a browser or PostgreSQL
	$(BIN)/pytest -n 2 --dist loadscope -m slow
	$(BIN)/pytest -n 2 --dist loadscope -m 'hypothesis and not slow' --hypothesis-profile=thorough

lint: $(READY)  ## Style, types, and which package may import which
	$(BIN)/ruff check src tests benchmarks docs/conf.py docs/_extensions
	$(BIN)/ruff format --check src tests benchmarks docs/conf.py docs/_extensions
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## Build the documentation into docs/_build/html; its tutorials are run, and a warning is an error
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -n -W --keep-going -q docs docs/_build/html

package: $(READY)  ## Build the wheel and the sdist, and try each in an empty environment
	rm -rf dist
	$(BIN)/python -m hatchling build
	.ci/try-package dist/*.whl
	.ci/try-package dist/*.tar.gz

lock: $(READY)  ## Write constraints.txt anew: what pyproject.toml asks for, version by version
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	grep '^#' constraints.txt > constraints.head
	$(BIN)/uv pip compile pyproject.toml --quiet --no-annotate --no-header --universal --python-version 3.11 \
	    --extra dev --extra docs --output-file constraints.txt
	cat constraints.head constraints.txt > constraints.new && mv constraints.new constraints.txt && rm constraints.head

bench: $(READY)  ## Measure speed and print the tables; DATA is a folder with movielens-1m
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks $(DATA)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)

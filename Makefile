# Two commands matter: `make train` and `make test`.  Both set up .venv on first use; after that they start at once.

PYTHON ?= python3
VENV ?= .venv
RECIPE ?= digits_cnn
# Extra words for `sonde train`, such as OPTIONS="--width 64 --seed 1".
OPTIONS ?=
WORKERS ?= 2
# Rows or chapters for `make margins`, such as ROWS="LM-16 CNN"; all where it is empty.
ROWS ?=
# Extra words for `make matrix`, such as MATRIX="--rows own foreign --whole".
MATRIX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One torch thread per test worker: two workers with two threads each would fight over two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -q

.PHONY: help train test test-all margins matrix bench lint types format clean

help:
	@echo "make train     install into $(VENV) and train $(RECIPE); RECIPE=name OPTIONS='--lr 1e-3' change what is trained"
	@echo "make test      install the development tools, lint, check types, run the tests that are not slow, then a few under another arithmetic"
	@echo "make test-all  the same with the slow tests"
	@echo "make margins   twenty seeds of every exhibit: how far its numbers stay from their thresholds; ROWS='LM-16 CNN' names some"
	@echo "make matrix    tests and exhibits that hang on rounding, under every arithmetic this processor can pretend to have"
	@echo "make bench     install the peers and run every benchmark"
	@echo "make lint      ruff check and ruff format --check;  make types: mypy;  make format: rewrite the layout"
	@echo "make clean     remove caches and build leftovers; keeps $(VENV) and runs/"

train: $(VENV)/.sonde
	$(BIN)/sonde train $(RECIPE) $(OPTIONS)

test: lint types
	$(PYTEST) -m "not slow"
	$(BIN)/python benchmarks/matrix.py --edge --jobs $(WORKERS)

test-all: lint types
	$(PYTEST)
	$(BIN)/python benchmarks/matrix.py --edge --jobs $(WORKERS)

margins: $(VENV)/.sonde-dev
	$(BIN)/sonde atlas $(ROWS) --seeds 20 --jobs $(WORKERS) --table sonde/atlas/margins.tsv

matrix: $(VENV)/.sonde-dev
	$(BIN)/python benchmarks/matrix.py --jobs $(WORKERS) $(MATRIX)

bench: $(VENV)/.sonde-bench
	@failed=; for file in $(filter-out benchmarks/_% benchmarks/matrix.py benchmarks/identical.py benchmarks/revisions.py,$(wildcard benchmarks/*.py)); do \
	echo "== $$file"; $(BIN)/python $$file || failed="$$failed $$file"; done; \
	test -z "$$failed" || { echo "a goal was missed, or the program failed:$$failed"; exit 1; }

lint: $(VENV)/.sonde-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.sonde-dev
	$(BIN)/mypy

format: $(VENV)/.sonde-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

# A stamp says "installed, and nothing it depends on has changed since".
$(VENV)/.sonde: pyproject.toml constraints.txt setup.py $(wildcard sonde/kernels/*.[ch]) | $(BIN)/python
	@echo "installing Sonde into $(VENV) (a minute or two, once)"
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.sonde-dev: pyproject.toml constraints.txt | $(VENV)/.sonde
	@echo "installing the development tools into $(VENV) (once)"
	$(PIP) -e ".[dev]"
# timm asks for torchvision, whose package would replace torch's; benchmarks/_timm.py does without it.
	$(PIP) --no-deps timm
	@touch $@

$(VENV)/.sonde-bench: pyproject.toml constraints.txt | $(VENV)/.sonde-dev
	@echo "installing the peers to compare with into $(VENV) (once)"
	$(PIP) -e ".[bench]"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Sonde needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

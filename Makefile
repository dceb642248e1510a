# Two commands do everything on a machine with Python >= 3.11 (and its venv), git and make:
#   make demo    set up, then run the demonstration (report in runs/demo/report.html)
#   make test    set up, then lint, types, tests
# make package builds the wheel and the source archive and tries both in an empty environment.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS   ?= 2

.PHONY: demo test lint format figures docs package clean

demo: $(VENV)/.installed
	$(BIN)/infsa demo

test: $(VENV)/.installed-dev lint
	@{ command -v chromium && $(BIN)/python -c "import playwright, gradio_client"; } >/dev/null 2>&1 || echo "Skipped: \
	the page in a browser, which needs Chromium, gradio and playwright (apt-get install chromium; infsa[browser])"
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

figures: $(VENV)/.installed
	$(BIN)/python benchmarks/figures.py
	$(BIN)/infsa reproduce --document
	$(BIN)/python benchmarks/facts.py

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

package: $(VENV)/.installed-dev
	rm -rf dist build/installed
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/installed
	build/installed/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build && installed/bin/infsa --version && installed/bin/infsa info && installed/bin/infsa reproduce fig-markov
	tar --extract --gzip --file dist/*.tar.gz --directory build && $(BIN)/python -m build --wheel --outdir build/again build/infsa-*/
	rm -rf build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing infsa into $(VENV) (PyTorch is large: a few minutes on a first run)"
	$(PIP) --editable ".[train,eval,demo]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[test,dev]"
	@touch $@

clean:
	rm -rf $(VENV) runs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

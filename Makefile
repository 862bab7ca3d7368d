# Every target sets up what it needs: Python ≥ 3.11 with pip and venv, and make, are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.PHONY: install run test test-slow test-torch test-browser docs lint soundness wheel bench clean

# Two stamps: what running needs, and beside it what changing it needs.
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools

install: $(TOOLS)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "MIBP-Cert needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Installing into $(VENV): a minute or two the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(TOOLS): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# A table that scikit-learn ships, as a file: 569 diagnoses, and 30 measurements of each.
TABLE := runs/breast-cancer.csv

$(TABLE): $(READY)
	@mkdir -p runs
	@$(BIN)/python -c "from sklearn.datasets import load_breast_cancer as load; d = load(as_frame=True); \
		d.data.assign(diagnosis=d.target_names[d.target]).to_csv('$@', index=False)"

# First a model at its minimum, on a table; then the paper's first network, trained in steps.
run: $(TABLE)
	$(BIN)/mibp-cert certify $(TABLE) --target diagnosis --model logistic --C 0.1 \
		--eps 'mean radius=0.1,mean texture=0.1,mean smoothness=0.001' \
		--json runs/breast-cancer.json --report runs/breast-cancer.html
	$(BIN)/mibp-cert certify two-moons --eps 0.01 --engine interval,relational \
		--json runs/two-moons.json --report runs/two-moons.html

lint: $(TOOLS)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Tests of whole processes; exit status 5 only says that no test has the marker.
test-slow: $(TOOLS)
	$(BIN)/python -m pytest -m slow || [ $$? -eq 5 ]

test-torch: $(TOOLS)
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pytest -k torch

# A real browser: Chromium and its driver, from the system's packages where they can be installed.
test-browser: $(TOOLS)
	@{ command -v chromium && command -v chromedriver; } >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
		echo "Chromium cannot be installed here: the browser tests will be skipped."
	$(BIN)/python -m pytest -m browser tests/test_browser.py

docs: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir runs/site

soundness: $(TOOLS)
	$(BIN)/python -m pytest -m soundness

# What is published works by itself: the wheel, in an environment that holds nothing else; the report shows that no file was left out.
wheel: $(READY)
	rm -rf runs/wheel runs/wheel-env
	@mkdir -p runs
	$(BIN)/python -m pip wheel --quiet --no-deps -w runs/wheel .
	$(PYTHON) -m venv runs/wheel-env
	runs/wheel-env/bin/python -m pip install --quiet runs/wheel/*.whl
	runs/wheel-env/bin/mibp-cert doctor
	runs/wheel-env/bin/mibp-cert certify two-moons --epochs 1 --quiet --report runs/wheel/report.html

bench: $(READY)
	$(BIN)/python benchmarks/exact_step.py
	$(BIN)/python benchmarks/branches.py
	$(BIN)/python benchmarks/two_moons.py
	$(BIN)/python benchmarks/tightness.py
	$(BIN)/python benchmarks/long_training.py
	$(BIN)/python benchmarks/relational_speed.py
	$(BIN)/python benchmarks/row_budget.py
	$(BIN)/python benchmarks/breadth.py
	$(BIN)/python benchmarks/startup.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

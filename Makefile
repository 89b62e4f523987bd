# Two commands set everything up: `make demo` and `make test`. The rest is for those who work on servekit.
PYTHON ?= python3
VENV ?= .venv
# Another wheel index for torch, e.g. TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP_TORCH = $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
BIN = $(VENV)/bin
DEMO = examples/digits/out

.DEFAULT_GOAL := help
.PHONY: help demo test lint clean

help:
	@echo "make demo   train, package, serve and load-test a digits model on this host (CPU or NVIDIA GPU)"
	@echo "make test   run the tests; what needs Docker or a GPU skips with its reason"
	@echo "make lint   format check, lint, types, import direction"
	@echo "            TORCH_INDEX=URL picks another wheel index for torch; PYTHON=python3.12 another Python"

demo: $(VENV)/demo.stamp
	@$(BIN)/python examples/digits/demo.py $(DEMO)

test: lint
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo

clean:
	rm -rf $(VENV) $(DEMO)

$(VENV)/bin/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || \
	  { echo "servekit needs Python 3.10 or newer; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || \
	  { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# torch first and alone, so that its index can differ from everybody else's.
$(VENV)/torch.stamp: constraints.txt | $(VENV)/bin/python
	@echo "Downloading torch into $(VENV) (about 200 MB for the CPU build; several GB with CUDA, which is what"
	@echo "the default index holds for Linux; TORCH_INDEX=URL picks another one)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_TORCH) torch
	@touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/torch.stamp
	@echo "Downloading servekit's other needs (about 250 MB: TorchServe, a Java runtime, Locust, scikit-learn)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/torch.stamp
	@echo "Downloading servekit's other needs and its test tools (about 300 MB)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

PYTHON ?= python3.11
VENV ?= .venv
WORKDIR ?= runs/$(SIZE)
SIZE ?= tiny
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: cascade micro test test-all lint clean

$(STAMP): setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $(STAMP)

# The main job: SFT, then RL, on two CPU cores; ends with a table of held-out scores.
cascade: $(STAMP)
	$(BIN)/python launch/run.py --config configs/cascade.py:$(SIZE) --workdir $(WORKDIR)

micro: SIZE := micro
micro: cascade

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m ''

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache

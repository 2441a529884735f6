# Every target makes the environment it needs, once: `setup` runs again only when the pinned versions change. pip's own
# settings (pip.conf, PIP_INDEX_URL, PIP_CONSTRAINT and the like) hold in it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test test-all check bench

help: ## show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install seq2seq in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY) ## train an English-Chinese phrasebook in minutes and try it
	$(BIN)/python recipes/phrasebook/demo.py

test: $(READY) ## the quick tests, about three minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test-all: $(READY) ## every test, also those that train
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m ""

check: $(READY) ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

# Decoding wants weights that end sentences: those of recipes/multi30k/de_en.yaml, if they have been trained.
TRAINED := $(wildcard runs/multi30k_de_en)

bench: $(READY) ## speed and memory beside others (BENCH="--data DIRECTORY" if Multi30k is elsewhere)
	$(BIN)/python -m benchmarks $(if $(TRAINED),--model $(TRAINED)) $(BENCH)
	$(BIN)/python -m benchmarks training decoding --shape base --steps 2 $(BENCH)
	$(BIN)/python -m benchmarks.starting $(if $(TRAINED),--model $(TRAINED))

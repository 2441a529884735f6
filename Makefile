# Every target first runs `setup` if .venv does not exist, or the pinned versions or the kernels have changed. pip's
# own settings (pip.conf, PIP_INDEX_URL, PIP_CONSTRAINT, …) apply. pip shows its progress in a terminal, but not in a log.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# The tests start some hundred processes. Without cached bytecode, each of them would compile the package again.
test test-all: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test test-all test-gpu check docs bench bench-gpu wheels

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install seq2seq there

$(READY): pyproject.toml constraints.txt setup.py $(addprefix seq2seq/inference/,kernel_library.py kernels.cpp)
	$(PYTHON) -m venv .venv
	@echo "Installing the packages of constraints.txt in .venv, and compiling the kernels. This takes some minutes."
	if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; $(BIN)/python -m pip install $$quiet \
		--disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY) ## train an English-Chinese phrasebook in minutes and translate with it
	$(BIN)/python recipes/phrasebook/demo.py

test: $(READY) ## run the quick tests: three to eight minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-all: $(READY) ## run all tests, including those that train (in another order: PYTEST="--shuffle 7")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "" $(PYTEST)

test-gpu: $(READY) ## run the tests for a GPU; without one they are skipped
	$(BIN)/python -m pytest -m "" -rs tests/gpu tests/model/test_attention.py

check: $(READY) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(READY) ## build the site in build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

wheels: ## build and check sdist and wheels for Linux: dist/
	packaging/wheels.sh

# The decoding benchmark needs trained weights, because translations of random weights do not end. It uses the run of
# recipes/multi30k/de_en.yaml if it exists.
TRAINED := $(wildcard runs/multi30k_de_en)

bench: $(READY) ## compare speed and memory with other systems (BENCH="--data DIRECTORY" if Multi30k is elsewhere)
	$(BIN)/python -m benchmarks $(if $(TRAINED),--model $(TRAINED)) $(BENCH)
	$(BIN)/python -m benchmarks training decoding --shape base --steps 2 $(BENCH)
	$(BIN)/python -m benchmarks.starting $(if $(TRAINED),--model $(TRAINED))

bench-gpu: $(READY) ## measure a GPU beside transformers, and train Multi30k there (BENCH="--data DIRECTORY")
	$(BIN)/python -m benchmarks.device hardware training decoding checks recipe $(BENCH)

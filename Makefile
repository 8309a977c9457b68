# One command each, from a fresh clone on a machine with python3 (with venv), g++ and make.
#   make build   a virtual environment with TensorFlow, and tfswap built in it, run in place
#   make test    the tests that take seconds         make test-all   those that take minutes too
#   make test-gpu   builds and tests what is for GPUs, on a card that is not there
#   make gpu-check  proves it on this machine's card, in eight minutes, without a network
#   make test-versions   the tests against the oldest and newest TensorFlow that is supported
#   make fuzz    hostile plans, profiles and messages for the parsers: make fuzz MINUTES=10
#   make sanitize   swaps in every interleaving, and under load with sanitizers watching
#   make test-browser   the report's page in chromium, which it installs where it may
#   make lint    ruff, mypy, clang-format            make demo       train a model over its budget
#   make bench   every benchmark beside its rival, and docs/benchmarks.md of it: hours
#                QUICK=1: small models, under ten minutes; SCRIPTS=FOLDER: a checkout of Keras, whose programs run too
#   make docs    builds the documentation's pages in site/
#   make clean   takes away what the above made
# Another environment than .venv: make VENV=/path/to/it ...   Another Python: make PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

SOURCES := setup.py $(shell find tfswap/cc -name '*.cc' -o -name '*.h' -o -name '*.cu')
# What decides which packages are installed; TensorFlow itself is the extra named cpu.
ENVIRONMENT := $(VENV)/.tfswap-environment
INSTALLED := $(VENV)/.tfswap-installed
BUILT := build/.built
LINTERS := $(VENV)/.tfswap-linters
DOCS := $(VENV)/.tfswap-docs

.PHONY: build test test-all test-gpu test-versions test-browser sanitize fuzz gpu-check lint format demo bench docs clean

build: $(BUILT)

$(ENVIRONMENT): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made. Debian, Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet "setuptools>=68" wheel "pybind11>=2.12" "tensorflow-cpu>=2.21,<2.22"
	touch $@

$(INSTALLED): $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[test]"
	touch $@

# The sources run in place, so a changed C++ file needs no installation.
$(BUILT): $(INSTALLED) $(SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(LINTERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[lint]"
	touch $@

test: build
	$(BIN)/python -m pytest -q tests/unit -m "not slow" -n 2
	$(BIN)/python -m pytest -q tests/races -m "not slow" -n 2
	$(BIN)/python -m pytest -q tests/integration -m "not slow" -n 2

test-all: build test-browser
	$(BIN)/python -m pytest -q tests/unit -n 2
	$(BIN)/python -m pytest -q tests/integration
	$(MAKE) sanitize
	$(MAKE) fuzz MINUTES=3
	$(BIN)/python tests/gpu

# By coverage where atheris can be installed. Ends with an error at the first fault.
MINUTES ?= 5
fuzz: build
	$(BIN)/python -m pip install --quiet "atheris>=2.3" || echo "no atheris: by changes alone" >&2
	$(BIN)/python tests/fuzz --minutes $(MINUTES)

# Needs a compiler with sanitizers, as g++ has; what it builds is in build/races.
sanitize: build
	$(BIN)/python -m pytest -q tests/races -n 2

# With the chromium of the system: playwright brings none of its own.
test-browser: build
	$(BIN)/python -m pip install --quiet "playwright>=1.40"
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { apt-get update -q && apt-get install -y -q chromium; } || \
	  { echo "No browser could be installed. Debian: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python -m pytest -q tests/browser

# Against the oldest and the newest TensorFlow that is supported, each built in build/versions.
test-versions: build
	$(BIN)/python tests/versions

# Against the TensorFlow with GPU devices, on a card that is not there: needs no GPU.
test-gpu: build
	$(BIN)/python tests/gpu -m "not slow" -n 2

# On a card: needs tfswap built against the TensorFlow with GPU devices, and installs nothing.
# Options: make gpu-check GPU_CHECK="--minutes 4 --stages copies,sweep"
gpu-check:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu_check $(GPU_CHECK)

lint: $(LINTERS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find tfswap/cc tests/gpu/simt tests/fuzz tests/races -name '*.cc' -o -name '*.h' -o -name '*.cu' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(LINTERS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find tfswap/cc tests/gpu/simt tests/fuzz tests/races -name '*.cc' -o -name '*.h' -o -name '*.cu' | xargs $(BIN)/clang-format -i

demo: build
	$(BIN)/python examples/train_over_budget.py

bench: build
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(SCRIPTS),--scripts $(SCRIPTS))

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[docs]"
	touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf build site .venv *.egg-info tfswap/*.so tfswap/codec_kernels.* tfswap/_build_info.py
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# One command each, from a fresh clone on a machine with python3 (with venv), g++ and make.
#   make build          create .venv with TensorFlow, and build tfswap in place
#   make demo           train a model over its budget
#   make test           tests that take seconds each
#   make test-all       also tests that take minutes
#   make test-gpu       build and test the GPU code on a simulated GPU
#   make test-versions  the tests against the oldest and newest supported TensorFlow
#   make test-keras     Keras's own tests of training, with AutoSwap in every fit: 8 minutes
#   make test-browser   the report page in chromium, which it installs where it may
#   make sanitize       interleavings of swaps; sanitizers under load
#   make fuzz           fuzz the parsers: make fuzz MINUTES=10
#   make gpu-check      test tfswap on this machine's GPU, in eight minutes, without a network
#   make wheels         wheels for all supported Pythons and TensorFlows, into dist/
#   make test-wheels    install each beside every TensorFlow, and use it
#   make lint           ruff, mypy, clang-format; make format applies them
#   make notebook       run examples/colab.ipynb with the wheel in dist/, and keep its outputs
#   make bench          every benchmark beside its rival, and docs/benchmarks.md: hours
#                       QUICK=1: small models, under ten minutes
#                       SCRIPTS=FOLDER: a checkout of Keras, whose programs run too
#   make docs           build the documentation in site/
#   make clean          remove what the above made
# Another environment than .venv: make VENV=/path/to/it ...
# Another Python: make PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

SOURCES := setup.py CMakeLists.txt $(wildcard cmake/*) $(shell find tfswap/cc -name '*.cc' -o -name '*.h' -o -name '*.cu')
# Depends on what decides which packages are installed.
ENVIRONMENT := $(VENV)/.tfswap-environment
INSTALLED := $(VENV)/.tfswap-installed
BUILT := build/.built
TESTERS := $(VENV)/.tfswap-testers
LINTERS := $(VENV)/.tfswap-linters
DOCS := $(VENV)/.tfswap-docs

.PHONY: build test test-all wheel wheels test-wheels test-gpu test-versions test-keras test-browser sanitize fuzz gpu-check lint format demo notebook bench docs clean

build: $(BUILT)

$(ENVIRONMENT): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "Cannot create a virtual environment. Debian, Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet "setuptools>=77" "pybind11>=2.12" "cmake>=3.25" ninja "blosc2>=4" \
	  "tensorflow-cpu>=2.21,<2.22"
	touch $@

$(INSTALLED): $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	touch $@

# The sources run in place, so a changed C++ file needs no installation.
$(BUILT): $(INSTALLED) $(SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(TESTERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[test]"
	touch $@

$(LINTERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[lint]"
	touch $@

test: build $(TESTERS)
	$(BIN)/python -m pytest -q tests/unit -m "not slow" -n 2
	$(BIN)/python -m pytest -q tests/races -m "not slow" -n 2
	$(BIN)/python -m pytest -q tests/integration -m "not slow" -n 2

test-all: build $(TESTERS) test-browser
	$(BIN)/python -m pytest -q tests/unit -n 2
	$(BIN)/python -m pytest -q tests/integration
	$(MAKE) sanitize
	$(MAKE) fuzz MINUTES=3
	$(BIN)/python tests/gpu

# Driven by coverage where atheris can be installed. Fails at the first fault.
MINUTES ?= 5
fuzz: build $(TESTERS)
	$(BIN)/python -m pip install --quiet "atheris>=2.3" || echo "no atheris: random mutations only" >&2
	$(BIN)/python tests/fuzz --minutes $(MINUTES)

# Needs a compiler with sanitizers, such as g++. Builds into build/races.
sanitize: build $(TESTERS)
	$(BIN)/python -m pytest -q tests/races -n 2

# Uses the system's chromium: playwright installs none.
test-browser: build $(TESTERS)
	$(BIN)/python -m pip install --quiet "playwright>=1.40"
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { apt-get update -q && apt-get install -y -q chromium; } || \
	  { echo "Cannot install a browser. Debian: apt-get install chromium" >&2; exit 1; }
	$(BIN)/python -m pytest -q tests/browser

# Each TensorFlow is built in build/versions.
test-versions: build $(TESTERS)
	$(BIN)/python tests/versions

# Keras's tests are downloaded into build/keras.
test-keras: build $(TESTERS)
	$(BIN)/python tests/keras_suite -n 2

# Needs debootstrap. For the Pythons in PATH or pyenv.
wheels: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[release]"
	command -v debootstrap >/dev/null || { apt-get update -q && apt-get install -y -q debootstrap; } || \
	  { echo "Cannot install debootstrap. Debian: apt-get install debootstrap" >&2; exit 1; }
	$(BIN)/python release/wheels.py $(ONLY)

# A wheel for this Python, this TensorFlow and this system, from the objects of `make build`.
wheel: build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# One combination: make test-wheels ONLY="--python 3.12 --tensorflow 2.21"
test-wheels:
	$(PYTHON) release/installations.py $(ONLY)

# Builds against the TensorFlow with GPU devices; needs no GPU.
test-gpu: build $(TESTERS)
	$(BIN)/python tests/gpu -m "not slow" -n 2

# Needs a GPU, and tfswap built against the TensorFlow with GPU devices. Installs nothing.
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
	$(BIN)/python -m pip install --quiet "scikit-learn>=1.4"
	$(BIN)/python examples/train_over_budget.py

# Into a fresh environment. WHEEL: a wheel, or a folder that has one for this Python.
WHEEL ?= dist
notebook:
	$(PYTHON) examples/run_notebook.py $(WHEEL)

bench: build $(TESTERS)
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(SCRIPTS),--scripts $(SCRIPTS))

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[docs]"
	touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf build dist site .venv *.egg-info tfswap/*.so tfswap/native
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

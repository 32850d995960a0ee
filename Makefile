# SPDX-License-Identifier: MIT
# `make help` lists what there is. Everything is written below this directory, except system packages of `make test`.
ifeq ($(filter 4.% 5.%,$(MAKE_VERSION)),)
$(error GNU make 4 or newer is needed, this is $(MAKE_VERSION))
endif

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help serve test lint check bench fuzz fuzz-http soak judges compose-images docs clean system-packages vm-kernel docker-image

# Hundreds of servers and commands are started: what is compiled once is kept, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
PYTEST_ARGS ?=
SERVE_ARGS ?=

VENV := .venv
S1_VENV := .venv-s1
S3_VENV := .venv-s3
RIVALS_VENV := .venv-rivals
TYPESCRIPT := sdks/typescript
SCIENCE_VENV := .venv-science
JUDGES_VENV := .venv-judges
# Seconds for each parser in `make test`; `make fuzz` runs far longer.
FUZZ_SLICE := 3
# Emulated, so slow; they touch nothing of this host and run beside the others.
VM_TESTS := tests/vm
# Floods, crowds and kills, which take what a machine has; they come when what waits for answers is done.
HEAVY := tests/adversarial/resource tests/adversarial/survivors tests/adversarial/egress/test_neighbours.py \
	tests/adversarial/egress/test_floods.py tests/adversarial/run/test_killed_at_random_moments.py \
	tests/adversarial/run/test_killed_at_any_moment.py
# Test processes, each a file at a time, the longest files first (tests/arrangement.py), each with its own mounts. Where
# tests wait for answers, three leave two processors less idle than two do.
AT_A_TIME := -ra --durations 25 --durations-min 4 --dist loadfile --no-loadscope-reorder -p no:cacheprovider
PIP_FLAGS := -qq --disable-pip-version-check --no-input --retries 5

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; do printf 'make %-10s %s\n' "$$name" "$$text"; done

serve: $(VENV)/.server ## start the API on 127.0.0.1:8080 (AGENTBOX_* settings and SERVE_ARGS="--port 8081" apply)
	@exec $(VENV)/bin/agentbox serve $(SERVE_ARGS)

test: system-packages $(VENV)/.dev vm-kernel docker-image $(S1_VENV)/.ready $(SCIENCE_VENV)/.ready $(JUDGES_VENV)/.ready $(TYPESCRIPT)/node_modules/.ready ## install what the tests need and run all of them
	@export AGENTBOX_TEST_S1_PYTHON="$(CURDIR)/$(S1_VENV)/bin/python"; \
	export AGENTBOX_TEST_SCIENCE_PYTHON="$(CURDIR)/$(SCIENCE_VENV)/bin/python"; \
	export AGENTBOX_TEST_JUDGES_PYTHON="$(CURDIR)/$(JUDGES_VENV)/bin/python"; \
	if [ -n "$(PYTEST_ARGS)" ]; then exec $(VENV)/bin/pytest -ra $(PYTEST_ARGS); fi; \
	log=$$(mktemp) code=0; \
	{ $(VENV)/bin/pytest -ra -p no:cacheprovider $(VM_TESTS) || code=$$?; \
	$(VENV)/bin/python -m tests.fuzz --seed 1 --seconds $(FUZZ_SLICE) || code=$$?; exit $$code; } >$$log 2>&1 </dev/null & beside=$$!; \
	$(VENV)/bin/pytest -n 3 $(AT_A_TIME) $(addprefix --ignore=,$(VM_TESTS) $(HEAVY)) || code=$$?; \
	$(VENV)/bin/pytest -n 2 $(AT_A_TIME) $(HEAVY) || code=$$?; \
	echo "tests in virtual machines, and slices of make fuzz:"; \
	wait $$beside || code=$$?; \
	cat $$log; rm -f $$log; exit $$code

# A kernel with control groups version 2 alone, for the tests that boot one; unpacked into a cache, not installed.
vm-kernel: system-packages $(VENV)/.dev
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then $(VENV)/bin/python tests/vm/run.py --get-kernel; fi

# The image that tests of containers use, made by the engine that they start where none runs.
docker-image: system-packages $(VENV)/.dev
	@if [ "$$(id -u)" = 0 ]; then $(VENV)/bin/python -m tests.docker_engine; fi

lint: $(VENV)/.dev ## formatting, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

check: $(VENV)/.dev ## lint, architecture and unit tests; a minute on two processors, the first time two (types of everything)
	@log=$$(mktemp) code=0; \
	$(MAKE) --no-print-directory lint >$$log 2>&1 </dev/null & beside=$$!; \
	$(VENV)/bin/pytest -q -n auto tests/architecture tests/docs tests/unit || code=$$?; \
	wait $$beside || code=$$?; \
	cat $$log; rm -f $$log; exit $$code

bench: $(VENV)/.server ## measure beside floors and rivals; prints tables and writes JSON (BENCH_ARGS="--quick", "--only SECTION", "--rounds N")
	@for environment in $(S1_VENV) $(S3_VENV) $(RIVALS_VENV); do \
		$(MAKE) --no-print-directory $$environment/.ready || echo "agentbox: no $$environment: its rows will say so" >&2; \
	done
	@AGENTBOX_BENCH_S1_PYTHON="$(CURDIR)/$(S1_VENV)/bin/python" \
	AGENTBOX_BENCH_S3_PYTHON="$(CURDIR)/$(S3_VENV)/bin/python" \
	AGENTBOX_BENCH_RIVALS_PYTHON="$(CURDIR)/$(RIVALS_VENV)/bin/python" \
	$(VENV)/bin/python -m benchmarks $(BENCH_ARGS)

fuzz: $(VENV)/.dev ## feed every parser of hostile bytes with mutated input, 5 minutes each (SECONDS=30 for less, FUZZ_ARGS=NAME for one)
	$(VENV)/bin/python -m tests.fuzz --seconds $(or $(SECONDS),300) $(FUZZ_ARGS)

fuzz-http: $(VENV)/.dev ## feed every route of the API with what its OpenAPI allows and does not (EXAMPLES=200 of each)
	AGENTBOX_TEST_SCHEMA_EXAMPLES=$(or $(EXAMPLES),200) $(VENV)/bin/pytest -ra -p no:cacheprovider tests/integration/test_http_schema.py

soak: $(VENV)/.dev docker-image ## use and abuse sandboxes for minutes, killed at random: nothing lost, nothing left (SEED=1, SOAK_ARGS="--size 0.1 --json FILE")
	$(VENV)/bin/python -m tests.soak $(if $(SEED),--seed $(SEED)) $(SOAK_ARGS)

judges: $(JUDGES_VENV)/.ready docker-image ## let others' conformance suites judge sandboxes of every backend (JUDGED=gvisor for one)
	@AGENTBOX_TEST_JUDGES_PYTHON="$(CURDIR)/$(JUDGES_VENV)/bin/python" AGENTBOX_TEST_JUDGED="$(or $(JUDGED),all)" \
	$(VENV)/bin/pytest -ra -p no:cacheprovider tests/judges

compose-images: $(VENV)/.server ## build what compose.yaml starts, from BASE_IMAGE=agentbox/base, which is made here when it is that and missing
	@docker image inspect $(or $(BASE_IMAGE),agentbox/base) >/dev/null 2>&1 || [ -n "$(BASE_IMAGE)" ] || $(VENV)/bin/agentbox image build
	@bash requirements/compose-wheels $(VENV)/bin/python $(or $(BASE_IMAGE),agentbox/base)
	@compose=docker-compose; command -v docker-compose >/dev/null || compose="docker compose"; \
	export BASE_IMAGE=$(or $(BASE_IMAGE),agentbox/base) AGENTBOX_HOST_TMP=/nowhere; \
	$$compose build agentbox test; \
	$$compose -f compose.yaml -f compose.docker-sandbox.yaml build agentbox

docs: $(VENV)/.dev ## write the parts of the documentation, and the types of the TypeScript package, that follow from the code
	$(VENV)/bin/python -m tests.docs.render
	$(VENV)/bin/python -m tests.typescript

clean: ## remove the virtual environments and everything else that was built
	rm -rf $(VENV) $(S1_VENV) $(S3_VENV) $(RIVALS_VENV) $(SCIENCE_VENV) $(JUDGES_VENV) $(addprefix $(TYPESCRIPT)/,node_modules build dist)
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment of the first Python that is new enough, or a message that says what to install.
# $(1): its directory; $(2): what it must run to be a good one; $(3): options for making it.
define make-venv
	python="$$(bash requirements/find-python $(PYTHON))"; \
	if ! $(1)/bin/python $(2) >/dev/null 2>&1; then \
		echo "agentbox: making $(1) with $$python"; \
		"$$python" -m venv --clear $(3) $(1); \
	fi
endef

# One for others' packages, whose pip is the one of $(VENV): another pip takes longer to install than some of them.
# $(1): its directory; $(2): what is installed.
define make-venv-without-pip
	@$(call make-venv,$(1),-c pass,--without-pip)
	@$(VENV)/bin/python -m pip --python $(1)/bin/python install $(PIP_FLAGS) $(2)
	@touch $(1)/.ready
endef

$(VENV)/.pip: requirements/find-python
	@$(call make-venv,$(VENV),-m pip --version)
	@touch $@

# What the package's build compiles; without a compiler everything works but the warm pool.
COMPILED := setup.py $(wildcard src/agentbox/isolation/native/*.[ch])

$(VENV)/.server: $(VENV)/.pip pyproject.toml requirements/server.txt $(COMPILED)
	@echo "agentbox: installing the server into $(VENV) (first time only)"
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -c requirements/server.txt setuptools
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -c requirements/server.txt --no-build-isolation -e '.[server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.server pyproject.toml requirements/dev.txt
	@echo "agentbox: installing what tests and checks need into $(VENV) (first time only)"
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -c requirements/dev.txt --no-build-isolation -e '.[server,dev]'
	@touch $@

# The old HTTP service and its client: compatibility tests point the client at our server, benchmarks time the service.
$(S1_VENV)/.ready: requirements/s1.txt | $(VENV)/.pip
	$(call make-venv-without-pip,$(S1_VENV),-r requirements/s1.txt)

# The old policy runtime: benchmarks time it beside ours.
$(S3_VENV)/.ready: requirements/s3.txt | $(VENV)/.pip
	$(call make-venv-without-pip,$(S3_VENV),-r requirements/s3.txt)

# Other sandboxes that come as wheels: benchmarks time them beside ours.
$(RIVALS_VENV)/.ready: requirements/rivals.txt | $(VENV)/.pip
	$(call make-venv-without-pip,$(RIVALS_VENV),-r requirements/rivals.txt)

# An interpreter with numpy, pandas and matplotlib for boxes, as docs/guide/python-packages.md describes.
$(SCIENCE_VENV)/.ready: requirements/science.txt | $(VENV)/.pip
	$(call make-venv-without-pip,$(SCIENCE_VENV),-r requirements/science.txt)

# The compiler of the TypeScript package; what is missing without npm, its tests say.
$(TYPESCRIPT)/node_modules/.ready: $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json | system-packages
	@if command -v npm >/dev/null; then \
		echo "agentbox: installing the compiler of $(TYPESCRIPT) (first time only)"; \
		npm ci --prefix $(TYPESCRIPT) --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null; \
		touch $@; \
	fi

# Others' suites that judge sandboxes; agentbox itself is used from its source.
$(JUDGES_VENV)/.ready: requirements/judges.txt | $(VENV)/.pip
	@echo "agentbox: installing others' conformance suites into $(JUDGES_VENV) (first time only)"
	$(call make-venv-without-pip,$(JUDGES_VENV),--no-deps -r requirements/judges.txt)

system-packages:
	@bash requirements/install-system-packages requirements/system.txt

# The tasks of this repository. `make` without a target lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Images often set this variable. Each of the thousands of processes that tests start would then compile its modules.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UV := $(or $(shell command -v uv),build/uv/bin/uv)
PROJECTS := $(sort $(wildcard libs/pyproject.toml services/*/pyproject.toml))
PACKAGES := sandherd sandherd-spawner sandherd-event-ingest sandherd-monitor sandherd-message-relay sandherd-gateway sandherd-worker
TYPED := libs/sandherd $(filter-out %/tests,$(patsubst %/__init__.py,%,$(wildcard services/*/*/__init__.py)))
# The folders that contain packages. The tests are not a package, so mypy needs the folder in which module names begin.
ROOTED := $(subst $() ,:,$(patsubst %/pyproject.toml,%,$(PROJECTS)))
# Programs that no test imports. mypy finds names in them that no longer exist.
PROGRAMS := $(wildcard deploy/images/*/*.py deploy/helm/sandherd/files/*.py examples/*.py examples/*/*.py) \
	$(patsubst %/__init__.py,%,$(wildcard examples/plugins/*/*/__init__.py))
LINTED := libs services tests docs deploy $(wildcard examples)

# An older Python can't unpack untrusted archives safely. If Python is older, uv finds or downloads another one.
OLDEST := 3.11.4
SUITABLE := import sys; print(sys.executable if sys.version_info >= tuple(map(int, "$(OLDEST)".split("."))) else ">=$(OLDEST)")

# Passes the index and the certificate of pip's configuration to uv, which does not read it.
define uv_like_pip
index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(PYTHON) -m pip config get global.index-url 2>/dev/null || true)}}"; \
if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
if [ -z "$${SSL_CERT_FILE:-}" ] && [ -n "$${PIP_CERT:-}" ]; then export SSL_CERT_FILE="$$PIP_CERT"; fi; \
export UV_HTTP_TIMEOUT="$${UV_HTTP_TIMEOUT:-180}" VIRTUAL_ENV="$(CURDIR)/$(VENV)"
endef

.PHONY: help
help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

# The files from which the gateway's pages are built.
PAGES := services/gateway/pages
STATIC := services/gateway/gateway/static/index.html
PAGE_SOURCES := $(shell find $(PAGES)/src $(PAGES)/public -type f ! -name schema.d.ts) \
	$(addprefix $(PAGES)/,package.json package-lock.json vite.config.ts tsconfig.json index.html build.py) docs/openapi.json

.PHONY: install
install: $(INSTALLED) $(STATIC) ## Install everything that is needed into .venv, if anything has changed.

$(INSTALLED): requirements.lock pyproject.toml $(PROJECTS) | $(UV)
	@$(uv_like_pip); \
	test -x $(BIN)/python || $(UV) venv -q --python "$$($(PYTHON) -c '$(SUITABLE)')" $(VENV); \
	$(UV) pip sync -q --require-hashes requirements.lock; \
	$(UV) pip install -q --no-deps $(foreach project,$(PROJECTS),-e $(dir $(project)))
	@touch $@

$(STATIC): $(PAGE_SOURCES) | $(INSTALLED)
	@cd $(PAGES) && $(CURDIR)/$(BIN)/python -c "import build, sys; sys.exit(build.npm() is None)" || { \
	  cd $(CURDIR); $(uv_like_pip); $(UV) pip install -q --require-hashes --target build/node -r $(PAGES)/node.lock; }
	@$(BIN)/python $(PAGES)/build.py
	@touch $@

# A Debian without python3-venv may still have pip, and vice versa.
build/uv/bin/uv:
	@{ $(PYTHON) -m venv build/uv && build/uv/bin/pip install -q uv; } >/dev/null 2>&1 \
	|| { rm -rf build/uv; $(PYTHON) -m pip install -q --target build/uv uv; }

.PHONY: lock
lock: | $(UV) ## Update the locked versions of all dependencies, with their hashes.
	@$(uv_like_pip); \
	$(UV) pip compile -q --upgrade --universal --python-version $(OLDEST) --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --group dev $(addprefix --no-emit-package ,$(PACKAGES)) pyproject.toml -o requirements.lock; \
	$(UV) pip compile -q --upgrade --universal --python-version $(OLDEST) --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header $(PAGES)/node.in -o $(PAGES)/node.lock; \
	for kind in claude openhands acp; do \
	  $(UV) pip compile -q --upgrade --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	    --python-version "$$([ $$kind = openhands ] && echo 3.12 || echo $(OLDEST))" \
	    services/worker/toolchains/$$kind.in -o services/worker/toolchains/$$kind.lock; \
	done

.PHONY: check
check: install ## Check style, types, imports, generated documents, and compatibility of schemas with the last release.
	@$(MAKE) --no-print-directory -j2 types lint

.PHONY: types
types: install
	@MYPYPATH=$(ROOTED) $(BIN)/mypy --explicit-package-bases $(TYPED) $(PROGRAMS) tests
	@MYPYPATH=$(ROOTED):docs $(BIN)/mypy --explicit-package-bases docs/*.py

.PHONY: lint
lint: install
	@$(BIN)/ruff check -q $(LINTED)
	@$(BIN)/ruff format -q --check $(LINTED)
	@mkdir -p build; $(BIN)/lint-imports --no-logo >build/imports.txt || { cat build/imports.txt; exit 1; }
	@$(BIN)/python docs/build.py --check
	@$(BIN)/python -m tests.releases.schema_policy
	@$(BIN)/python -m tests.releases.api_policy

.PHONY: fmt
fmt: install ## Format the code, and apply ruff's automatic fixes.
	@$(BIN)/ruff check -q --fix $(LINTED) || true
	@$(BIN)/ruff format $(LINTED)

.PHONY: docs
docs: install ## Write the documents that are generated from the code.
	@$(BIN)/python docs/build.py

# Three times as many processes as cores, because most tests wait for other processes.
AT_ONCE ?= $(shell expr 3 '*' "$$(nproc)")
.PHONY: test
test: background check ## Run the checks and the tests, as CI does.
	@$(BIN)/pytest -n $(AT_ONCE) --dist loadgroup -m "not long" --reports build tests

# Started before the checks, because they mostly wait for the network. They end with this make, also if it is killed.
# They have their own variable for make, because `make -n` runs lines that contain MAKE.
MAKE_PROGRAM := $(MAKE)
.PHONY: background
background: install
	@mkdir -p build; for job in collected toolchains npm-packages engines; do \
	  $(BIN)/python -I -S tests/background_job.py $$PPID $(MAKE_PROGRAM) $$job >build/$$job.log 2>&1 & \
	done

# Compiles all modules that tests import, in parallel to the checks. Otherwise each test process would compile them.
.PHONY: collected
collected: install
	@$(BIN)/pytest --collect-only -q -n0 tests

# Installs the toolchains of drivers, and npm packages. A test that needs one of them waits for it, or installs it.
.PHONY: toolchains
toolchains: install
	@$(uv_like_pip); $(BIN)/python -m tests.drivers.toolchains

.PHONY: npm-packages
npm-packages: install
	@$(BIN)/python -m tests.npm_packages

# Installs a real Docker Engine for the tests (Debian's packages, an image of Debian built by debootstrap, and the wheels
# for Sandherd's images), Prometheus and Chromium, in the same way.
.PHONY: engines
engines: install
	@for engine in docker prometheus images chromium; do $(BIN)/python -m tests.engines.$$engine || true; done

HISTORIES ?= 3000
.PHONY: histories
histories: install ## Test thousands of random histories of a herd; about 15 minutes for every 3,000.
	@SANDHERD_HISTORIES=$(HISTORIES) $(BIN)/pytest -q tests/integration/spawner/test_spawner_histories.py

.PHONY: soak
soak: histories ## Run long tests: histories, 200 tasks while spawners are killed, killed leaders, tests marked `long`.
	@SANDHERD_HERD_TASKS=200 $(BIN)/pytest -q tests/faults/test_faults_herd.py
	@SANDHERD_CLUSTER_KILLS=12 $(BIN)/pytest -q -s tests/faults/test_faults_cluster.py
	@$(BIN)/pytest -q -m long tests

# Run this right after the commit of a release (CONTRIBUTING.md).
COMMIT ?= HEAD
.PHONY: freeze
freeze: install ## Record COMMIT as the last release, with which the next version must be compatible.
	@$(BIN)/python -m tests.releases.release_record $(COMMIT)
	@$(BIN)/python -m tests.releases.api_policy $(COMMIT)

.PHONY: demo
demo: install ## Run one real task, from its submission to the history, and show how long each step took.
	@$(BIN)/python examples/demo.py

.PHONY: up
up: install ## Start the stack on this machine; it runs until `make down`.
	@$(BIN)/sandherd up

.PHONY: down
down: ## Stop the stack.
	@$(BIN)/sandherd down

# `make bench ONLY=ingest,worker RUNS=5 AGAINST=build/old.json`; LIST=1 lists the groups, SHOW=1 shows stored results.
.PHONY: bench
bench: install ## Run the measurements, each with its baseline; variables: ONLY, RUNS, AGAINST, FAIL_IF_WORSE, LIST, SHOW.
	@exec $(BIN)/python -m tests.bench $(if $(ONLY),--only "$(ONLY)") $(if $(RUNS),--runs "$(RUNS)") \
	  $(if $(AGAINST),--against "$(AGAINST)") $(if $(FAIL_IF_WORSE),--fail-if-worse "$(FAIL_IF_WORSE)") \
	  $(if $(LIST),--list) $(if $(SHOW),--show)

# 10 million events take about 15 GB in /tmp, and hours on a slow machine: `make bench-history EVENTS=1000000` is smaller.
.PHONY: bench-history
bench-history: install ## Compare a history of EVENTS events (10 million) with one of 100,000.
	@exec $(BIN)/python -m tests.bench.history_scale $(if $(EVENTS),--events "$(EVENTS)")

.PHONY: sizing
sizing: bench ## Run the measurements, and generate docs/sizing.md from them.
	@$(BIN)/python docs/measured.py
	@$(BIN)/python docs/build.py

.PHONY: clean
clean: ## Remove everything that was installed and built.
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

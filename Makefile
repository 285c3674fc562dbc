# toque: what people run. `make` alone lists it.
#
# Everything happens in .venv, which the first target makes (once; a stamp remembers). Another
# interpreter: `make PYTHON=python3.12 run`. Python 3.11 or newer, pip and make are all it needs.

SHELL  := /bin/bash
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)

DOCS  ?= .
DATA  ?= .toque/docs
SEEDS ?= 200
FIRST ?= 0
JOBS  ?= $(shell nproc 2>/dev/null || echo 1)
ARGS  ?=

# A virtual environment that was copied from elsewhere points elsewhere: make it again.
ifneq ($(wildcard $(VENV)/.made-in),)
ifneq ($(shell cat $(VENV)/.made-in),$(CURDIR))
$(shell rm -f $(VENV)/.made-in $(VENV)/.ready $(VENV)/.ready-dev)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help run test check format docs bench fuzz-api wrangler dashboard campaign-migration \
	campaign-recovery campaign-simulation coverage-simulation clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' Makefile

run: $(VENV)/.ready ## The main job: index Markdown documents as workflows on Ray [DOCS=dir DATA=dir]
	@$(BIN)/python examples/run_docs.py --docs $(DOCS) --data $(DATA) $(ARGS)

# TOQUE_RANDOM_WORKFLOWS=1000 plays a thousand random workflows instead of 300.
test: $(VENV)/.ready-dev ## All tests but the long campaigns [ARGS="-k name"]
	@$(BIN)/python -m pytest -q -m "not campaign" -n $(JOBS) --dist loadgroup $(ARGS)

check: $(VENV)/.ready-dev ## Format, lint and types, changing nothing
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary -p toque
	@$(BIN)/mypy --no-error-summary examples
	@$(BIN)/mypy --no-error-summary tests/typing
	@echo "check: fine"

format: $(VENV)/.ready-dev ## Rewrite the sources in the house format
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

docs: $(VENV)/.ready-dev ## Rewrite what repeats the code: tables of docs/, the blocking client
	@$(BIN)/python docs/twin.py
	@$(BIN)/python docs/tables.py

# The parts alone: `.venv/bin/python -m bench`. PEERS=folder: a kit that runs other systems beside.
bench: $(VENV)/.ready-dev ## Measure this machine, at most 25 minutes, and write docs/performance.md
	@$(BIN)/python -m bench all $(ARGS)

fuzz-api: $(VENV)/.ready-dev ## Requests at random from the OpenAPI document, against a server
	@$(BIN)/python -m pip install -q "schemathesis>=4.10,<5"
	@$(BIN)/python -m tests.conformance.fuzz $(ARGS)

wrangler: $(VENV)/.ready-dev ## Drive a server with Cloudflare's command line (skipped without Node.js)
	@tests/wrangler/install.sh $(VENV)/wrangler || test $$? = 3 || exit 1; \
	if [ -e $(VENV)/wrangler/.installed ]; then \
	$(BIN)/python -m pytest -q -m campaign tests/wrangler $(ARGS); fi

dashboard: $(VENV)/.ready-dev ## Drive the web dashboard in a browser (skipped where none can be had)
	@tests/dashboard/install.sh || { test $$? = 3 && exit 0; exit 1; }; \
	$(BIN)/python -m pytest -q -m campaign tests/dashboard -n $(JOBS) $(ARGS)

campaign-recovery: $(VENV)/.ready-dev ## Kill processes at random and check what survives (long)
	@$(BIN)/python -m tests.recovery.campaign $(ARGS)

campaign-migration: $(VENV)/.ready-dev ## Move a filled account from V1 to V2 under load [ARGS=--kill]
	@$(BIN)/python -m tests.recovery.migration $(ARGS)

campaign-simulation: $(VENV)/.ready-dev ## Simulated faults, one run a seed [SEEDS=n FIRST=k]
	@$(BIN)/python -m tests.simulation $(if $(filter 1,$(SEEDS)),--seed $(FIRST), \
		--first $(FIRST) --seeds $(SEEDS) --jobs $(JOBS)) $(ARGS)

coverage-simulation: $(VENV)/.ready-dev ## Branches of the cores that seeds reach [SEEDS=n FIRST=k]
	@$(BIN)/python -m tests.simulation.covered --first $(FIRST) --seeds $(SEEDS) $(ARGS)

clean: ## Remove what make has made; data under .toque stays
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ---

# Some systems ship Python without the module that puts pip into a new environment; there the
# system's own pip fills it.
$(VENV)/.made-in:
	@test -n "$(PYTHON)" || { echo "toque needs Python 3.11, 3.12 or 3.13; found none."; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version) (once; a minute or two) ..."
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear --without-pip $(VENV)
	@echo "$(CURDIR)" > $@

define install
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then pip="$(BIN)/python -m pip"; \
	else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	$$pip install -qq --disable-pip-version-check -e "$(1)"
	@touch $@
endef

$(VENV)/.ready: pyproject.toml | $(VENV)/.made-in
	$(call install,.[examples])

$(VENV)/.ready-dev: pyproject.toml | $(VENV)/.made-in
	$(call install,.[dev])
	@touch $(VENV)/.ready

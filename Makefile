# demo: the runner at work on two slots, in seconds.   test: the unit tests, on all cores.   lint: ruff and mypy.
# bench: real suites against other tools, and what a test costs beyond itself.
# picture: the README's, drawn from real runs, in seven minutes.   golden: refresh the expected outputs of the tests.

PYTHON ?= python3
LINT := .venv/lint
# The largest first: they are not to be what the others wait for. `make test_parse` runs one of them.
MODULES := $(notdir $(basename $(shell ls -S tests/test_*.py)))

.PHONY: demo test lint bench picture golden clean $(MODULES)

demo:
	CUDA_VISIBLE_DEVICES=0,1 $(PYTHON) run_tests.py qa/L0_demo/tests.txt

test:
	@$(MAKE) --no-print-directory --keep-going --output-sync --jobs=$(shell nproc) $(MODULES)

$(MODULES):
	@echo "tests.$@"
	@$(PYTHON) -m unittest tests.$@

lint: $(LINT)/installed
	$(LINT)/bin/ruff check .
	$(LINT)/bin/ruff format --check run_tests.py qa/cluster.py qa/gpu_locks.py qa/memory.py qa/plan.py qa/pytest_parts*.py qa/timeline.py qa/github_page.py
	$(LINT)/bin/mypy

bench:
	$(PYTHON) qa/bench/schedules.py
	$(PYTHON) qa/bench/planning.py
	$(PYTHON) qa/bench/overhead.py

picture:
	$(PYTHON) qa/bench/picture.py

golden:
	REFRESH_GOLDEN=1 $(PYTHON) -m unittest tests.test_command_line tests.test_terminal

$(LINT)/installed: pyproject.toml
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/pip install --quiet ruff==0.17.5 mypy==2.4.1
	touch $@

clean:
	rm -rf logs .venv

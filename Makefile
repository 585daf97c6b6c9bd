# Every target sets up its environment first (scripts/setup.sh: an active one, else .venv).
SHELL := /bin/bash
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
PYTEST_ARGS ?= -n 2 --dist worksteal
GPU_ARGS ?= --budget 3600

.PHONY: help demo test gpu-test lint format bench clean

help:
	@echo "make demo      run examples/matmul.py (on a CPU: interpreter, and a compile without GPU)"
	@echo "make test      run all tests; GPU tests skip where there is no Hopper GPU"
	@echo "make gpu-test  run the GPU tests, each in a process that may hang or crash (GPU_ARGS='-k split')"
	@echo "make lint      formatting, lint and types"
	@echo "make format    rewrite the files in the project's format"
	@echo "make bench     run every tests/bench/bench_*.py (needs an idle GPU)"

demo:
	@py="$$(scripts/setup.sh)" && "$$py" examples/matmul.py

test:
	@py="$$(scripts/setup.sh test)" && "$$py" -m pytest -q $(PYTEST_ARGS)

gpu-test:
	@py="$$(scripts/setup.sh test)" && "$$py" tests/gpu/run_isolated.py $(GPU_ARGS)

lint:
	@py="$$(scripts/setup.sh test dev)" && "$$py" -m ruff format --check && "$$py" -m ruff check && \
	"$$py" -m pyright --pythonpath "$$py"

format:
	@py="$$(scripts/setup.sh dev)" && "$$py" -m ruff check --select I --fix && "$$py" -m ruff format

bench:
	@shopt -s nullglob; py="$$(scripts/setup.sh test)" && for file in tests/bench/bench_*.py; do \
	echo "== $$file"; "$$py" "$$file" || exit 1; done

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis

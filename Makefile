# Two commands do all of it on a fresh machine: `make train` and `make test`.
.PHONY: help train monitor test check docs setup clean

CONFIG ?= deploy/configs/alfworld-tiny.yaml
RUNS ?= runs

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

train: setup  ## set up and run the main job, or go on with it (CONFIG=..., more in ARGS=...)
	@exec .venv/bin/gagpo train --resume --config $(CONFIG) $(ARGS)

monitor: setup  ## watch runs in Prometheus and Grafana (RUNS=..., more in ARGS=...)
	@exec .venv/bin/gagpo monitor $(RUNS) $(ARGS)

test:  ## set up and pass all checks and tests
	@scripts/setup --test
	@exec scripts/test $(ARGS)

check: setup  ## style, types and the import line
	@exec scripts/check

docs: setup  ## write docs/reference/ from the code
	@.venv/bin/python -m deploy.reference

setup:  ## make .venv
	@scripts/setup

clean:  ## delete what this folder made: .venv, caches and runs/
	@echo "deleting .venv, caches, build outputs and runs/"
	@rm -rf .venv runs build dist .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands do all of it on a fresh machine: `make train` and `make test`.
.PHONY: help train monitor test test-all check docs setup clean

CONFIG ?= deploy/configs/alfworld-tiny.yaml
RUNS ?= runs

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

train: setup  ## set up and run the main job, or continue it (CONFIG=..., more in ARGS=...)
	@exec .venv/bin/gagpo train --resume --config $(CONFIG) $(ARGS)

monitor: setup  ## watch runs in Prometheus and Grafana (RUNS=..., more in ARGS=...)
	@exec .venv/bin/gagpo monitor $(RUNS) $(ARGS)

test:  ## set up and pass all checks and tests, but for the long tests
	@scripts/setup --test
	@exec scripts/test $(ARGS)

test-all:  ## the same with the long tests: whole clusters, images, packages of others
	@scripts/setup --test
	@exec scripts/test --all $(ARGS)

check: setup  ## style, types and the import line
	@exec scripts/check

docs: setup  ## build the site into build/site
	@.venv/bin/python -m lab.reference >/dev/null
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html; its search needs a web server: python3 -m http.server -d build/site"

setup:  ## make .venv
	@scripts/setup

clean:  ## delete what this folder made: .venv, .venv-third-party, caches and runs/
	@echo "deleting .venv, .venv-third-party, caches, build outputs and runs/"
	@rm -rf .venv .venv-third-party runs build dist .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

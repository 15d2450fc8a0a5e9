# Only python3 and make are needed; everything else goes into .venv. `make` alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: help up down test unit lint pytest bench chaos lock venv venv-dev
MAKEFLAGS += --no-print-directory
PYTHON ?= python3
PORT ?= 8000
export PYTHON

help: ## list these commands
	@echo "Beatkeeper: cron as a service for Celery"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1	\2/p' Makefile | expand -t 16

up: venv ## start everything in the foreground and print where it is (PORT=8000)
	@exec .venv/bin/python manage.py standalone --port $(PORT)

down: venv ## stop what `make up` started
	@.venv/bin/python manage.py standalone --stop

test: venv-dev ## check style, types, migrations and imports, then run all tests on real services
	@.venv/bin/python -m tests.support.bring_up $(MAKE) lint pytest

unit: venv-dev ## the quick tests that need no server, in under a minute
	@.venv/bin/python -m tests.support.parallel --unit

lint: venv-dev ## the checks alone: format, lint, types, import rules, migrations, OpenAPI
	@.venv/bin/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }
	@.venv/bin/ruff check --quiet .
	@.venv/bin/lint-imports --no-cache >.venv/imports.txt || { cat .venv/imports.txt; exit 1; }
	@.venv/bin/mypy --no-error-summary
	@DJANGO_SETTINGS_MODULE=tests.settings .venv/bin/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	@DJANGO_SETTINGS_MODULE=tests.settings .venv/bin/python manage.py spectacular --validate --fail-on-warn --file .venv/openapi.yaml
	@echo "format, lint, imports, types, migrations and OpenAPI are in order"

pytest: venv-dev
	@$(if $(TESTS),.venv/bin/pytest -m "not chaos" $(TESTS),.venv/bin/python -m tests.support.parallel)

bench: venv-dev ## measure throughput and latency (NAME=trigger; without a name: what there is)
	@$(if $(NAME),.venv/bin/python -m tests.support.bring_up) .venv/bin/python -m tests.benchmarks $(NAME)

chaos: venv-dev ## kill, stop and cut off processes for a long while
	@.venv/bin/python -m tests.support.bring_up .venv/bin/pytest -m chaos tests

lock: venv-dev ## write the lock files anew from pyproject.toml
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv"; exit 2; }
	uv pip compile pyproject.toml $(LOCK_FLAGS) --extra server --extra standalone -o requirements.lock
	uv pip compile pyproject.toml $(LOCK_FLAGS) --extra server --extra standalone --group dev -c requirements.lock -o requirements-dev.lock
LOCK_FLAGS := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header

venv:
	@.ci/venv requirements.lock

venv-dev:
	@.ci/venv requirements-dev.lock

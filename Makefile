# `make` alone lists the targets. All of them work in .venv, which is made when it is first needed.

BIN := .venv/bin
INSTALLED := .venv/.installed

# What a test needs and cannot have fails `make test`; to have it skipped instead: make test ZKGROUPS_REQUIRE=
ZKGROUPS_REQUIRE ?= zookeeper,spark,kafka,web
QUICK := not soak and not zookeeper and not spark and not kafka and not docker and not slow

# With it, each of the thousand processes that the tests start would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install upgrade java web demo lint check test servers pythons soak mutate proofs bench docs clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-8s %s\n' "$$name" "$$text"; done

install: $(INSTALLED) ## Set up .venv with the library, the command and all tools

$(INSTALLED): setup.cfg pyproject.toml Makefile scripts/setup scripts/constraints.txt
	@scripts/setup venv

upgrade: $(INSTALLED) ## Install the newest packages that setup.cfg allows, and keep their versions in scripts/constraints.txt
	@scripts/setup upgrade

java:
	@scripts/setup java

# After java: two installations at once would wait for one lock, and fail.
web: java $(INSTALLED)
	@scripts/setup web

demo: java $(INSTALLED) ## Run the guided tour on a temporary ZooKeeper
	@$(BIN)/zkgroups demo

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint ## Check style and types, and run the tests that need no server
	$(BIN)/pytest -q -n auto -m "$(QUICK)"

# Most tests wait most of the time, so there are more processes than cores. Five of them begin with the tests of Spark, of
# Spark with brokers, of the gateway, of the old broker, and of other brokers.
test: java web $(INSTALLED) ## Run all tests, on real servers (ZKGROUPS_TEST_RELEASE: of this release of ZooKeeper)
	ZKGROUPS_REQUIRE=$(ZKGROUPS_REQUIRE) $(BIN)/pytest -n 6

# On a quiet machine this takes most of an hour.
servers: java $(INSTALLED) ## Run the suites of registry, members, command and migration on all releases of ZooKeeper (ZKGROUPS_TEST_RELEASE: on one)
	ZKGROUPS_REQUIRE=$(ZKGROUPS_REQUIRE) $(BIN)/python scripts/servers.py

pythons: java $(INSTALLED) ## Run `check`, and live tests of the core, on Python 3.12 and 3.13 (ZKGROUPS_PYTHONS)
	ZKGROUPS_REQUIRE=$(ZKGROUPS_REQUIRE) scripts/pythons $(or $(ZKGROUPS_PYTHONS),3.12 3.13)

soak: java $(INSTALLED) ## Long fault tests: kill snapshot runs (ZKGROUPS_SOAK_KILLS, 120) and members (ZKGROUPS_SOAK_ROUNDS, 30), cut off servers (ZKGROUPS_SOAK_CUTS, 20), break ensembles (ZKGROUPS_SOAK_ENSEMBLES, 10), run 200 members (ZKGROUPS_SOAK_MINUTES, 10), damage input (ZKGROUPS_SOAK_FUZZ, 600 seconds), serve for an hour (ZKGROUPS_SOAK_SERVE_MINUTES, 60)
	ZKGROUPS_SEED=$${ZKGROUPS_SEED:-$$(date +%s)} ZKGROUPS_REQUIRE=$(ZKGROUPS_REQUIRE) $(BIN)/pytest -m soak -s --hypothesis-profile fresh

mutate: java $(INSTALLED) ## Change the code at ZKGROUPS_MUTATIONS random places of each folder (100), one at a time, and print the changes that no test detects
	$(BIN)/python scripts/mutate.py --count $(or $(ZKGROUPS_MUTATIONS),100)

proofs: java $(INSTALLED) ## Make the changes that docs/guarantees.md names, one at a time, and print which tests notice
	$(BIN)/python scripts/proofs.py

bench: java $(INSTALLED) ## Run all benchmarks, one after the other
	@set -e; for file in benchmarks/[!_]*.py; do $(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; done

docs: java web $(INSTALLED) ## Generate the references and pictures in docs from the code and the commands
	$(BIN)/python scripts/cli_reference.py
	$(BIN)/python scripts/rebalance_reference.py
	$(BIN)/python scripts/coordinator_reference.py
	$(BIN)/python scripts/pictures.py
	PYTHONPATH=. $(BIN)/python scripts/page_pictures.py

clean: ## Delete .venv and all other generated files
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `make` alone lists the targets. All of them work in .venv, which is made when it is first needed.

BIN := .venv/bin
INSTALLED := .venv/.installed

# What a test needs and cannot have fails `make test`; to have it skipped instead: make test ZKGROUPS_REQUIRE=
ZKGROUPS_REQUIRE ?= zookeeper,spark,kafka
QUICK := not zookeeper and not spark and not kafka and not docker and not slow

.DEFAULT_GOAL := help
.PHONY: help install java demo lint check test soak mutate bench docs clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-8s %s\n' "$$name" "$$text"; done

install: $(INSTALLED) ## Make .venv with the library, its command and all tools

$(INSTALLED): setup.cfg pyproject.toml Makefile scripts/setup
	@scripts/setup venv

java:
	@scripts/setup java

demo: java $(INSTALLED) ## Show what a consumer group is and does, on a ZooKeeper of its own
	@$(BIN)/zkgroups demo

lint: $(INSTALLED) ## Lint and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint ## Lint, types, and the tests that need no server: seconds
	$(BIN)/pytest -q -n auto -m "$(QUICK)"

# One process begins with the tests of Spark, one with those of the new broker, and one with those of the old broker.
test: java $(INSTALLED) ## All tests, on real servers
	ZKGROUPS_REQUIRE=$(ZKGROUPS_REQUIRE) $(BIN)/pytest -n 3

soak: java $(INSTALLED) ## Kill whoever takes a snapshot, ZKGROUPS_SOAK_KILLS times (120), and members, ZKGROUPS_SOAK_ROUNDS times (30); cut servers off, ZKGROUPS_SOAK_CUTS times each (20)
	ZKGROUPS_REQUIRE=$(ZKGROUPS_REQUIRE) $(BIN)/pytest -m soak -s

mutate: java $(INSTALLED) ## Change the code in ZKGROUPS_MUTATIONS random places (100), one at a time, and print what no test noticed
	$(BIN)/python scripts/mutate.py --count $(or $(ZKGROUPS_MUTATIONS),100)

bench: java $(INSTALLED) ## All benchmarks, one after the other
	@set -e; for file in benchmarks/[!_]*.py; do $(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; done

docs: java $(INSTALLED) ## Write docs and its pictures anew, from the code and the commands
	$(BIN)/python scripts/cli_reference.py
	$(BIN)/python scripts/rebalance_reference.py
	$(BIN)/python scripts/coordinator_reference.py
	$(BIN)/python scripts/pictures.py

clean: ## Take away .venv and everything else that was made here
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

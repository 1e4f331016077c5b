"""Members in processes of their own, under everything that can happen to them: judged by `history.py` afterwards.

A short run is part of every run of the tests; `make soak` goes on for as long as one likes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from .history import shown
from .nemesis import EVERYTHING, Scene, Strike, plan, run

pytestmark = pytest.mark.zookeeper

SEEDS = [int(seed) for seed in os.environ.get("ZKGROUPS_NEMESIS_SEEDS", "1").split(",")]
SOAK = int(os.environ.get("ZKGROUPS_SOAK_ROUNDS", "30"))
"""How many runs `make soak` does, of which each is three times as long."""

BOUND = 15.0
"""In seconds: how soon after all is calm everybody works again. Within it a session of two seconds ends, everybody
looks at the group once more, and whoever was late has waited a moment for the others."""

OPTIONS = ("--reconcile-every", "2")


def assert_all_is_well(
    directory: Path, seed: int, strikes: list[Strike], *, options: tuple[str, ...] = (), once: bool = False
) -> None:
    print(f"\nZKGROUPS_NEMESIS_SEEDS={seed}, logs in {directory}")
    with Scene(directory, options=(*OPTIONS, *options)) as scene:
        verdict = run(scene, strikes, bound=BOUND, once=once)
    print(verdict.summary())
    assert not verdict.violations, f"seed {seed}, logs in {directory}:\n{shown(verdict.violations)}"
    assert verdict.history.writes, "nothing was committed"


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_nobody_works_on_what_another_has_and_no_offset_falls(tmp_path: Path, seed: int) -> None:
    assert_all_is_well(tmp_path, seed, plan(seed, duration=4.0, members=4))


@pytest.mark.parametrize("assignors", [pytest.param("range", marks=pytest.mark.soak), "sticky"])
def test_where_members_only_come_and_go_no_message_is_processed_twice(tmp_path: Path, assignors: str) -> None:
    strikes = plan(SEEDS[0], duration=2.0, members=4, kinds=["leave"])
    assert_all_is_well(tmp_path, SEEDS[0], strikes, options=("--assignors", assignors), once=True)


def test_a_seed_names_what_will_be_done() -> None:
    assert plan(7, duration=20, members=4) == plan(7, duration=20, members=4) != plan(8, duration=20, members=4)
    assert {strike.kind for strike in plan(7, duration=100, members=4)} == set(EVERYTHING)


def test_nothing_is_done_to_somebody_to_whom_something_else_is_being_done() -> None:
    strikes = plan(7, duration=100, members=4)
    for number, strike in enumerate(strikes):
        until = strike.moment + strike.lasts
        also = [each for each in strikes[number + 1 :] if each.moment < until and each.victim == strike.victim]
        assert also == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same, many times and longer, and with members who commit by themselves."""
    first = int(os.environ.get("ZKGROUPS_NEMESIS_SEEDS", time.time_ns() % 1_000_000))
    for seed in range(first, first + SOAK):
        options = [(), ("--auto-commit-every", "0.2"), ("--assignors", "sticky")][seed % 3]
        directory = tmp_path_factory.mktemp(f"seed-{seed}-")
        assert_all_is_well(directory, seed, plan(seed, duration=15.0, members=4), options=options)

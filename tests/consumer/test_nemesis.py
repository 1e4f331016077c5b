"""Members in their own processes under all kinds of faults, judged by `history.py`.

A short run is part of every run of the tests. `make soak` runs many longer ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..seeds import seed, seeds
from .history import shown
from .nemesis import EVERYTHING, Scene, Strike, plan, run

pytestmark = pytest.mark.zookeeper

SOAK = int(os.environ.get("ZKGROUPS_SOAK_ROUNDS", "30"))
"""The number of runs of `make soak`, each of which is three times as long."""

SHORT = 3.5
"""How long faults begin in a run of `make test`, in session timeouts: enough for one of each kind."""

BOUND = 45.0
"""In seconds: how soon after the last fault every member works again, on a busy machine. In this time a session of two
seconds expires, all members read the group again, and delayed members wait a moment for the others."""

OPTIONS = ("--reconcile-every", "2")


def assert_all_is_well(
    directory: Path, number: int, strikes: list[Strike], *, options: tuple[str, ...] = (), once: bool = False
) -> None:
    print(f"\nZKGROUPS_SEED={number}, logs in {directory}", *strikes, sep="\n")
    with Scene(directory, options=(*OPTIONS, *options)) as scene:
        verdict = run(scene, strikes, bound=BOUND, once=once)
    print(verdict.summary())
    assert not verdict.violations, f"seed {number}, logs in {directory}:\n{shown(verdict.violations)}"
    assert any(verdict.history.commits), "nothing was committed"


def test_under_all_faults_no_two_members_have_one_claim_and_no_offset_goes_back(tmp_path: Path) -> None:
    assert_all_is_well(tmp_path, seed(), plan(seed(), duration=SHORT, members=4))


@pytest.mark.parametrize("assignors", [pytest.param("range", marks=pytest.mark.soak), "sticky"])
def test_without_faults_no_message_is_processed_twice(tmp_path: Path, assignors: str) -> None:
    """The sessions are so long that they outlive a moment in which a busy machine stands still."""
    strikes = plan(seed(), duration=2.0, members=4, kinds=["leave"])
    options = ("--assignors", assignors, "--session-timeout", "20")
    assert_all_is_well(tmp_path, seed(), strikes, options=options, once=True)


@pytest.mark.parametrize("number", seeds(20))
def test_every_kind_of_fault_strikes_in_every_run(number: int) -> None:
    strikes = plan(number, duration=SHORT, members=4)
    assert {strike.kind for strike in strikes} == set(EVERYTHING)
    assert strikes[-1].moment < 2 * SHORT


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many longer runs, with members that commit automatically."""
    for number in range(seed(), seed() + SOAK):
        options = [(), ("--auto-commit-every", "0.2"), ("--assignors", "sticky")][number % 3]
        directory = tmp_path_factory.mktemp(f"seed-{number}-")
        assert_all_is_well(directory, number, plan(number, duration=15.0, members=4), options=options)

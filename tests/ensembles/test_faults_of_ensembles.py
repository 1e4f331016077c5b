"""Members, commands under a claim, and migrations on three servers, under all faults of `proxy.py`.

A short run of each is part of every run of the tests. `make soak` runs many longer ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.consumer.history import Kind, Violation, shown
from tests.seeds import seed, seeds
from zkgroups.testing import KafkaBroker, ZooKeeperEnsemble

from .commands import Commands
from .faults import KINDS, RELEASES, Nemesis, Route, Strike, ensemble_with_routes, plan
from .migrations import Migrations
from .scenes import Members

pytestmark = pytest.mark.zookeeper

SOAK = range(int(os.environ.get("ZKGROUPS_SOAK_ENSEMBLES", "10")))
"""The runs of `make soak`, each of which has twice as many faults and longer sessions."""
ROUNDS = 2

SHORT, LONG = 2.0, 3.0
"""In seconds: the session timeouts. They are the unit of all times of the faults."""
BOUND = 90.0
"""In seconds: how soon after the last fault every user works again, on a busy machine."""
LONGEST = 300.0


class User(Protocol):
    """Clients of an ensemble. Leaving the `with` block ends them."""

    def settle(self, bound: float) -> bool: ...

    def note(self, kind: Kind, text: str = "") -> None: ...

    def calm(self, bound: float) -> None: ...

    def end(self) -> None: ...

    def violations(self, bound: float) -> list[Violation]: ...

    def summary(self) -> str: ...


Cast = Callable[[ZooKeeperEnsemble, list[Route], float], Iterable[AbstractContextManager[Any]]]


def run(cast: Cast, strikes: Sequence[Strike], number: int, session: float) -> None:
    """Let the faults strike settled users, and judge each of them. Every other seed has servers of an old release."""
    release = RELEASES[number % len(RELEASES)]
    print(f"\nZKGROUPS_SEED={number}, ZooKeeper {release}")
    with ExitStack() as stack:
        ensemble, routes = stack.enter_context(ensemble_with_routes(session, release))
        users: list[User] = [stack.enter_context(user) for user in cast(ensemble, routes, session)]
        for user in users:
            assert user.settle(LONGEST), f"{user.summary()}: before anything was broken"

        def note(text: str) -> None:
            print(text, flush=True)
            for user in users:
                user.note(Kind.STRUCK, text)

        Nemesis(ensemble, routes, session, note).run(strikes)
        for user in users:
            user.calm(BOUND)
        for user in users:
            user.end()
        print(*(user.summary() for user in users), sep="\n")
        violations = [violation for user in users for violation in user.violations(BOUND)]
    assert not violations, shown(violations)


def work(directory: Path, number: int) -> Cast:
    """Return members and commands, which share the ensemble."""

    def cast(ensemble: ZooKeeperEnsemble, routes: list[Route], session: float) -> Iterable[AbstractContextManager[Any]]:
        folders = [directory / name for name in ("members", "commands")]
        for folder in folders:
            folder.mkdir()
        sticky = ("--assignors", "sticky") if number % 2 else ()
        options = ("--reconcile-every", "2", *sticky)
        return [
            Members(folders[0], ensemble, routes, 3, session_timeout=session, options=options),
            Commands(folders[1], ensemble, routes, 2, session_timeout=session),
        ]

    return cast


def migrations(broker: KafkaBroker, number: int) -> Cast:
    """Return migrations to this broker."""
    return lambda _ensemble, routes, session: [
        Migrations(routes, broker, f"ensemble-{number}", session_timeout=session)
    ]


@pytest.mark.timeout(1000)
def test_no_two_work_on_a_partition_and_no_offset_goes_back_under_all_faults_of_an_ensemble(tmp_path: Path) -> None:
    run(work(tmp_path, seed()), plan(seed()), seed(), SHORT)


@pytest.mark.kafka
def test_migrations_end_with_equal_offsets_under_all_faults_of_an_ensemble(kafka_broker: KafkaBroker) -> None:
    run(migrations(kafka_broker, seed()), plan(seed() + 1), seed() + 1, SHORT)


@pytest.mark.parametrize("number", seeds(5))
def test_every_kind_of_fault_strikes_once_in_every_round(number: int) -> None:
    strikes = plan(number, rounds=2)
    assert strikes == plan(number, rounds=2) != plan(number + 1, rounds=2)
    assert [sorted(strike.kind for strike in part) for part in (strikes[:5], strikes[5:])] == [sorted(KINDS)] * 2


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", SOAK)
def test_soak_work(tmp_path: Path, number: int) -> None:
    chosen = seed() + number
    run(work(tmp_path, chosen), plan(chosen, rounds=ROUNDS), chosen, LONG)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", SOAK)
def test_soak_migrations(kafka_broker: KafkaBroker, number: int) -> None:
    chosen = seed() + number
    run(migrations(kafka_broker, chosen), plan(chosen, rounds=ROUNDS), chosen, LONG)

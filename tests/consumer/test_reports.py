"""What a member reports: callbacks, events, log lines, and when failures are repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.world import World
from zkgroups import Consumergroup, EventKind, Registry, TopicPartition
from zkgroups.consumer.events import MemberStats
from zkgroups.consumer.options import Callbacks
from zkgroups.consumer.waiting import StepFailure, StepFailures
from zkgroups.core.rebalance.state_machine import ReadGroup, RegisterInstance
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.exceptions import GroupMigratedError
from zkgroups.zookeeper.admin import migration_marks

from .conftest import Connect, Partitions, Run, ats, committed

P0 = TopicPartition("orders", 0)
SECOND = ats("orders", 3, 4, 5)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str, str]]]:
    """The lines of zkgroups in the log: logger, level and text."""
    caplog.set_level(logging.INFO, "zkgroups")
    return lambda: [
        (each.name, each.levelname, each.getMessage()) for each in caplog.records if each.name.startswith("zkgroups")
    ]


Log = Callable[[], list[tuple[str, str, str]]]


# Callbacks


def test_callbacks_report_added_and_removed_partitions_and_may_be_coroutines(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    heard: list[tuple[str, Partitions]] = []
    held: list[int] = []

    async def assigned(partitions: Partitions) -> None:
        heard.append(("assigned", partitions))

    def revoked(partitions: Partitions) -> None:
        held.append(sum(owner.id == "a-0" for owner in group.owners()))  # type: ignore[union-attr]
        heard.append(("revoked", partitions))

    a = run(id="a", on_assigned=assigned, on_revoked=revoked).until_holding(orders)
    run(id="b").until_holding(SECOND).close()
    a.until_holding(orders)
    assert heard == [("assigned", orders), ("revoked", SECOND), ("assigned", SECOND)]
    assert held == [6]


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("option", ["on_assigned", "on_revoked"])
def test_a_member_continues_after_any_exception_of_a_callback_and_logs_it_with_group_and_partitions(
    run: Run, orders: Partitions, caplog: pytest.LogCaptureFixture, error: BaseException, option: str
) -> None:
    async def fail(_partitions: Partitions) -> None:
        raise error

    a = run(id="a", **{option: fail}).until_holding(orders)
    run(id="b").until_holding(SECOND)
    a.until_holding(orders - SECOND)
    record = next(record for record in caplog.records if "callback" in record.getMessage())
    assert "billing" in record.getMessage()
    assert "orders" in record.getMessage()
    assert record.exc_info is not None


# Groups with a mark


def test_a_new_member_of_a_marked_group_gets_an_error_and_members_continue_until_their_session_expires(
    world: World, group: Consumergroup, registry: Registry, orders: Partitions, run: Run, connect: Connect
) -> None:
    far = connect("far")
    first = run(id="a", on=far).until_holding(orders)
    state = MarkState.MOVING
    assert migration_marks.put(registry._context, {"billing": "new"}, plan="p1", state=state) == {"billing": None}
    second = run(id="b")
    assert "as 'new'" in str(second.until_error(GroupMigratedError))
    first.generation.commit({P0: 7})
    assert (first.member.assignment, len(first.generations)) == (orders, 1)
    world.expire(far)
    first.until_error(GroupMigratedError)
    assert (group.instances(), first.member.assignment) == ([], frozenset())
    assert migration_marks.remove(registry._context, ["billing"], plan="p1") == {"billing": None}
    first.until_holding_some(3)
    second.until_holding_some(3)
    assert committed(group) == {P0: 7}


# The log


def test_a_commit_that_is_fenced_is_a_warning_logged_once(run: Run, client: Any, orders: Partitions, log: Log) -> None:
    a = run(id="a", reconcile_every=3600.0).until_holding(orders)
    a.generation.mark(P0, 5)
    client.delete("/consumers/billing/owners/orders/0")
    a.close()
    text = "could not commit: orders/0 is not claimed by this instance: stop working on it"
    assert [line[1:] for line in log() if line[1] != "INFO"] == [
        ("WARNING", f"member 'a' of group 'billing' {text}"),
    ]


SOME, MANY = ats("orders", 1, 0), ats("orders", *range(22))
SHOWN = ", ".join(f"orders/{number}" for number in range(20))


@pytest.fixture
def callbacks() -> Callbacks:
    options: Any = SimpleNamespace(on_event=None)
    return Callbacks("'anna' of group 'billing'", options, lambda: 1, lambda _result: None)


@pytest.mark.parametrize(
    ("kind", "partitions", "detail", "level", "text"),
    [
        (EventKind.JOINED, frozenset(), "", logging.INFO, "joined"),
        (EventKind.ASSIGNED, SOME, "", logging.INFO, "was assigned orders/0, orders/1"),
        (EventKind.ASSIGNED, MANY, "", logging.INFO, f"was assigned {SHOWN} and 2 more"),
        (EventKind.IDLE, SOME, "no mark", logging.WARNING, "is idle and releases orders/0, orders/1: no mark"),
        (EventKind.WAITING, SOME, "orders/0: ben", logging.INFO, "waits for partitions: orders/0: ben"),
        (EventKind.WAITING, SOME, "", logging.INFO, "waits for partitions orders/0, orders/1"),
        (EventKind.STUCK, SOME, "orders/0: ben", logging.WARNING, "is still waiting: orders/0: ben"),
        (EventKind.MISSING, frozenset(), "x not found", logging.WARNING, "waits for topics: x not found"),
        (EventKind.COMMITTED, SOME, "", logging.DEBUG, "committed offsets of orders/0, orders/1"),
    ],
)
def test_an_event_is_logged_with_its_partitions_unless_its_detail_names_them(
    callbacks: Callbacks,
    caplog: pytest.LogCaptureFixture,
    kind: EventKind,
    partitions: Partitions,
    detail: str,
    level: int,
    text: str,
) -> None:
    caplog.set_level(logging.DEBUG, "zkgroups.member")
    callbacks.event(kind, partitions, detail)
    expected = [(level, f"member 'anna' of group 'billing' {text}")]
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == expected


def test_each_error_of_a_step_is_one_warning_until_the_step_works_again(callbacks: Callbacks) -> None:
    first, second = OSError("one"), OSError("two")
    warned = [callbacks.failed("commit", error) for error in (first, second, first)]
    callbacks.worked("commit")
    warned += [callbacks.failed("commit", first), callbacks.failed("join", first)]
    assert warned == [True, True, False, True, True]
    assert sum(callbacks.failed("look", OSError(str(number))) for number in range(20)) == 16


# Failed steps

JOIN_BACKOFF = 0.3
READ, REGISTER = ReadGroup(turn=1), RegisterInstance(turn=1)


class Steps:
    """The failures of one member, and what its caller got."""

    def __init__(self) -> None:
        options: Any = SimpleNamespace(on_event=None, join_backoff=JOIN_BACKOFF)
        self.stats, self.handed_out = MemberStats(), list[StepFailure]()
        callbacks = Callbacks("'anna'", options, lambda: 1, lambda _result: None)
        self.failures = StepFailures(options, self.stats, callbacks, self.handed_out.append)

    def failed(self, step: Any, error: Exception, *, retriable: bool) -> float:
        return self.failures.failed(step, error, retriable=retriable, trace=False)


def test_all_totals_begin_with_zero_and_the_pause_doubles_with_each_failure_in_a_row_up_to_a_limit() -> None:
    assert set(astuple(MemberStats())) == {0}
    steps = Steps()
    pauses = [steps.failed(READ, OSError("x"), retriable=True) for _ in range(5)]
    assert pauses == [0.05, 0.1, 0.2, JOIN_BACKOFF, JOIN_BACKOFF]
    steps.failures.worked(READ)
    assert steps.failed(READ, OSError("x"), retriable=True) == 0.05
    assert (steps.stats.failures, steps.handed_out) == (6, [])


def test_an_error_that_a_retry_does_not_resolve_is_handed_out_once_until_its_own_step_has_succeeded() -> None:
    steps = Steps()
    assert steps.failed(REGISTER, OSError("one"), retriable=False) == JOIN_BACKOFF
    steps.failed(REGISTER, OSError("two"), retriable=False)
    [found] = steps.handed_out
    steps.failures.worked(READ)
    assert (str(found.error), found.over) == ("two", False)
    steps.failures.worked(REGISTER)
    assert found.over
    steps.failed(REGISTER, OSError("three"), retriable=False)
    assert [str(each.error) for each in steps.handed_out] == ["two", "three"]

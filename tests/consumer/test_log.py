"""The log of a member: each event once, at a level that operators can filter by, under a public logger name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import EventKind, Registry, TopicPartition
from zkgroups.testing import expire_session

from .conftest import Run, Running, ats

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)
Partitions = frozenset[TopicPartition]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "zkgroups")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(each.name, each.levelname, each.getMessage()) for each in log.records if each.name.startswith("zkgroups")]


def test_a_lost_session_is_a_warning_logged_once(
    connect: Callable[..., Registry], orders: Partitions, log: pytest.LogCaptureFixture
) -> None:
    registry = connect()
    with Running(registry.group("billing"), id="a") as a:
        a.until_holding(orders)
        expire_session(registry.client)
        a.until(lambda: Counter(event.kind for event in a.events)[EventKind.ASSIGNED] == 2, "another session")
        a.until_holding(orders)
    listed = ", ".join(f"orders/{number}" for number in range(6))
    told = [line for line in lines(log) if " lost " in line[2]]
    assert told == [("zkgroups.member", "WARNING", f"member 'a' of group 'billing' lost {listed}")]


def test_a_commit_that_is_fenced_is_a_warning_logged_once(
    run: Run, registry: Registry, orders: Partitions, log: pytest.LogCaptureFixture
) -> None:
    a = run(id="a", reconcile_every=3600.0).until_holding(orders)
    a.generations[-1].mark(P0, 5)
    registry.client.delete("/consumers/billing/owners/orders/0")
    a.close()
    assert [line for line in lines(log) if line[1] != "INFO"] == [
        (
            "zkgroups.member",
            "WARNING",
            "member 'a' of group 'billing' could not commit: orders/0 is not claimed by this instance: "
            "stop working on it",
        )
    ]


def test_each_event_is_one_line_without_a_colon_at_its_end(
    run: Run, orders: Partitions, log: pytest.LogCaptureFixture
) -> None:
    a = run(id="a").until_holding(orders)
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    for member in (a, b):
        member.close()
    messages = [message for _name, _level, message in lines(log)]
    assert {name for name, _level, _message in lines(log)} == {"zkgroups.member"}
    events = [event for member in (a, b) for event in member.events if event.kind is not EventKind.COMMITTED]
    assert len(messages) == len(events)
    assert [message for message in messages if message.rstrip() != message or message.endswith(":")] == []


def test_blocked_partitions_and_missing_topics_are_one_warning_each(
    run: Run, registry: Registry, orders: Partitions, log: pytest.LogCaptureFixture
) -> None:
    registry.client.create(f"/consumers/billing/owners/{P0}", b"another-0", ephemeral=True, makepath=True)
    a = run(["orders", "absent"], id="a", release_timeout=0.1, rebalance_timeout=0.3)
    a.until(lambda: any(event.kind is EventKind.STUCK for event in a.events), "the word")
    registry.client.delete(f"/consumers/billing/owners/{P0}")
    a.until_holding(orders)
    warnings = [message for _name, level, message in lines(log) if level == "WARNING"]
    warnings = [message for message in warnings if "did not end within 0.1 s" not in message]  # on a busy machine
    assert len(warnings) == 2
    assert warnings[0].startswith("member 'a' of group 'billing' waits for topics: absent not found in")
    assert warnings[1].startswith("member 'a' of group 'billing' is still waiting: orders/0: 'another-0' of session ")


def test_a_step_that_keeps_failing_is_one_warning(run: Run, log: pytest.LogCaptureFixture) -> None:
    def partitions(_topic: str) -> Any:
        raise LookupError("planted")

    a = run(partitions=partitions, join_backoff=0.05)
    a.expect(LookupError)
    a.until(lambda: sum(event.kind is EventKind.FAILED for event in a.events) > 3, "several failures")
    [warning] = [each for each in log.records if each.levelname == "WARNING"]
    assert warning.getMessage().endswith("could not read its group and plan: planted")
    assert warning.exc_info is not None


def test_a_repeatedly_failing_commit_is_one_warning_until_a_commit_succeeds(
    run: Run, registry: Registry, orders: Partitions, log: pytest.LogCaptureFixture
) -> None:
    a = run(id="a", auto_commit_every=0.05).until_holding(orders)
    generation, commits = a.generations[-1], list[None]()
    generation._mark_from(lambda: commits.append(None) or {})  # type: ignore[func-returns-value]
    generation.commit({P0: 1})

    def warnings_after_another_client_has_written(offset: bytes) -> int:
        log.clear()
        registry.client.set("/consumers/billing/offsets/orders/0", offset)
        before = len(a.events)
        generation.mark(P0, int(offset) - 1)
        a.until(lambda: sum(event.kind is EventKind.FAILED for event in a.events[before:]) > 4, "failures")
        return sum(each.levelname == "WARNING" for each in log.records)

    assert warnings_after_another_client_has_written(b"100") == 1
    generation.commit({P0: 100})
    before = len(commits)
    a.until(lambda: len(commits) > before + 1, "the end of an automatic commit that had begun")
    assert warnings_after_another_client_has_written(b"200") == 1

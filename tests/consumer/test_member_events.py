"""What a member reports: callbacks, lost sessions and partitions, and trouble."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import Consumergroup, EventKind, Member, Registry, TopicPartition
from zkgroups.exceptions import (
    GenerationEndedError,
    OffsetWouldGoBackError,
)
from zkgroups.testing import TcpProxy, expire_session

from .conftest import LONGEST, Run, Running, ats

pytestmark = pytest.mark.zookeeper


P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
Partitions = frozenset[TopicPartition]


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
    b = run(id="b").until_holding(ats("orders", 3, 4, 5))
    b.close()
    a.until_holding(orders)
    later = ats("orders", 3, 4, 5)
    assert heard == [("assigned", orders), ("revoked", later), ("assigned", later)]
    assert held == [6]


def test_a_failing_callback_is_logged_with_group_and_partitions_and_the_member_continues(
    run: Run, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(partitions: Partitions) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        run(on_assigned=fail).until_holding(orders)
    [record] = [record for record in caplog.records if "callback" in record.getMessage()]
    assert "billing" in record.getMessage()
    assert "orders" in record.getMessage()
    assert record.exc_info is not None


def test_a_lost_session_is_reported_once_and_everything_is_claimed_again_in_a_new_one(
    connect: Callable[..., Registry], orders: Partitions
) -> None:
    lost: list[Partitions] = []
    revoked: list[Partitions] = []
    registry = connect()
    with Running(registry.group("billing"), id="a", on_lost=lost.append, on_revoked=revoked.append) as one:
        one.until_holding(orders)
        before, session = one.generations[-1], registry.session_id
        expire_session(registry.client)
        one.until(lambda: lost)
        one.until(lambda: one.generations[-1] is not before)
        one.until_holding(orders)
        assert lost == [orders]
        assert revoked == []
        assert not before.active
        assert registry.session_id != session
        with pytest.raises(GenerationEndedError):
            before.commit({P0: 5})


# Changes by other clients


def test_a_partition_taken_away_by_an_administrator_is_lost_and_claimed_again(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    lost: list[Partitions] = []
    one = run(id="a", reconcile_every=0.2, on_lost=lost.append).until_holding(orders)
    group.release(P0, expected_owner="a")
    one.until(lambda: lost)
    one.until_holding(orders)
    assert lost == [frozenset({P0})]


def test_a_deleted_registration_is_recreated(
    run: Run, group: Consumergroup, registry: Registry, orders: Partitions
) -> None:
    one = run(id="a").until_holding(orders)
    registry.client.delete("/consumers/billing/ids/a")
    one.until(lambda: registry.client.exists("/consumers/billing/ids/a"))
    one.until_holding(orders)
    one.generations[-1].commit({P0: 1})
    assert group.offsets.fetch(P0).offset == 1  # type: ignore[union-attr]


def test_an_offset_that_would_go_back_is_raised_in_the_worker(
    run: Run, group: Consumergroup, orders: Partitions
) -> None:
    group.offsets.set(P0, 100)
    one = run(work=lambda generation: generation.commit({P0: 50}))
    one.until_error(OffsetWouldGoBackError)
    assert group.offsets.fetch(P0).offset == 100  # type: ignore[union-attr]


def test_no_generation_begins_while_disconnected(
    connect: Callable[..., Registry], zookeeper: Any, zookeeper_hosts: str, orders: Partitions
) -> None:
    chroot = zookeeper_hosts.partition("/")[2]
    with TcpProxy(zookeeper.address) as proxy:
        registry = connect(f"{proxy.address}/{chroot}")
        assigned, suspended = threading.Event(), threading.Event()
        registry.client.add_listener(lambda _state: suspended.set())
        with Member(registry.group("billing"), ["orders"], on_assigned=lambda _: assigned.set()) as member:
            assert assigned.wait(LONGEST)
            proxy.refuse()
            proxy.cut()
            assert suspended.wait(LONGEST)
            assert member.next_generation(0.2) is None
            proxy.accept()
            generation = member.next_generation(LONGEST)
            assert generation is not None
            assert generation.active
            assert not generation.paused
            assert member.stats.generations == 1


def test_an_error_that_is_over_is_not_raised_any_more(group: Consumergroup) -> None:
    """A partitions function fails for a while and then works again, before the next call."""
    answers: list[Any] = [[0], LookupError("no broker"), LookupError("no broker"), [0], [0, 1]]
    begun = threading.Event()

    def partitions(_topic: str) -> Any:
        if not begun.is_set():
            return answers[0]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Member(group, ["orders"], partitions=partitions, reconcile_every=0.05, join_backoff=0.05) as member:
        first = member.next_generation(LONGEST)
        assert first is not None
        begun.set()
        assert first.wait(LONGEST)
        second = member.next_generation(LONGEST)
        assert second is not None
        assert second.partitions.keys() == ats("orders", 0, 1)
        assert member.stats.failures == 2


def test_a_lasting_error_is_raised_by_each_call(group: Consumergroup) -> None:
    def partitions(_topic: str) -> Any:
        raise LookupError("no broker")

    with Member(group, ["orders"], partitions=partitions, join_backoff=0.05) as member:
        for _ in range(3):
            with pytest.raises(LookupError, match="no broker"):
                member.next_generation(LONGEST)


@pytest.mark.parametrize(("topics", "pattern"), [(["orders", "nope"], None), ((), "nope.*")])
def test_a_missing_topic_is_reported_once(
    run: Run, orders: Partitions, topics: Any, pattern: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        one = run(topics, pattern=pattern, reconcile_every=0.05)
        one.until(lambda: one.member.stats.looks > 3)
    [event] = [event for event in one.events if event.kind is EventKind.MISSING]
    assert "nope" in event.detail
    assert "is the chroot right?" in event.detail
    assert sum("is the chroot right?" in record.getMessage() for record in caplog.records) == 1

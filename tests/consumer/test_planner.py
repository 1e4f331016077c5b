"""One member plans for all. When it hangs, or its plan cannot be read, another is made, and only one plan stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from zkgroups import Assignment, Members, Registry, TopicPartition, sticky_assignor
from zkgroups.core.agreement import decode_plan

from .conftest import LONGEST, Run

pytestmark = pytest.mark.zookeeper

OWNERS = "/consumers/billing/owners"
SOON: dict[str, Any] = {"release_timeout": 0.3, "rebalance_timeout": 2.4}  # a planner has 0.8 s
Partitions = frozenset[TopicPartition]


class Hang:
    """Makes the next caller wait until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._armed = False
        self._released = threading.Event()

    def arm(self) -> None:
        self._armed = True

    def here(self) -> None:
        if self._armed:
            self._armed = False
            self.entered.set()
            assert self._released.wait(3 * LONGEST)  # longer than anybody waits for another plan

    def release(self) -> None:
        self._released.set()


hang = Hang()


@pytest.fixture(autouse=True)
def fresh_hang() -> Iterator[None]:
    hang.__init__()  # type: ignore[misc]
    yield
    hang.release()


def sticky_that_may_hang(members: Members) -> Assignment:
    hang.here()
    return sticky_assignor(members)


def test_a_planner_that_hangs_in_a_strategy_is_passed_over_and_its_late_plan_does_not_count(
    run: Run, registry: Registry, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    options = SOON | {"assignors": [sticky_that_may_hang]}
    a, b, c = (run(id=id, **options) for id in "abc")
    for member in (a, b, c):
        member.until(lambda member=member: len(member.member.assignment) == 2)
    version = registry.client.exists(OWNERS).version
    caplog.clear()
    hang.arm()
    c.close()
    assert hang.entered.wait(LONGEST)
    b.until(lambda: len(b.member.assignment) == 3, "the plan of b")
    assert registry.client.exists(OWNERS).version == version + 1
    hang.release()
    a.until(lambda: len(a.member.assignment) == 3, "agreement of a")
    a.until_holding(orders - b.member.assignment)
    assert registry.client.exists(OWNERS).version == version + 1
    passed = [record for record in caplog.records if "skips planner 'a'" in record.getMessage()]
    assert [(record.name, record.levelname) for record in passed] == [("zkgroups.member", "WARNING")]
    assert a.errors == b.errors == []


def test_a_planner_that_hangs_in_a_callback_is_passed_over_and_agrees_when_it_is_back(
    run: Run, orders: Partitions
) -> None:
    options = SOON | {"assignors": ["sticky"]}
    a = run(id="a", on_revoked=lambda _: hang.here(), **options)
    b = run(id="b", **options)
    a.until(lambda: len(a.member.assignment) == 3)
    b.until(lambda: len(b.member.assignment) == 3)
    held = b.member.assignment
    hang.arm()
    c = run(id="c", **options)
    assert hang.entered.wait(LONGEST)
    c.until(lambda: len(c.member.assignment) == 1, "what b has let go of")
    c.close()
    b.until_holding(held)
    hang.release()
    a.until_holding(orders - held)
    assert a.errors == b.errors == []


def test_a_plan_with_a_number_that_is_infinite_is_replaced_and_stops_nobody(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    a = run(id="a", assignors=["sticky"]).until_holding(orders)
    data, _stat = registry.client.get(OWNERS)
    registry.client.set(OWNERS, data.replace(b'["a",0]', b'["a",1e999]'))

    def is_replaced() -> bool:
        found, stat = registry.client.get(OWNERS)
        return stat.version >= 3 and decode_plan(found) is not None

    a.until(is_replaced, "another plan")
    run(id="b", assignors=["sticky"]).until(lambda: len(a.member.assignment) == 3, "the share of b")
    assert a.errors == []

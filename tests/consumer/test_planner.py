"""One member plans for all. If it hangs or its plan is unreadable, another member plans, and only one plan counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from zkgroups import Assignment, Members, Registry, TopicPartition, sticky_assignor
from zkgroups.core.rebalance.members import Stream
from zkgroups.core.rebalance.shared_plan import SharedPlan, decode_plan, encode_plan
from zkgroups.exceptions import InvalidOptionError

from .conftest import LONGEST, Partitions, Run, Running

OWNERS = "/consumers/billing/owners"
SOON: dict[str, Any] = {"release_timeout": 0.3, "rebalance_timeout": 2.4}  # a planner has 0.8 s


class Hang:
    """Blocks the next call of one member until it is released. Others wait until that member is blocked: on a machine
    that stands still, they may skip it before it has begun to plan."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._victim: threading.Thread | None = None
        self._released = threading.Event()

    def arm(self, victim: Running) -> None:
        self._victim = victim.member._thread

    def here(self) -> None:
        if self._victim is threading.current_thread():
            self._victim = None
            self.entered.set()
            assert self._released.wait(3 * LONGEST)  # longer than any member waits for another plan
        elif self._victim is not None:
            assert self.entered.wait(LONGEST)

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


def test_a_planner_that_hangs_in_a_strategy_is_skipped_and_its_late_plan_does_not_count(
    run: Run, registry: Registry, orders: Partitions, caplog: pytest.LogCaptureFixture
) -> None:
    options = SOON | {"assignors": [sticky_that_may_hang]}
    a, b, c = (run(id=id, **options) for id in "abc")
    for member in (a, b, c):
        member.until(lambda member=member: len(member.member.assignment) == 2)
    version = registry.client.exists(OWNERS).version
    caplog.clear()
    hang.arm(a)
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


BAD_PLANS: dict[str, dict[TopicPartition, Stream]] = {
    "empty": {},
    "ghost": {TopicPartition("orders", n): Stream("nobody", 0) for n in range(6)},
    "half": {TopicPartition("orders", n): Stream("a", 0) for n in range(3)},
    "absent topics": {TopicPartition(topic, n): Stream("a", 0) for topic in ("orders", "new") for n in range(6)},
    "absent stream": {TopicPartition("orders", n): Stream("a", 7) for n in range(6)},
}


def test_a_plan_that_does_not_fit_the_group_is_replaced_and_moves_nothing(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    a = run(id="a", assignors=["sticky"]).until_holding(orders)
    for name, assignment in BAD_PLANS.items():
        data, stat = registry.client.get(OWNERS)
        plan = decode_plan(data)
        assert plan is not None
        registry.client.set(OWNERS, encode_plan(SharedPlan(plan.fingerprint, plan.strategy, assignment)))
        a.until(lambda stat=stat: registry.client.exists(OWNERS).version == stat.version + 2, f"a plan after {name}")
        assert registry.client.get(OWNERS)[0] == data
    a.until_holding(orders)
    assert a.member.stats.lost == a.member.stats.interruptions == 0
    assert len(a.generations) == 1
    assert registry.client.get_children(OWNERS) == ["orders"]


class Returned:
    """The result of the strategy below at its next call."""

    value: Any = None


def strategy_that_returns_anything(members: Members) -> Any:
    return Returned.value


def test_an_invalid_plan_of_a_custom_strategy_is_an_error_with_the_reason(
    run: Run, registry: Registry, orders: Partitions
) -> None:
    for bad in (None, dict.fromkeys(orders, ("a", 0)), {at: Stream("a", 0) for at in sorted(orders)[:2]}):
        Returned.value = bad
        a = run(id="a", assignors=[strategy_that_returns_anything])
        assert "it returned a plan that cannot be used: it " in str(a.until_error(InvalidOptionError))
        assert a.member.assignment == frozenset()
        a.close()
    Returned.value = dict.fromkeys(orders, Stream("a", 0))
    run(id="a", assignors=[strategy_that_returns_anything]).until_holding(orders)

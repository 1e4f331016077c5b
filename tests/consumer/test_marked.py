"""Members of a group that a migration has marked: new members get an error, and existing ones continue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkgroups import Consumergroup, Member, Registry, TopicPartition
from zkgroups.core.znodes.migration_mark import MarkState
from zkgroups.exceptions import GroupMigratedError
from zkgroups.testing import expire_session
from zkgroups.zookeeper.admin import migration_marks as marks

from .conftest import Run, ats

pytestmark = pytest.mark.zookeeper

Partitions = frozenset[TopicPartition]


def put(registry: Registry) -> None:
    assert marks.put(registry._context, {"billing": "new"}, plan="p1", state=MarkState.MOVING) == {"billing": None}


def remove(registry: Registry) -> None:
    assert marks.remove(registry._context, ["billing"], plan="p1") == {"billing": None}


def test_a_new_member_of_a_marked_group_gets_an_error_and_registers_nothing(
    registry: Registry, group: Consumergroup, orders: Partitions
) -> None:
    group.create()
    put(registry)
    with Member(group, ["orders"]) as member, pytest.raises(GroupMigratedError, match="as 'new'"):
        next(member.generations())
    assert group.instances() == []


def test_an_existing_member_continues_and_a_second_one_joins_once_the_mark_is_removed(
    registry: Registry, group: Consumergroup, orders: Partitions, run: Run
) -> None:
    first = run(id="a").until_holding(orders)
    put(registry)
    second = run(id="b", join_backoff=0.1)
    second.until_error(GroupMigratedError)
    first.generations[-1].commit({TopicPartition("orders", 0): 7})
    assert first.member.assignment == orders
    assert len(first.generations) == 1
    remove(registry)
    second.until_holding(ats("orders", 3, 4, 5))
    first.until_holding(ats("orders", 0, 1, 2))


def test_a_member_whose_session_expires_under_a_mark_gets_an_error_and_cannot_return(
    registry: Registry, group: Consumergroup, orders: Partitions, run: Run, connect: Callable[..., Registry]
) -> None:
    other = connect()
    member = run(on=other.group("billing"), id="a", join_backoff=0.1).until_holding(orders)
    put(registry)
    expire_session(other.client)
    member.until_error(GroupMigratedError)
    assert group.instances() == []
    assert member.member.assignment == frozenset()

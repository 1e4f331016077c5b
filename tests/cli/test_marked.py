"""A group that a migration has marked: the commands show the mark and respect it."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.znodes.migration_mark import MarkState
from zkgroups.zookeeper.admin import migration_marks as marks

from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper


def test_a_marked_group_is_shown_as_marked_and_cannot_be_joined(
    zkgroups: Zkgroups, registry: Registry, billing: Any
) -> None:
    assert "MOVED-TO" not in zkgroups("groups", "describe", "billing").out
    marks.put(registry._context, {"billing": "accounts"}, plan="p1", state=MarkState.MOVED)
    shown = zkgroups("groups", "describe", "billing")
    assert shown.code == 0
    assert ["accounts", "moved", "p1"] in [line.split()[:3] for line in shown.lines]
    [found] = zkgroups("groups", "describe", "billing", "-o", "json").json["groups"]
    assert found["migration"][0].keys() == {"target", "state", "plan", "since_ms"}
    claimed = zkgroups("claim", "billing", "orders", "1", "--force")
    assert (claimed.code, claimed.out) == (4, "")
    assert "was moved to Kafka's own offsets as 'accounts', by plan p1" in claimed.err
    assert sorted(instance.id for instance in billing.instances()) == ["anna", "ben"]


def test_an_unreadable_mark_is_shown_with_the_other_unreadable_nodes(
    zkgroups: Zkgroups, registry: Registry, billing: Any
) -> None:
    registry.client.create("/consumers/billing/migration", b"who was this?")
    shown = zkgroups("groups", "describe", "billing")
    assert "/consumers/billing/migration" in shown.out
    assert "MOVED-TO" not in shown.out


def test_offsets_of_a_marked_group_change_only_with_force(zkgroups: Zkgroups, registry: Registry) -> None:
    group, at = registry.group("invoices"), TopicPartition("orders", 0)
    group.offsets.set(at, 50)
    marks.put(registry._context, {"invoices": "accounts"}, plan="p1", state=MarkState.MOVED)
    reset = ("offsets", "reset", "invoices", "--all-topics", "--shift-by", "5", "--execute")
    for command in (("offsets", "set", "invoices", "orders", "0", "60"), reset):
        refused = zkgroups(*command)
        assert refused.code == 4
        assert "group 'invoices' was moved to Kafka's own offsets as 'accounts', by plan p1: change its" in refused.err
        assert group.offsets.fetch(at).offset == 50
    assert zkgroups("offsets", "set", "invoices", "orders", "0", "60", "--force").code == 0
    assert zkgroups(*reset, "--force").code == 0
    assert group.offsets.fetch(at).offset == 65

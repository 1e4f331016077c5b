"""Watches leave no watchers behind in kazoo."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from zkgroups import (
    Consumergroup,
    Registry,
    TopicPartition,
    Watch,
    Watched,
)
from zkgroups.exceptions import ClaimTimeout

from .watching import told, told_many

pytestmark = pytest.mark.zookeeper


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROOT = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{ROOT}/ids", f"{ROOT}/owners", f"{ROOT}/offsets"


def watchers(registry: Registry) -> int:
    """The number of watchers that kazoo keeps."""
    client = registry.client
    return sum(len(found) for each in (client._data_watchers, client._child_watchers) for found in each.values())


def test_kazoo_keeps_one_watcher_per_node_after_many_commits(registry: Registry, group: Consumergroup) -> None:
    with group.watch(Watched.OFFSETS) as offsets:
        for offset in range(1000):
            group.offsets.set(P0, offset)
            if offset % 10 == 0:
                told(offsets)
        while offsets.next(timeout=0.2) is not None:
            pass
        assert watchers(registry) <= 3  # offsets, orders, orders/0


def test_closed_and_garbage_collected_watches_leave_no_watchers_in_kazoo(
    registry: Registry, group: Consumergroup
) -> None:
    group.offsets.set(P0, 5)
    forgotten: list[weakref.ref[Watch]] = []
    for n in range(100):
        offsets = group.watch(Watched.OFFSETS)
        told_many(offsets, 2)
        if n % 2:
            offsets.close()
        forgotten.append(weakref.ref(offsets))
    del offsets
    gc.collect()
    assert watchers(registry) == 3
    assert not any(ref() for ref in forgotten)
    assert len(registry.client.state_listeners) == 3  # of the session, its log, and all watches


def test_waits_that_time_out_leave_no_watchers_in_kazoo(registry: Registry, group: Consumergroup, raw: Any) -> None:
    raw.create(f"{OWNERS}/orders/0", b"other", ephemeral=True, makepath=True)
    me = group.instance("me")
    me.register(["orders"])
    for _ in range(100):
        with pytest.raises(ClaimTimeout):
            me.claim(P0, timeout=0)
        with pytest.raises(ClaimTimeout):
            group.wait_free(P0, timeout=0)
    with pytest.raises(ClaimTimeout):
        group.wait_free(P0, timeout=0.05)
    assert watchers(registry) == 1

"""Clients that commit while a group is moved live."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.znodes.group_route import RouteState
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import RefusedError
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side, move_live
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin.group_routes import read_route
from zkgroups.zookeeper.offsets import Offsets
from zkgroups.zookeeper.session.registry_context import context_of

from .conftest import MakeTopic

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_a_commit_just_after_zookeeper_was_read_is_not_overwritten_by_a_lower_offset(
    registry: Registry,
    broker: KafkaBroker,
    brokers: Brokers,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client ignores the route of the group. Its commit makes the move fail, and a later one refuses it."""
    at = TopicPartition(make_topic(), 0)
    broker.write(at.topic, 0, 300)
    name = f"live-{at.topic}"
    offsets = registry.group(name).offsets
    offsets.set(at, 100)
    assert move_live(name, Side.KAFKA, brokers, registry, execute=True).outcome is MoveOutcome.MOVED
    assert not any(brokers.commit({name: {at: 200}})[name].values())
    fetch_many = Offsets.fetch_many

    def fetch_and_commit(self: Offsets, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CurrentOffset]:
        found = fetch_many(self, partitions)
        monkeypatch.undo()
        self.set(at, 250)
        return found

    def on_step(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            monkeypatch.setattr(Offsets, "fetch_many", fetch_and_commit)

    for words in ("is now 250", r"ZooKeeper has higher offsets: .* \(250 > 200\)"):
        with pytest.raises(RefusedError, match=words):
            move_live(name, Side.ZOOKEEPER, brokers, registry, execute=True, on_step=on_step)
        now = offsets.fetch_many([at])[at]
        assert isinstance(now, CommittedOffset)
        assert now.offset == 250
        assert (route := read_route(context_of(registry), name).route) is not None
        assert route.state is RouteState.KAFKA

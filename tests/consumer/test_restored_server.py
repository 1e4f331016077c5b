"""Failure 19: ZooKeeper is restored from a backup under a running member."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lasting import through_restarts
from tests.restoring import restorable
from zkgroups import EventKind, Registry, TopicPartition

from .conftest import Running, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_failure_19_a_member_starts_over_and_reports_the_offsets_that_went_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with restorable(tmp_path) as server:
        with Registry.connect(server.address) as before:
            plant_topic(before.client, "orders", 2)
            before.group("billing").offsets.set(P0, 10)
        server.back_up()
        with (
            Registry.connect(through_restarts(server.address), session_timeout=20.0) as registry,
            Running(registry.group("billing"), id="anna") as anna,
        ):
            anna.until_holding(frozenset({P0, P1}))
            first = anna.generations[-1]
            assert dict(first.partitions) == {P0: 10, P1: "earliest"}
            first.commit({P0: 100, P1: 7})
            server.restore()
            server.overtake(registry.client.last_zxid)  # with the last proof of the session
            anna.until(lambda: anna.generations[-1] is not first, "another generation")
            anna.until_holding(frozenset({P0, P1}))
            kinds = [event.kind for event in anna.events]
            assert kinds.index(EventKind.LOST) < kinds.index(EventKind.BACK)
            [back] = [event for event in anna.events if event.kind is EventKind.BACK]
            assert back.at == {P0, P1}
            assert "orders/0 from 100 to 10, orders/1 from 7 to nothing; somebody moved them" in back.detail
            assert caplog.text.count("finds that committed offsets went back: orders/0 from 100 to 10") == 1
            assert dict(anna.generations[-1].partitions) == {P0: 10, P1: "earliest"}
            anna.generations[-1].commit({P0: 11})
            assert registry.group("billing").offsets.fetch(P0).offset == 11  # type: ignore[union-attr]
            anna.close()
            assert [event.kind for event in anna.events].count(EventKind.BACK) == 1

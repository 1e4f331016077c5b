"""Every kind of request on releases between the oldest and the newest broker of the other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState, OffsetRange
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker, Server, fresh_chroot

pytestmark = [pytest.mark.soak, pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.timeout(1000)]

ZERO, ONE = (TopicPartition("orders", number) for number in range(2))
WEEK = 7 * 86_400


@pytest.fixture(params=["2.8.2", "3.9.1"])
def between(request: pytest.FixtureRequest, zookeeper: Server) -> Iterator[KafkaBroker]:
    with fresh_chroot(zookeeper) as hosts:
        needed = hosts if request.param.startswith("2.") else None
        with KafkaBroker(release=request.param, zookeeper=needed) as broker:
            broker.create_topic("orders", 2)
            broker.write("orders", 0, 5)
            yield broker


def test_all_requests_are_answered(between: KafkaBroker) -> None:
    wanted = {ZERO: NativeOffset("billing", ZERO, 3, "a note\0", 2), ONE: NativeOffset("billing", ONE, 1)}
    with Brokers.connect(between.address, timeout=60) as brokers:
        assert brokers.partitions(["orders", "none"]) == {"orders": (0, 1)}
        assert brokers.ranges([ZERO, ONE]) == {ZERO: OffsetRange(0, 5), ONE: OffsetRange(0, 0)}
        assert brokers.offsets_at({ZERO: 0, ONE: 0}) == {ZERO: 0, ONE: 0}
        assert brokers.topic_ids(["orders", "none"]).keys() == {"orders"}
        assert (bool(brokers.cluster_id()), brokers.offsets_retention()) == (True, WEEK)

        assert brokers.commit({"billing": wanted}) == {"billing": {ZERO: None, ONE: None}}
        assert brokers.committed(["billing", "none"]) == {"billing": wanted, "none": {}}
        assert brokers.groups(["billing", "none"]) == {
            "billing": NativeGroup("billing", NativeState.EMPTY),
            "none": NativeGroup("none", NativeState.DEAD),
        }
        assert brokers.can_delete_offsets()
        assert brokers.delete_offsets({"billing": [ZERO]}) == {"billing": {ZERO: None}}
        assert brokers.committed(["billing"]) == {"billing": {ONE: wanted[ONE]}}
        assert brokers.delete_groups(["billing"]) == {"billing": None}
        assert brokers.groups(["billing"]) == {"billing": NativeGroup("billing", NativeState.DEAD)}

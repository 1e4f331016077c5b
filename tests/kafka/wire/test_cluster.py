"""A cluster on real brokers: its brokers and topics, and requests to one of them or to any."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.address import Address, addresses
from zkgroups.kafka.wire.cluster import Cluster, Topic
from zkgroups.testing import KafkaBroker

from .conftest import with_cluster

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

UNKNOWN_TOPIC = 3


def test_metadata_has_brokers_and_topics(broker: KafkaBroker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(3)

    async def use(cluster: Cluster) -> None:
        found = await cluster.metadata()
        [(node, address)] = found.brokers.items()
        assert addresses(broker.address) == (address,)
        assert found.controller == node
        assert found.cluster_id
        assert found.topics[topic].leaders == {0: node, 1: node, 2: node}
        assert (found.topics[topic].id is None) == broker.release.startswith("1.")

        some = await cluster.metadata([topic, "none"])
        assert dict(some.topics) == {topic: found.topics[topic], "none": Topic({}, None, UNKNOWN_TOPIC)}
        assert (await cluster.metadata([])).topics == {}
        assert "none" not in (await cluster.metadata()).topics

    with_cluster(broker.address, use)


def test_requests_reach_one_broker_or_any(broker: KafkaBroker) -> None:
    async def use(cluster: Cluster) -> None:
        [node] = (await cluster.metadata([])).brokers
        for where in (node, None):
            found = await cluster.ask(where, codec.ListGroupsRequest(states_filter=[], types_filter=[]))
            assert found.error_code == 0

    with_cluster(broker.address, use)


def test_addresses_are_read_as_users_write_them() -> None:
    assert addresses("[::1]:1, SSL://a:2,a:2") == (Address("::1", 1), Address("a", 2))

"""The addresses of brokers in answers, and the ports of brokers at the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from zkgroups.core.znodes.own_nodes import CoordinatorNode
from zkgroups.exceptions import InvalidOptionError
from zkgroups.gateway.connections import upstream
from zkgroups.gateway.connections.upstream import BrokerAddresses, OtherGateways
from zkgroups.gateway.protocol.addresses import (
    NodePorts,
    add_gateways,
    addresses_at,
    brokers_in,
    hide_address_settings,
    replace_addresses,
)
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.errors import Address

REAL = Address("kafka1.internal", 9092)
OURS = {1: Address("gateway", 19101), 2: Address("gateway", 19102)}


def written(answer: Any, version: int) -> bytes:
    return codec.encode_answer(answer, version, 1)


def metadata() -> Any:
    kind = codec.MetadataResponse.MetadataResponseBroker
    brokers = [kind(node_id=node, host=REAL.host, port=REAL.port) for node in (1, 2, 3)]
    return codec.MetadataResponse(brokers=brokers, topics=[])


def cluster() -> Any:
    kind = codec.DescribeClusterResponse.DescribeClusterBroker
    brokers = [kind(broker_id=node, host=REAL.host, port=REAL.port) for node in (1, 2, 3)]
    return codec.DescribeClusterResponse(error_code=0, cluster_id="c", brokers=brokers)


@pytest.mark.parametrize(("make", "versions"), [(metadata, range(14)), (cluster, range(3))])
def test_every_broker_gets_the_address_of_the_gateway_or_is_removed(make: Any, versions: range) -> None:
    for version in versions:
        answer = codec.decode_answer(make().API_KEY, version, written(make(), version)[4:])
        assert brokers_in(answer) == dict.fromkeys((1, 2, 3), REAL)

        replace_addresses(answer, OURS)

        assert brokers_in(answer) == OURS
        assert REAL.host.encode() not in written(answer, version)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(
    ("node", "error", "found"), [(1, 0, (1, 0)), (3, 0, (-1, 15)), (-1, 15, (-1, 15)), (1, 30, (-1, 30))]
)
def test_a_coordinator_gets_the_address_of_the_gateway_or_is_not_available(
    version: int, node: int, error: int, found: tuple[int, int]
) -> None:
    fields = {"node_id": node, "error_code": error, "host": REAL.host, "port": REAL.port}
    if version < 4:
        made = codec.FindCoordinatorResponse(**fields)
    else:
        made = codec.FindCoordinatorResponse(
            coordinators=[codec.FindCoordinatorResponse.Coordinator(key="g", **fields)]
        )
    answer = codec.decode_answer(codec.FIND_COORDINATOR, version, written(made, version)[4:])

    replace_addresses(answer, OURS)

    entry = answer if version < 4 else answer.coordinators[0]
    assert (entry.node_id, entry.error_code) == (found if version or not error else (found[0], error))
    assert Address(entry.host, entry.port) == OURS.get(entry.node_id, Address("", -1))
    assert REAL.host.encode() not in written(answer, version)


def test_settings_of_brokers_that_contain_addresses_lose_their_values() -> None:
    kind = codec.DescribeConfigsResponse.DescribeConfigsResult
    setting, synonym = kind.DescribeConfigsResourceResult, kind.DescribeConfigsResourceResult.DescribeConfigsSynonym
    secret = [
        *("listeners", "advertised.listeners", "listener.name.internal.advertised.listeners", "host.name"),
        *("advertised.host.name", "port", "advertised.port", "controller.quorum.voters", "zookeeper.connect"),
        "controller.quorum.bootstrap.servers",
    ]

    def settings() -> list[Any]:
        others = [synonym(name="advertised.listeners", value=str(REAL), source=1)]
        return [
            setting(name=name, value=str(REAL), read_only=False, is_sensitive=False, synonyms=others)
            for name in (*secret, "log.dirs")
        ]

    results = [kind(error_code=0, resource_type=type, resource_name="1", configs=settings()) for type in (2, 4)]
    answer = codec.DescribeConfigsResponse(results=results)

    hide_address_settings(answer)

    of_topic, of_broker = answer.results
    assert {each.value for each in of_topic.configs} == {str(REAL)}
    assert {each.name: each.value for each in of_broker.configs if each.value is not None} == {"log.dirs": str(REAL)}
    assert [each.value for each in of_broker.configs[-1].synonyms] == [None]


def test_the_port_of_a_broker_depends_only_on_its_id() -> None:
    ports = NodePorts(19100, 19109)
    assert [ports.port(node) for node in (0, 9, 10, 1001)] == [19100, 19109, 19100, 19101]
    assert ports.conflicts([0, 5, 10, 15, 25]) == {10: 0, 15: 5, 25: 5}


@pytest.mark.parametrize(("first", "last"), [(0, 10), (10, 9), (60_000, 70_000)])
def test_an_impossible_range_of_ports_is_refused(first: int, last: int) -> None:
    with pytest.raises(InvalidOptionError):
        NodePorts(first, last)


def test_a_broker_without_a_port_is_reported_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    taken = {19103}

    async def open_listener(_node: int, port: int) -> None:
        if port in taken:
            raise OSError("address already in use")

    async def use() -> None:
        known = BrokerAddresses(NodePorts(19100, 19109), "gateway", open_listener)
        brokers = dict.fromkeys((1, 3, 11), REAL)
        for _ in range(3):
            assert await known.replace(brokers, "127.0.0.1") == {1: Address("gateway", 19101)}
        assert [record.getMessage() for record in caplog.records] == [
            "clients cannot reach broker 11: broker 1 has the same port: choose a wider range with --broker-ports",
            "clients cannot reach broker 3: cannot listen on port 19103: address already in use; "
            "choose others with --broker-ports",
        ]
        taken.clear()
        await known.replace(brokers, "127.0.0.1")
        assert known.known("127.0.0.1") == {1: Address("gateway", 19101), 3: Address("gateway", 19103)}
        assert await known.replace({1: REAL}, "127.0.0.1") == known.known("") == {1: Address("gateway", 19101)}

    asyncio.run(use())


def test_another_gateway_has_an_address_for_each_broker_whose_port_is_its_own() -> None:
    other = CoordinatorNode("6f1c", "gateway-1", 19093, 19094)
    assert addresses_at(other, [1, 2, 3]) == {1: Address("gateway-1", 19094), 2: Address("gateway-1", 19093)}
    assert addresses_at(CoordinatorNode("6f1c"), [1, 2]) == {}


def test_a_client_sees_the_gateways_to_which_it_was_sent_and_others_do_not() -> None:
    others = OtherGateways()
    first, second = Address("gateway-1", 19094), Address("gateway-2", 19094)
    ids = [others.add(("/10.0.0.7", "app"), each) for each in (first, second)]
    answer = metadata()
    add_gateways(answer, others.of(("/10.0.0.7", "app")))
    assert {each.node_id: Address(each.host, each.port) for each in answer.brokers[3:]} == dict(
        zip(ids, (first, second), strict=True)
    )
    assert min(ids) >= 2**30
    assert others.of(("/10.0.0.7", "tool")) == others.of(("/10.0.0.8", "app")) == {}


def test_only_the_last_clients_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_MOST_CLIENTS", 2)
    others = OtherGateways()
    for name in ("a", "b", "a", "c"):
        others.add(("host", name), Address("gateway-1", 19094))
    assert [bool(others.of(("host", name))) for name in "abc"] == [True, False, True]

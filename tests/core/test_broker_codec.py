"""The formats of Kafka's own nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zkgroups.core.znodes.broker_codec import decode_broker, decode_topic
from zkgroups.core.znodes.values import (
    Broker,
    Topic,
)

from .assertions import malformed


def test_a_topic_is_decoded_with_partitions_sorted_as_numbers() -> None:
    data = b'{"version":1,"partitions":{"10":[1],"2":[2,1],"0":[1]}}'
    assert decode_topic("/p", "t6", data) == Topic("t6", (0, 2, 10))


@pytest.mark.parametrize(
    "data",
    [b"", None, b"t6", b"[]", b"{}", b'{"partitions":[0]}', b'{"partitions":{"x":[1]}}', b'{"partitions":{"01":[1]}}'],
)
def test_a_topic_with_invalid_partitions_is_malformed(data: bytes | None) -> None:
    malformed(decode_topic("/p", "t6", data), "/p", data or b"")


def test_a_broker_is_decoded_with_an_address_or_only_endpoints() -> None:
    data = b'{"jmx_port":-1,"host":"kafka1","timestamp":"1","port":9092,"version":4,"endpoints":["PLAINTEXT://kafka1:9092"]}'
    assert decode_broker("/p", "7", data) == Broker(7, "kafka1", 9092, ("PLAINTEXT://kafka1:9092",))
    data = b'{"host":null,"port":-1,"version":4,"endpoints":["SSL://kafka1:9093","SASL_SSL://kafka1:9094"]}'
    assert decode_broker("/p", "7", data) == Broker(7, None, None, ("SSL://kafka1:9093", "SASL_SSL://kafka1:9094"))


@pytest.mark.parametrize(
    "fields",
    [
        {"host": 5, "port": "9092", "endpoints": {}},
        {"host": "", "port": True, "endpoints": [None, 1, [], ""]},
        {"host": "\ud800", "port": 65536, "endpoints": ["\udfff"]},
    ],
)
def test_invalid_broker_addresses_are_ignored(fields: dict[str, Any]) -> None:
    assert decode_broker("/p", "7", json.dumps(fields).encode()) == Broker(7, None, None, ())


@pytest.mark.parametrize(("name", "data"), [("7", b""), ("7", b"[]"), ("7", b"\xff"), ("x", b"{}"), ("07", b"{}")])
def test_an_invalid_broker_node_is_malformed(name: str, data: bytes) -> None:
    malformed(decode_broker("/p", name, data), "/p", data)

"""The formats of Kafka's own nodes: topics and brokers. zkgroups only reads them."""

from __future__ import annotations

from .decoding import DecodingError, decode_text, is_int, is_text, parse_json
from .names import parse_partition
from .values import Broker, MalformedNode, Topic


def decode_topic(path: str, name: str, data: bytes | None) -> Topic | MalformedNode:
    """Decode the node `/brokers/topics/<name>`."""
    raw = data or b""
    try:
        fields = parse_json(decode_text(raw))
        partitions = fields.get("partitions") if isinstance(fields, dict) else None
        if not isinstance(partitions, dict):
            raise DecodingError("no partitions")
        numbers = [parse_partition(partition) for partition in partitions]
        if None in numbers:
            raise DecodingError("a partition that is not a number")
        return Topic(name, tuple(sorted(number for number in numbers if number is not None)))
    except DecodingError as reason:
        return MalformedNode(path, raw, str(reason))


def decode_broker(path: str, name: str, data: bytes | None) -> Broker | MalformedNode:
    """Decode the node `/brokers/ids/<name>`."""
    raw = data or b""
    try:
        fields = parse_json(decode_text(raw))
        number = parse_partition(name)
        if number is None or not isinstance(fields, dict):
            raise DecodingError("not the registration of a broker")
    except DecodingError as reason:
        return MalformedNode(path, raw, str(reason))
    host, port, endpoints = fields.get("host"), fields.get("port"), fields.get("endpoints")
    return Broker(
        number,
        host if is_text(host) else None,
        port if is_int(port) and 0 < port < 65536 else None,
        tuple(endpoint for endpoint in endpoints if is_text(endpoint)) if isinstance(endpoints, list) else (),
    )

"""Version 0 of Kafka's requests for offsets, which brokers keep in ZooKeeper. Current clients no longer have it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from struct import pack, unpack_from

from zkgroups import TopicPartition

_COMMIT, _FETCH = 8, 9
_TIMEOUT = 30.0


def commit(address: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit these offsets through a broker."""
    for at, offset in offsets.items():
        committed = _text(at.topic) + pack(">iiq", 1, at.partition, offset) + _text("")
        answer = _request(address, _COMMIT, _text(group) + pack(">i", 1) + committed)
        _one, partition, error = unpack_from(">iih", answer, 4 + 2 + len(at.topic))
        assert (partition, error) == (at.partition, 0)


def fetch(address: str, group: str, at: TopicPartition) -> int:
    """Return the offset that a broker has for a partition; -1 if it has none."""
    answer = _request(address, _FETCH, _text(group) + pack(">i", 1) + _text(at.topic) + pack(">ii", 1, at.partition))
    offset: int
    _one, _partition, offset = unpack_from(">iiq", answer, 4 + 2 + len(at.topic))
    return offset


def _text(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode()


def _request(address: str, api: int, body: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    request = pack(">hhi", api, 0, 7) + _text("old") + body
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT) as connection, connection.makefile("rb") as file:
        connection.sendall(pack(">i", len(request)) + request)
        [length] = unpack_from(">i", file.read(4))
        return file.read(length)[4:]

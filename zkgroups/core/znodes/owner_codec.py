"""The format of owner nodes, and which partition the path of an owner node names."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from ...exceptions import InvalidNameError, InvalidOptionError
from .decoding import DecodingError, decode_text
from .names import check_instance
from .offset_codec import decode_offset_path
from .topic_partition import TopicPartition
from .values import MalformedNode, Owner

MAX_STREAM: Final = 2**31 - 1
_PYKAFKA_TOPIC = re.compile(r"""b(['"])([a-zA-Z0-9._-]{1,249})\1""")
_PYKAFKA_PARTITION = re.compile(r"-?[0-9]+-([0-9]+)")


def encode_owner(instance: str, stream: int | None = None) -> bytes:
    """Encode an owner: the bare id, which kazoo-go compares as a whole, or the id with a stream number, as in Scala.

    >>> encode_owner("h:1"), encode_owner("h:1", 0)
    (b'h:1', b'h:1-0')
    """
    if stream is None:
        return check_instance(instance).encode()
    if isinstance(stream, bool) or not isinstance(stream, int) or not 0 <= stream <= MAX_STREAM:
        raise InvalidOptionError("stream", stream, "it must be a whole number, 0 or more")
    return check_instance(f"{instance}-{stream}").encode()


def decode_owned_topic(name: str) -> str:
    """Return the topic of the directory `owners/<name>`, which pykafka members name differently.

    >>> decode_owned_topic("b'orders'"), decode_owned_topic("orders")
    ('orders', 'orders')
    """
    pykafka = _PYKAFKA_TOPIC.fullmatch(name)
    return pykafka[2] if pykafka else name


def decode_owner_path(topic: str, name: str) -> TopicPartition | None:
    """Return the partition of `owners/<topic>/<name>`, which pykafka members name differently; None if invalid.

    >>> decode_owner_path("b'orders'", "1001-3")
    TopicPartition(topic='orders', partition=3)
    """
    topic = decode_owned_topic(topic)
    if by_leader := _PYKAFKA_PARTITION.fullmatch(name):
        name = by_leader[1]
    return decode_offset_path(topic, name)


def decode_owner(
    path: str,
    at: TopicPartition | None,
    data: bytes | None,
    *,
    session: int,
    claimed_at: datetime | None = None,
    version: int = 0,
    czxid: int = 0,
) -> Owner | MalformedNode:
    """Decode an owner node. `at` is the partition that its path names, None if it does not name a partition."""
    raw = data or b""
    try:
        text = decode_text(raw)
        if at is None:
            raise DecodingError("its name is not a partition")
        if not session:
            raise DecodingError("it belongs to no session, so no session's end will delete it")
        owner = check_instance(text)
    except (DecodingError, InvalidNameError) as reason:
        return MalformedNode(path, raw, str(reason), session, version, claimed_at)
    return Owner(at, owner, session, claimed_at, version, czxid, path)

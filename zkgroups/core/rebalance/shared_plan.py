"""How the members of a group agree on one assignment without talking to each other.

All members read the same nodes: the registrations, the topics and their partitions (`Roster`). The member with the
lowest id decides the strategy: the first one in its list that every member supports (`agreed_strategy`). Other clients
do not announce strategies. zkgroups expects them to use `range`, or the strategy given as `foreign_assignor`.

`range` and `roundrobin` depend only on the roster, so each member computes its own share, as Scala members do. Any
other strategy may depend on the current owners, which change during a rebalance. With such a strategy, the member with
the lowest id plans for all. It writes the plan into the group's `owners` node, if the node still has the version that
it read. So there is one plan at a time, and its zxid is its unique number. A plan contains the fingerprint of its
roster. A member that sees another roster waits for the next plan. Any client can write to the node, so members follow a
plan only if it gives every partition to a stream that may read it (`invalid_reason`). They replace any other plan.

A planner may hang in a user's callback or strategy. If it has not replaced the plan within a third of
`rebalance_timeout`, the waiting members skip it, and the member with the next higher id plans. If that does not help,
they skip two more, then four, and so on (`PlannerElection`). Then several members may plan at the same time. Each
writes only if the plan still has the version that it read. So one write succeeds, and all members follow that plan.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..znodes.names import parse_partition
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Registration
from .members import Assignment, Members, Stream

DEFAULT_STRATEGY: Final = "range"
"""Used if the zkgroups members have no strategy in common, and expected of members of other clients."""

LARGEST_UNCOMPRESSED: Final = 4_096
"""In bytes. Larger plans are compressed, because the server's limit (`jute.maxbuffer`) may be low."""

LARGEST_DECOMPRESSED: Final = 64 * 1024 * 1024
"""In bytes. A plan that would be larger is malformed."""


def agreed_strategy(participants: Mapping[str, Registration], *, foreign: str = DEFAULT_STRATEGY) -> str:
    """Return the strategy of a group: the first in the list of the lowest id that all participants support.

    >>> from zkgroups import Dialect
    >>> ours = Registration({"t": 1}, assignors=("sticky", "range"))
    >>> agreed_strategy({"a": ours, "b": Registration({"t": 1}, assignors=("range", "sticky"))})
    'sticky'
    >>> agreed_strategy({"a": ours, "scala": Registration({"t": 1}, dialect=Dialect.SCALA)})
    'range'
    """
    announced = [participants[id].assignors or (foreign,) for id in sorted(participants)]
    for name in announced[0] if announced else ():
        if all(name in names for names in announced):
            return name
    return DEFAULT_STRATEGY if all(one.assignors for one in participants.values()) else foreign


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """An assignment that one member computed for the whole group, and the fingerprint of the roster that it used."""

    fingerprint: str
    strategy: str
    assignment: Mapping[TopicPartition, Stream] = field(default_factory=dict)

    def matches(self, fingerprint: str, strategy: str) -> bool:
        """True if the plan was made from a roster with this fingerprint, by this strategy."""
        return self.fingerprint == fingerprint and self.strategy == strategy


def invalid_reason(assignment: object, members: Members) -> str | None:
    """Return why this assignment cannot be the plan for these members; None if it can.

    >>> members = Members({"a": {"orders": 1}}, {"orders": [0, 1]})
    >>> invalid_reason({TopicPartition("orders", 0): Stream("a", 0)}, members)
    'it gives 1 of 2 partitions to a stream'
    """
    if not isinstance(assignment, Mapping):
        return f"it is not a mapping but {type(assignment).__name__}"
    numbers = {topic: frozenset(members.partitions[topic]) for topic in members.topics}
    readers = {topic: dict(members.readers(topic)) for topic in numbers}
    for at, stream in assignment.items():
        if not (isinstance(at, TopicPartition) and isinstance(stream, Stream)):
            return f"it has {at!r:.100}: {stream!r:.100}, which is not a TopicPartition with a Stream"
        if at.partition not in numbers.get(at.topic, ()):
            return f"it has {str(at)!r:.100}, which is not a partition that a member subscribes to"
        if not _is_number(stream.number) or not 0 <= stream.number < readers[at.topic].get(stream.instance, 0):
            return f"it gives {at} to {str(stream)!r:.100}, which is not a stream that reads {at.topic}"
    wanted = sum(map(len, numbers.values()))
    return None if len(assignment) == wanted else f"it gives {len(assignment)} of {wanted} partitions to a stream"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def encode_plan(plan: SharedPlan) -> bytes:
    """Encode a plan: a list of streams, then for each topic its partitions as indexes into that list."""
    streams = sorted(set(plan.assignment.values()))
    position = {stream: number for number, stream in enumerate(streams)}
    topics: dict[str, dict[int, int]] = {}
    for at, stream in sorted(plan.assignment.items()):
        topics.setdefault(at.topic, {})[at.partition] = position[stream]
    fields = {
        "zkgroups": 1,
        "of": plan.fingerprint,
        "strategy": plan.strategy,
        "streams": streams,
        "topics": topics,
    }
    data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return data if len(data) <= LARGEST_UNCOMPRESSED else zlib.compress(data)


def decode_plan(data: bytes) -> SharedPlan | None:
    """Decode a plan. Return None if it is malformed: members replace it.

    >>> at = TopicPartition("orders", 3)
    >>> plan = SharedPlan("f", "sticky", {at: Stream("h:1", 0)})
    >>> decode_plan(encode_plan(plan)) == plan, decode_plan(b"null")
    (True, None)
    """
    try:
        fields: Any = json.loads(_decompressed(data))
        if fields["zkgroups"] != 1:
            return None
        streams = [Stream(_text(instance), _position(number)) for instance, number in fields["streams"]]
        assignment: Assignment = {
            TopicPartition(topic, _number(partition)): streams[_position(position)]
            for topic, partitions in fields["topics"].items()
            for partition, position in partitions.items()
        }
        return SharedPlan(_text(fields["of"]), _text(fields["strategy"]), assignment)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error):
        return None


def _decompressed(data: bytes) -> bytes:
    if not data.startswith(b"x"):  # zlib data starts with it, JSON does not
        return data
    decompressor = zlib.decompressobj()
    found = decompressor.decompress(data, LARGEST_DECOMPRESSED)
    if not decompressor.eof:
        raise ValueError("truncated or too large")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _position(value: object) -> int:
    """Reject infinite numbers, as of 1e999 in JSON, and negative ones, which would count from the end."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("not a position in a list")
    return value


def _number(name: str) -> int:
    found = parse_partition(name)
    if found is None:
        raise ValueError("not a partition")
    return found

"""How the members of a group come to one plan without talking to each other.

All of them read the same nodes: who is registered, for what, and which partitions there are (`Roster`). The strategy is
the first in the list of the lowest id that every member supports (`agreed_strategy`). Members written by others
announce nothing, and are taken to use one strategy only.

`range` and `roundrobin` depend on nothing else, and so every member computes them for itself, as Scala's members do.
Any other strategy may depend on who holds what, which changes while one looks. There the member with the lowest id
plans for all, and writes the plan into the group's `owners` directory, over the version it has read: so there is one
plan at a time, and its zxid is a number that no other plan has. A plan says what it was made from; where that is not
what a member sees, it waits for another. Anybody may write to that node. So a plan counts only if it gives every
partition to a stream that may read it (`misfit`). Any other plan is replaced, like an unreadable one.

A planner may hang in a user's callback or strategy. If it has not replaced the plan within a third of
`rebalance_timeout`, the members that wait for the plan skip it, and the member with the next higher id plans. If that
does not help, they skip two more, then four, and so on (`Planners`). Then several members may plan at the same time.
Each writes only if the plan still has the version that it read. So one write succeeds, and all members follow the plan
that the server has.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..znodes.group_view import RegisteredInstance
from ..znodes.names import parse_partition
from ..znodes.subscription import subscribed_topics
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Dialect, Pattern, Registration, UnreadableNode, unreadable_part
from .members import Assignment, Members, Stream

KNOWN_TO_ALL: Final = "range"
"""What is used where members of ours have nothing in common; beside others it is what those know, which is only one."""


READABLE: Final = 4_096
"""In bytes: a longer plan is compressed, so that it fits where the server's limit (`jute.maxbuffer`) is low."""

LARGEST: Final = 64 * 1024 * 1024
"""In bytes: a plan that would be larger when decompressed is unreadable."""


@dataclass(frozen=True, slots=True)
class Roster:
    """What a plan is made from, as it was at one moment."""

    number: int
    """The zxid of the last change among what is here."""
    ids_zxid: int
    """The zxid of the last change among the names of who is registered."""
    instances: Sequence[RegisteredInstance]
    partitions: Mapping[str, Sequence[int]]
    """Of every topic that exists and that somebody subscribes to."""
    unreadable: Sequence[UnreadableNode] = ()
    """Topics that cannot be read, and so have no partitions here."""
    made: Mapping[str, int] = field(default_factory=dict)
    """The zxid that made each topic: another one is another topic, whatever its name."""

    @property
    def taking_part(self) -> dict[str, Registration]:
        """The instances that share the partitions, by id: all with a subscription that can be read.

        A persistent registration has no client behind it, and gets no partitions. But old clients ignore sessions and
        leave partitions to it. If such clients are in the group, it must count here too, or two members would try to
        claim the same partitions.
        """
        subscribed = {
            instance.id: instance
            for instance in sorted(self.instances, key=lambda instance: instance.id)
            if isinstance(instance.registration, Registration) and instance.registration.streams
        }
        beside_others = any(
            isinstance(each.registration, Registration) and each.registration.dialect is not Dialect.ZKGROUPS
            for each in subscribed.values()
            if not each.persistent
        )
        return {
            id: each.registration
            for id, each in subscribed.items()
            if isinstance(each.registration, Registration) and (beside_others or not each.persistent)
        }

    @property
    def malformed(self) -> list[UnreadableNode]:
        """Registrations that cannot be read or evaluated; zkgroups members share the partitions without them.

        A Scala member among them still shares with all members, and claims the partitions that it computes. Each
        partition has only one owner node, so no two members hold it. But some members may have to wait until the
        subscription is written in another way.
        """
        nodes = (unreadable_part(instance.registration) for instance in self.instances)
        return [node for node in nodes if node is not None]

    @property
    def dialects(self) -> dict[Dialect, list[str]]:
        """Which clients the members are, as far as their registrations tell."""
        found: dict[Dialect, list[str]] = {}
        for id, registration in self.taking_part.items():
            found.setdefault(registration.dialect, []).append(id)
        return found

    def members(self, owners: Mapping[TopicPartition, str] | None = None) -> Members:
        """The same as a strategy takes it."""
        streams = {id: subscribed_topics(one, self.partitions) for id, one in self.taking_part.items()}
        return Members(streams, self.partitions, owners or {})

    @property
    def fingerprint(self) -> str:
        """Short, and another one if anything here is another."""
        members = self.members()
        seen = [
            self.ids_zxid,
            sorted((id, sorted(topics.items())) for id, topics in members.streams.items()),
            sorted((topic, sorted(numbers)) for topic, numbers in self.partitions.items()),
        ]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]


def topics_named(instances: Iterable[RegisteredInstance], existing: Iterable[str]) -> list[str]:
    """The topics that somebody subscribes to, of which a pattern can choose from the existing ones."""
    names = list(existing)
    readable = (one.registration for one in instances if isinstance(one.registration, Registration))
    return sorted({topic for registration in readable for topic in subscribed_topics(registration, names)})


def has_patterns(instances: Iterable[RegisteredInstance]) -> bool:
    """Whether somebody subscribes by a pattern, so that the names of all topics matter."""
    readable = (one.registration for one in instances if isinstance(one.registration, Registration))
    return any(registration.pattern is not Pattern.STATIC for registration in readable)


def agreed_strategy(taking_part: Mapping[str, Registration], *, foreign: str = KNOWN_TO_ALL) -> str:
    """The strategy of a group: the first in the list of the lowest id that everybody supports.

    >>> ours = Registration({"t": 1}, assignors=("sticky", "range"))
    >>> agreed_strategy({"a": ours, "b": Registration({"t": 1}, assignors=("range", "sticky"))})
    'sticky'
    >>> agreed_strategy({"a": ours, "scala": Registration({"t": 1}, dialect=Dialect.SCALA)})
    'range'
    """
    announced = [taking_part[id].assignors or (foreign,) for id in sorted(taking_part)]
    for name in announced[0] if announced else ():
        if all(name in names for names in announced):
            return name
    return KNOWN_TO_ALL if all(one.assignors for one in taking_part.values()) else foreign


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is to have what, as one member has decided for all."""

    fingerprint: str
    strategy: str
    assignment: Mapping[TopicPartition, Stream] = field(default_factory=dict)

    def is_of(self, fingerprint: str, strategy: str) -> bool:
        """Whether it was made from what is there now."""
        return self.fingerprint == fingerprint and self.strategy == strategy


def misfit(assignment: object, members: Members) -> str | None:
    """Return why this assignment cannot be the plan for these members; None if it can.

    >>> members = Members({"a": {"orders": 1}}, {"orders": [0, 1]})
    >>> misfit({TopicPartition("orders", 0): Stream("a", 0)}, members)
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


@dataclass(frozen=True, slots=True)
class AwaitedPlan:
    """The member that has to write a plan, and the version of the plan node that it has to replace."""

    planner: str
    version: int


class Planners:
    """Decide which member has to write the plan, as seen by the member `own`. It has no clock: see `pass_over`.

    Members that hang are skipped in growing steps: one, two, four. A member skips itself only after its own turn. As
    soon as another member writes a plan, all start again with the lowest id. So members that see the group differently
    replace each other's plans only once per time limit.

    >>> planners = Planners("e")
    >>> awaited = planners.awaited("abcde", version=4)
    >>> planners.pass_over(awaited), planners.pass_over(planners.awaited("abcde", version=4))
    (['a'], ['b', 'c'])
    >>> [planners.awaited("abcde", version).planner for version in (4, 5)]
    ['d', 'a']
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._version: int | None = None
        self._in_order: list[str] = []
        self._start_again()

    def _start_again(self) -> None:
        self._passed_over: frozenset[str] = frozenset()
        self._step = 1

    def awaited(self, ids: Iterable[str], version: int) -> AwaitedPlan:
        """The plan to wait for: from the lowest id that was not skipped since the plan node got this version."""
        self._in_order = sorted(ids)
        if version != self._version or self._passed_over.issuperset(self._in_order):
            self._start_again()
        self._version = version
        return AwaitedPlan(next(id for id in self._in_order if id not in self._passed_over), version)

    def pass_over(self, awaited: AwaitedPlan) -> list[str]:
        """Skip a planner that did not write in time, and in a row also those after it. Return the skipped ids.

        None are skipped if the plan node has another version by now.
        """
        if awaited.version != self._version:
            return []
        later = [id for id in self._in_order if id > awaited.planner and id != self._own]
        skipped = [awaited.planner, *later][: 1 if awaited.planner == self._own else self._step]
        self._passed_over |= set(skipped)
        self._step *= 2
        return skipped

    def wrote(self, version: int) -> None:
        """This member has replaced that version. The planners that it skipped stay skipped."""
        if version == self._version:
            self._version = version + 1


def encode_plan(plan: Plan) -> bytes:
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
    return data if len(data) <= READABLE else zlib.compress(data)


def decode_plan(data: bytes) -> Plan | None:
    """Decode a plan. None if it is unreadable: a new plan is made then.

    >>> at = TopicPartition("orders", 3)
    >>> plan = Plan("f", "sticky", {at: Stream("h:1", 0)})
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
        return Plan(_text(fields["of"]), _text(fields["strategy"]), assignment)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error):
        return None


def _decompressed(data: bytes) -> bytes:
    if not data.startswith(b"x"):  # as zlib's data begins, and JSON does not
        return data
    decompressor = zlib.decompressobj()
    found = decompressor.decompress(data, LARGEST)
    if not decompressor.eof:
        raise ValueError("it is cut off, or too large")
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

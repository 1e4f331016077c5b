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

import hashlib
import json
import zlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..znodes.group_description import RegisteredInstance
from ..znodes.registrations import subscribed_topics
from ..znodes.topic_partition import TopicPartition, parse_partition
from ..znodes.values import Dialect, Pattern, Registration, UnreadableNode, unreadable_part
from .members import Assignment, Members, Stream
from .state_machine import Partitions

# The roster: the members and partitions of a group, as one member read them, from which it computes a plan.


@dataclass(frozen=True, slots=True)
class Roster:
    """The input of a plan, read at one moment."""

    number: int
    """The zxid of the last change to anything in the roster."""
    ids_zxid: int
    """The zxid of the last registration or deregistration."""
    instances: Sequence[RegisteredInstance]
    partitions: Mapping[str, Sequence[int]]
    """The partitions of every existing topic with a subscriber."""
    unreadable_topics: Sequence[UnreadableNode] = ()
    """The topics that cannot be read. They have no partitions here."""
    topic_zxids: Mapping[str, int] = field(default_factory=dict)
    """The zxid at which each topic was created. It differs after the topic was deleted and recreated."""

    @property
    def participants(self) -> dict[str, Registration]:
        """The instances that share the partitions, by id: those with a readable subscription.

        A persistent registration has no client behind it, and gets no partitions. But old clients ignore sessions and
        leave partitions to it. If such clients are in the group, it must count here too, or two members would try to
        claim the same partitions.
        """
        subscribed = {
            instance.id: instance
            for instance in sorted(self.instances, key=lambda instance: instance.id)
            if isinstance(instance.registration, Registration) and instance.registration.streams
        }
        beside_other_clients = any(
            isinstance(each.registration, Registration) and not each.registration.dialect.is_of_zkgroups
            for each in subscribed.values()
            if not each.persistent
        )
        return {
            id: each.registration
            for id, each in subscribed.items()
            if isinstance(each.registration, Registration) and (beside_other_clients or not each.persistent)
        }

    @property
    def unreadable_registrations(self) -> list[UnreadableNode]:
        """The registrations that cannot be read or evaluated. zkgroups members share the partitions without them.

        A Scala member among them still shares with all members, and claims the partitions that it computes. Each
        partition has only one owner node, so no two members hold it. But some members may have to wait until the
        subscription is written in another way.
        """
        nodes = (unreadable_part(instance.registration) for instance in self.instances)
        return [node for node in nodes if node is not None]

    @property
    def dialects(self) -> dict[Dialect, list[str]]:
        """The ids of the participants by the client that wrote their registration."""
        found: dict[Dialect, list[str]] = {}
        for id, registration in self.participants.items():
            found.setdefault(registration.dialect, []).append(id)
        return found

    def members(self, owners: Mapping[TopicPartition, str] | None = None) -> Members:
        """Return the input of an assignor."""
        streams = {id: subscribed_topics(one, self.partitions) for id, one in self.participants.items()}
        return Members(streams, self.partitions, owners or {})

    @property
    def fingerprint(self) -> str:
        """A short hash that changes with the members, the topics or the partitions."""
        members = self.members()
        seen = [
            self.ids_zxid,
            sorted((id, sorted(topics.items())) for id, topics in members.streams.items()),
            sorted((topic, sorted(numbers)) for topic, numbers in self.partitions.items()),
        ]
        return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]


def topics_named(instances: Iterable[RegisteredInstance], existing: Iterable[str]) -> list[str]:
    """Return the subscribed topics. Patterns choose from the existing topics."""
    names = list(existing)
    readable = (one.registration for one in instances if isinstance(one.registration, Registration))
    return sorted({topic for registration in readable for topic in subscribed_topics(registration, names)})


def has_patterns(instances: Iterable[RegisteredInstance]) -> bool:
    """True if an instance subscribes by a pattern, so that the names of all topics matter."""
    readable = (one.registration for one in instances if isinstance(one.registration, Registration))
    return any(registration.pattern is not Pattern.STATIC for registration in readable)


# Which member of a group must write the shared plan, and who takes over if it hangs.


@dataclass(frozen=True, slots=True)
class AwaitedPlan:
    """The member that must write the next plan, and the version of the plan node that it must replace."""

    planner: str
    version: int


class PlannerElection:
    """Decides which member must write the plan, from the view of the member `own`. It has no clock: see `skip`.

    Members that hang are skipped in growing steps: one, two, four. A member skips itself only after its own turn. As
    soon as another member writes a plan, all start again with the lowest id. So members that see the group differently
    replace each other's plans only once per time limit.

    >>> planners = PlannerElection("e")
    >>> awaited = planners.awaited("abcde", version=4)
    >>> planners.skip(awaited), planners.skip(planners.awaited("abcde", version=4))
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
        self._skipped: frozenset[str] = frozenset()
        self._step = 1

    def awaited(self, ids: Iterable[str], version: int) -> AwaitedPlan:
        """Return the plan to wait for: by the lowest id that was not skipped since the plan node got this version."""
        self._in_order = sorted(ids)
        if version != self._version or self._skipped.issuperset(self._in_order):
            self._start_again()
        self._version = version
        return AwaitedPlan(next(id for id in self._in_order if id not in self._skipped), version)

    def skip(self, awaited: AwaitedPlan) -> list[str]:
        """Skip a planner that did not write in time; repeatedly, also the planners after it. Return the skipped ids.

        If the plan node has a new version by now, nobody is skipped.
        """
        if awaited.version != self._version:
            return []
        later = [id for id in self._in_order if id > awaited.planner and id != self._own]
        skipped = [awaited.planner, *later][: 1 if awaited.planner == self._own else self._step]
        self._skipped |= set(skipped)
        self._step *= 2
        return skipped

    def wrote(self, version: int) -> None:
        """Note that this member has replaced that version. The planners that it skipped stay skipped."""
        if version == self._version:
            self._version = version + 1


# Which partitions signal the release of other partitions, to save watches.
#
# Waiting for a partition costs a request and a notification. A zkgroups member releases all moving partitions in one
# transaction, so a watch on one of them, the signal, is enough for all of them. Other clients release their
# partitions one by one: there each partition is its own signal.


class ReleaseSignals:
    """The signals that one member waits for.

    >>> signals, one, two, other = ReleaseSignals(), *(TopicPartition("orders", number) for number in (1, 2, 3))
    >>> signals.choose({one: "a", two: "a", other: "b"}) == {two, other}
    True
    >>> signals.released_with(two) == {one, two}, signals.released_with(other) == {other}
    (True, True)
    """

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Partitions] = {}
        """For each signal, the partitions that are released with it."""

    def choose(self, released_together: Mapping[TopicPartition, Hashable]) -> Partitions:
        """Choose one signal from all partitions with the same value.

        It is the last one, because a release that needs several transactions ends with it.
        """
        groups: dict[Hashable, list[TopicPartition]] = {}
        for at, together in released_together.items():
            groups.setdefault(together, []).append(at)
        chosen = {max(group): frozenset(group) for group in groups.values()}
        for at, group in chosen.items():
            self._partitions[at] = self._partitions.get(at, frozenset()) | group
        return frozenset(chosen)

    def released_with(self, signal: TopicPartition) -> Partitions:
        """Return the partitions that are released with a signal, as far as known. Called on kazoo's threads."""
        return self._partitions.pop(signal, frozenset({signal}))

    def without_signal(self, waited_for: Collection[TopicPartition]) -> Partitions:
        """Return the partitions in `waited_for` whose signal is not in it: that signal may never be released."""
        obsolete = [at for at in tuple(self._partitions) if at not in waited_for]  # kazoo's threads remove some
        orphaned = frozenset[TopicPartition]().union(*(self._partitions.pop(at, frozenset()) for at in obsolete))
        return orphaned.intersection(waited_for)


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

"""The roster: the members and partitions of a group, as one member read them, from which it computes a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..znodes.group_view import RegisteredInstance
from ..znodes.subscribed_topics import subscribed_topics
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import Dialect, Pattern, Registration, UnreadableNode, unreadable_part
from .members import Members


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

"""A member without a group: it works on all partitions of its topics."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Unpack

from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, CurrentOffset, Registration
from ..exceptions import InvalidOptionError, NoGroupError
from ..zookeeper.reading.observers import TopicObserver
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import RegistryContext, context_of
from .events import EventKind, MemberStats, Partitions
from .generation import Generation, Offsets
from .group_plan import missing_topics, unreadable_nodes
from .member import BaseMember
from .membership import AnyMembership, GroupLook, RecreatedTopics, Write, with_short_timeout
from .options import LONGEST_DURATION, LoneOptions, Options, subscription, takes


class LoneMembership(AnyMembership):
    """The place of a member without a group. It works on all partitions of its topics, and writes nothing.

    No claim depends on a session or a connection.
    """

    group_name = ""

    def __init__(
        self,
        context: RegistryContext,
        registration: Registration,
        *,
        partitions: Callable[[str], Iterable[int]] | None,
        tell: Callable[[Partitions | None], object],
        stats: MemberStats,
    ) -> None:
        context = with_short_timeout(context)
        super().__init__(context.session)
        self.id = f"{socket.gethostname()}:{uuid.uuid4()}"
        self.timeout = context.timeout
        self._registration = registration
        self._stats = stats
        self._tell = tell
        self._observer = TopicObserver(context, lambda _at: tell(None), partitions)
        self._topics = RecreatedTopics()
        self._held: Partitions = frozenset()
        self._positions: dict[TopicPartition, tuple[int | None, int]] = {}  # the zxid of the topic, and the offset
        self._number = 0
        self._wanted: Partitions = frozenset()

    def __str__(self) -> str:
        return f"{self.id!r} of no group"

    def deregister(self) -> None:
        self._held = frozenset()

    def close(self) -> None:
        self._observer.close()

    def look(self) -> GroupLook:
        """Read the topics, and return all their partitions as wanted. The plan number counts the changes."""
        self._stats.looks += 1
        found = self._observer.topics(self._registration)
        outlived = self._topics.outlived_by(self._held, found.created, found.unreadable)
        existing = (TopicPartition(t, n) for t, numbers in found.partitions.items() for n in numbers)
        wanted = frozenset(filter(self._topics.is_claimable, existing))
        if outlived:
            self._tell(None)  # the recreated topic can be claimed once these are given up
        if wanted != self._wanted:
            self._number, self._wanted = self._number + 1, wanted
        notes = missing_topics(self._registration, found.partitions, found.unreadable)
        notes[EventKind.MALFORMED] = unreadable_nodes(found.unreadable)
        return GroupLook(self._number, dict.fromkeys(wanted, 0), self._held, {}, notes)

    def claim(self, partitions: Partitions) -> Partitions:
        self._held |= partitions
        return partitions

    def release(self, partitions: Partitions) -> None:
        self._held -= partitions

    def writer(self, _partitions: Partitions, /) -> Write:
        def write(_offsets: Offsets, _back_from: Offsets) -> None:
            raise NoGroupError

        return write

    def commit_marked(self, generation: Generation, among: Partitions) -> None:
        """Remember the marked offsets of these partitions: the next generation begins there."""
        kept = among - self._topics.outlived
        for at, offset in generation.marked.items():
            if at in kept:
                self._positions[at] = self._topics.made(at.topic), offset

    def committed(self, partitions: Partitions) -> Mapping[TopicPartition, CurrentOffset]:
        """Return the remembered offsets of these partitions."""
        return {at: self._position(at) for at in partitions}

    def _position(self, at: TopicPartition) -> CommittedOffset | None:
        made, offset = self._positions.get(at, (None, None))
        if offset is None or made != self._topics.made(at.topic):
            return None
        return CommittedOffset(self.group_name, at, offset)

    def topic_zxid(self, topic: str, /) -> int | None:
        return self._topics.made(topic)


class LoneMember(BaseMember):
    """A member that works on all partitions of its topics. It joins no group and writes nothing to ZooKeeper.

    >>> with LoneMember(registry, ["orders"]) as member:  # doctest: +SKIP
    ...     for generation in member.generations():
    ...         generation.start(work)  # as for a `Member`
    ...         generation.wait()

    A new generation begins when partitions or topics appear or disappear. Nothing is committed: the first generation
    begins at `start_at`, each later one at the marked offsets. To continue after a restart, your program must store
    `Generation.marked` itself. `Generation.commit` raises `NoGroupError`.

    It has no claims, so it loses nothing when the session expires. Work goes on without a connection, and changes are
    seen after the reconnect. `on_lost` does not exist. The other options are those of `Member`.
    """

    @takes(LoneOptions)
    def __init__(self, registry: Registry, topics: str | Iterable[str] = (), **options: Unpack[LoneOptions]) -> None:
        if not isinstance(registry, Registry):
            raise InvalidOptionError("registry", registry, "it must be a Registry: Registry.connect(hosts)")
        chosen = Options(rebalance_timeout=LONGEST_DURATION, **options)  # it never waits for others
        stats = MemberStats()
        membership = LoneMembership(
            context_of(registry),
            subscription(topics, chosen),
            partitions=chosen.partitions,
            tell=self._tell_changed,
            stats=stats,
        )
        super().__init__(membership, chosen, stats)

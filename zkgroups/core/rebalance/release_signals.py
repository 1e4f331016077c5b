"""Which partitions signal the release of other partitions, to save watches.

Waiting for a partition costs a request and a notification. A zkgroups member releases all moving partitions in one
transaction, so a watch on one of them, the signal, is enough for all of them. Other clients release their partitions
one by one: there each partition is its own signal.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from ..znodes.topic_partition import TopicPartition
from .events import Partitions


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

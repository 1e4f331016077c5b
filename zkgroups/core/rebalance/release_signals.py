"""Which partitions tell that others are let go, too.

To wait for a partition is a request, and its answer another message. A member of ours lets go of all that is to move in
one transaction: so one partition of those that it holds, the herald, tells of all of them. Others let go of one after
the other, and there each tells of itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeAlias

from ..znodes.topic_partition import TopicPartition

Partitions: TypeAlias = frozenset[TopicPartition]


class Heralds:
    """The heralds of one member.

    >>> heralds, one, two, other = Heralds(), *(TopicPartition("orders", number) for number in (1, 2, 3))
    >>> heralds.choose({one: "a", two: "a", other: "b"}) == {two, other}
    True
    >>> heralds.heard(two) == {one, two}, heralds.heard(other) == {other}
    (True, True)
    """

    def __init__(self) -> None:
        self._tell_of: dict[TopicPartition, Partitions] = {}

    def choose(self, let_go_together: Mapping[TopicPartition, Hashable]) -> Partitions:
        """One of those that have the same value: the last, which is in the last transaction where there are several."""
        groups: dict[Hashable, list[TopicPartition]] = {}
        for at, together in let_go_together.items():
            groups.setdefault(together, []).append(at)
        chosen = {max(group): frozenset(group) for group in groups.values()}
        for at, group in chosen.items():
            self._tell_of[at] = self._tell_of.get(at, frozenset()) | group
        return frozenset(chosen)

    def heard(self, at: TopicPartition) -> Partitions:
        """What is let go with this one, as far as is known. Called on kazoo's threads."""
        return self._tell_of.pop(at, frozenset({at}))

    def left_alone(self, waited_for: Collection[TopicPartition]) -> Partitions:
        """What is waited for, and whose herald is not: it may stay where it is, and tells nothing then."""
        gone = [at for at in self._tell_of if at not in waited_for]
        alone = frozenset[TopicPartition]().union(*(self._tell_of.pop(at, frozenset()) for at in gone))
        return alone.intersection(waited_for)

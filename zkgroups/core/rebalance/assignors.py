"""The assignors by name, and the share of one member in an assignment.

`range` and `roundrobin` compute what Kafka's Scala consumer computes, so zkgroups and Scala members of one group come
to the same result. `sticky` moves as few partitions as possible. Any other `Assignor` works if all members use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..znodes.topic_partition import TopicPartition
from .members import Assignor, Members, Stream
from .range import assign_ranges, range_assignor
from .round_robin import deal_in_rounds, round_robin_assignor
from .sticky import sticky_assignor

ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
}
"""By the names under which members announce them; the first two are Kafka's own names."""

COMPUTED_BY_EACH: Final[Mapping[str, Callable[[Members], Iterable[tuple[str, int, Stream]]]]] = {
    "range": assign_ranges,
    "roundrobin": deal_in_rounds,
}
"""The strategies of the old clients, which depend on nothing but the members. Each member computes its own share."""


def share_of(instance: str, strategy: str, members: Members) -> dict[TopicPartition, int]:
    """Return the partitions of one instance, each with the number of its stream.

    The result is that of `assigned_to` with the whole assignment, at a fraction of the cost. The strategy must be in
    `COMPUTED_BY_EACH`.

    >>> share_of("b", "range", Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(3)}))
    {TopicPartition(topic='t', partition=2): 0}
    """
    partitions = COMPUTED_BY_EACH[strategy](members)
    mine = ((topic, number, stream.number) for topic, number, stream in partitions if stream.instance == instance)
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in sorted(mine)}

"""Pictures made from values, as a sweep makes them, without servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zkgroups.core.health import Limits
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.group_description import GroupView, RegisteredInstance
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import CommittedOffset, MalformedNode, Owner, Registration
from zkgroups.serve.picture.build_group import Rules
from zkgroups.serve.picture.values import Picture, SourceState
from zkgroups.serve.sweeper import ClusterState, ReadGroup

NOW = 1_795_255_543_000
HOSTILE = (
    '<script>alert("x")</script>',
    'a"b\\c',
    "rtl\u202egnp.exe",
    "zero\u200bwidth",
    "naïve & <i>",
    "per%20cent?#",
)
"""Names of groups that want to be markup, labels, addresses, or other names. ZooKeeper only refuses the slash."""


def at(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def view(
    group: str,
    offsets: Mapping[TopicPartition, int] | None = None,
    *,
    members: Mapping[str, Iterable[int]] | None = None,
    topic: str = "orders",
    partitions: int = 3,
    ago_s: float = 5.0,
    unreadable: Iterable[MalformedNode] = (),
    now: int = NOW,
) -> GroupView:
    """A group with members that own partitions of one topic, and with offsets that were committed some time ago."""
    committed = from_ms(int(now - ago_s * 1000))
    instances = tuple(
        RegisteredInstance(name, 100 + number, Registration({topic: 1}), from_ms(now - 90_000))
        for number, name in enumerate(members or {})
    )
    owners = tuple(
        Owner(at(number, topic), name, 100 + session, from_ms(now - 80_000))
        for session, (name, owned) in enumerate((members or {}).items())
        for number in owned
    )
    found = tuple(
        CommittedOffset(group, where, offset, 1000, committed, from_ms(now - 10_000_000))
        for where, offset in (offsets or {}).items()
    )
    known = {topic: tuple(range(partitions))}
    return GroupView(
        group, instances=instances, owners=owners, offsets=found, unreadable=tuple(unreadable), partitions=known
    )


def moved(found: GroupView, state: MarkState = MarkState.MOVED) -> GroupView:
    return replace(found, mark=Mark(found.group, "p1", found.group, state, NOW - 1000))


class Sweeps:
    """A cluster that is swept by hand."""

    def __init__(self, *, brokers: bool = True, limits: Limits | None = None) -> None:
        self.state = ClusterState(Rules(limits or Limits(), asks_brokers=brokers))
        self._brokers = brokers
        self._number = 0

    def sweep(
        self, *views: GroupView, ends: Mapping[TopicPartition, OffsetRange] | None = None, now: int = NOW
    ) -> Picture:
        if ends is not None:
            self.state.ends.partitions = {
                topic: tuple(sorted(each.partition for each in ends if each.topic == topic))
                for topic in {each.topic for each in ends}
            }
            self.state.ends.update(ends, now)
        self.state.replace_all([ReadGroup.of(each) for each in views], None, now)
        self._number += 1
        return Picture(
            self._number,
            "prod",
            SourceState(now),
            SourceState(now) if self._brokers else None,
            live=True,
            groups=self.state.groups,
            topics=self.state.topics,
        )


def log(end: int, *, start: int = 0, partitions: int = 3, topic: str = "orders") -> dict[TopicPartition, OffsetRange]:
    return {at(number, topic): OffsetRange(start, end) for number in range(partitions)}


def mixed() -> Picture:
    """A picture with a group of each kind: healthy, stopped, past the end, moved, unreadable, with hostile names."""
    three = {at(0): 90, at(1): 95, at(2): 100}
    return Sweeps().sweep(
        view("billing", three, members={"anna": [0, 1], "ben": [2]}),
        view("stopped", three, ago_s=7200),
        view("ahead", {at(0): 150}),
        moved(view("gone", three)),
        view("half", {at(0): 100}, members={"anna": [0]}),
        view("bad", unreadable=[MalformedNode("/consumers/bad/offsets/orders/0", b"x", "not a number")]),
        *(view(name.replace("/", "|"), three) for name in HOSTILE),
        ends=log(100),
    )

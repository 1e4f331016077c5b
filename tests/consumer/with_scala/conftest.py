"""Fixtures: members of the Scala consumer and consumers of zkgroups in one group, on a broker of Kafka 1.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.messages.brokers.conftest import group, loop, make_topic, registry
from tests.messages.looping import Loop, LoopProcess, Topic
from zkgroups import Change, CommittedOffset, Consumergroup, TopicPartition, Watched
from zkgroups.testing import KafkaBroker

from ..scala import ScalaConsumer

__all__ = ["group", "loop", "make_topic", "registry"]

Scala = Callable[..., ScalaConsumer]
Ours = Callable[..., Loop]
SHORT = 10.0
"""The session of a process that is killed or suspended: it outlives a machine that stands still for a moment."""


@pytest.fixture
def topic(make_topic: Callable[[int], Topic]) -> Topic:
    """A topic of seven partitions."""
    return make_topic(7)


@pytest.fixture
def scala(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Scala]:
    """Start a Scala member of the group: name, topics, options."""
    with ExitStack() as stack:

        def start(name: str, *args: Any, **options: Any) -> ScalaConsumer:
            member = stack.enter_context(ScalaConsumer(legacy_kafka, group.name, name, *args, **options))
            stack.callback(lambda: print(f"{member}:\n{member.log_tail()}"))
            return member

        yield start


@pytest.fixture
def process(legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic) -> Iterator[Callable[[str], LoopProcess]]:
    """Start a consumer of zkgroups that can be killed: id."""
    with ExitStack() as stack:
        yield lambda id: stack.enter_context(LoopProcess(legacy_kafka, group.name, topic.name, id, session=SHORT))


class OffsetLog:
    """The offsets committed in a group, in order, as far as a watch reports them."""

    def __init__(self, group: Consumergroup) -> None:
        self._seen: dict[TopicPartition, list[int]] = {}
        self._watch = group.watch(Watched.OFFSETS)

    @property
    def fallen(self) -> dict[TopicPartition, list[int]]:
        """The partitions in which an offset went back."""
        return {at: offsets for at, offsets in list(self._seen.items()) if offsets != sorted(offsets)}

    @property
    def last(self) -> dict[TopicPartition, int]:
        """The offset of each partition that has one."""
        return {at: offsets[-1] for at, offsets in list(self._seen.items())}

    def _note(self, change: Change) -> None:
        if isinstance(change.now, CommittedOffset):
            self._seen[change.now.at] = [*self._seen.get(change.now.at, []), change.now.offset]

    def __enter__(self) -> OffsetLog:
        self._watch.follow(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()


@pytest.fixture
def offsets(group: Consumergroup) -> Iterator[OffsetLog]:
    """All offsets committed in the group."""
    with OffsetLog(group) as log:
        yield log

"""Real members of Kafka's Scala high-level consumer, each in a Java process, and functions that wait for states of a
group.

    with ScalaConsumer(legacy_kafka, "billing", "a", {"orders": 2}) as scala:
        settle(registry, group, range_assignor, {scala.id})

Kafka's console consumer has one stream and a pattern. So this starts ScalaMember, a program with the same
`ConsumerConnector`. Janino, which comes with pyspark, compiles it at the start, because the Java of a test machine may
lack a compiler.

A Scala member rebalances for every change of the members, even if its share does not change: it releases everything
and claims it again. So correct owners may still move once more; `still` waits until they no longer do.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.printing_consumer import PrintingProcess
from tests.waiting import LONGEST, eventually
from zkgroups import Consumergroup, Registration, Registry, TopicPartition
from zkgroups.core.rebalance.members import Assignor, Members
from zkgroups.core.znodes.registrations import subscribed_topics
from zkgroups.testing import KafkaBroker
from zkgroups.testing.java import find_java, pyspark_jars
from zkgroups.testing.kafka_broker import release_jars

PROGRAM = Path(__file__).with_name("ScalaMember.java")

_COMPILER = "org.codehaus.janino.SimpleCompiler"
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.showDateTime=true")

# As users have it, but faster: by default it waits two seconds before each retry, and commits once a minute.
_QUICK = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "200",
    "rebalance.backoff.ms": "300",
    "rebalance.max.retries": "20",
    "zookeeper.session.timeout.ms": "20000",
}

AS_IT_COMES = {"rebalance.backoff.ms": "2000", "rebalance.max.retries": "4"}
"""The default settings: four tries, two seconds apart."""

STILL = 1.0
"""In seconds. A rebalance that takes longer counts as finished."""


class Message(NamedTuple):
    """One message as a consumer got it."""

    at: TopicPartition
    offset: int
    text: str


class ScalaConsumer(PrintingProcess):
    """One member. `topics` are the topics that it reads by name, each with its number of streams, or an expression for
    `streams`.

    Its `name` becomes the id `<group>_<name>`. Settings in `config` take precedence over the defaults of this class.
    """

    program = PROGRAM

    def __init__(
        self,
        broker: KafkaBroker,
        group: str,
        name: str,
        topics: Mapping[str, int] | str,
        *,
        streams: int = 1,
        strategy: str = "range",
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.id = f"{group}_{name}"
        self._release = broker.release
        self._chosen = ["pattern", topics, str(streams)] if isinstance(topics, str) else _named(topics)
        self._properties = {
            "zookeeper.connect": broker.zookeeper,
            "group.id": group,
            "consumer.id": name,
            "partition.assignment.strategy": strategy,
            **_QUICK,
            **(config or {}),
        }

    def command(self, folder: Path) -> list[str]:
        jars = os.pathsep.join(map(str, (*release_jars(self._release), *pyspark_jars("janino", "commons-compiler"))))
        java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", jars]
        properties = folder / "consumer.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        return [*java, _COMPILER, str(self.program), self.program.stem, str(properties), *self._chosen]

    @property
    def rebalances(self) -> int:
        """The number of attempts to claim its share."""
        return sum("begin rebalancing consumer" in line for line in self.lines())

    @property
    def gave_up(self) -> bool:
        """Whether it has failed to claim its share as often as it tries."""
        return any("can't rebalance after" in line for line in self.lines())

    @property
    def messages(self) -> list[Message]:
        """The messages that it has read, in order."""
        return [message_of(line) for line in self.lines() if line.startswith("read ")]

    @property
    def texts(self) -> Counter[str]:
        """How often it has read each message."""
        return Counter(message.text for message in self.messages)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of its log."""
        return self._process.tail(lines)

    def stop(self) -> None:
        """Ask it to end: it commits, leaves the group and returns. Raise an error if it does not."""
        if not self.running:
            return
        os.kill(self._process.pid, signal.SIGTERM)
        status = self._process.wait(LONGEST)
        assert status == 128 + signal.SIGTERM, f"{self} ended with status {status}:\n{self.log_tail()}"
        assert "left" in self.lines(), f"{self} has not left:\n{self.log_tail()}"

    def __repr__(self) -> str:
        return f"<ScalaConsumer {self.id}>"


def _named(topics: Mapping[str, int]) -> list[str]:
    return ["topics", *(word for topic, streams in topics.items() for word in (topic, str(streams)))]


def message_of(line: str) -> Message:
    _read, topic, partition, offset, *text = line.split(" ", 4)
    return Message(TopicPartition(topic, int(partition)), int(offset), "".join(text))


# Waiting


def computed(registry: Registry, group: Consumergroup, assignor: Assignor) -> dict[TopicPartition, str]:
    """The contents that the owner nodes should have, computed from the registered members and topics."""
    topics = {name: topic.partitions for name in registry.topics() if (topic := registry.topic(name)) is not None}
    streams = {
        instance.id: subscribed_topics(instance.registration, topics)
        for instance in group.instances()
        if isinstance(instance.registration, Registration)
    }
    return {at: str(stream) for at, stream in assignor(Members(streams, topics)).items()}


def settle(
    registry: Registry, group: Consumergroup, assignor: Assignor, ids: Iterable[str], *, still: float = 0.0
) -> dict[TopicPartition, str]:
    """Wait until exactly these members are registered and own their computed shares, whatever stream of theirs, and
    nothing has moved for a while. Return the owners."""
    await_members(group, ids)
    expected = computed(registry, group, assignor)
    await_owners(group, expected, streams=False)
    if still:
        await_stillness(group, still)
        await_owners(group, expected, streams=False)
    return expected


def await_members(group: Consumergroup, ids: Iterable[str]) -> None:
    """Return once exactly these instances are registered."""
    wanted = set(ids)
    assert eventually(lambda: {each.id for each in group.instances()} == wanted), group.instances()


def await_owners(group: Consumergroup, expected: Mapping[TopicPartition, str], *, streams: bool = True) -> None:
    """Return once the owner nodes have exactly these contents. Without `streams`, their last number does not matter."""
    shown = str if streams else whose
    wanted = {group.paths.owner(at): shown(id) for at, id in expected.items()}
    assert eventually(lambda: {owner.path: shown(owner.id) for owner in group.owners()} == wanted), list(group.owners())


def whose(id: str) -> str:
    """The instance of an owner node that names a stream."""
    return id.rpartition("-")[0]


def await_stillness(group: Consumergroup, seconds: float, counted: Callable[[], object] = lambda: None) -> None:
    """Return once no owner, and nothing that is `counted`, has changed for that long.

    A group that rebalances again and again never has such a time. A last rebalance of a Scala member may still come.
    """
    seen: list[object] = [None, time.monotonic()]

    def stands_still() -> bool:
        now = set(group.owners()), counted()
        if now != seen[0]:
            seen[:] = [now, time.monotonic()]
        return time.monotonic() - seen[1] > seconds  # type: ignore[operator]

    assert eventually(stands_still), seen

"""Real members of Kafka's own high-level consumer, each in a Java process, and waiting for what a group comes to.

    with ScalaConsumer(legacy_kafka, "billing", "a", {"orders": 2}) as scala:
        settle(registry, group, range_assignor, {scala.id})

The console consumer that comes with Kafka has one stream and a pattern. So this starts a program of our own, which is
ScalaMember, with the same `ConsumerConnector` inside. It is compiled as it starts, by Janino, which comes with pyspark:
where tests run there may be a Java that has no compiler.

A Scala member rebalances for each change of the members, one after the other, also where it has its share already: it
lets go of all and takes it again. So owners that are as they should be may move once more; `still` waits until they do
not.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from zkgroups import Change, ChangeKind, Consumergroup, Registration, Registry, TopicPartition, Watched
from zkgroups.core.rebalance.members import Assignor, Members
from zkgroups.core.znodes.subscription import subscribed_topics
from zkgroups.testing import ChildProcess, KafkaBroker
from zkgroups.testing import kafka as brokers
from zkgroups.testing.java import find_java, pyspark_jars

PROGRAM = Path(__file__).with_name("ScalaMember.java")

_COMPILER = "org.codehaus.janino.SimpleCompiler"
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.showDateTime=true")

# As a user would have it, but quicker: by itself it waits two seconds before each new try, and commits once a minute.
_QUICK = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "200",
    "rebalance.backoff.ms": "300",
    "rebalance.max.retries": "20",
    "zookeeper.session.timeout.ms": "4000",
}

# In seconds.
_LEAVING = 20.0
_SETTLING = 40.0


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One message as a consumer got it."""

    at: TopicPartition
    offset: int
    text: str


class ScalaConsumer:
    """
    One member. `topics` are those it reads by name, each with its number of streams, or an expression for `streams`.

    Its `name` becomes the id `<group>_<name>`. What is in `config` goes before what makes it quick.
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
        self._folder: Path | None = None
        self._process: ChildProcess | None = None

    @property
    def running(self) -> bool:
        """Whether the process has not ended; a suspended one runs."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started.pid

    @property
    def rebalances(self) -> int:
        """How often it has tried to take its share."""
        return sum("begin rebalancing consumer" in line for line in self._lines())

    @property
    def messages(self) -> list[Message]:
        """What it has read, in the order in which it said so."""
        return [message_of(line) for line in self._lines() if line.startswith("read ")]

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of its log; nothing where it is closed."""
        return "" if self._process is None else self._process.tail(lines)

    def start(self) -> Self:
        """Start it, and return before it has joined: what it does can be seen in the group."""
        if self.running:
            return self
        jars = os.pathsep.join(map(str, (*brokers._jars(self._release), *pyspark_jars("janino", "commons-compiler"))))
        java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", jars]
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="zkgroups-scala-"))
        properties = self._folder / "consumer.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        command = [*java, _COMPILER, str(self.program), self.program.stem, str(properties), *self._chosen]
        self._process = ChildProcess(command, log=self._folder / "consumer.log", scratch=self._folder)
        return self

    def stop(self) -> None:
        """Ask it to end: it commits, leaves the group and returns; an error if it does not."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGTERM)
        status = self._started.wait(_LEAVING)
        assert status == 128 + signal.SIGTERM, f"{self} ended with status {status}:\n{self.log_tail()}"
        assert "left" in self._lines(), f"{self} has not left:\n{self.log_tail()}"

    def kill(self) -> None:
        """End it at once; it stays in the group until its session ends."""
        self._started.kill()

    def suspend(self) -> None:
        """Let it stand still."""
        self._started.suspend()

    def resume(self) -> None:
        """Let it run on."""
        self._started.resume()

    def close(self) -> None:
        """End it for good and remove what it wrote."""
        if self._process is not None:
            self._process.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = self._folder = None

    @property
    def _started(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError("start the consumer first")
        return self._process

    def _lines(self) -> list[str]:
        # The last line may be half written.
        text = self._started.log.read_text(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ScalaConsumer {self.id}>"


def _named(topics: Mapping[str, int]) -> list[str]:
    return ["topics", *(word for topic, streams in topics.items() for word in (topic, str(streams)))]


def message_of(line: str) -> Message:
    _read, topic, partition, offset, *text = line.split(" ", 4)
    return Message(TopicPartition(topic, int(partition)), int(offset), "".join(text))


# Waiting


def computed(registry: Registry, group: Consumergroup, assignor: Assignor) -> dict[TopicPartition, str]:
    """What the owner nodes should say by what is registered now, of members and of topics."""
    topics = {name: topic.partitions for name in registry.topics() if (topic := registry.topic(name)) is not None}
    streams = {
        instance.id: subscribed_topics(instance.registration, topics)
        for instance in group.instances()
        if isinstance(instance.registration, Registration)
    }
    return {at: str(stream) for at, stream in assignor(Members(streams, topics)).items()}


def settle(
    registry: Registry,
    group: Consumergroup,
    assignor: Assignor,
    ids: Iterable[str],
    *,
    still: float = 0.0,
    streams: bool = True,
    timeout: float = _SETTLING,
) -> dict[TopicPartition, str]:
    """
    Wait until exactly these are registered and own what they should, and have owned it for a while; return it.

    Without `streams` it is enough that each is owned by the right member, whatever the number of its stream.
    """
    deadline = time.monotonic() + timeout
    await_members(group, ids, timeout=timeout)
    expected = computed(registry, group, assignor)
    await_owners(group, expected, streams=streams, timeout=deadline - time.monotonic())
    if still:
        await_stillness(group, still, timeout=deadline - time.monotonic())
        await_owners(group, expected, streams=streams, timeout=deadline - time.monotonic())
    return expected


def await_members(group: Consumergroup, ids: Iterable[str], *, timeout: float = _SETTLING) -> None:
    """Return once exactly these instances are registered."""
    _await(group, Watched.MEMBERS, {group.paths.instance(id): id for id in ids}, timeout)


def await_owners(
    group: Consumergroup,
    expected: Mapping[TopicPartition, str],
    *,
    streams: bool = True,
    timeout: float = _SETTLING,
) -> None:
    """Return once the owner nodes are exactly these, by what is written in them; see `settle`."""
    by_path = {group.paths.owner(at): id for at, id in expected.items()}
    _await(group, Watched.OWNERS, by_path, timeout, shown=str if streams else whose)


def whose(id: str) -> str:
    """The instance that an owner node names with a stream."""
    return id.rpartition("-")[0]


def await_stillness(group: Consumergroup, seconds: float, *, timeout: float = _SETTLING) -> None:
    """Return once no owner has changed for that long."""
    deadline = time.monotonic() + timeout
    with group.watch(Watched.OWNERS) as changes:
        while (change := changes.next(seconds)) is not None:
            assert time.monotonic() < deadline, f"{group} does not stand still after {timeout:g} s: {change}"


def changes_within(group: Consumergroup, seconds: float) -> list[Change]:
    """What happens to the owners from now on, in that time."""
    before = set(group.owners())
    deadline = time.monotonic() + seconds
    found = []
    with group.watch(Watched.OWNERS) as changes:
        while (change := changes.next(max(deadline - time.monotonic(), 0.0))) is not None:
            if change.kind is not ChangeKind.RESCANNED and change.now not in before:
                found.append(change)
    return found


def _await(
    group: Consumergroup,
    what: Watched,
    expected: Mapping[str, str],
    timeout: float,
    *,
    shown: Callable[[str], str] = str,
) -> None:
    wanted = {path: shown(id) for path, id in expected.items()}
    found: dict[str, str] = {}
    deadline = time.monotonic() + timeout
    with group.watch(what) as changes:
        # A watch that has just begun may not have told everything, so that what it told is not enough.
        while found != wanted or {path: shown(id) for path, id in _now(group, what).items()} != wanted:
            change = changes.next(max(deadline - time.monotonic(), 0.0))
            assert change is not None, f"no {what} of {group} are {wanted} after {timeout:g} s, but {found}"
            found.pop(change.path, None)
            if change.now is not None:
                found[change.path] = shown(_id(change.now))


def _now(group: Consumergroup, what: Watched) -> dict[str, str]:
    if what is Watched.OWNERS:
        return {owner.path: _id(owner) for owner in group.owners()}
    return {group.paths.instance(instance.id): _id(instance) for instance in group.instances()}


def _id(node: object) -> str:
    return str(getattr(node, "id", node))

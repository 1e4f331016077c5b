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
from zkgroups.core.znodes.registrations import subscribed_topics
from zkgroups.testing import ChildProcess, KafkaBroker
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

SHORT_SESSION = {"zookeeper.session.timeout.ms": "4000"}
"""Settings of a member that is killed: others wait until its session expires."""

# In seconds, on a busy machine, which takes long to start Java.
_LEAVING = 60.0
_SETTLING = 100.0


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """One message as a consumer got it."""

    at: TopicPartition
    offset: int
    text: str


class ScalaConsumer:
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
        self._folder: Path | None = None
        self._process: ChildProcess | None = None

    @property
    def running(self) -> bool:
        """Whether the process has not ended. A suspended process counts as running."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started.pid

    @property
    def rebalances(self) -> int:
        """The number of attempts to claim its share."""
        return sum("begin rebalancing consumer" in line for line in self._lines())

    @property
    def gave_up(self) -> bool:
        """Whether it has failed to claim its share as often as it tries."""
        return any("can't rebalance after" in line for line in self._lines())

    @property
    def messages(self) -> list[Message]:
        """The messages that it has read, in order."""
        return [message_of(line) for line in self._lines() if line.startswith("read ")]

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of its log; empty once it is closed."""
        return "" if self._process is None else self._process.tail(lines)

    def start(self) -> Self:
        """Start it, and return before it has joined. The group shows its progress."""
        if self.running:
            return self
        jars = os.pathsep.join(map(str, (*release_jars(self._release), *pyspark_jars("janino", "commons-compiler"))))
        java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", jars]
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="zkgroups-scala-"))
        properties = self._folder / "consumer.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        command = [*java, _COMPILER, str(self.program), self.program.stem, str(properties), *self._chosen]
        self._process = ChildProcess(command, log=self._folder / "consumer.log", scratch=self._folder)
        return self

    def stop(self) -> None:
        """Ask it to end: it commits, leaves the group and returns. Raise an error if it does not."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGTERM)
        status = self._started.wait(_LEAVING)
        assert status == 128 + signal.SIGTERM, f"{self} ended with status {status}:\n{self.log_tail()}"
        assert "left" in self._lines(), f"{self} has not left:\n{self.log_tail()}"

    def kill(self) -> None:
        """Kill the process. Its registration stays until the session expires."""
        self._started.kill()

    def suspend(self) -> None:
        """Suspend the process."""
        self._started.suspend()

    def resume(self) -> None:
        """Resume the process."""
        self._started.resume()

    def close(self) -> None:
        """End it and delete its files."""
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
    """The contents that the owner nodes should have, computed from the registered members and topics."""
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
    """Wait until exactly these members are registered and own their computed shares, and nothing has moved for a
    while. Return the owners.

    Without `streams`, the number of the stream of an owner does not matter.
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
    """Return once the owner nodes have exactly these contents; see `settle`."""
    by_path = {group.paths.owner(at): id for at, id in expected.items()}
    _await(group, Watched.OWNERS, by_path, timeout, shown=str if streams else whose)


def whose(id: str) -> str:
    """The instance of an owner node that names a stream."""
    return id.rpartition("-")[0]


def await_stillness(group: Consumergroup, seconds: float, *, timeout: float = _SETTLING) -> None:
    """Return once no owner has changed for that long."""
    deadline = time.monotonic() + timeout
    with group.watch(Watched.OWNERS) as changes:
        while (change := changes.next(seconds)) is not None:
            assert time.monotonic() < deadline, f"{group} does not stand still after {timeout:g} s: {change}"


def await_quiet(
    group: Consumergroup,
    seconds: float,
    counted: Callable[[], object] = lambda: None,
    *,
    timeout: float = _SETTLING,
) -> None:
    """Return after that long without a change of an owner and of what is `counted`.

    A group that rebalances again and again never has such a time. A last rebalance of a Scala member may still come.
    """
    deadline = time.monotonic() + timeout
    while True:
        before = counted()
        changes = changes_within(group, seconds)
        if not changes and counted() == before:
            return
        assert time.monotonic() < deadline, f"{group} never stands still for {seconds:g} s: {changes}, {counted()}"


def changes_within(group: Consumergroup, seconds: float) -> list[Change]:
    """Return the changes of owners during that time."""
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
        # A watch that has just begun may not have reported everything yet.
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

"""Clients of Kafka: librdkafka, kafka-python, and programs in Java, Go and Node.js."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from tests.waiting import LONGEST, eventually
from zkgroups.testing import missing
from zkgroups.testing.java import cache_folder, fetch, find_java, pyspark_jars
from zkgroups.testing.kafka_broker import release_jars, silent_logger

from ..go_programs import built
from ..printing_consumer import PrintingConsumer

_FOLDER = Path(__file__).parent

# librdkafka


class Member:
    """A consumer in a group, and the partitions that it has."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **config: Any) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 200,
        }
        self.consumer = Consumer({**settings, **config}, logger=silent_logger())
        self.partitions: set[int] = set()
        self.revoked: list[int] = []
        self.read: list[tuple[int, int]] = []
        self.errors: list[KafkaError] = []
        self.consumer.subscribe(list(topics), on_assign=self._assign, on_revoke=self._revoke)

    def _assign(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        self.partitions = self.partitions | {each.partition for each in partitions}  # others may iterate over the old

    def _revoke(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        self.partitions = self.partitions - {each.partition for each in partitions}
        self.revoked += [each.partition for each in partitions]

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is None:
            return
        if (error := message.error()) is not None:
            self.errors.append(error)
        else:
            self.read.append((message.partition(), message.offset()))


@contextmanager
def member(*arguments: Any, **config: Any) -> Iterator[Member]:
    found = Member(*arguments, **config)
    try:
        yield found
    finally:
        found.consumer.close()


def settled(*members: Member, shares: set[int]) -> bool:
    """Poll all until their shares have these sizes, in any order, and nothing is shared by two."""

    def done() -> bool:
        for each in members:
            each.poll()
        sizes = {len(each.partitions) for each in members}
        return sizes == shares and len(set().union(*(each.partitions for each in members))) == sum(
            len(each.partitions) for each in members
        )

    return eventually(done)


def administrator(bootstrap: str, **config: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **config}, logger=silent_logger())


def describe(bootstrap: str, group: str) -> Any:
    with administrator(bootstrap) as admin:
        return admin.describe_consumer_groups([group])[group].result(LONGEST)


def offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    with administrator(bootstrap) as admin:
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(LONGEST)
    return {each.partition: each.offset for each in found.topic_partitions if each.topic == topic}


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    request = [ConsumerGroupTopicPartitions(group, [Partition(topic, 0, offset)])]
    with administrator(bootstrap) as admin:
        found = admin.alter_consumer_group_offsets(request)[group].result(LONGEST)
    assert all(each.error is None for each in found.topic_partitions)


def listed(bootstrap: str) -> list[str]:
    with administrator(bootstrap) as admin:
        return [each.group_id for each in admin.list_consumer_groups().result(LONGEST).valid]


@contextmanager
def kafka_python(bootstrap: str, group: str, topic: str) -> Iterator[Any]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        session_timeout_ms=10_000,
    )
    try:
        yield consumer
    finally:
        consumer.close()


# Java


_COMPILER = "org.codehaus.janino.SimpleCompiler"
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error",)

_QUICK = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "session.timeout.ms": "10000",
    "heartbeat.interval.ms": "300",
    "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
}


class JavaConsumer(PrintingConsumer):
    """A KafkaConsumer of a release. It commits after each poll."""

    def __init__(
        self, release: str, bootstrap: str, group: str, *topics: str, config: Mapping[str, str] | None = None
    ) -> None:
        self._release = release
        self._topics = topics
        properties = {"bootstrap.servers": bootstrap, "group.id": group, **_QUICK, **(config or {})}
        self._properties = {key: value for key, value in properties.items() if value}

    def command(self, folder: Path) -> list[str]:
        jars = os.pathsep.join(map(str, (*release_jars(self._release), *pyspark_jars("janino", "commons-compiler"))))
        properties = folder / "client.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", jars, _COMPILER]
        return [*java, str(_FOLDER / "JavaMember.java"), "JavaMember", str(properties), *self._topics]


def consumer_groups(release: str, bootstrap: str, *arguments: str) -> str:
    """Run kafka-consumer-groups.sh, and return what it prints."""
    jars, main = list(release_jars(release)), "kafka.admin.ConsumerGroupCommand"
    if not release.startswith("1."):
        more = ("org.apache.kafka:kafka-tools", "org.apache.kafka:kafka-tools-api")
        jars += fetch(*(f"{name}:{release}" for name in more), dependencies=False)
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
    command = [*java, main, "--bootstrap-server", bootstrap, "--timeout", "60000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONGEST)
    return done.stdout + done.stderr


# Node.js and Go

_VERSION = "kafkajs@2.2.4"
_LONGEST_INSTALL = 300.0


class KafkaJs(PrintingConsumer):
    """A member with kafkajs."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def command(self, _folder: Path) -> list[str]:
        return ["node", str(Path(__file__).with_name("kafkajs.js")), str(installed()), *self._arguments]


@cache
def installed() -> Path:
    """Return the folder of kafkajs. Install it if necessary; other processes wait."""
    folder = cache_folder().with_name("npm") / _VERSION
    module = folder / "node_modules" / "kafkajs"
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("node", "Node.js and npm are not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (module / "package.json").exists():
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), _VERSION]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_INSTALL)
            if done.returncode:
                missing("node", f"{_VERSION} could not be installed:\n{done.stdout}{done.stderr}")
    return module


SOURCES = Path(__file__).parent / "go_members"


class GoConsumer(PrintingConsumer):
    """A member of a group: `client` is franz-go, kafka-go or sarama. It commits what it has read."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str) -> None:
        self._arguments = (client, bootstrap, group, topic)

    def command(self, _folder: Path) -> list[str]:
        return [str(built(SOURCES)), *self._arguments]

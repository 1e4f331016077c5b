"""Kafka's own clients in Java: a consumer, and the tool for groups."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from zkgroups.testing.java import find_java, pyspark_jars
from zkgroups.testing.kafka_releases import release_jars
from zkgroups.testing.maven import fetch

from ..printing_consumer import LONGEST, PrintingConsumer, PrintingProcess

_FOLDER = Path(__file__).parent
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


class JavaClient(PrintingProcess):
    """A program in a process of its own, with the clients of a release."""

    program = ""
    """The name of the class, and of its file."""

    def __init__(self, release: str, properties: Mapping[str, str], *topics: str) -> None:
        self._release = release
        self._topics = topics
        self._properties = {key: value for key, value in properties.items() if value}

    def wait(self) -> list[str]:
        """Wait for its end, and return what it has printed."""
        self._process.wait(LONGEST)
        return self.lines()

    def command(self, folder: Path) -> list[str]:
        jars = os.pathsep.join(map(str, (*release_jars(self._release), *pyspark_jars("janino", "commons-compiler"))))
        properties = folder / "client.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", jars, _COMPILER]
        return [*java, str(_FOLDER / f"{self.program}.java"), self.program, str(properties), *self._topics]


class JavaConsumer(JavaClient, PrintingConsumer):
    """A KafkaConsumer. It commits after each poll."""

    program = "JavaMember"

    def __init__(
        self, release: str, bootstrap: str, group: str, *topics: str, config: Mapping[str, str] | None = None
    ) -> None:
        properties = {"bootstrap.servers": bootstrap, "group.id": group, **_QUICK, **(config or {})}
        super().__init__(release, properties, *topics)


class JavaProducer(JavaClient):
    """A KafkaProducer, which commits transactions and ends."""

    program = "JavaProducer"

    def __init__(self, release: str, bootstrap: str, topic: str) -> None:
        serializer = "org.apache.kafka.common.serialization.StringSerializer"
        names = {"bootstrap.servers": bootstrap, "transactional.id": topic}
        super().__init__(release, names | {"key.serializer": serializer, "value.serializer": serializer}, topic)


def consumer_groups(release: str, bootstrap: str, *arguments: str) -> str:
    """Run kafka-consumer-groups.sh, and return what it prints."""
    jars, main = list(release_jars(release)), "kafka.admin.ConsumerGroupCommand"
    if not release.startswith("1."):
        more = ("org.apache.kafka:kafka-tools", "org.apache.kafka:kafka-tools-api")
        jars += fetch(*(f"{name}:{release}" for name in more), dependencies=False)
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    java = [str(find_java()), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
    command = [*java, main, "--bootstrap-server", bootstrap, "--timeout", "60000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    return done.stdout + done.stderr

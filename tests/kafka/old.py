"""A real broker of a release before 0.10, on the ZooKeeper of a test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lasting import lasting_client
from tests.testing.waiting import eventually
from zkgroups.testing import maven, ports
from zkgroups.testing.child_process import ChildProcess
from zkgroups.testing.java import find_java

_LONGEST = 120.0
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


@contextmanager
def old_broker(release: str, zookeeper: str, folder: Path) -> Iterator[str]:
    """Yield its address. Topic orders has two partitions, and the first of them has seven messages."""
    jars = maven.fetch(f"org.apache.kafka:kafka_2.11:{release}")
    port = ports.reserve()
    settings = {
        "broker.id": "1",
        "host.name": ports.HOST,
        "port": str(port.number),
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": "30000",
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": "2097152",
        "log.index.size.max.bytes": "65536",
    }
    (folder / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = [str(find_java()), *_JVM, "-cp", os.pathsep.join(map(str, jars))]
    command = [*java, "kafka.Kafka", str(folder / "server.properties")]
    try:
        with (
            lasting_client(zookeeper) as client,
            ChildProcess(command, log=folder / "server.log", scratch=folder / "data") as process,
        ):
            assert eventually(lambda: client.exists("/brokers/ids/1"), timeout=_LONGEST), process.tail()
            topic = json.dumps({"version": 1, "partitions": {"0": [1], "1": [1]}}).encode()
            client.create("/brokers/topics/orders", topic, makepath=True)
            address = f"{ports.HOST}:{port.number}"
            _write(address, release)
            yield address
    finally:
        port.release()


def _write(address: str, release: str) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": address, "api.version.request": "false", "broker.version.fallback": release}
    producer = Producer({**settings, "log_level": 0, "message.timeout.ms": int(_LONGEST * 1000)})
    for number in range(7):
        producer.produce("orders", str(number).encode(), partition=0)
    assert producer.flush(_LONGEST) == 0

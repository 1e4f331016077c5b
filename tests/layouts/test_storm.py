"""Storm's own classes write offsets, which zkgroups moves to Kafka: no message is lost or read twice.

The last message, or batch, was emitted but not processed, as when a topology is killed. In ZooKeeper it looks different
for each kind of spout.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.consumer.scala import Message, message_of
from tests.migration.consumers import NativeReader, NumberedProducer, judge
from tests.printing_consumer import LONGEST, PrintingProcess
from zkgroups import CommittedOffset, Registry
from zkgroups.testing import KafkaBroker, ZooKeeperServer
from zkgroups.testing.java import fetch, find_java, pyspark_jars

_RELEASE = "1.0.6"
_PROGRAM = Path(__file__).with_name("StormJob.java")
_COMPILER = "org.codehaus.janino.SimpleCompiler"
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


class StormJob(PrintingProcess):
    """Reads a part of a topic, and ends while one more message, or batch, is not processed yet."""

    def __init__(
        self,
        kind: str,
        zookeeper: str,
        root: str,
        group: str,
        broker: str,
        topic: str,
        *,
        partitions: int,
        topic_in_paths: bool,
        work: int,
    ) -> None:
        self._arguments = [kind, *zookeeper.split(":"), root, group, broker, topic]
        self._arguments += [str(partitions), str(topic_in_paths).lower(), str(work)]

    def command(self, folder: Path) -> list[str]:
        names = (f"org.apache.storm:storm-kafka:{_RELEASE}", f"org.apache.storm:storm-core:{_RELEASE}")
        jars = [*fetch(*names, "org.apache.kafka:kafka_2.11:1.1.1"), *pyspark_jars("janino", "commons-compiler")]
        # Storm's logging reads a configuration from the class path.
        (folder / "log4j2.properties").write_text("rootLogger.level=error\n")
        java = [str(find_java()), *_JVM_OPTIONS, "-cp", os.pathsep.join([str(folder), *map(str, jars)])]
        return [*java, _COMPILER, str(_PROGRAM), _PROGRAM.stem, *self._arguments]

    def processed(self) -> list[Message]:
        """Wait for its end, and return the messages that were processed."""
        self._process.wait(LONGEST)
        lines = self.lines()
        assert "done" in lines, self._process.tail(40)
        return [message_of(line) for line in lines if line.startswith("read ")]


PARTITIONS = 3
GROUP = "orders-spout"

_numbers = itertools.count()


@pytest.mark.parametrize(
    ("kind", "layout", "topic_in_paths", "work"),
    [
        ("spout", "storm", False, 7),
        ("spout", "storm", True, 7),
        ("opaque", "trident", False, 3),
        # With topics in the paths, an opaque spout of this release fails.
        ("transactional", "trident", True, 3),
    ],
)
def test_a_kafka_consumer_continues_where_storm_has_stopped(
    kind: str,
    layout: str,
    topic_in_paths: bool,
    work: int,
    legacy_kafka: KafkaBroker,
    legacy_zookeeper: ZooKeeperServer,
    tmp_path: Path,
) -> None:
    number = next(_numbers)
    topic, root, target = f"storm-{number}", f"/storm/{number}", f"{GROUP}-{number}"
    legacy_kafka.create_topic(topic, PARTITIONS)
    producer = NumberedProducer(topic, PARTITIONS, legacy_kafka.address)
    producer.write(120)
    paths = {"partitions": PARTITIONS, "topic_in_paths": topic_in_paths}
    address = legacy_zookeeper.address
    with StormJob(kind, address, root, GROUP, legacy_kafka.address, topic, work=work, **paths) as job:
        first = job.processed()
    assert len({message.at for message in first}) == PARTITIONS

    ends = {message.at: message.offset + 1 for message in first}
    with Registry.connect(address) as registry:
        found = list(registry.offsets(layout=f"{layout}:{root}"))
    assert {each.at: each.offset for each in found if isinstance(each, CommittedOffset)} == ends

    both = ("-z", address, "-b", legacy_kafka.address)
    chosen = ("--layout", f"{layout}:{root}", "--as", target)
    moved = run(*both, "migrate", "group", GROUP, tmp_path / "plan", *chosen, "--writers-stopped", "--execute")
    assert moved.code == 0, moved
    verified = run(*both, "migrate", "verify", tmp_path / "plan")
    assert (verified.code, verified.lines[1:]) == (0, []), verified

    with NativeReader(legacy_kafka.address, target, topic, PARTITIONS) as native:
        judge(producer.written, first, native.do_all())

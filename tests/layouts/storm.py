"""Storm's own classes in a Java process: its Kafka spout, and Trident's spouts. See StormJob.java."""

from __future__ import annotations

import os
from pathlib import Path

from tests.consumer.scala import Message, message_of
from tests.printing_consumer import LONGEST, PrintingProcess
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

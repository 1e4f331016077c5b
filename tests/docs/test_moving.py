"""The programs of docs/moving.md: the one before and the one after read one topic, one after the other or together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import eventually
from zkgroups import CommittedOffset, Registry
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker
from zkgroups.testing.java import find_java, pyspark_jars
from zkgroups.testing.kafka_broker import release_jars

from ..consumer.pykafka_member import python_with_pykafka
from .guides import ON_BROKERS, Block, blocks, environment

[GUIDE] = ON_BROKERS
PAIRS = [
    (before, after)
    for before, after in zip(blocks(GUIDE), blocks(GUIDE)[1:], strict=False)
    if before.language == "java" or "pykafka import" in before.text or "aiokafka import" in before.text
]
MESSAGES = 30
LONGEST = 100.0

_COMPILER = "org.codehaus.janino.SimpleCompiler"


@dataclass
class Program:
    """A running program of the guide, and the lines that it has printed."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def follow(self) -> None:
        """Collect the lines in the background."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.strip() for line in self.process.stdout)

    @property
    def messages(self) -> list[str]:
        """The lines that are messages: a partition, an offset and a value."""
        return [line for line in self.lines if line[:1].isdigit()]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(LONGEST) in (0, -signal.SIGTERM, 128 + signal.SIGTERM), self.lines


def command(block: Block, file: Path, broker: KafkaBroker) -> list[str]:
    if block.language == "java":
        jars = os.pathsep.join(map(str, (*release_jars(broker.release), *pyspark_jars("janino", "commons-compiler"))))
        return [str(find_java()), "-Xmx128m", "-cp", jars, _COMPILER, str(file), file.stem]
    python = python_with_pykafka() if "pykafka" in block.text else sys.executable
    return [str(python), "-W", "ignore", str(file)]


@contextmanager
def running(block: Block, folder: Path, broker: KafkaBroker, topic: str) -> Iterator[Program]:
    """Run a program with the addresses, the topic and the group of the test."""
    file = folder / ("Billing.java" if block.language == "java" else f"program-{block.line}.py")
    text = block.text.replace("zk1:2181,zk2:2181/kafka", broker.zookeeper).replace("kafka1:9092", broker.address)
    file.write_text(text.replace('"orders"', f'"{topic}"').replace('"billing"', f'"{topic}"'))
    with subprocess.Popen(
        command(block, file, broker), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        program = Program(process)
        program.follow()
        try:
            yield program
        finally:
            process.kill()


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=["Scala", "pykafka", "aiokafka"])
def test_the_new_program_continues_where_the_old_one_has_stopped(
    before: Block, after: Block, legacy_kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"moving-{before.line}"
    legacy_kafka.create_topic(topic, 2)
    written = {f"{at} {offset} {offset % MESSAGES}" for at in range(2) for offset in range(2 * MESSAGES)}
    write(legacy_kafka, topic)
    with running(before, tmp_path, legacy_kafka, topic) as old:
        assert eventually(lambda: len(set(old.messages)) == len(written) / 2), old.lines
        if "auto_commit_interval_ms" in before.text:  # pykafka commits nothing at SIGTERM
            assert eventually(lambda: committed(legacy_kafka, topic) == len(written) / 2)
        old.stop()
    done = committed(legacy_kafka, topic)
    assert done >= len(written) / 2 - 1
    with running(after, tmp_path, legacy_kafka, topic) as new:
        write(legacy_kafka, topic)
        assert eventually(lambda: {*old.messages, *new.messages} == written), new.lines
        new.stop()
    assert len(new.messages) == len(written) - done
    assert committed(legacy_kafka, topic) >= len(written) - 1  # the last message may be in hand


def write(broker: KafkaBroker, topic: str) -> None:
    for partition in range(2):
        broker.write(topic, partition, MESSAGES)


def committed(broker: KafkaBroker, group: str) -> int:
    """The sum of the committed offsets, on the side where they are."""
    with Registry.connect(broker.zookeeper) as registry, Brokers.connect(broker.address) as brokers:
        on_brokers = brokers.committed([group])[group].values()
        in_zookeeper = [found for found in registry.group(group).offsets if isinstance(found, CommittedOffset)]
        return sum(found.offset for found in on_brokers) or sum(found.offset for found in in_zookeeper)

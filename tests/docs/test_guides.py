"""The guides that need ZooKeeper only, and the consumers of docs/consumers.md with a broker.

The guides that need Spark are run in tests/spark/test_guides.py.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import KafkaBroker, Server

from ..cli.running import hear_ctrl_c, interrupt
from .guides import (
    FOREGROUND,
    GUIDES,
    ON_BROKERS,
    ON_SPARK,
    ON_ZOOKEEPER,
    Block,
    Runner,
    assert_printed,
    blocks,
    environment,
    groups_shown,
    programs,
)

CONSUME = "zkgroups consume "
[LOOP_OF_README] = [program for program in programs("README.md") if "Consumer(" in program]
[CONSUMER] = [program for program in programs("docs/consumers.md") if "confluent_kafka" in program]
LOOPS = [program for program in programs("docs/consumers.md") if "for message in consumer:" in program]
TESTS = [program for program in programs("docs/python.md") if "def test_" in program]
[PLUGIN] = [program for program in programs("docs/python.md") if program.startswith("pytest_plugins")]


def test_every_guide_with_commands_or_programs_is_run() -> None:
    run = {guide for guide in GUIDES if any(block.runs for block in blocks(guide))}
    assert run == {*ON_ZOOKEEPER, *ON_BROKERS, *ON_SPARK}


def _has_a_test_of_its_own(block: Block) -> bool:
    if block.language == "console":
        return any(command == FOREGROUND or CONSUME in command for command, _ in block.commands)
    return block.text in (PLUGIN, *TESTS) or "kafka1:9092" in block.text


@pytest.mark.zookeeper
@pytest.mark.parametrize("guide", ON_ZOOKEEPER)
def test_a_guide_prints_what_it_shows(guide: str, registry: Registry, zookeeper_hosts: str, tmp_path: Path) -> None:
    with groups_shown(zookeeper_hosts, registry):
        Runner(tmp_path, zookeeper_hosts, skip=_has_a_test_of_its_own).run(guide)


@pytest.mark.zookeeper
def test_the_server_in_the_foreground_prints_its_address_and_ends() -> None:
    [block] = [block for block in blocks("docs/shell.md") if FOREGROUND in dict(block.commands)]
    with subprocess.Popen(
        FOREGROUND.split(), env=environment(), stdout=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        interrupt(server)
        assert server.returncode == 130
    assert_printed(dict(block.commands)[FOREGROUND], line, str(block))


@pytest.mark.zookeeper
def test_the_tests_in_the_python_guide_pass(zookeeper: Server, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_shown.py").write_text("\n\n".join(TESTS))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_shown.py"],
        cwd=tmp_path,
        env=environment() | {"ZKGROUPS_TEST_ZOOKEEPER": zookeeper.address},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


@pytest.mark.parametrize(("number", "program"), [*enumerate([CONSUMER, *LOOPS])], ids=["member", "consumer", "asyncio"])
def test_a_consumer_reads_all_messages_and_commits_them_when_it_is_terminated(
    number: int, program: str, legacy_kafka: KafkaBroker, tmp_path: Path
) -> None:
    assert len([line for line in program.splitlines() if line.strip()]) <= 30
    topic = f"orders-of-the-guide-{number}"
    written = write_to(topic, legacy_kafka, partitions=3, messages=30)
    assert consumed(topic, legacy_kafka, tmp_path, messages=30, shown=program) == written
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        group = registry.group("billing")
        assert sum(found.offset for found in group.offsets if isinstance(found, CommittedOffset)) == 30
        assert group.instances() == []
        assert list(group.owners()) == []
        group.delete()


def test_the_consumer_reads_a_recreated_topic_once(legacy_kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = "recreated-orders"
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        group = registry.group("billing")
        group.offsets.set(TopicPartition(topic, 0), 5_558)
        first = write_to(topic, legacy_kafka, partitions=1, messages=20)
        assert consumed(topic, legacy_kafka, tmp_path, messages=20) == first
        assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [20]
        legacy_kafka.write(topic, 0, 1)
        assert consumed(topic, legacy_kafka, tmp_path, messages=1) == {f"{topic} 0 b'0'\n"}
        assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [21]
        group.delete()


def test_the_loop_in_the_readme_reads_all_messages_and_ctrl_c_commits_them(
    legacy_kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = "orders-of-the-readme"
    written = write_to(topic, legacy_kafka, partitions=2, messages=20)
    with running(LOOP_OF_README, topic, legacy_kafka, tmp_path) as program:
        assert {program.stdout.readline() for _ in range(20) if program.stdout} == written
        interrupt(program)
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        group = registry.group("billing")
        # Ctrl-C may come before the loop has asked for another message. Then the last one is not finished.
        assert sum(found.offset for found in group.offsets if isinstance(found, CommittedOffset)) in (19, 20)
        assert group.instances() == []
        group.delete()


def test_the_shell_reads_the_messages_of_a_group(legacy_kafka: KafkaBroker, tmp_path: Path) -> None:
    with suppress(Exception):  # another test has created it
        legacy_kafka.create_topic("orders")
    legacy_kafka.write("orders", 0, 3)
    runner = Runner(tmp_path, legacy_kafka.zookeeper or "", skip=lambda block: CONSUME not in block.text)
    runner.env["ZKGROUPS_ZOOKEEPER"] = legacy_kafka.zookeeper or ""
    runner.run("docs/shell.md")
    rows = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    values = gzip.decompress((tmp_path / "orders.gz").read_bytes()).decode().split()
    assert sorted(row["value"] for row in rows) == sorted(values)
    assert len(values) >= 3


def consumed(topic: str, broker: KafkaBroker, folder: Path, *, messages: int, shown: str = CONSUMER) -> set[str]:
    """Run the consumer until it has printed that many messages, terminate it, and return its output."""
    with running(shown, topic, broker, folder) as program:
        assert program.stdout is not None
        read = {program.stdout.readline() for _ in range(messages)}
        program.terminate()
        assert program.wait(60) == 0
    return read


def running(program: str, topic: str, broker: KafkaBroker, folder: Path) -> subprocess.Popen[str]:
    """Start a program of a guide, with another topic."""
    program = Runner(folder, broker.zookeeper or "", broker.address).here(program).replace('"orders"', f'"{topic}"')
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )


def write_to(topic: str, broker: KafkaBroker, *, partitions: int, messages: int) -> set[str]:
    """Create a topic with messages, and return the lines that the consumer prints for them."""
    broker.create_topic(topic, partitions=partitions)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(messages):
        producer.produce(topic, f"message {number}", partition=number % partitions)
    assert producer.flush(60) == 0
    return {f"{topic} {number % partitions} b'message {number}'\n" for number in range(messages)}

"""The program with a handler in docs/consumers.md. Its other programs are run by tests/docs/test_guides.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from tests.waiting import LONGEST, eventually
from zkgroups import Registry
from zkgroups.testing import KafkaBroker

from ...docs.guides import Runner, environment, programs
from ..conftest import offsets

[PROGRAM] = [program for program in programs("docs/consumers.md") if "consumer.run(" in program]


def test_the_program_handles_messages_writes_dead_letters_and_ends_with_sigterm(
    legacy_kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic, failed = "handled-orders-of-the-guide", "failed-orders-of-the-guide"
    legacy_kafka.create_topic(topic)
    legacy_kafka.create_topic(failed)
    producer = Producer({"bootstrap.servers": legacy_kafka.address, "log_level": 0})
    for value in (b"17", b"not a number", b"9"):
        producer.produce(topic, value, b"anna")
    assert producer.flush(LONGEST) == 0
    program = Runner(tmp_path, legacy_kafka.zookeeper, legacy_kafka.address).here(PROGRAM)
    program = program.replace('"orders"', f'"{topic}"').replace('"orders-failed"', f'"{failed}"')
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        group = registry.group("billing")
        with subprocess.Popen(
            [sys.executable, "-c", program], env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            lines = [running.stdout.readline() for _ in range(2)]
            running.terminate()
            assert running.wait(LONGEST) == 0
        assert lines == ["b'anna' 17\n", "b'anna' 9\n"]
        assert eventually(lambda: offsets(group) == {0: 3})
        group.delete()

"""Brokers before 0.10, which do not answer current clients."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest
from confluent_kafka import Message

from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeState, OffsetRange
from zkgroups.exceptions import BrokersTooOldError
from zkgroups.kafka import Brokers
from zkgroups.messages.dead_letters import DeadLetterWriter
from zkgroups.messages.runs import Letter
from zkgroups.testing import Server, fresh_chroot, local_server
from zkgroups.testing import java as maven
from zkgroups.testing.child_process import ChildProcess
from zkgroups.testing.java import find_java

from ..cli.running import run

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(1000),
]

_LONGEST = 120.0
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


@contextmanager
def old_broker(release: str, zookeeper: str, folder: Path) -> Iterator[str]:
    """Yield its address. Topic orders has two partitions, and the first of them has seven messages."""
    jars = maven.fetch(f"org.apache.kafka:kafka_2.11:{release}")
    port = local_server.reserve()
    settings = {
        "broker.id": "1",
        "host.name": local_server.HOST,
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
            assert eventually(lambda: client.exists("/brokers/ids/1")), process.tail()
            topic = json.dumps({"version": 1, "partitions": {"0": [1], "1": [1]}}).encode()
            client.create("/brokers/topics/orders", topic, makepath=True)
            address = f"{local_server.HOST}:{port.number}"
            _write(address, release)
            yield address
    finally:
        port.release()


def _write(address: str, release: str) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": address, "api.version.request": "false", "broker.version.fallback": release}
    with Producer({**settings, "log_level": 0, "message.timeout.ms": int(_LONGEST * 1000)}) as producer:
        for number in range(7):
            producer.produce("orders", str(number).encode(), partition=0)
        assert producer.flush(_LONGEST) == 0


ZERO, ONE = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture(scope="module", params=["0.8.2.2", "0.9.0.1"])
def old(
    request: pytest.FixtureRequest, zookeeper: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, str]]:
    """A release, the address of a broker of that release, and its ZooKeeper."""
    folder = tmp_path_factory.mktemp("old")
    with fresh_chroot(zookeeper) as hosts, old_broker(request.param, hosts, folder) as address:
        yield request.param, address, hosts


def test_topics_and_logs_of_old_brokers_are_read_without_settings(old: tuple[str, str, str]) -> None:
    with Brokers.connect(old[1], timeout=90) as brokers:
        assert brokers.partitions(["orders"]) == {"orders": (0, 1)}
        assert brokers.ranges([ZERO, ONE]) == {ZERO: OffsetRange(0, 7), ONE: OffsetRange(0, 0)}
        assert brokers.cluster_id() is None
        assert brokers.offsets_retention() is None


def test_times_are_refused_because_old_brokers_interpret_them_differently(old: tuple[str, str, str]) -> None:
    with Brokers.connect(old[1], timeout=90) as brokers:
        with pytest.raises(BrokersTooOldError, match=r"store no message times \(new in release 0\.10\.1\)"):
            brokers.offsets_at({ZERO: 0, ONE: 0})
        assert brokers.offsets_at({ONE: 0}) == {ONE: 0}
        assert brokers.message_times({ZERO: 2}, now_ms=10**12) == {ZERO: None}


def test_groups_are_supported_since_0_9_and_refused_before(old: tuple[str, str, str]) -> None:
    release, address, _hosts = old
    with Brokers.connect(address, timeout=90) as brokers:
        if release.startswith("0.9"):
            assert brokers.commit({"billing": {ZERO: 5}}) == {"billing": {ZERO: None}}
            assert brokers.committed(["billing"])["billing"][ZERO].offset == 5
            assert brokers.groups(["billing"]) == {"billing": NativeGroup("billing", NativeState.DEAD, ())}
            assert not brokers.can_delete_offsets()
            for refused in (
                brokers.delete_groups(["billing"])["billing"],
                brokers.delete_offsets({"billing": [ZERO]})["billing"][ZERO],
            ):
                assert isinstance(refused, BrokersTooOldError)
            return
        for call in _calls(brokers):
            with pytest.raises(BrokersTooOldError, match=r"older than release 0\.9"):
                call()


def test_messages_of_old_brokers_are_consumed_without_settings(old: tuple[str, str, str]) -> None:
    ended = run("-z", old[2], "consume", "archive", "orders", "--exit-at-end")
    assert (ended.lines, ended.code) == ([*"0123456"], 0), ended.err
    with Registry.connect(old[2]) as registry:
        assert registry.group("archive").offsets.fetch(ZERO).offset == 7


def test_dead_letters_are_refused_because_old_brokers_store_no_headers(old: tuple[str, str, str]) -> None:
    """Every letter has a report. Otherwise its message would wait for ever."""
    release, address, _hosts = old
    refused: Queue[Exception | None] = Queue()
    settings = {"bootstrap.servers": address, "api.version.request": "false", "broker.version.fallback": release}
    writer = DeadLetterWriter({**settings, "log_level": 0}, "orders", "billing")
    message = Message(topic="orders", partition=0, offset=1, value=b"an order")
    for _ in range(2):
        writer.write(Letter(message, ZERO, 1, 3, ValueError("no amount")), refused.put)
        assert "requires Apache Kafka broker version >= 0.11.0" in str(refused.get(timeout=60))
    writer.close()


def _calls(brokers: Brokers) -> Sequence[Callable[[], object]]:
    return (
        lambda: brokers.commit({"billing": {ZERO: 5}}),
        lambda: brokers.committed(["billing"]),
        lambda: brokers.groups(["billing"]),
        lambda: brokers.delete_groups(["billing"]),
        lambda: brokers.delete_offsets({"billing": [ZERO]}),
    )

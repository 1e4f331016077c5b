"""A real broker of Kafka 1.1.0, which commits old clients' offsets to a directory that no other release reads."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import pytest

from tests.cli.running import Ended, run
from tests.consumer.scala import Message
from tests.lasting import lasting_client
from tests.migration.consumers import NativeReader, NumberedProducer, judge
from zkgroups import Registry, TopicPartition
from zkgroups.testing import KafkaBroker, Server, fresh_chroot

# Version 0 of Kafka's requests for offsets, which brokers keep in ZooKeeper. Current clients no longer have it.

_COMMIT, _FETCH = 8, 9
_TIMEOUT = 30.0


def commit(address: str, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit these offsets through a broker."""
    for at, offset in offsets.items():
        committed = _text(at.topic) + pack(">iiq", 1, at.partition, offset) + _text("")
        answer = _request(address, _COMMIT, _text(group) + pack(">i", 1) + committed)
        _one, partition, error = unpack_from(">iih", answer, 4 + 2 + len(at.topic))
        assert (partition, error) == (at.partition, 0)


def fetch(address: str, group: str, at: TopicPartition) -> int:
    """Return the offset that a broker has for a partition; -1 if it has none."""
    answer = _request(address, _FETCH, _text(group) + pack(">i", 1) + _text(at.topic) + pack(">ii", 1, at.partition))
    offset: int
    _one, _partition, offset = unpack_from(">iiq", answer, 4 + 2 + len(at.topic))
    return offset


def _text(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode()


def _request(address: str, api: int, body: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    request = pack(">hhi", api, 0, 7) + _text("old") + body
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT) as connection, connection.makefile("rb") as file:
        connection.sendall(pack(">i", len(request)) + request)
        [length] = unpack_from(">i", file.read(4))
        return file.read(length)[4:]


pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.timeout(1000)]

PARTITIONS = 2

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(zookeeper: Server) -> Iterator[KafkaBroker]:
    with fresh_chroot(zookeeper) as hosts, KafkaBroker(release="1.1.0", zookeeper=hosts) as broker:
        yield broker


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    name = f"old-{next(_numbers)}"
    broker.create_topic(name, PARTITIONS)
    return name


def zkgroups(broker: KafkaBroker, *arguments: Any) -> Ended:
    return run("-z", broker.zookeeper, "-b", broker.address, *arguments)


def half(producer: NumberedProducer) -> tuple[list[Message], dict[TopicPartition, int]]:
    """The first half of all messages, and the next message of each partition after them."""
    first = producer.written[: len(producer.written) // 2]
    return first, {message.at: message.offset + 1 for message in first}


def test_a_kafka_consumer_continues_where_the_old_client_has_stopped(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    producer = NumberedProducer(topic, PARTITIONS, broker.address)
    producer.write(60)
    first, ends = half(producer)
    group = f"old-client-{topic}"
    commit(broker.address, group, ends)

    with Registry.connect(broker.zookeeper) as registry:
        assert list(registry.offsets([group])) == []
        found = {each.at: each.offset for each in registry.offsets([group], layout="kafka-1.1.0")}  # type: ignore[union-attr]
        assert found == ends
        assert registry.groups("kafka-1.1.0") == [group]

    chosen = ("--layout", "kafka-1.1.0", "--execute")
    moved = zkgroups(broker, "migrate", "group", group, tmp_path / "plan", *chosen)
    assert moved.code == 0, moved
    assert zkgroups(broker, "migrate", "verify", tmp_path / "plan").code == 0
    with NativeReader(broker.address, group, topic, PARTITIONS) as native:
        judge(producer.written, first, native.do_all())


def test_members_of_the_group_prevent_the_move_and_its_mark_keeps_them_out(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """It is the same group below /consumers, so its registrations count."""
    group = f"with-members-{topic}"
    commit(broker.address, group, {TopicPartition(topic, 0): 0})
    move = ("migrate", "group", group, tmp_path / "plan", "--layout", "kafka-1.1.0", "--execute")
    with Registry.connect(broker.zookeeper) as registry:
        with registry.group(group).instance("anna") as anna:
            anna.register([topic])
            refused = zkgroups(broker, *move)
            assert refused.code == 4
            assert "legacy instances are registered: anna" in refused.out
        assert zkgroups(broker, *move).code == 0
        assert registry.group(group).describe().mark is not None
        registered = run("-z", broker.zookeeper, "claim", group, topic, "0", "--", "true")
        assert (registered.code, "was moved to Kafka's own offsets" in registered.err) == (4, True)


def test_offsets_that_are_adopted_are_those_of_any_other_release(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    group = f"adopted-{topic}"
    with Registry.connect(broker.zookeeper) as registry:
        registry.group(group).offsets.set_many({zero: 3, one: 9})  # before 1.1.0 was installed
        commit(broker.address, group, {zero: 7, one: 8})

        [finding] = [
            each
            for each in zkgroups(broker, "doctor", group, "-o", "json").json["findings"]
            if "singular" in each["code"]
        ]
        assert (finding["severity"], finding["path"]) == ("warning", f"/consumers/{group}/offset/{topic}")
        assert finding["fix"] == f"zkgroups offsets adopt --topic={topic} {group}"

        shown = zkgroups(broker, "offsets", "adopt", group, "-o", "json")
        assert (shown.code, shown.err.count("would go back; --backward allows it")) == (9, 1)
        undo = tmp_path / "undo.json"
        done = zkgroups(broker, "offsets", "adopt", group, "--execute", "--undo-file", undo, "-o", "json")
        assert [(row["partition"], row["old"], row["new"], row["done"]) for row in done.json["changes"]] == [
            (0, 3, 7, True),
            (1, 9, 8, False),
        ]
        assert {each.at: each.offset for each in registry.group(group).offsets} == {zero: 7, one: 9}  # type: ignore[union-attr]
        assert fetch(broker.address, group, one) == 8, "the broker still has its own"

        restored = zkgroups(broker, "offsets", "import", undo, "--backward", "--execute")
        assert restored.code == 0
        assert {each.at: each.offset for each in registry.group(group).offsets} == {zero: 3, one: 9}  # type: ignore[union-attr]
        assert zkgroups(broker, "offsets", "adopt", group, "--backward", "--execute").code == 0
        assert {each.at: each.offset for each in registry.group(group).offsets} == {zero: 7, one: 8}  # type: ignore[union-attr]


def test_the_release_after_it_does_not_read_its_offsets(legacy_kafka: KafkaBroker) -> None:
    at = TopicPartition("elsewhere", 0)
    legacy_kafka.create_topic("elsewhere")
    with lasting_client(legacy_kafka.zookeeper) as client:
        client.create("/consumers/of-1.1.0/offset/elsewhere/0", b"7", makepath=True)
        assert fetch(legacy_kafka.address, "of-1.1.0", at) == -1
        client.create("/consumers/of-1.1.0/offsets/elsewhere/0", b"5", makepath=True)
        assert fetch(legacy_kafka.address, "of-1.1.0", at) == 5

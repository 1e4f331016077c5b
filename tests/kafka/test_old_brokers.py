"""Brokers before 0.10, which do not answer current clients: they are detected, and get requests that they support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import Queue

import pytest
from confluent_kafka import Message

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeState, OffsetRange
from zkgroups.exceptions import BrokersTooOldError
from zkgroups.kafka import Brokers
from zkgroups.messages.dead_letters import DeadLetterWriter
from zkgroups.messages.runs import Letter
from zkgroups.testing import Server, fresh_chroot

from .old import old_broker

ZERO, ONE = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture(scope="module", params=["0.8.2.2", "0.9.0.1"])
def old(
    request: pytest.FixtureRequest, zookeeper: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A release, and the address of a broker of that release."""
    folder = tmp_path_factory.mktemp("old")
    with fresh_chroot(zookeeper) as hosts, old_broker(request.param, hosts, folder) as address:
        yield request.param, address


@pytest.mark.zookeeper
@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)
class TestOldBrokers:
    """One broker of each release for all of these tests."""

    def test_topics_and_logs_of_old_brokers_are_read_without_settings(self, old: tuple[str, str]) -> None:
        with Brokers.connect(old[1], timeout=90) as brokers:
            assert brokers.partitions(["orders"]) == {"orders": (0, 1)}
            assert brokers.ranges([ZERO, ONE]) == {ZERO: OffsetRange(0, 7), ONE: OffsetRange(0, 0)}
            assert brokers.cluster_id() is None
            assert brokers.offsets_retention() is None

    def test_times_are_refused_because_old_brokers_interpret_them_differently(self, old: tuple[str, str]) -> None:
        with Brokers.connect(old[1], timeout=90) as brokers:
            with pytest.raises(BrokersTooOldError, match=r"store no message times \(new in release 0\.10\.1\)"):
                brokers.offsets_at({ZERO: 0, ONE: 0})
            assert brokers.offsets_at({ONE: 0}) == {ONE: 0}
            assert brokers.message_times({ZERO: 2}, now_ms=10**12) == {ZERO: None}

    def test_groups_are_supported_since_0_9_and_refused_before(self, old: tuple[str, str]) -> None:
        release, address = old
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
            for call in self._calls(brokers):
                with pytest.raises(BrokersTooOldError, match=r"older than release 0\.9"):
                    call()

    def test_dead_letters_are_refused_because_old_brokers_store_no_headers(self, old: tuple[str, str]) -> None:
        """Every letter has a report. Otherwise its message would wait for ever."""
        release, address = old
        refused: Queue[Exception | None] = Queue()
        settings = {"bootstrap.servers": address, "api.version.request": "false", "broker.version.fallback": release}
        writer = DeadLetterWriter({**settings, "log_level": 0}, "orders", "billing")
        message = Message(topic="orders", partition=0, offset=1, value=b"an order")
        for _ in range(2):
            writer.write(Letter(message, ZERO, 1, 3, ValueError("no amount")), refused.put)
            assert "requires Apache Kafka broker version >= 0.11.0" in str(refused.get(timeout=60))
        writer.close()

    @staticmethod
    def _calls(brokers: Brokers) -> Sequence[Callable[[], object]]:
        return (
            lambda: brokers.commit({"billing": {ZERO: 5}}),
            lambda: brokers.committed(["billing"]),
            lambda: brokers.groups(["billing"]),
            lambda: brokers.delete_groups(["billing"]),
            lambda: brokers.delete_offsets({"billing": [ZERO]}),
        )

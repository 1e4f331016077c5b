"""Sweeps on real servers: changes arrive at once, and outages leave the last picture."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.health import Status
from zkgroups.kafka import Brokers
from zkgroups.serve.picture.values import GroupPicture, Picture
from zkgroups.serve.settings import SweepSettings
from zkgroups.serve.sweeper import Sweeper
from zkgroups.testing import KafkaBroker, TcpProxy, ZooKeeperEnsemble, ZooKeeperServer

from ..zookeeper.test_read_only import minority
from .conftest import Sweep

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def until(sweeper: Sweeper, condition: Callable[[Picture], object]) -> Picture:
    """Wait for a picture that satisfies the condition."""
    found: list[Picture] = []

    def holds() -> object:
        found[:] = [sweeper.publisher.picture]  # this one: soon there may be another
        return condition(found[0])

    assert eventually(holds), found[0]
    return found[0]


def until_group(
    sweeper: Sweeper, name: str, condition: Callable[[GroupPicture], object] = lambda _: True
) -> GroupPicture:
    picture = until(sweeper, lambda p: name in p.groups and condition(p.groups[name]))
    return picture.groups[name]


def test_members_and_owners_arrive_at_once_without_a_sweep(registry: Registry, sweeping: Sweep) -> None:
    sweeper = sweeping()
    assert until(sweeper, lambda picture: picture.is_ready).live
    with registry.group("billing").instance("anna") as anna:
        anna.register(["orders"])
        until_group(sweeper, "billing", lambda group: group.living == 1)
        with anna.claim(P0):
            until_group(sweeper, "billing", lambda group: [each.owner for each in group.partitions] == ["anna"])
        until_group(sweeper, "billing", lambda group: not any(each.owner for each in group.partitions))
    left = until_group(sweeper, "billing", lambda group: not group.members)
    assert [event.kind.value for event in left.events if event.kind.value != "status"][-2:] == ["released", "left"]
    assert sweeper.publisher.picture.stats.sweeps == 1


def test_only_the_wanted_groups_are_shown_and_a_deleted_one_disappears_at_once(
    registry: Registry, sweeping: Sweep
) -> None:
    for name in ("billing", "test-1"):
        registry.group(name).create()
    sweeper = sweeping(matching=re.compile("(?!test-).*"))
    assert list(until(sweeper, lambda picture: picture.is_ready).groups) == ["billing"]
    for name in ("test-2", "audit"):
        registry.group(name).create()
    assert list(until(sweeper, lambda picture: len(picture.groups) > 1).groups) == ["audit", "billing"]
    registry.group("billing").delete()
    until(sweeper, lambda picture: "billing" not in picture.groups)


def test_without_live_changes_a_sweep_finds_them(old_hosts: str, sweeping: Sweep) -> None:
    """Old servers have no persistent watches."""
    sweeper = sweeping(old_hosts, every=0.2)
    assert not until(sweeper, lambda picture: picture.is_ready).live
    with Registry.connect(old_hosts) as registry:
        registry.group("billing").offsets.set(P0, 5)
        until_group(sweeper, "billing", lambda group: group.partitions[0].offset == 5)


@pytest.mark.parametrize("live", [True, False])
def test_a_connection_that_is_lost_and_restored_misses_no_change(
    registry: Registry, zookeeper: Any, zookeeper_hosts: str, sweeping: Sweep, live: bool
) -> None:
    """Without live changes, a restored connection brings a sweep at once."""
    registry.group("billing").create()
    with TcpProxy(zookeeper.address) as proxy:
        sweeper = sweeping(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", live=live)
        before = until_group(sweeper, "billing")
        proxy.refuse()
        proxy.cut()
        lost = until(sweeper, lambda picture: picture.zookeeper.problem)
        assert lost.groups["billing"] == before
        assert lost.zookeeper.read_ms is not None
        registry.group("audit").create()
        proxy.heal()
        until_group(sweeper, "audit")
        until(sweeper, lambda picture: picture.zookeeper.answers and picture.live == live)


def test_a_server_that_starts_later_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """The next complete sweep is an hour away, so an attempt to connect must not wait for it."""
    with ZooKeeperServer() as server:
        with Registry.connect(server.address) as registry:
            registry.group("billing").offsets.set(P0, 5)
        server.kill()
        settings = SweepSettings(cluster="prod", every=3600.0)
        with Sweeper(lambda: Registry.connect(server.address, timeout=1.0), None, settings) as sweeper:
            early = sweeper.publisher.picture
            assert "could not connect" in early.zookeeper.problem
            assert not early.is_ready
            until(sweeper, lambda picture: picture.stats.failures >= 2)  # the start, and the first sweep
            server.start()
            until_group(sweeper, "billing")
            assert sweeper.publisher.picture.zookeeper.answers
    # The command shows warnings only, and its log must tell the end of an outage, too.
    said = [
        each.getMessage() for each in caplog.records if each.name == "zkgroups.serve" and each.levelname == "WARNING"
    ]
    assert said[0].startswith("ZooKeeper does not answer: could not connect")
    assert said[-1] == "ZooKeeper answers again"


def test_an_ensemble_without_quorum_is_read_and_marked() -> None:
    with ZooKeeperEnsemble(read_only=True) as ensemble:
        with Registry.connect(ensemble.address) as registry:
            registry.group("billing").offsets.set(P0, 5)
        with Registry.connect(ensemble.nodes[0].address) as there:
            assert eventually(lambda: there.group("billing").offsets.fetch(P0)), "its server may be behind"
        with minority(ensemble):
            settings = SweepSettings(cluster="prod", every=0.5)
            connect: Callable[[], Registry] = lambda: Registry.connect(ensemble.nodes[0].address, read_only=True)  # noqa: E731
            with Sweeper(connect, None, settings) as sweeper:
                picture = until(sweeper, lambda picture: picture.is_ready)
                assert picture.zookeeper.is_read_only
                assert picture.groups["billing"].partitions[0].offset == 5


# With brokers


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    """A topic with two partitions, of which the first one has five messages."""
    name = f"served-{uuid4().hex}"
    kafka_broker.create_topic(name, 2)
    kafka_broker.write(name, 0, 5)
    return name


@pytest.fixture
def brokers(kafka_broker: KafkaBroker) -> Iterator[Brokers]:
    with Brokers.connect(kafka_broker.address) as found:
        yield found


def by_partition(group: GroupPicture) -> dict[int, int | None]:
    return {each.at.partition: each.lag for each in group.partitions}


def test_lag_is_never_negative_and_past_the_end_is_a_status(
    registry: Registry, sweeping: Sweep, brokers: Brokers, topic: str
) -> None:
    registry.group("billing").offsets.set_many({TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 7})
    group = until_group(sweeping(brokers=brokers), "billing")
    assert by_partition(group) == {0: 3, 1: None}
    assert [each.verdict.status for each in group.partitions] == [Status.OK, Status.PAST_END]
    assert (group.lag, group.unknown_lags) == (3, 1)


class BusyTopic:
    """Brokers whose topic grows, and whose consumer reads on, right after they were asked."""

    def __init__(self, brokers: Brokers, goes_on: Callable[[], object]) -> None:
        self._brokers, self._goes_on = brokers, goes_on

    def ranges(self, partitions: Any) -> Any:
        found = self._brokers.ranges(partitions)
        self._goes_on()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._brokers, name)


def test_offsets_are_read_before_log_ends(
    registry: Registry, sweeping: Sweep, brokers: Brokers, kafka_broker: KafkaBroker, topic: str
) -> None:
    place, offsets = TopicPartition(topic, 0), registry.group("billing").offsets
    offsets.set(place, 5)

    def go_on() -> None:
        kafka_broker.write(topic, 0, 5)
        offsets.set(place, 10)

    sweeper = sweeping(brokers=BusyTopic(brokers, go_on))
    group = until_group(sweeper, "billing")
    assert (group.partitions[0].offset, group.lag, group.verdict.status) == (5, 0, Status.OK)


def test_the_age_of_old_messages_is_known_at_the_first_sweep(
    registry: Registry, sweeping: Sweep, brokers: Brokers, kafka_broker: KafkaBroker, topic: str
) -> None:
    """The brokers are asked for the times of messages that are older than the server."""
    hour_ago = int(time.time() * 1000) - 3_600_000
    producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    producer.produce(topic, b"old", partition=1, timestamp=hour_ago)
    assert producer.flush(30) == 0
    registry.group("billing").offsets.set(TopicPartition(topic, 1), 0)
    sweeper = sweeping(brokers=brokers, every=0.3)
    group = until_group(sweeper, "billing", lambda group: group.partitions[0].time_lag is not None)
    assert group.partitions[0].time_lag == pytest.approx(3600, abs=60)


def test_messages_and_commits_have_rates(
    registry: Registry, sweeping: Sweep, brokers: Brokers, kafka_broker: KafkaBroker, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    registry.group("billing").offsets.set(place, 0)
    sweeper = sweeping(brokers=brokers, every=0.3)
    until_group(sweeper, "billing")
    kafka_broker.write(topic, 0, 50)
    registry.group("billing").offsets.set(place, 20)
    group = until_group(sweeper, "billing", lambda group: group.consumed and group.produced)
    assert group.partitions[0].lag == 35
    assert 0 < (group.consumed or 0) < (group.produced or 0)
    assert group.catch_up is None


def test_while_the_brokers_do_not_answer_the_last_log_ends_stay(
    registry: Registry, sweeping: Sweep, kafka_broker: KafkaBroker, topic: str
) -> None:
    """Kafka's clients connect to the advertised address, so the test replaces the answers of the library."""
    registry.group("billing").offsets.set(TopicPartition(topic, 0), 2)
    with Brokers.connect(kafka_broker.address) as good, Brokers.connect("127.0.0.1:9", timeout=0.3) as bad:
        sweeper = sweeping(brokers=good, every=0.3)
        until_group(sweeper, "billing", lambda group: group.lag == 3)
        assert sweeper._brokers is not None
        sweeper._brokers._brokers = bad
        until(sweeper, lambda picture: picture.brokers is not None and picture.brokers.problem)
        registry.group("billing").offsets.set(TopicPartition(topic, 0), 4)
        assert until_group(sweeper, "billing", lambda group: group.lag == 1).verdict.status is Status.OK
        registry.group("billing").offsets.set(TopicPartition(topic, 0), 9)  # past the old log end
        group = until_group(sweeper, "billing", lambda group: group.lag is None)
        assert group.verdict.status is Status.UNKNOWN, "the log may have grown"
        sweeper._brokers._brokers = good
        until_group(sweeper, "billing", lambda group: group.verdict.status is Status.PAST_END)


def test_nothing_is_written(registry: Registry, sweeping: Sweep) -> None:
    registry.group("billing").offsets.set(P0, 5)
    before = registry.client.get("/consumers/billing/offsets/orders/0")[1].mzxid
    sweeper = sweeping(every=0.2)
    until(sweeper, lambda picture: picture.stats.sweeps > 2)
    assert registry.client.create("/probe") == "/probe"
    created = registry.client.exists("/probe").czxid
    sessions_only = created - before
    assert sessions_only < 20, "only sessions have begun"
    assert until(sweeper, lambda picture: picture.stats.sweeps > 4).stats.failures == 0

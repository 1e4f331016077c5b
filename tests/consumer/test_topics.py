"""Members and the topics they subscribe to, while topics are created, extended, deleted and recreated.

Failures 12 and 13. Unless stated otherwise, no test waits for `reconcile_every`, which is an hour: changes are noticed
by watch events.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from zkgroups import Consumergroup, EventKind, Generation, Pattern, Registration, Registry, TopicPartition
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.exceptions import InvalidNameError, NotClaimedError
from zkgroups.testing import KafkaBroker, TcpProxy
from zkgroups.zookeeper.reading.group_observer import GroupObserver
from zkgroups.zookeeper.requests.watch_dispatcher import WatchDispatcher

from .conftest import LONGEST, Run, ats, plant_topic

pytestmark = pytest.mark.zookeeper

NEVER = 3600.0
"""In seconds. So long that no member reads because of it."""

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def delete_topic(client: Any, name: str) -> None:
    client.delete(f"/brokers/topics/{name}", recursive=True)


def replace_topic(client: Any, name: str, data: bytes) -> None:
    """Delete a topic and recreate it, too quickly for anyone to see it missing."""
    transaction = client.transaction()
    transaction.delete(f"/brokers/topics/{name}")
    transaction.create(f"/brokers/topics/{name}", data)
    assert not [result for result in transaction.commit() if isinstance(result, Exception)]


@pytest.fixture
def client(registry: Registry) -> Any:
    return registry.client


# By name


def test_partitions_that_are_added_are_worked_on_without_a_restart(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a, b = run(id="a", reconcile_every=NEVER), run(id="b", reconcile_every=NEVER)
    a.until_holding(P0)
    b.until_holding(P1)
    plant_topic(client, "orders", 5)
    a.until_holding(ats("orders", 0, 1, 2))
    b.until_holding(ats("orders", 3, 4))


def test_a_member_is_not_interrupted_by_changes_of_a_topic_that_it_has_no_partition_of(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 2)
    a = run(["orders"], id="a", reconcile_every=NEVER).until_holding(P0, P1)
    b = run({"refunds": 1}, id="b", reconcile_every=NEVER).until_holding()
    plant_topic(client, "refunds", 3)
    b.until_holding(ats("refunds", 0, 1, 2))
    delete_topic(client, "refunds")
    b.until_holding()
    assert len(a.generations) == 1
    assert a.generations[0].active


@pytest.mark.parametrize("kafka_has_been_here", [True, False])
def test_a_missing_topic_has_no_partitions_until_it_is_created(
    run: Run, client: Any, kafka_has_been_here: bool
) -> None:
    if kafka_has_been_here:
        client.ensure_path("/brokers/topics")
    a = run(["orders"], id="a", reconcile_every=NEVER).until_holding()
    assert a.generations == []
    plant_topic(client, "orders", 2)
    a.until_holding(P0, P1)


def test_a_topic_may_have_no_partitions_yet(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 0)
    a = run(["orders"], id="a", reconcile_every=NEVER).until_holding()
    plant_topic(client, "orders", 1)
    a.until_holding(P0)


def test_partition_numbers_may_have_gaps(run: Run, client: Any) -> None:
    plant_topic(client, "orders", [0, 2])
    run(["orders"], id="a").until_holding(P0, P2)


def test_an_unreadable_topic_does_not_stop_others_and_is_read_once_it_is_readable(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 1)
    client.create("/brokers/topics/refunds", b"{")
    a = run(["orders", "refunds"], id="a", reconcile_every=NEVER).until_holding(P0)
    [told] = [event for event in a.events if event.kind is EventKind.MALFORMED]
    assert told.detail.startswith("/brokers/topics/refunds: ")
    plant_topic(client, "refunds", 1)
    a.until_holding(P0, ats("refunds", 0))


# By pattern


def test_a_pattern_follows_created_and_deleted_topics(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 1)
    plant_topic(client, "refunds", 1)
    a = run((), pattern="orders.*", id="a", reconcile_every=NEVER).until_holding(P0)
    plant_topic(client, "orders-eu", 2)
    a.until_holding(P0, ats("orders-eu", 0, 1))
    delete_topic(client, "orders-eu")
    a.until_holding(P0)
    plant_topic(client, "orders", 2)
    a.until_holding(P0, P1)


def test_a_pattern_waits_for_the_first_topic(run: Run, client: Any) -> None:
    a = run((), pattern="orders", id="a", reconcile_every=NEVER).until_holding()
    plant_topic(client, "orders", 1)
    a.until_holding(P0)


def test_a_topic_that_matches_no_pattern_interrupts_no_member(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 1)
    a = run((), pattern="orders.*", id="a", reconcile_every=NEVER).until_holding(P0)
    looks = a.member.stats.looks
    plant_topic(client, "refunds", 1)
    a.until(lambda: a.member.stats.looks > looks, "a look")
    a.until_holding(P0)
    assert len(a.generations) == 1


def test_a_pattern_excludes_internal_topics_unless_requested(run: Run, client: Any, registry: Registry) -> None:
    internal = ats("__consumer_offsets", 0)
    plant_topic(client, "orders", 1)
    plant_topic(client, "__consumer_offsets", 1)
    run((), pattern=".*", id="a").until_holding(P0)
    run((), pattern=".*", on=registry.group("audit"), include_internal=True).until_holding(P0, internal)
    run(["__consumer_offsets"], on=registry.group("named")).until_holding(internal)


def test_each_member_chooses_whether_its_pattern_includes_internal_topics(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 2)
    plant_topic(client, "__consumer_offsets", 2)
    a = run((), pattern=".*", id="a", reconcile_every=NEVER)
    b = run((), pattern=".*", include_internal=True, id="b", reconcile_every=NEVER)
    a.until_holding(P0)
    b.until_holding(P1, ats("__consumer_offsets", 0, 1))


def test_streams_count_for_each_topic_that_matches_a_pattern(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 3)
    plant_topic(client, "refunds", 3)
    b = run(["orders"], id="b").until_holding(P0, P1, P2)
    a = run((), pattern="orders|refunds", streams=2, id="a").until_holding(P0, P1, ats("refunds", 0, 1, 2))
    b.until_holding(P2)
    assert set(b.generations[-1].streams.values()) == {0}
    refunds = dict(zip(sorted(ats("refunds", 0, 1, 2)), (0, 0, 1), strict=True))
    assert a.generations[-1].streams == {P0: 0, P1: 1, **refunds}


# From a function


class Numbers:
    """A function of the user that returns the partitions of a topic."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[str] = []
        self.error: Exception | None = None

    def __call__(self, topic: str) -> Iterator[int]:
        self.asked.append(topic)
        if (error := self.error) is not None:  # read once: the test resets it meanwhile
            raise error
        return iter(range(self.count))


def test_with_a_partitions_function_no_broker_nodes_are_needed(run: Run, client: Any) -> None:
    numbers = Numbers(2)
    a = run(["orders"], id="a", partitions=numbers, reconcile_every=NEVER).until_holding(P0, P1)
    assert not client.exists("/brokers")
    assert set(numbers.asked) == {"orders"}
    assert a.generations[-1].active


def test_a_partitions_function_is_called_with_each_read_of_the_group(run: Run) -> None:
    numbers = Numbers(1)
    a = run(["orders"], id="a", partitions=numbers, reconcile_every=0.05).until_holding(P0)
    numbers.count = 3
    a.until_holding(P0, P1, P2)
    numbers.count = 2
    a.until_holding(P0, P1)


def test_with_a_partitions_function_a_pattern_still_chooses_from_the_topics_in_zookeeper(run: Run, client: Any) -> None:
    plant_topic(client, "orders", 1)
    a = run((), pattern="o.*", id="a", partitions=Numbers(2), reconcile_every=NEVER).until_holding(P0, P1)
    plant_topic(client, "offers", 1)
    a.until_holding(P0, P1, ats("offers", 0, 1))


def test_a_failing_partitions_function_changes_nothing_and_is_called_again(run: Run) -> None:
    numbers = Numbers(2)
    a = run(["orders"], id="a", partitions=numbers, reconcile_every=0.05, join_backoff=0.05).until_holding(P0, P1)
    numbers.error = LookupError("no broker answers")
    a.until(lambda: EventKind.FAILED in [event.kind for event in a.events], "the event")
    assert a.events[-1].detail == "no broker answers"
    assert a.member.assignment == {P0, P1}
    assert a.generations[-1].active
    numbers.error, numbers.count = None, 3
    a.until_holding(P0, P1, P2)


def test_an_error_of_the_partitions_function_is_raised_to_the_caller_that_waits_for_a_generation(run: Run) -> None:
    numbers = Numbers(1)
    numbers.error = LookupError("no broker answers")
    a = run(["orders"], id="a", partitions=numbers, join_backoff=0.05)
    assert a.until_error(LookupError) is numbers.error
    numbers.error = None
    a.until_holding(P0)


def test_an_invalid_result_of_the_partitions_function_is_an_error(run: Run) -> None:
    a = run(["orders"], id="a", partitions=lambda _topic: [-1], join_backoff=0.05)
    a.until_error(InvalidNameError)


# Missed changes


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, zookeeper_hosts: str, connect: Callable[..., Registry]) -> Consumergroup:
    """The group through the proxy."""
    registry: Registry = connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}")
    return registry.group("billing")


def test_a_change_without_a_watch_event_is_noticed_within_the_reconcile_period(
    proxied: Consumergroup, run: Run, client: Any, proxy: TcpProxy
) -> None:
    plant_topic(client, "orders", 1)
    proxy.swallow_watch_events()
    a = run((), on=proxied, pattern="o.*", id="a", reconcile_every=0.2).until_holding(P0)
    plant_topic(client, "orders", 2)
    plant_topic(client, "offers", 1)
    a.until_holding(P0, P1, ats("offers", 0))
    delete_topic(client, "offers")
    a.until_holding(P0, P1)


def test_changes_while_disconnected_are_noticed_after_the_reconnect(
    proxied: Consumergroup, run: Run, client: Any, proxy: TcpProxy
) -> None:
    plant_topic(client, "orders", 1)
    a = run((), on=proxied, pattern="o.*", id="a", reconcile_every=NEVER).until_holding(P0)
    proxy.refuse()
    proxy.cut()
    plant_topic(client, "orders", 2)
    plant_topic(client, "offers", 1)
    proxy.accept()
    a.until_holding(P0, P1, ats("offers", 0))
    plant_topic(client, "orders", 3)  # and watches are set again
    a.until_holding(ats("orders", 0, 1, 2), ats("offers", 0))
    assert not [event for event in a.events if event.kind is EventKind.LOST]


def test_a_directory_created_between_the_read_and_the_watch_is_not_missed(
    registry: Registry, connect: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = threading.Event()
    other = connect().client
    observer = GroupObserver(GroupPaths("billing"), registry._context, lambda _at: heard.set())
    watch = registry.client.exists_async

    def watch_late(path: str, **options: Any) -> Any:
        if path == "/brokers/topics" and not other.exists(path):
            plant_topic(other, "orders", 1)
        return watch(path, **options)

    monkeypatch.setattr(registry.client, "exists_async", watch_late)
    chosen = Registration({".*": 1}, Pattern.WHITE_LIST)
    assert set(observer.topics(chosen).partitions) == {"orders"}
    heard.clear()
    plant_topic(other, "refunds", 1)
    assert heard.wait(LONGEST)
    assert set(observer.topics(chosen).partitions) == {"orders", "refunds"}
    observer.close()


def test_a_closed_member_receives_no_topic_events(run: Run, client: Any, registry: Registry) -> None:
    plant_topic(client, "orders", 1)
    a = run((), pattern="o.*", id="a").until_holding(P0)
    a.close()
    dispatcher = WatchDispatcher.of(registry._context.session)
    assert dispatcher._listeners == {}


# Failure 13: a topic that is deleted and recreated


def marking(offset: int) -> Callable[[Generation], object]:
    """Return a worker that processes everything up to an offset at once, and marks it."""

    def work(generation: Generation) -> None:
        for at in generation.partitions:
            generation.mark(at, offset)
        generation.wait()

    return work


def test_a_deleted_topic_is_released_without_further_commits(run: Run, client: Any, group: Consumergroup) -> None:
    plant_topic(client, "orders", 2)
    plant_topic(client, "refunds", 1)
    a = run(["orders", "refunds"], id="a", work=marking(1000), reconcile_every=NEVER)
    a.until_holding(P0, P1, ats("refunds", 0))
    delete_topic(client, "orders")
    a.until_holding(ats("refunds", 0))
    assert [offset.at.topic for offset in group.offsets] == ["refunds"]  # type: ignore[union-attr]
    assert a.errors == []


def test_a_recreated_topic_starts_again_and_offsets_of_the_old_one_are_not_written(
    run: Run, client: Any, group: Consumergroup
) -> None:
    plant_topic(client, "orders", 3)
    ordinals = itertools.count()
    refused: list[BaseException | None] = []

    def work(generation: Generation) -> None:
        if next(ordinals) > 0:
            generation.wait()
            return
        for at in generation.partitions:
            generation.mark(at, 1000)
        generation.wait()
        try:
            generation.commit({P0: 999})
        except NotClaimedError as error:
            refused.append(error)

    a = run(["orders"], id="a", work=work, reconcile_every=NEVER).until_holding(P0, P1, P2)
    replace_topic(client, "orders", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    a.until_holding(P0, P1)
    assert list(group.offsets) == []
    a.until(lambda: refused, "the refusal")
    assert [str(error) for error in refused] == ["orders/0 belongs to a topic that was deleted: stop working on it"]
    [_first, second] = a.generations
    assert dict(second.partitions) == {P0: "earliest", P1: "earliest"}
    second.commit({P0: 5})
    assert group.offsets.fetch(P0).offset == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_a_topic_recreated_with_the_same_partitions_starts_again_for_all_members(
    run: Run, client: Any, assignor: str
) -> None:
    plant_topic(client, "orders", 2)
    options: dict[str, Any] = {"work": marking(7), "reconcile_every": NEVER, "assignors": [assignor]}
    a, b = run(id="a", **options).until_holding(P0, P1), run(id="b", **options)
    a.until(lambda: len(a.member.assignment) == len(b.member.assignment) == 1, "one each")
    mine, other = a.member.assignment, b.member.assignment
    a.until_holding(mine)
    b.until_holding(other)
    before = len(a.generations), len(b.generations)
    data, _ = client.get("/brokers/topics/orders")
    replace_topic(client, "orders", data)
    a.until(lambda: len(a.generations) > before[0], "another generation")
    b.until(lambda: len(b.generations) > before[1], "another generation")
    a.until_holding(mine)
    b.until_holding(other)


def test_a_member_settles_on_a_topic_that_is_recreated_with_more_partitions(
    run: Run, client: Any, group: Consumergroup
) -> None:
    """It does not claim the new partitions as long as it holds those of the old topic: they would count as old, too."""
    plant_topic(client, "orders", 2)
    a = run(id="a", work=marking(7), reconcile_every=NEVER).until_holding(P0, P1)
    generations = len(a.generations)
    replace_topic(client, "orders", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}')
    a.until(lambda: len(a.generations) > generations and a.generations[-1].active, "another generation")
    a.until_holding(P0, P1, P2)
    assert set(a.generations[generations].partitions) == {P0, P1, P2}
    a.until(lambda: a.generations[-1].marked.keys() == {P0, P1, P2}, "the marks")
    a.generations[-1].commit()
    assert len(a.generations) == generations + 1


# On a real broker


@pytest.fixture
def topic(legacy_kafka: KafkaBroker) -> str:
    """A new topic on a broker that all tests share."""
    name = f"orders-{next(_numbers)}"
    legacy_kafka.create_topic(name, 2)
    return name


_numbers = itertools.count()


@pytest.fixture
def legacy(legacy_kafka: KafkaBroker, connect: Callable[..., Registry], topic: str) -> Consumergroup:
    """A new group on that broker."""
    registry: Registry = connect(legacy_kafka.zookeeper)
    return registry.group(f"billing-{topic}")


@pytest.fixture
def admin(legacy_kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": legacy_kafka.address, "log_level": 0})


def test_partitions_added_on_a_real_broker_are_owned_without_a_restart(
    legacy: Consumergroup, run: Run, admin: AdminClient, topic: str
) -> None:
    a = run([topic], on=legacy, id="a", reconcile_every=NEVER)
    b = run((), on=legacy, pattern=f"{topic}.*", id="b", reconcile_every=NEVER)
    a.until_holding(ats(topic, 0))
    b.until_holding(ats(topic, 1))
    [added] = admin.create_partitions([NewPartitions(topic, 6)]).values()
    added.result()
    a.until_holding(ats(topic, 0, 1, 2))
    b.until_holding(ats(topic, 3, 4, 5))
    assert not legacy.describe().unowned


def test_a_topic_created_on_a_real_broker_is_picked_up(
    legacy: Consumergroup, run: Run, legacy_kafka: KafkaBroker
) -> None:
    name = f"late-{next(_numbers)}"
    a = run([name], on=legacy, id="a", reconcile_every=NEVER).until_holding()
    legacy_kafka.create_topic(name, 3)
    a.until_holding(ats(name, 0, 1, 2))


def test_a_topic_recreated_smaller_on_a_real_broker_is_released_and_starts_again(
    legacy: Consumergroup, run: Run, legacy_kafka: KafkaBroker, admin: AdminClient, topic: str
) -> None:
    a = run([topic], on=legacy, id="a", work=marking(1000), reconcile_every=NEVER).until_holding(ats(topic, 0, 1))
    [deleted] = admin.delete_topics([topic]).values()
    deleted.result()
    a.until_holding()
    assert list(legacy.offsets) == []
    assert list(legacy.owners()) == []
    legacy_kafka.create_topic(topic, 1)
    a.until_holding(ats(topic, 0))
    assert list(legacy.offsets) == []

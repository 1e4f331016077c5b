"""Our members beside real ones of Kafka's own high-level consumer, in one group, on a real broker of that time."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer
from kazoo.client import KazooClient

from tests.testing.waiting import eventually
from zkgroups import Change, CommittedOffset, Consumergroup, Registry, TopicPartition, Watched
from zkgroups.consumer.events import EventKind
from zkgroups.core.rebalance.members import Assignor
from zkgroups.core.rebalance.range import range_assignor
from zkgroups.core.rebalance.round_robin import round_robin_assignor
from zkgroups.testing import KafkaBroker, expire_session

from .reader import Reader, ReaderProcess
from .scala import ScalaConsumer, await_owners, await_stillness, changes_within, settle, whose

Scala = Callable[..., ScalaConsumer]
Ours = Callable[..., Reader]

# In seconds: longer than a rebalance that is still to come is late.
STILL = 1.0

STRATEGIES = [
    pytest.param("range", range_assignor, id="range"),
    pytest.param("roundrobin", round_robin_assignor, id="roundrobin"),
]

# What somebody would have who never changed it: four tries, two seconds apart.
AS_IT_COMES = {"rebalance.backoff.ms": "2000", "rebalance.max.retries": "4"}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def registry(legacy_kafka: KafkaBroker) -> Iterator[Registry]:
    """Where the old broker is registered, too."""
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        yield registry


@pytest.fixture
def group(registry: Registry) -> Consumergroup:
    return registry.group(f"mixed-{next(_numbers)}")


@pytest.fixture
def topic(legacy_kafka: KafkaBroker) -> str:
    """A topic of seven partitions that no other test has."""
    name = f"mixed-{next(_numbers)}"
    legacy_kafka.create_topic(name, 7)
    return name


@pytest.fixture
def scala(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Scala]:
    """Starts a Scala member of the group: name, topics, options."""
    with ExitStack() as stack:

        def start(name: str, *args: Any, **options: Any) -> ScalaConsumer:
            member = stack.enter_context(ScalaConsumer(legacy_kafka, group.name, name, *args, **options))
            stack.callback(lambda: print(f"{member}:\n{member.log_tail()}"))
            return member

        yield start


@pytest.fixture
def ours(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Ours]:
    """Starts a member of ours: id, topics, options."""
    with ExitStack() as stack:

        def start(id: str, *args: Any, **options: Any) -> Reader:
            reader = Reader(legacy_kafka.zookeeper, legacy_kafka.address, group.name, id, *args, **options)
            stack.enter_context(reader)
            stack.callback(lambda: print(f"{reader}: {reader.member.stats}", *reader.events, sep="\n"))
            return reader

        yield start


@pytest.fixture
def process(legacy_kafka: KafkaBroker, group: Consumergroup) -> Iterator[Callable[..., ReaderProcess]]:
    """Starts a member of ours that can be killed: id, topics."""
    with ExitStack() as stack:

        def start(id: str, topics: dict[str, int]) -> ReaderProcess:
            reader = ReaderProcess(legacy_kafka.zookeeper, legacy_kafka.address, group.name, id, topics)
            stack.enter_context(reader)
            stack.callback(lambda: print(f"{reader}:\n{reader.log_tail()}"))
            return reader

        yield start


@pytest.fixture
def offsets(group: Consumergroup) -> Iterator[OffsetLog]:
    """All offsets that are committed in the group."""
    with OffsetLog(group) as log:
        yield log


class OffsetLog:
    """What was committed in a group, in its order, as far as a watch can see."""

    def __init__(self, group: Consumergroup) -> None:
        self.seen: dict[TopicPartition, list[int]] = {}
        self._watch = group.watch(Watched.OFFSETS)

    @property
    def fallen(self) -> dict[TopicPartition, list[int]]:
        """The partitions in which an offset went back."""
        return {at: offsets for at, offsets in self.seen.items() if offsets != sorted(offsets)}

    @property
    def last(self) -> dict[TopicPartition, int]:
        """The offset of each partition that has one."""
        return {at: offsets[-1] for at, offsets in self.seen.items()}

    def _note(self, change: Change) -> None:
        if isinstance(change.now, CommittedOffset):
            self.seen.setdefault(change.now.at, []).append(change.now.offset)

    def __enter__(self) -> OffsetLog:
        self._watch.follow(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()


class Feed:
    """Writes messages to all seven partitions of a topic, all different: some, or on and on in a `with`."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self.texts: list[str] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 0})
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def some(self, rounds: int) -> list[str]:
        """So many for each partition."""
        new = []
        for number, partition in itertools.product(range(rounds), range(7)):
            new.append(f"message {partition}/{len(self.texts) + number}")
            self._producer.produce(self._topic, new[-1].encode(), partition=partition)
        assert self._producer.flush(30) == 0
        self.texts += new
        return new

    def _go_on(self) -> None:
        while not self._enough.wait(0.02):
            self.some(1)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


@pytest.fixture
def feed(legacy_kafka: KafkaBroker, topic: str) -> Feed:
    return Feed(legacy_kafka, topic)


def texts(*readers: Any) -> Counter[str]:
    """How often each message was read."""
    return Counter(message.text for reader in readers for message in reader.messages)


def standing(*members: ScalaConsumer | Reader) -> list[tuple[int, ...]]:
    """How often each has rebalanced, and what else moves when one does."""
    return [_stood(member) for member in members]


def _stood(member: ScalaConsumer | Reader) -> tuple[int, ...]:
    if isinstance(member, ScalaConsumer):
        return (member.rebalances,)
    stats = member.member.stats
    return stats.rebalances, stats.generations, stats.gained, stats.lost, stats.waits, stats.conflicts


def named(owners: dict[TopicPartition, str]) -> set[str]:
    """Who holds something, without the numbers of streams."""
    return set(map(whose, owners.values()))


def first_offsets(reader: Any, owners: dict[TopicPartition, str], *, of: Any) -> set[int]:
    """Where it began in the partitions that another one had."""
    first = {message.at: message.offset for message in reversed(reader.messages)}
    return {first[at] for at, id in owners.items() if whose(id) == of.id}


# Sharing


@pytest.mark.parametrize(("strategy", "assignor"), STRATEGIES)
def test_a_scala_member_and_one_of_ours_share_as_both_compute_it(
    strategy: str, assignor: Assignor, registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs = scala("s", {topic: 1}, strategy=strategy)
    mine = ours("ours:1", {topic: 1}, foreign_assignor=strategy)

    owners = settle(registry, group, assignor, {theirs.id, mine.id}, still=STILL)

    assert named(owners) == {theirs.id, mine.id}
    assert mine.member.assignment == {at for at, id in owners.items() if id == f"{mine.id}-0"}


@pytest.mark.parametrize(("strategy", "assignor"), STRATEGIES)
def test_a_scala_member_that_also_names_a_topic_with_a_slash_has_its_share(
    strategy: str, assignor: Assignor, registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs = scala("s", {topic: 1, "un/known": 2}, strategy=strategy)
    mine = ours("ours:1", {topic: 1}, foreign_assignor=strategy)
    owners = settle(registry, group, assignor, {theirs.id, mine.id}, still=STILL)
    assert named(owners) == {theirs.id, mine.id}


def test_a_registration_without_a_session_is_counted_as_a_scala_member_counts_it(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    """Nobody reads its share; but the two that live do not want the same partitions."""
    group.create()
    gone = json.dumps({"version": 1, "subscription": {topic: 1}, "pattern": "static", "timestamp": "1795255170109"})
    registry.client.create(group.paths.instance("0-gone"), gone.encode())
    theirs = scala("s", {topic: 1})
    mine = ours("zz:1", {topic: 1})
    expected = {3: f"{theirs.id}-0", 4: f"{theirs.id}-0", 5: "zz:1-0", 6: "zz:1-0"}
    await_owners(group, {TopicPartition(topic, number): id for number, id in expected.items()})
    await_stillness(group, STILL)
    assert {at.partition for at in mine.member.assignment} == {5, 6}


@pytest.mark.parametrize(("strategy", "assignor"), STRATEGIES)
def test_four_members_with_streams_and_two_topics_share_as_all_compute_it(
    strategy: str,
    assignor: Assignor,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    ours: Ours,
    legacy_kafka: KafkaBroker,
) -> None:
    other = f"{topic}-too"
    legacy_kafka.create_topic(other, 5)
    members: list[ScalaConsumer | Reader] = [
        scala("s1", {topic: 2, other: 1}, strategy=strategy),
        scala("s2", {topic: 1}, strategy=strategy),
        ours("ours:1", {topic: 1, other: 2}, foreign_assignor=strategy),
        ours("zz:1", {topic: 1}, foreign_assignor=strategy),
    ]

    owners = settle(registry, group, assignor, {member.id for member in members}, still=2 * STILL, streams=False)

    assert len(owners) == 12
    before = standing(*members)
    assert changes_within(group, 2.0) == []
    assert standing(*members) == before


def test_a_pattern_of_a_scala_member_and_topics_of_ours_are_shared(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    members: list[ScalaConsumer | Reader] = [
        scala("s", f"{topic}.*|no-such-topic", streams=2),
        ours("ours:1", {topic: 2}),
    ]

    owners = settle(registry, group, range_assignor, {member.id for member in members}, still=STILL, streams=False)

    assert named(owners) == {member.id for member in members}


def test_a_group_that_has_settled_stands_still(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed
) -> None:
    members: list[ScalaConsumer | Reader] = [scala("s", {topic: 1}), ours("ours:1", {topic: 1})]
    settle(registry, group, range_assignor, {member.id for member in members}, still=2 * STILL, streams=False)
    before = standing(*members)

    with feed:
        assert changes_within(group, 3.0) == []

    assert standing(*members) == before
    assert eventually(lambda: texts(*members) == Counter(feed.texts))


# Leaving and coming


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_scala_member_that_goes_leaves_its_share_to_ours(
    how: str,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    ours: Ours,
    feed: Feed,
    offsets: OffsetLog,
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    feed.some(10)
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 10))

    with feed:
        getattr(theirs, how)()
        settle(registry, group, range_assignor, {mine.id})

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert min(first_offsets(mine, owners, of=theirs)) >= 10
    assert offsets.fallen == {}
    assert len(mine.member.assignment) == 7


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_one_of_ours_that_goes_leaves_its_share_to_a_scala_member(
    how: str,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    process: Callable[..., ReaderProcess],
    feed: Feed,
    offsets: OffsetLog,
) -> None:
    theirs, mine = scala("s", {topic: 1}), process("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    feed.some(10)
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 10))

    with feed:
        getattr(mine, how)()
        settle(registry, group, range_assignor, {theirs.id})

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert min(first_offsets(theirs, owners, of=mine)) >= 10
    assert offsets.fallen == {}


def test_one_of_ours_whose_session_ends_comes_back_to_its_share(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    session = mine.registry.session_id

    with feed:
        expire_session(mine.registry.client)
        assert eventually(lambda: mine.registry.session_id not in (session, None))
        assert settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL) == owners

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert offsets.fallen == {}
    assert [event.at for event in mine.events if event.kind is EventKind.LOST] == [mine.member.assignment]


def test_one_of_ours_that_stood_still_while_a_scala_member_took_over_moves_no_offset_back(
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    process: Callable[..., ReaderProcess],
    feed: Feed,
    offsets: OffsetLog,
) -> None:
    theirs, mine = scala("s", {topic: 1}), process("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)

    with feed:
        assert eventually(lambda: mine.messages)
        mine.suspend()
        settle(registry, group, range_assignor, {theirs.id})
        mine.resume()
        assert settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL) == owners

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert offsets.fallen == {}


def test_one_of_ours_that_comes_gets_its_share_of_a_scala_member_as_it_comes(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs = scala("s", {topic: 1}, config=AS_IT_COMES)
    settle(registry, group, range_assignor, {theirs.id})

    mine = ours("ours:1", {topic: 1})

    settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)


def test_a_scala_member_that_comes_waits_while_our_work_is_finished(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    """It tries four times within eight seconds, and then holds nothing: ours must have let go by then."""
    mine = ours("ours:1", {topic: 1}, pause=4.0)
    settle(registry, group, range_assignor, {mine.id})

    theirs = scala("s", {topic: 1}, config=AS_IT_COMES)

    settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    assert theirs.rebalances > 1


def test_work_that_does_not_end_is_left_behind_in_time_for_a_scala_member(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    mine = ours("ours:1", {topic: 1}, pause=12.0)
    settle(registry, group, range_assignor, {mine.id})

    theirs = scala("s", {topic: 1}, config=AS_IT_COMES)

    settle(registry, group, range_assignor, {theirs.id, mine.id}, timeout=20.0)
    assert 1 < theirs.rebalances <= 4


# Messages and offsets


def test_each_message_is_read_once_by_the_one_who_holds_its_partition(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=2 * STILL)

    feed.some(20)

    assert eventually(lambda: texts(theirs, mine) == Counter(feed.texts))
    for reader in (theirs, mine):
        assert {message.at for message in reader.messages} == {at for at in owners if owners[at] == f"{reader.id}-0"}
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 20))
    assert offsets.fallen == {}


def test_nothing_is_left_out_while_members_come_and_go(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s1", {topic: 1}), ours("ours:1", {topic: 1})
    everybody: list[Any] = [theirs, mine]
    with feed:
        settle(registry, group, range_assignor, {theirs.id, mine.id})
        # It reads the offsets before it claims, so that it may begin with one of before our last commit: to commit
        # that, too, it would have to be very quick.
        everybody.append(scala("s2", {topic: 2}, config={"auto.commit.interval.ms": "1000"}))
        settle(registry, group, range_assignor, {member.id for member in everybody})
        everybody.append(ours("zz:1", {topic: 1}))
        settle(registry, group, range_assignor, {member.id for member in everybody})
        mine.stop()
        theirs.stop()
        settle(registry, group, range_assignor, {member.id for member in everybody[2:]})

    assert eventually(lambda: texts(*everybody).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert offsets.fallen == {}


# Others


@pytest.fixture
def raw(legacy_kafka: KafkaBroker) -> Iterator[Any]:
    """A plain kazoo client: somebody who writes nodes byte by byte."""
    client = KazooClient(legacy_kafka.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def register(raw: Any, group: Consumergroup) -> Callable[[str, bytes], None]:
    """Registers somebody."""

    def register(id: str, data: bytes) -> None:
        raw.create(group.paths.instance(id), data, ephemeral=True, makepath=True)

    return register


def told(reader: Reader, kind: EventKind) -> list[str]:
    """What was said in events of a kind."""
    return [event.detail for event in list(reader.events) if event.kind is kind]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"pattern":"static","subscription":["t"],"version":1}', b"\xff"])
def test_a_registration_that_cannot_be_read_is_set_aside_and_named(
    data: bytes,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    ours: Ours,
    register: Callable[[str, bytes], None],
) -> None:
    register("third party", data)

    mine = ours("ours:1", {topic: 1})

    await_owners(group, {TopicPartition(topic, number): f"{mine.id}-0" for number in range(7)})
    assert eventually(lambda: any("third party" in detail for detail in told(mine, EventKind.MALFORMED)))


def test_a_member_of_kazoo_go_is_counted_and_named(
    registry: Registry, group: Consumergroup, topic: str, ours: Ours, register: Callable[[str, bytes], None]
) -> None:
    fields = {"pattern": "static", "subscription": {topic: 1}, "timestamp": 1795255543, "version": 1}
    register("go:1", json.dumps(fields).encode())

    mine = ours("ours:1", {topic: 1})

    # go:1 sorts first and has the larger half, which it leaves alone.
    await_owners(group, {TopicPartition(topic, number): f"{mine.id}-0" for number in (4, 5, 6)})
    await_stillness(group, 1.0)
    assert eventually(lambda: any("kazoo-go" in detail for detail in told(mine, EventKind.FOREIGN)))


def test_a_member_of_pykafka_is_counted_and_named(
    registry: Registry, group: Consumergroup, topic: str, ours: Ours, register: Callable[[str, bytes], None]
) -> None:
    register("pykafka:1", topic.encode())

    mine = ours("ours:1", {topic: 1})

    await_owners(group, {TopicPartition(topic, number): f"{mine.id}-0" for number in range(4)})
    await_stillness(group, 1.0)
    assert eventually(lambda: any("pykafka" in detail for detail in told(mine, EventKind.FOREIGN)))


def test_what_a_member_of_pykafka_holds_is_waited_for(
    registry: Registry, group: Consumergroup, topic: str, ours: Ours, register: Callable[[str, bytes], None], raw: Any
) -> None:
    """Its owner nodes have other names, and do not stand in the way of ours."""
    register("pykafka:1", topic.encode())
    held = f"{group.paths.owners}/b'{topic}'/1-2"
    raw.create(held, b"pykafka:1", ephemeral=True, makepath=True)

    mine = ours("ours:1", {topic: 1})

    partitions = {TopicPartition(topic, number) for number in range(4)}
    pykafkas = {TopicPartition(topic, 2)}
    assert eventually(lambda: mine.member.assignment == partitions - pykafkas)
    assert eventually(lambda: pykafkas in [event.at for event in mine.events if event.kind is EventKind.WAITING])
    assert changes_within(group, 1.0) == []
    raw.delete(held)
    assert eventually(lambda: mine.member.assignment == partitions)


def test_a_scala_member_beside_ours_is_named(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    settle(registry, group, range_assignor, {theirs.id, mine.id})

    assert eventually(lambda: any("scala" in detail for detail in told(mine, EventKind.FOREIGN)))

"""Topic ids, the groups of all brokers, and a setting of brokers: on real brokers, and from some that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups.core.kafka_values import NativeState
from zkgroups.deadline import Deadline
from zkgroups.exceptions import NoPermissionError, NotConnectedError
from zkgroups.kafka.requests.group_lists import list_groups
from zkgroups.kafka.requests.metadata import metadata, topic_ids
from zkgroups.kafka.requests.retention import offsets_retention
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.kafka.wire.error_codes import Code
from zkgroups.testing import KafkaBroker

from .conftest import Writer
from .wire.conftest import with_brokers, with_cluster
from .wire.fake_broker import HOST, Asked, Behaviour, FakeBroker, Send

MakeTopic = Callable[..., str]
OFFSETS = "__consumer_offsets"
PATIENCE = 4
"""In seconds. Even a machine that stands still for most of it gets the answers that come."""


def patience() -> Deadline:
    return Deadline(30)


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)
class TestRealBrokers:
    """Both brokers."""

    def test_a_recreated_topic_has_another_id_if_the_broker_has_ids(
        self, broker: KafkaBroker, writer: Writer, make_topic: MakeTopic
    ) -> None:
        first, second = make_topic(), make_topic()

        async def use(cluster: Cluster) -> None:
            wanted = [first, second, "none", "größe", "x" * 40_000]
            before = await topic_ids(cluster, wanted, patience())
            if broker.release == "1.1.1":
                assert before == {}
                return
            assert len({before[first], before[second]}) == 2
            writer.admin.delete_topics([first])[first].result()
            assert eventually(lambda: first not in writer.admin.list_topics().topics)
            assert await topic_ids(cluster, wanted, patience()) == {second: before[second]}
            broker.create_topic(first)
            assert (await topic_ids(cluster, wanted, patience()))[first] not in before.values()

        with_cluster(broker.address, use)

    def test_all_groups_are_listed_with_their_states_since_2_6(
        self, broker: KafkaBroker, writer: Writer, make_topic: MakeTopic
    ) -> None:
        names = ["listed", "listed größe/日本", "listed 3"]
        for name in names:
            writer.commit(name, {(make_topic(), 0): 7})

        async def use(cluster: Cluster) -> None:
            found = await list_groups(cluster, patience())
            state = None if broker.release == "1.1.1" else NativeState.EMPTY
            assert {name: found[name] for name in names} == dict.fromkeys(names, state)
            assert list(found) == sorted(found)

        with_cluster(broker.address, use)

    def test_the_retention_of_offsets_and_the_id_of_the_cluster_are_read(self, broker: KafkaBroker) -> None:
        days = {"1.1.1": 1, "4.3.1": 7}[broker.release]

        async def use(cluster: Cluster) -> None:
            assert await offsets_retention(cluster, patience()) == days * 86_400
            assert (await metadata(cluster, [], patience())).cluster_id

        with_cluster(broker.address, use)


def listing(code: int = Code.NONE, **groups: str) -> Behaviour:
    """List these groups with their states."""

    async def answer(asked: Asked, send: Send) -> None:
        kind = codec.ListGroupsResponse
        listed = [
            kind.ListedGroup(group_id=name, protocol_type="consumer", group_state=state, group_type="classic")
            for name, state in groups.items()
        ]
        await send(asked.frame(kind(error_code=int(code), groups=listed)))

    return answer


def test_a_group_that_moves_while_groups_are_listed_is_not_missed() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        async def moved(asked: Asked, send: Send) -> None:
            if fakes[0].leaders[OFFSETS] == {0: 0, 1: 1}:
                for fake in fakes:
                    fake.leaders = {OFFSETS: {0: 0, 1: 0}}
                fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty", b="Stable")
            await listing()(asked, send)

        for fake in fakes:
            fake.leaders = {OFFSETS: {0: 0, 1: 1}}
        fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty")
        fakes[1].behaviours[codec.LIST_GROUPS] = moved
        assert await list_groups(cluster, patience()) == {"a": NativeState.EMPTY, "b": NativeState.STABLE}

    with_brokers(use)


def test_a_list_without_the_groups_of_a_broker_is_an_error() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty")
        fakes[1].behaviours[codec.LIST_GROUPS] = listing(Code.COORDINATOR_LOAD_IN_PROGRESS, b="Empty")
        with pytest.raises(NotConnectedError, match=f"within {PATIENCE} s: coordinator load in progress"):
            await list_groups(cluster, Deadline(PATIENCE))
        fakes[1].behaviours[codec.LIST_GROUPS] = listing(Code.CLUSTER_AUTHORIZATION_FAILED)
        with pytest.raises(NoPermissionError, match="groups of broker 1"):
            await list_groups(cluster, patience())
        await fakes[1].stop()
        with pytest.raises(NotConnectedError, match=f"within {PATIENCE} s: no connection to"):
            await list_groups(cluster, Deadline(PATIENCE))

    with_brokers(use)


def test_a_last_attempt_without_time_does_not_replace_the_reason_of_earlier_ones() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        deadline = Deadline(PATIENCE)

        async def answer_late(asked: Asked, send: Send) -> None:
            if codec.LIST_GROUPS in fakes[1].asked:
                await asyncio.sleep(deadline.remaining + 0.1)
            await fakes[0].answer(asked, send)

        fakes[0].behaviours[codec.LIST_GROUPS] = listing(a="Empty")
        fakes[1].behaviours[codec.LIST_GROUPS] = listing(Code.COORDINATOR_LOAD_IN_PROGRESS)
        for fake in fakes:
            fake.behaviours[codec.METADATA] = answer_late
        with pytest.raises(NotConnectedError, match=f"within {PATIENCE} s: coordinator load in progress"):
            await list_groups(cluster, deadline)

    with_brokers(use)


def configured(minutes: str | None, code: int = Code.NONE) -> Behaviour:
    async def answer(asked: Asked, send: Send) -> None:
        kind = codec.DescribeConfigsResponse.DescribeConfigsResult
        [wanted] = asked.message.resources
        found = [_setting(kind, wanted.configuration_keys[0], minutes)] if minutes else []
        result = kind(
            error_code=int(code), resource_type=4, resource_name=wanted.resource_name, error_message=None, configs=found
        )
        await send(asked.frame(codec.DescribeConfigsResponse(results=[result])))

    return answer


def _setting(kind: Any, name: str, value: str) -> Any:
    return kind.DescribeConfigsResourceResult(
        name=name, value=value, read_only=False, is_sensitive=False, synonyms=[], documentation=None
    )


@pytest.mark.parametrize(
    ("second", "seconds"),
    [
        (configured("5"), 300),
        (configured(None, Code.CLUSTER_AUTHORIZATION_FAILED), 600),
        (configured(None, Code.REQUEST_TIMED_OUT), 600),
        (None, 600),
    ],
)
def test_the_shortest_retention_of_all_brokers_counts(second: Behaviour | None, seconds: int) -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        fakes[0].behaviours[codec.DESCRIBE_CONFIGS] = configured("10")
        if second is None:
            await fakes[1].stop()
        else:
            fakes[1].behaviours[codec.DESCRIBE_CONFIGS] = second
        assert await offsets_retention(cluster, Deadline(PATIENCE)) == seconds

    with_brokers(use)


def test_brokers_without_settings_report_no_retention() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        for fake in fakes:
            fake.last_versions = {codec.DESCRIBE_CONFIGS: -1}
        assert await offsets_retention(cluster, patience()) is None

    with_brokers(use)


def test_topics_that_a_user_may_not_see_are_an_error() -> None:
    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        async def refused(asked: Asked, send: Send) -> None:
            kind = codec.MetadataResponse
            topic = kind.MetadataResponseTopic(error_code=29, name="orders", topic_id=None, partitions=[])
            own = kind.MetadataResponseBroker(node_id=0, host=HOST, port=fakes[0].port)
            await send(asked.frame(kind(brokers=[own], topics=[topic], cluster_id=None, controller_id=-1)))

        fakes[0].behaviours[codec.METADATA] = refused
        with pytest.raises(NoPermissionError, match="topic 'orders'"):
            await topic_ids(cluster, ["orders"], patience())

    with_brokers(use)


def test_a_broker_that_has_just_started_does_not_hide_topics() -> None:
    """Until the controller has told it, a broker with ZooKeeper knows neither brokers nor topics."""

    async def use(cluster: Cluster, fakes: Sequence[FakeBroker]) -> None:
        async def empty(asked: Asked, send: Send) -> None:
            await send(asked.frame(codec.MetadataResponse(brokers=[], topics=[], cluster_id=None, controller_id=-1)))
            del fakes[0].behaviours[codec.METADATA]

        fakes[0].behaviours[codec.METADATA] = empty
        found = await metadata(cluster, ["orders"], patience())
        assert (found.brokers.keys(), found.topics["orders"].leaders) == ({0, 1}, {0: 0, 1: 1})
        assert codec.METADATA not in fakes[0].behaviours

    with_brokers(use)

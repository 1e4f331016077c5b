"""A server with a small `jute.maxbuffer` drops the connection on larger requests, so they are split or an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.exceptions import TooLargeError
from zkgroups.testing import ZooKeeperServer

from ..consumer.conftest import Running, ats, plant_topic

pytestmark = pytest.mark.zookeeper

BOUND = 16_384
MANY = 900


@pytest.fixture(scope="module")
def small() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(jvm_options=[f"-Djute.maxbuffer={BOUND}"]) as server:
        yield server


@pytest.fixture
def group(small: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Consumergroup]:
    with Registry.connect(small.address) as registry:
        yield registry.group(request.node.name)


def test_a_member_with_many_partitions_claims_and_commits_all_of_them(group: Consumergroup) -> None:
    registry_client = group._context.session.client
    plant_topic(registry_client, "orders", MANY)
    everything = ats("orders", *range(MANY))
    with Running(group, id="a") as a:
        a.until_holding(everything)
        for at in everything:
            a.generations[-1].mark(at, 7)
        a.generations[-1].commit()
        with Running(group, id="b") as b:
            half = ats("orders", *range(MANY // 2, MANY))
            b.until_holding(half)
            a.until_holding(everything - half)
        a.until_holding(everything)
    assert a.errors == b.errors == []
    committed = {found.at for found in group.offsets if isinstance(found, CommittedOffset) and found.offset == 7}
    assert committed == everything


def test_a_plan_for_thousands_of_partitions_is_compressed_and_fits(group: Consumergroup) -> None:
    topics = ["fine", "good", "well"]
    for topic in topics:
        plant_topic(group._context.session.client, topic, MANY)
    everything = frozenset().union(*(ats(topic, *range(MANY)) for topic in topics))
    with Running(group, topics, id="a", assignors=["sticky"]) as a:
        a.until_holding(everything)
    assert a.errors == []


def test_a_learned_request_limit_is_kept_for_the_session(group: Consumergroup) -> None:
    with group.instance("a") as me:
        me.register(["payments"])
        many = [TopicPartition("payments", number) for number in range(MANY)]
        me.claim_many(many).release()
        connected: list[str] = []
        group._context.session.client.add_listener(connected.append)
        claims = me.claim_many(many)
        claims.commit(dict.fromkeys(many, 5))
        claims.release()
        assert connected == []
        assert claims.held is False
    assert sum(1 for _ in group.offsets) == MANY


def test_offsets_are_reset_and_deleted_in_requests_that_the_server_accepts(group: Consumergroup) -> None:
    many = {TopicPartition("refunds", number): 5 for number in range(MANY)}
    group.offsets.set_many(many)
    group.offsets.reset(dict.fromkeys(many, 3))
    assert {found.shown for found in group.offsets} == {"3"}
    group.offsets.delete(many)
    assert list(group.offsets) == []


def test_a_group_is_deleted_in_requests_that_the_server_accepts(group: Consumergroup, small: ZooKeeperServer) -> None:
    group.offsets.set_many({TopicPartition("refunds", number): 5 for number in range(MANY)})
    with Registry.connect(small.address) as registry:  # its limit is not learned yet
        registry.group(group.name).delete()
    assert not group.exists()


def test_a_single_registration_that_is_too_large_raises_an_error_with_the_cause(group: Consumergroup) -> None:
    topics = [f"topic-{number:05}" for number in range(1_500)]
    with group.instance("a") as me, pytest.raises(TooLargeError, match=r"jute\.maxbuffer") as caught:
        me.register(topics)
    assert caught.value.size is not None
    assert caught.value.size > BOUND
    assert not group.exists() or group.instances() == []

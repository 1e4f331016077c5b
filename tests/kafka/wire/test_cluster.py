"""A cluster: its brokers and topics, requests to one of them or to any, and the race of several attempts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest

from zkgroups.deadline import Deadline
from zkgroups.exceptions import AuthenticationError, NotConnectedError, UnavailableError
from zkgroups.kafka.requests.group_requests import versions
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster, Topic, first_of
from zkgroups.kafka.wire.errors import Address, AnswerLostError, NotSentError, WireError, addresses
from zkgroups.testing import KafkaBroker

from .conftest import with_cluster
from .fake_broker import DESCRIBE, HOST, FakeBroker, describe, never, simulate, with_fakes

LONGEST = 30.0
UNKNOWN_TOPIC = 3


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)
def test_metadata_of_real_brokers_has_brokers_and_topics(broker: KafkaBroker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(3)

    async def use(cluster: Cluster) -> None:
        found = await cluster.metadata()
        [(node, address)] = found.brokers.items()
        assert addresses(broker.address) == (address,)
        assert found.controller == node
        assert found.cluster_id
        assert found.topics[topic].leaders == {0: node, 1: node, 2: node}
        assert (found.topics[topic].id is None) == broker.release.startswith("1.")
        some = await cluster.metadata([topic, "none"])
        assert dict(some.topics) == {topic: found.topics[topic], "none": Topic({}, None, UNKNOWN_TOPIC)}
        assert (await cluster.metadata([])).topics == {}
        assert "none" not in (await cluster.metadata()).topics

    with_cluster(broker.address, use)


def test_addresses_are_read_as_users_write_them() -> None:
    assert addresses("[::1]:1, SSL://a:2,a:2") == (Address("::1", 1), Address("a", 2))


async def name(cluster: Cluster, node: int | None, group: str = "billing") -> str:
    [found] = (await cluster.ask(node, describe(group), timeout=LONGEST)).groups
    return str(found.group_id)


async def until_answered(cluster: Cluster, node: int | None) -> str:
    """Ask until there is an answer, as all callers do."""
    while True:
        try:
            return await name(cluster, node)
        except WireError:
            await asyncio.sleep(0.01)


@with_fakes
async def test_dead_bootstrap_addresses_are_passed_over(
    dead: FakeBroker, hung: FakeBroker, fake: FakeBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    hung.behaviours[codec.API_VERSIONS] = never
    await dead.stop()
    bootstrap = f"{HOST}:{dead.port},{hung.address},no-such-host.invalid:1,{fake.address}"
    async with Cluster(bootstrap) as cluster:
        assert (await cluster.metadata([])).cluster_id == "fake"
    async with Cluster(f"{HOST}:{dead.port}") as cluster:
        with pytest.raises(NotSentError, match=rf"no connection to 127.0.0.1:{dead.port}"):
            await cluster.metadata([])


@with_fakes
async def test_every_address_of_a_name_is_tried(fake: FakeBroker, *, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, fake.port)) for host in ("127.0.0.2", HOST)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    async with Cluster(f"kafka.example:{fake.port}") as cluster:
        assert (await cluster.metadata([])).cluster_id == "fake"


@with_fakes
async def test_a_broker_that_died_is_forgotten_and_found_at_its_new_address(
    first: FakeBroker, second: FakeBroker, later: FakeBroker
) -> None:
    for fake in (first, second):
        fake.brokers = {1: first.address, 2: second.address}
    async with Cluster(str(second.address)) as cluster:
        assert [await name(cluster, node) for node in (1, 2)] == ["billing", "billing"]
        second.brokers = {1: later.address, 2: second.address}
        await first.stop()
        assert await until_answered(cluster, 1) == "billing"
        assert DESCRIBE in later.asked
        with pytest.raises(NotSentError, match="no broker of the cluster has the id 3"):
            await name(cluster, 3)


@with_fakes
async def test_when_all_known_brokers_are_gone_the_first_addresses_are_asked_again(
    front: FakeBroker, first: FakeBroker, later: FakeBroker
) -> None:
    front.brokers = {1: first.address}
    async with Cluster(str(front.address)) as cluster:
        assert await name(cluster, 1) == "billing"
        await first.stop()
        await front.stop()
        front.brokers = {1: later.address}
        await front.start()
        assert await until_answered(cluster, 1) == await until_answered(cluster, None) == "billing"
        assert DESCRIBE in later.asked


@with_fakes
async def test_many_requests_share_a_few_connections(fake: FakeBroker) -> None:
    fake.brokers = {1: fake.address}
    async with Cluster(str(fake.address)) as cluster:
        groups = [f"group-{n}" for n in range(100)]
        assert await asyncio.gather(*(name(cluster, 1, group) for group in groups)) == groups
        assert 1 < len(cluster._links[fake.address]) <= 16


@with_fakes
async def test_a_broker_that_stands_still_holds_up_one_request_per_connection(fake: FakeBroker) -> None:
    fake.brokers = {1: fake.address}
    async with Cluster(str(fake.address), links=1) as cluster:
        assert await name(cluster, 1) == "billing"
        fake.behaviours[DESCRIBE] = never
        for _ in range(2):
            with pytest.raises(AnswerLostError):
                await cluster.ask(1, describe("billing"), timeout=0.05)
        fake.behaviours.clear()
        assert await name(cluster, 1) == "billing"


@with_fakes
async def test_no_request_takes_longer_than_the_setting_for_all_requests(fake: FakeBroker) -> None:
    fake.brokers = {1: fake.address}
    fake.behaviours[DESCRIBE] = never
    async with Cluster(str(fake.address), request_timeout=0.05) as cluster:
        with pytest.raises(WireError, match=r"within 0\.05 s"):
            await cluster.ask(1, describe("billing"), timeout=LONGEST)


@with_fakes
async def test_versions_are_asked_for_again_until_a_broker_answers(fake: FakeBroker) -> None:
    async with Cluster(str(fake.address)) as cluster:
        await fake.stop()
        asked = asyncio.create_task(versions(cluster, Deadline(LONGEST)))
        await asyncio.sleep(5)
        await fake.start()
        assert (await asked).best(DESCRIBE) is not None

    fake.behaviours[codec.API_VERSIONS] = never
    async with Cluster(str(fake.address)) as cluster:
        with pytest.raises(NotConnectedError, match=r"within 0\.2 s: no (answer from|connection to)"):
            await versions(cluster, Deadline(0.2))


@with_fakes
async def test_a_broker_that_did_not_answer_is_asked_after_the_others(hung: FakeBroker, fake: FakeBroker) -> None:
    for each in (hung, fake):
        each.brokers = {1: hung.address, 2: fake.address}
    async with Cluster(str(hung.address)) as cluster:
        assert await name(cluster, None) == "billing"
        await cluster.metadata([])
        hung.behaviours = dict.fromkeys((DESCRIBE, codec.METADATA, codec.API_VERSIONS), never)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await name(cluster, None)
        assert await name(cluster, None) == "billing"
        assert DESCRIBE in fake.asked


@with_fakes
async def test_the_error_about_brokers_that_do_not_answer_has_the_reason_of_each(
    dead: FakeBroker, hung: FakeBroker
) -> None:
    hung.behaviours[codec.API_VERSIONS] = never
    await dead.stop()
    reasons = f"no connection to {HOST}:{dead.port}: .*; no answer from {hung.address}"
    async with Cluster(f"{HOST}:{dead.port},{hung.address}") as cluster:
        for _ in range(2):
            with pytest.raises(NotSentError, match=reasons):
                await cluster.metadata([], timeout=4)


@with_fakes
async def test_an_impossible_address_of_a_broker_is_an_error_and_a_closed_cluster_is_refused(fake: FakeBroker) -> None:
    fake.brokers = {1: Address("1" * 80, 1), 2: Address(HOST, 1 << 20)}
    async with Cluster(str(fake.address)) as cluster:
        for node in (1, 2):
            with pytest.raises(NotSentError, match="no connection to"):
                await name(cluster, node)
    with pytest.raises(UnavailableError, match="closed"):
        await cluster.metadata([])


# Several attempts at a time: the first success counts

NEVER = None
AWAY, WRONG = NotSentError("it is away"), AuthenticationError("wrong password")


@pytest.mark.parametrize(
    ("outcomes", "result", "begun", "cancelled"),
    [
        ({"a": NEVER, "b": AWAY, "c": "c", "d": "d"}, "c", ["a", "b", "c"], ["a"]),
        ({"a": AWAY, "b": NotSentError("b, too")}, "NotSentError: it is away; b, too", ["a", "b"], []),
        ({"a": NEVER, "b": WRONG, "c": NEVER}, "AuthenticationError: wrong password", ["a", "b"], ["a"]),
        ({"a": 0.6, "b": WRONG}, "0.6", ["a", "b"], []),  # a success shortly after a permanent error
    ],
)
def test_the_first_success_of_several_attempts_counts(
    outcomes: Mapping[str, object], result: str, begun: list[str], cancelled: list[str]
) -> None:
    """Otherwise all reasons are named, and a permanent error is not held up by those who never answer."""
    started: list[str] = []
    ended: list[str] = []

    async def attempt(candidate: str) -> str:
        started.append(candidate)
        outcome = outcomes[candidate]
        try:
            if outcome is NEVER:
                await asyncio.Event().wait()
            if isinstance(outcome, float):
                await asyncio.sleep(outcome)
        except asyncio.CancelledError:
            ended.append(candidate)
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    async def use() -> str:
        try:
            return await first_of(outcomes, attempt)
        except (NotSentError, AuthenticationError) as error:
            return f"{type(error).__name__}: {error}"

    assert (simulate(use()), started, ended) == (result, begun, cancelled)


def test_only_some_attempts_run_at_a_time() -> None:
    async def use() -> int:
        most = running = 0

        async def attempt(_: int) -> int:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await asyncio.sleep(2)
            running -= 1
            raise NotSentError("away")

        with pytest.raises(NotSentError):
            await first_of(range(6), attempt)
        return most

    assert simulate(use()) == 4

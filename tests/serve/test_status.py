"""`zkgroups status`: the groups in trouble come first, also among many that nobody uses any more."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from tests.waiting import LONGEST
from zkgroups import Registry, TopicPartition
from zkgroups.core.health import Status
from zkgroups.kafka import Brokers
from zkgroups.serve import sweeper
from zkgroups.serve.page.overview import Query
from zkgroups.serve.page.views import view
from zkgroups.serve.picture.build_group import Rules
from zkgroups.serve.picture.values import Picture, SourceState
from zkgroups.serve.sweeper import BrokerReader, ClusterState
from zkgroups.testing import KafkaBroker

from ..cli.running import run, started
from .pictures import NOW
from .test_pages import parsed, rows

pytestmark = pytest.mark.zookeeper

DAYS_3: Final = 3 * 86_400_000
TROUBLE: Final = {
    "live-ahead": Status.PAST_END,
    "live-blocked": Status.BLOCKED,
    "live-stuck-1": Status.STOP,
    "live-stuck-2": Status.STOP,
}
ABANDONED: Final = [f"aa-old-{number:02}" for number in range(24)]
HEALTHY: Final = [f"fine-{number:03}" for number in range(72)]


@pytest.fixture
def topic(kafka_broker: KafkaBroker, registry: Registry) -> str:
    """A topic of four partitions with ten messages each, that ZooKeeper knows, too."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=4)
    for number in range(4):
        kafka_broker.write(name, number, 10)
    node = json.dumps({"version": 1, "partitions": {str(number): [0] for number in range(4)}})
    registry.client.create(f"/brokers/topics/{name}", node.encode(), makepath=True)
    return name


@pytest.fixture
def groups(registry: Registry, topic: str) -> Iterator[None]:
    """100 groups: 4 with members and in trouble, 24 without members and with lag, and 72 without lag."""
    partitions = [TopicPartition(topic, number) for number in range(4)]
    kazoo, made = registry.client, []
    for name in (*ABANDONED, *HEALTHY, *TROUBLE):
        offset = 99 if name == "live-ahead" else 10 if name in HEALTHY or name == "live-blocked" else 3
        kazoo.ensure_path(f"/consumers/{name}/offsets/{topic}")
        for at in partitions:
            made.append(kazoo.create_async(f"/consumers/{name}/offsets/{topic}/{at.partition}", b"%d" % offset))
    assert all(each.get() for each in made)
    with ExitStack() as stack:
        for name in TROUBLE:
            anna = stack.enter_context(registry.group(name).instance("anna"))
            anna.register([topic])
            for at in partitions[name == "live-blocked" :]:
                anna.claim(at)
        ben = stack.enter_context(registry.group("live-blocked").instance("ben"))
        ben.register(["refunds"])
        ben.claim(partitions[0])
        yield


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commits of this test be three days old."""
    from zkgroups_cli.serve import status

    real = sweeper.now_ms
    for module in (sweeper, status):
        monkeypatch.setattr(module, "now_ms", lambda: real() + DAYS_3)


def test_of_100_groups_the_four_in_trouble_come_first_and_nothing_else_pages(
    zookeeper_hosts: str,
    kafka_broker: KafkaBroker,
    registry: Registry,
    groups: None,
    later: None,
) -> None:
    servers = ("-z", zookeeper_hosts, "--timeout", "40", "-b", kafka_broker.address)
    ended = run(*servers, "status", "--fail-on", "error", "-o", "json")
    assert ended.code == 10
    shown = ended.json["groups"]
    assert len(shown) == 100
    assert {each["group"]: each["status"] for each in shown[:4]} == TROUBLE
    assert {each["severity"] for each in shown[:4]} == {"error"}
    assert [each["group"] for each in shown if each["status"] == "ABANDONED"] == ABANDONED
    assert {each["severity"] for each in shown[4:]} == {"warning", None}
    assert all(each["next_step"] for each in shown[:28])

    lines = run(*servers, "status").lines
    assert {line.split()[1] for line in lines[1:5]} == set(TROUBLE)
    assert [line.split()[0] for line in lines[5:]] == ["ABANDONED", "OK"]
    assert "(and 23 more groups: add -o wide)" in lines[5]

    assert len(run(*servers, "status", *HEALTHY[:5]).lines) == 6, "named groups are shown one by one"

    ended = run(*servers, "doctor", "--fail-on", "error", "-o", "json")
    assert ended.code == 10
    findings = ended.json["findings"]
    errors = [each for each in findings if each["severity"] == "error"]
    assert errors == findings[: len(errors)]
    assert {each["group"] for each in errors} == set(TROUBLE)
    stopped = [each["what"] for each in errors if each["code"] == "stopped-partition"]
    assert len(stopped) == 2
    assert all("no commit for 3d, 7 messages wait (4 of 4 partitions)" in what for what in stopped)
    abandoned = {each["group"] for each in findings if each["code"] == "abandoned-partition"}
    assert abandoned == set(ABANDONED)

    lines = run(*servers, "doctor", "--severity", "warning").lines
    [folded] = [line for line in lines if "abandoned-partition" in line]
    assert folded.endswith("(and 23 more: add -o wide)")
    assert lines.index(folded) > len(TROUBLE)

    picture = swept(registry, kafka_broker)
    tags = parsed(view(picture, "/", NOW).html)
    assert set(rows(tags)[:4]) == set(TROUBLE) == set(rows(tags)), "the others are not in use"
    assert "show 96 not in use" in tags.text
    assert len(Query.parse({"all": "1"}).chosen(list(picture.groups.values()))) == 100


def swept(registry: Registry, broker: KafkaBroker) -> Picture:
    state = ClusterState(Rules())
    with Brokers.connect(broker.address) as brokers:
        reader = BrokerReader(brokers, state.ends)
        sweeper.sweep(
            registry, registry.groups(), state, lambda groups: reader.read_or_raise(groups, clock=sweeper.now_ms)
        )
    return Picture(1, "prod", SourceState(NOW), SourceState(NOW), groups=state.groups, topics=state.topics)


def test_without_brokers_or_their_answer_members_that_own_too_little_are_found(
    zookeeper_hosts: str, registry: Registry
) -> None:
    node = b'{"version": 1, "partitions": {"0": [0], "1": [0]}}'
    registry.client.create("/brokers/topics/orders", node, makepath=True)
    with registry.group("billing").instance("anna") as anna:
        anna.register(["orders"])
        anna.claim(TopicPartition("orders", 0))
        ended = run("-z", zookeeper_hosts, "status", "billing", "nothing")
        assert ended.code == 9
        assert ended.out.splitlines()[1].startswith("UNOWNED  billing        1    -  no member owns it for")
        assert ended.out.splitlines()[1].endswith("(1 of 2 partitions)  zkgroups groups explain billing")
        assert "zkgroups: group 'nothing' does not exist" in ended.err
        assert "Without brokers (-b), it is unknown whether messages wait." in ended.err
        assert run("-z", zookeeper_hosts, "status", "--fail-on", "warning").code == 10
        assert run("-z", zookeeper_hosts, "status", "-o", "name").out == "billing\n"
        away = run("-z", zookeeper_hosts, "-b", "127.0.0.1:1", "status")
        assert (away.code, "log ends and lag are unknown" in away.err, "UNOWNED  billing" in away.out) == (
            9,
            True,
            True,
        )
    assert run("-z", zookeeper_hosts, "status", "--fail-on", "warning").code == 0


def test_watch_shows_the_groups_again_until_one_fails(zookeeper_hosts: str, registry: Registry) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    node = b'{"version": 1, "partitions": {"0": [0]}}'
    registry.client.create("/brokers/topics/orders", node, makepath=True)
    command = ("-z", zookeeper_hosts, "status", "--watch", "--interval", "0.1", "--fail-on", "warning", "-o", "jsonl")
    with started(*command) as process, registry.group("billing").instance("anna") as anna:
        assert json.loads(process.stdout.readline())["status"] == "OK"
        anna.register(["orders"])
        lines = process.communicate(timeout=LONGEST)[0].splitlines()
        assert json.loads(lines[-1])["status"] == "UNOWNED"
        assert process.returncode == 10

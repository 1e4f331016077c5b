"""`zkgroups lag`, and the lag in `zkgroups groups describe`: with real brokers and without."""

from __future__ import annotations

import csv
import io
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.times import to_ms
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker, Op, TcpProxy
from zkgroups.zookeeper.admin import migration_marks as marks

from ..gateway.old_members import create_topic
from .conftest import Zkgroups
from .running import Terminal, started

pytestmark = pytest.mark.zookeeper

AWAY = "127.0.0.1:1"


@pytest.fixture(scope="session")
def topic(kafka_broker: KafkaBroker) -> str:
    """A topic whose log has the offsets 0 to 5 in partition 0, none in partition 1, and 3 to 8 in partition 2."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=3)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for partition, messages in ((0, 5), (2, 8)):
        for _ in range(messages):
            producer.produce(name, b"", partition=partition)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    for future in admin.delete_records([Place(name, 2, 3)]).values():
        future.result()
    return name


@pytest.fixture
def at(topic: str) -> Any:
    return lambda partition: TopicPartition(topic, partition)


@pytest.fixture
def late(registry: Registry, at: Any) -> Any:
    """A group that is behind by 3 in partition 0, by 0 in partition 1, by 7 (2 of them deleted) in partition 2, and
    has an offset of a partition that does not exist."""
    group = registry.group("billing")
    group.offsets.set_many({at(0): 2, at(1): 0, at(2): 1, at(1000): 5})
    return group


@pytest.fixture
def lag(zkgroups: Zkgroups, kafka: str) -> Any:
    return lambda *arguments: zkgroups("lag", "-b", kafka, *arguments)


def test_brokers_that_are_not_registered_in_zookeeper_are_asked_for_partitions(
    zkgroups: Zkgroups, registry: Registry, kafka: str, topic: str
) -> None:
    """ZooKeeper may still have the topics from before a migration to KRaft, with fewer partitions."""
    create_topic(registry.client, topic, 1)
    with registry.group("billing").instance("anna") as anna:
        anna.register([topic])
        with anna.claim(TopicPartition(topic, 0)):
            described = zkgroups("groups", "describe", "billing", "-o", "json", "-b", kafka).json["groups"][0]
            assert (described["state"], len(described["partitions"])) == ("CompletingRebalance", 3)
            explained = zkgroups("groups", "explain", "billing", "-b", kafka).out
            assert f"{topic} 1-2: no owner; anna should claim them." in explained
            unowned = zkgroups("doctor", "--ignore", "open-acl", "-o", "json", "-b", kafka).json["findings"]
            assert [(each["code"], "partitions 1, 2" in each["what"]) for each in unowned] == [
                ("unowned-partition", True)
            ]
            [status] = zkgroups("status", "-o", "json", "-b", kafka).json["groups"]
            assert status["status"] == "UNOWNED"
            away = zkgroups("groups", "explain", "billing", "-b", AWAY)
            assert away.code == 0
            assert away.err.startswith(f"zkgroups: partitions are unknown or out of date: no broker at {AWAY} answered")


def test_an_unread_message_that_is_too_old_is_a_finding(
    lag: Any, registry: Registry, kafka_broker: KafkaBroker
) -> None:
    name = f"old-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=1)
    producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0, "compression.type": "gzip"})
    now_ms = int(time.time() * 1000)
    for hours in (3, 2, 1):
        producer.produce(name, b"", partition=0, timestamp=now_ms - hours * 3_600_000)
    assert producer.flush(30) == 0
    registry.group("early").offsets.set(TopicPartition(name, 0), 0)
    registry.group("later").offsets.set(TopicPartition(name, 0), 2)
    late = lag("early", "later", "--time", "--fail-over-age", "2h", "-o", "json")
    assert (late.code, late.err) == (10, "Groups with an older unread message than 2h: early.\n")
    hours = [each["time_lag_seconds"] / 3600 for each in late.json["lags"]]
    assert hours == [pytest.approx(3, rel=0.02), pytest.approx(1, rel=0.02)]
    [header, *lines] = lag("early", "later", "--time", "--summary").lines
    assert [line.split()[6] for line in (header, *lines)] == ["MAX-TIME-LAG", "3h", "1h"]
    assert lag("early", "--fail-over-age", "1d").code == 2


# Output


def test_the_lag_is_shown_for_each_partition(lag: Any, late: Any, topic: str, at: Any) -> None:
    ended = lag("billing")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split(maxsplit=7) for line in ended.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "OWNER", "NOTE"],
        ["billing", topic, "0", "2", "5", "3", "-", "-"],
        ["billing", topic, "1", "0", "0", "0", "-", "-"],
        ["billing", topic, "2", "1", "8", "7", "-", "before start"],
        ["billing", topic, "1000", "5", "-", "-", "-", "log unknown"],
    ]
    found = lag("billing", "-o", "json").json
    committed_ms = to_ms(late.offsets.fetch(at(0)).committed_at)
    place = {"group": "billing", "topic": topic, "partition": 0, "owners": [], "moved_to": None}
    numbers = {"offset": 2, "log_start": 0, "log_end": 5, "lag": 3, "committed_ms": committed_ms, "note": None}
    assert (found["schema"], found["lags"][0]) == (1, place | numbers)
    unknown = {"offset": 5, "log_start": None, "log_end": None, "lag": None, "note": "log unknown"}
    assert found["lags"][3].items() >= unknown.items()


# Selection


@pytest.fixture
def three(late: Any, registry: Registry, at: Any) -> None:
    """And a group that is not behind, and a group with unknown lag."""
    registry.group("done").offsets.set_many({at(0): 5})
    registry.group("lost").offsets.set_many({TopicPartition("gone", 0): 5})


def test_groups_topics_and_partitions_can_be_chosen(lag: Any, three: None, topic: str) -> None:
    def shown(*arguments: str) -> list[list[str]]:
        return [line.split(",")[:3] for line in lag(*arguments, "-o", "csv", "--no-headers").lines]

    assert shown("--groups", "d.*", "lost") == [["lost", "gone", "0"], ["done", topic, "0"]]
    assert shown("--topic", f"{topic}:0,2", "billing") == [["billing", topic, "0"], ["billing", topic, "2"]]
    assert shown("--topic", "gone") == [["lost", "gone", "0"]]
    assert shown("--topic", "nowhere") == []


def test_only_with_lag_hides_other_partitions_and_reports_how_many_are_unknown(lag: Any, three: None) -> None:
    ended = lag("--only-with-lag", "-o", "csv", "--no-headers")
    assert [line.split(",")[2] for line in ended.lines] == ["0", "2"]
    assert ended.err == "The lag of 2 more partitions is unknown.\n"
    assert lag("--only-with-lag", "-o", "name").lines == ["billing"]


def test_a_summary_has_a_line_for_each_group_and_a_total_above_the_limit_is_exit_code_10(lag: Any, three: None) -> None:
    ended = lag("--summary")
    assert [line.split()[:7] for line in ended.lines] == [
        ["GROUP", "STATE", "MEMBERS", "PARTITIONS", "TOTAL-LAG", "MAX-LAG", "UNKNOWN"],
        ["billing", "Empty", "0", "4", "10", "7", "1"],
        ["done", "Empty", "0", "1", "0", "0", "0"],
        ["lost", "Empty", "0", "1", "-", "-", "1"],
    ]
    lost = lag("--summary", "-o", "json").json["groups"][2]
    assert lost.pop("last_commit_ms") > 0
    unknown = {"total_lag": None, "max_lag": None, "unknown": 1}
    assert lost == {"group": "lost", "state": "Empty", "members": 0, "partitions": 1, "moved_to": None} | unknown
    assert lag("-o", "name").lines == ["billing", "done", "lost"]
    for most, code in (("9", 10), ("10", 0)):
        ended = lag("--top", "1", "--fail-over", most)
        assert (ended.code, len(ended.lines)) == (code, 2)
        assert ended.err == ("Groups with a lag above 9: billing.\n" if code else "")
    assert lag("--topic", "gone", "--fail-over", "0").code == 0, "an unknown lag is not above the limit"


def test_groups_are_chosen_by_their_state_and_members(lag: Any, three: None, registry: Registry, topic: str) -> None:
    with registry.group("done").instance("anna") as anna:
        anna.register([topic])
        [row] = lag("--summary", "--live", "-o", "json").json["groups"]
        assert (row["group"], row["state"], row["members"]) == ("done", "PreparingRebalance", 1)
        assert lag("--state", "empty", "-o", "name").lines == ["billing", "lost"]


def test_moved_groups_are_marked_and_left_out_of_checks_unless_asked_for(
    zkgroups: Zkgroups, lag: Any, three: None, registry: Registry, kafka: str
) -> None:
    assert "MOVED-TO" not in lag("--summary").out + lag().out + zkgroups("groups", "list").out
    marks.put(registry._context, {"billing": "accounts"}, plan="p1", state=MarkState.MOVED)
    marks.put(registry._context, {"lost": "lost"}, plan="p2", state=MarkState.MOVING)
    for shown in (lag("--summary"), lag(), zkgroups("groups", "list"), zkgroups("groups", "list", "-o", "wide")):
        assert "MOVED-TO" in shown.lines[0]
        assert {line.split()[0] for line in shown.lines if "accounts" in line.split()} == {"billing"}
    for command in (("lag", "--summary"), ("groups", "list")):
        rows = zkgroups(*command, "-o", "json", "-b", kafka).json["groups"]
        assert {row["group"]: row["moved_to"] for row in rows} == {"billing": "accounts", "done": None, "lost": None}
    unchecked = "Not checked, because they were moved to the brokers: billing.\n"
    for check in (("--fail-over", "0"), ("--time", "--fail-over-age", "0s")):
        ended = lag("billing", *check)
        assert (ended.code, ended.err) == (0, unchecked)
        assert lag("billing", *check, "--include-moved").code == 10


def test_lines_are_sorted_by_lag_or_by_the_age_of_the_last_commit(
    lag: Any, three: None, registry: Registry, at: Any
) -> None:
    def shown(*arguments: str) -> list[tuple[str, str]]:
        rows = csv.reader(io.StringIO(lag(*arguments, "-o", "csv", "--no-headers").out))
        return [(row[0], row[2]) for row in rows]

    by_lag = shown("--sort", "lag")
    assert by_lag[:2] == [("billing", "2"), ("billing", "0")]
    assert set(by_lag[4:]) == {("billing", "1000"), ("lost", "0")}, "unknown lags come last"
    assert shown("--top", "1") == [("billing", "2")]
    assert shown("--sort", "group", "--top", "2") == [("billing", "0"), ("billing", "1")]
    registry.group("billing").offsets.set(at(2), 2)
    assert shown("--sort", "age")[-1] == ("billing", "2"), "it has the most recent commit"
    assert lag("--summary", "--sort", "lag", "-o", "name").lines == ["billing", "done", "lost"]
    assert lag("--summary", "--sort", "age", "-o", "name").lines[-1] == "billing"


def test_the_list_of_groups_has_their_lag_if_the_brokers_are_given(zkgroups: Zkgroups, kafka: str, three: None) -> None:
    listed = zkgroups("groups", "list", "-o", "json", "-b", kafka).json["groups"]
    found = [(each["group"], each["total_lag"], each["max_lag"], each["unknown_lags"]) for each in listed]
    assert found == [("billing", 10, 7, 1), ("done", 0, 0, 0), ("lost", None, None, 1)]
    wide = zkgroups("groups", "list", "-o", "wide", "-b", kafka).lines
    assert wide[0].split()[-3:] == ["TOTAL-LAG", "MAX-LAG", "UNKNOWN-LAGS"]
    assert "total_lag" not in zkgroups("groups", "list", "-o", "json").json["groups"][0]


# Errors


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


@pytest.mark.parametrize("command", ["lag", "groups describe"])
def test_offsets_are_read_before_the_log_ends_so_that_no_lag_is_negative(
    registry: Registry, zookeeper_hosts: str, silent: str, command: str
) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    server, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(server) as proxy:
        arguments = ("-z", f"{proxy.address}/{chroot}", "-b", silent, "--timeout", "60")
        with started(*command.split(), "billing", *arguments):
            read = (Op.GET_DATA, Op.MULTI_READ)
            assert eventually(lambda: any(proxy.requests_by_type[op] for op in read))


# groups describe


def test_with_brokers_a_description_shows_the_lag(zkgroups: Zkgroups, kafka: str, late: Any, topic: str) -> None:
    ended = zkgroups("groups", "describe", "billing", "-b", kafka)
    [header, *lines] = ended.out.split("\n\n")[1].splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert header.split() == [
        *("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "OWNER", "SESSION", "SINCE", "NOTE")
    ]
    assert [line.split(maxsplit=8) for line in lines] == [
        [topic, "0", "2", "5", "3", *"----"],
        [topic, "1", "0", "0", "0", *"----"],
        [topic, "2", "1", "8", "7", *"---", "before start"],
        [topic, "1000", "5", "-", "-", *"---", "log unknown"],
    ]


# Without an answer of the brokers


@pytest.mark.parametrize("command", [["groups", "list", "-o", "wide"], ["doctor"]], ids=" ".join)
def test_without_groups_no_broker_is_asked(zkgroups: Zkgroups, kazoo: KazooClient, command: list[str]) -> None:
    kazoo.ensure_path("/brokers/ids")
    assert zkgroups(*command, "-b", AWAY).code == 0


def test_a_watched_description_goes_on_without_brokers_and_shows_why_lag_is_missing(
    registry: Registry, zookeeper_hosts: str
) -> None:
    offsets = registry.group("billing").offsets
    offsets.set(TopicPartition("orders", 0), 100)
    watch = ("groups", "describe", "billing", "--watch", "--interval", "0.1", "-b", AWAY)
    with Terminal(*watch, "-z", zookeeper_hosts, columns=200) as terminal:
        terminal.wait_for(" 100 ")
        terminal.wait_for("log ends and lag are unknown: ")
        offsets.set(TopicPartition("orders", 0), 200)
        terminal.wait_for(" 200 ")
        registry.group("billing").delete()
        ended = terminal.end()
    assert ended.code == 3
    assert "does not exist" in ended.out.rpartition("\x1b[2J")[2]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("groups describe billing", "log ends and lag are unknown"),
        ("groups list", "log ends and lag are unknown"),
        ("doctor", "offsets were not compared with the logs"),
        ("lag billing --time --fail-over 0", "log ends and lag are unknown"),
    ],
)
def test_without_an_answer_of_the_brokers_everything_in_zookeeper_is_shown(
    zkgroups: Zkgroups, billing: Any, command: str, said: str
) -> None:
    ended = zkgroups(*command.split(), "-b", AWAY, "-o", "json")
    assert ended.code == 9
    assert ended.err.splitlines()[0].startswith(f"zkgroups: {said}: no broker at {AWAY} answered within ")
    if command.startswith("lag"):
        rows = [(row["offset"], row["lag"], row["note"]) for row in ended.json["lags"]]
        assert rows == [(100, None, "log unknown"), (None, None, "never committed")]
        return
    [key] = ended.json.keys() - {"schema", "left_out"}
    whole = zkgroups(*command.split(), "-o", "json").json
    for row, plain in zip(ended.json[key], whole[key], strict=True):
        assert {name: row[name] for name in plain} == plain
        assert [row.get(each) for each in ("total_lag", "max_lag", "unknown_lags")] == [None] * 3


# With brokers that do not lead all partitions


@pytest.fixture
def leaderless(monkeypatch: pytest.MonkeyPatch, late: Any, at: Any) -> str:
    """Partitions 1 and 2 have no leader: tests/kafka/test_brokers.py shows that their logs are then unknown."""
    real = Brokers.ranges

    def ranges(brokers: Brokers, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        return real(brokers, partitions) | {each: None for each in partitions if each.partition in (1, 2)}

    monkeypatch.setattr(Brokers, "ranges", ranges)
    late.offsets.delete([at(1000)])
    return f"no leader of {at(1)} (and 1 more) answered"


def test_commands_show_what_the_other_leaders_and_zookeeper_know_and_report_what_is_missing(
    zkgroups: Zkgroups, lag: Any, kafka: str, leaderless: str, topic: str
) -> None:
    described = zkgroups("groups", "describe", "billing", "-o", "json", "-b", kafka)
    [group] = described.json["groups"]
    assert [(each["offset"], each["lag"], each["note"]) for each in group["partitions"]] == [
        (2, 3, None),
        (0, None, "log unknown"),
        (1, None, "log unknown"),
    ]
    listed = zkgroups("groups", "list", "-o", "wide", "-b", kafka)
    assert listed.lines[0].split()[-3:] == ["TOTAL-LAG", "MAX-LAG", "UNKNOWN-LAGS"]
    assert listed.lines[1].split()[-3:] == ["3", "3", "2"]
    lags = lag("-o", "json")
    assert [each["lag"] for each in lags.json["lags"]] == [3, None, None]
    for ended in (described, listed, lags):
        assert (ended.code, ended.err) == (9, f"zkgroups: log ends and lag are unknown: {leaderless}\n")
    assert lag("--topic", f"{topic}:0").code == 0
    doctor = zkgroups("doctor", "-b", kafka)
    said = f"zkgroups: offsets were not compared with the logs: {leaderless}"
    assert (doctor.code, doctor.err.splitlines()[0]) == (9, said)


def test_offsets_are_set_with_a_warning_and_reset_only_where_the_log_is_known(
    zkgroups: Zkgroups, kafka: str, leaderless: str, topic: str
) -> None:
    ended = zkgroups("offsets", "set", "billing", topic, "2", "7", "-b", kafka)
    assert (ended.code, ended.err.splitlines()) == (
        0,
        [
            f"warning: the log of {topic}/2 was not checked: no leader of {topic}/2 answered",
            f"billing: set the offset of {topic}/2 to 7; it was 1",
        ],
    )
    ended = zkgroups("offsets", "reset", "billing", "--all-topics", "--to-latest", "-b", kafka)
    assert [line.split()[2:5] for line in ended.lines[1:]] == [["0", "2", "5"], ["1", "0", "-"], ["2", "7", "-"]]
    assert (ended.code, ended.err.splitlines()[0]) == (9, f"zkgroups: log ends are unknown: {leaderless}")

"""`zkgroups lag`, and the lag in `zkgroups groups describe`: with real brokers and without."""

from __future__ import annotations

import csv
import io
import json
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from zkgroups import Registry, TopicPartition
from zkgroups.core.times import to_ms
from zkgroups.testing import Op, TcpProxy
from zkgroups.testing.kafka_broker import KafkaBroker

from ..testing.waiting import eventually
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


def test_with_time_the_age_of_the_first_unread_message_is_shown(lag: Any, late: Any, topic: str) -> None:
    found = lag("billing", "--time", "-o", "json").json["lags"]
    ages = [each["time_lag_seconds"] for each in found]
    assert ages[0] in range(3600)
    assert ages[1:] == [0, pytest.approx(ages[0], abs=5), None]
    [header, line] = lag("billing", "--time", "--summary").lines
    assert header.split()[4] == "MAX-TIME-LAG"
    assert line.split()[4].endswith(("s", "m"))
    assert lag("billing", "--fail-over-age", "1d").code == 2


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


# Output


def test_the_lag_is_shown_for_each_partition(lag: Any, late: Any, topic: str) -> None:
    ended = lag("billing")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split(maxsplit=7) for line in ended.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "OWNER", "NOTE"],
        ["billing", topic, "0", "2", "5", "3", "-", "-"],
        ["billing", topic, "1", "0", "0", "0", "-", "-"],
        ["billing", topic, "2", "1", "8", "7", "-", "before start"],
        ["billing", topic, "1000", "5", "-", "-", "-", "log unknown"],
    ]


def test_in_json_numbers_are_numbers_and_unknown_is_null(lag: Any, late: Any, topic: str, at: Any) -> None:
    found = lag("billing", "-o", "json").json
    assert found["schema"] == 1
    committed = late.offsets.fetch_many([at(0), at(1000)])
    assert [found["lags"][0], found["lags"][3]] == [
        {
            "group": "billing",
            "topic": topic,
            "partition": 0,
            "offset": 2,
            "log_start": 0,
            "log_end": 5,
            "lag": 3,
            "committed_ms": to_ms(committed[at(0)].committed_at),
            "owners": [],
            "note": None,
        },
        {
            "group": "billing",
            "topic": topic,
            "partition": 1000,
            "offset": 5,
            "log_start": None,
            "log_end": None,
            "lag": None,
            "committed_ms": to_ms(committed[at(1000)].committed_at),
            "owners": [],
            "note": "log unknown",
        },
    ]


def test_a_wide_table_also_has_the_start_of_the_log_and_the_time_of_the_commit(lag: Any, late: Any) -> None:
    [header, *lines] = lag("billing", "-o", "wide").lines
    assert {"LOG-START-OFFSET", "COMMITTED"} < set(header.split())
    assert (lines[2].split()[4], lines[3].split()[4]) == ("3", "-")


def test_a_subscribed_topic_is_shown_with_its_owners_and_partitions_without_offsets(
    lag: Any, registry: Registry, at: Any, topic: str
) -> None:
    with registry.group("billing").instance("anna") as anna:
        anna.register([topic, "nowhere"])
        anna.claim(at(1))
        rows = lag("billing", "-o", "json").json["lags"]
    assert [(row["partition"], row["offset"], row["lag"], row["log_end"], row["note"]) for row in rows] == [
        (0, None, None, 5, "never committed"),
        (1, None, None, 0, "never committed"),
        (2, None, None, 8, "never committed"),
    ]
    assert [[owner["id"] for owner in row["owners"]] for row in rows] == [[], ["anna"], []]


def test_a_pattern_chooses_from_the_topics_of_the_brokers(lag: Any, kazoo: KazooClient, topic: str) -> None:
    registration = {"version": 1, "subscription": {f"{topic}.*": 1}, "pattern": "white_list", "timestamp": "1"}
    path = "/consumers/billing/ids/billing_h-1-ab"
    kazoo.create(path, json.dumps(registration).encode(), ephemeral=True, makepath=True)
    assert [row["partition"] for row in lag("billing", "-o", "json").json["lags"]] == [0, 1, 2]


def test_an_offset_past_the_end_of_the_log_has_no_lag(lag: Any, registry: Registry, at: Any) -> None:
    registry.group("billing").offsets.set_many({at(0): 6, at(1): 1, at(2): 8})
    rows = lag("billing", "-o", "json").json["lags"]
    assert [(row["lag"], row["note"]) for row in rows] == [(None, "past end"), (None, "past end"), (0, None)]


def test_an_unreadable_offset_is_shown_as_unreadable(lag: Any, kazoo: KazooClient, topic: str) -> None:
    kazoo.create(f"/consumers/billing/offsets/{topic}/0", b"many", makepath=True)
    ended = lag("billing", "-o", "json")
    [row] = ended.json["lags"]
    assert (ended.code, row["offset"], row["log_end"], row["lag"], row["note"]) == (0, None, 5, None, "cannot be read")


def test_a_topic_with_an_impossible_name_does_not_stop_others(lag: Any, late: Any) -> None:
    late.offsets.set(TopicPartition("ord ers, Ünïcode", 0), 7)
    rows = lag("billing", "-o", "json").json["lags"]
    assert [(row["lag"], row["note"]) for row in rows if row["topic"].startswith("ord ")] == [(None, "log unknown")]
    assert [row["lag"] for row in rows if not row["topic"].startswith("ord ")] == [3, 0, 7, None]


# Selection


@pytest.fixture
def three(late: Any, registry: Registry, at: Any) -> None:
    """And a group that is not behind, and a group with unknown lag."""
    registry.group("done").offsets.set_many({at(0): 5})
    registry.group("lost").offsets.set_many({TopicPartition("gone", 0): 5})


def test_without_names_all_groups_are_shown(lag: Any, three: None) -> None:
    lines = list(csv.DictReader(io.StringIO(lag("-o", "csv").out)))
    assert [(line["group"], line["lag"]) for line in lines] == [
        ("billing", "3"),
        ("billing", "0"),
        ("billing", "7"),
        ("billing", ""),
        ("done", "0"),
        ("lost", ""),
    ]


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


def test_a_summary_has_one_line_for_each_group(lag: Any, three: None) -> None:
    ended = lag("--summary")
    assert [line.split()[:5] for line in ended.lines] == [
        ["GROUP", "PARTITIONS", "TOTAL-LAG", "MAX-LAG", "UNKNOWN"],
        ["billing", "4", "10", "7", "1"],
        ["done", "1", "0", "0", "0"],
        ["lost", "1", "-", "-", "1"],
    ]
    lost = lag("--summary", "-o", "json").json["groups"][2]
    assert lost.pop("last_commit_ms") > 0
    assert lost == {"group": "lost", "partitions": 1, "total_lag": None, "max_lag": None, "unknown": 1}
    assert lag("-o", "name").lines == ["billing", "done", "lost"]


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


@pytest.mark.parametrize(("most", "code"), [("9", 10), ("10", 0)])
def test_a_total_lag_above_the_limit_is_exit_code_10(lag: Any, three: None, most: str, code: int) -> None:
    ended = lag("--top", "1", "--fail-over", most)
    assert (ended.code, len(ended.lines)) == (code, 2)
    assert ended.err == ("Groups with a lag above 9: billing.\n" if code else "")
    assert lag("--topic", "gone", "--fail-over", "0").code == 0, "an unknown lag is not above the limit"


def test_the_list_of_groups_has_their_lag_if_the_brokers_are_given(zkgroups: Zkgroups, kafka: str, three: None) -> None:
    listed = zkgroups("groups", "list", "-o", "json", "-b", kafka).json["groups"]
    found = [(each["group"], each["total_lag"], each["max_lag"], each["unknown_lags"]) for each in listed]
    assert found == [("billing", 10, 7, 1), ("done", 0, 0, 0), ("lost", None, None, 1)]
    wide = zkgroups("groups", "list", "-o", "wide", "-b", kafka).lines
    assert wide[0].split()[-3:] == ["TOTAL-LAG", "MAX-LAG", "UNKNOWN-LAGS"]
    assert "total_lag" not in zkgroups("groups", "list", "-o", "json").json["groups"][0]


@pytest.mark.usefixtures("cluster")
def test_without_groups_the_data_is_empty_and_a_message_goes_to_stderr(lag: Any) -> None:
    ended = lag()
    assert (ended.code, ended.out, ended.err) == (0, "", "There are no groups.\n")
    assert lag("-o", "json").json == {"schema": 1, "lags": []}
    assert lag("--groups", "x").err == "No group matches.\n"


# Errors


def test_a_missing_group_is_exit_code_3_and_does_not_hide_the_others(lag: Any, late: Any) -> None:
    ended = lag("nobody")
    assert (ended.code, ended.out, ended.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )
    some = lag("nobody", "billing", "-o", "name")
    assert (some.code, some.lines) == (9, ["billing"])


def test_a_forbidden_group_is_exit_code_6(lag: Any, secret: str) -> None:
    ended = lag("secret")
    assert (ended.code, ended.out) == (6, "")
    assert ended.err.startswith("zkgroups: no permission on /consumers/secret/")


def test_without_brokers_the_error_names_the_missing_option(zkgroups: Zkgroups) -> None:
    ended = zkgroups("lag", "billing", "-z", AWAY)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: lag needs the Kafka brokers: give -b HOST:PORT")


@pytest.mark.parametrize("arguments", [["a/ids"], ["--groups", "("], ["--topic", "a/b"]], ids=" ".join)
def test_a_bad_name_is_exit_code_2_before_any_request(zkgroups: Zkgroups, arguments: list[str]) -> None:
    ended = zkgroups("lag", *arguments, "-b", AWAY, "-z", AWAY)
    assert (ended.code, ended.out) == (2, "")


def test_an_unreachable_server_is_exit_code_7(zkgroups: Zkgroups) -> None:
    ended = zkgroups("lag", "billing", "-b", AWAY, "-z", AWAY, "--timeout", "0.5")
    assert (ended.code, ended.out) == (7, "")
    assert len(ended.err.splitlines()) == 1


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


def test_a_description_in_json_has_all_notes_of_a_partition(
    zkgroups: Zkgroups, kafka: str, registry: Registry, at: Any, topic: str
) -> None:
    group = registry.group("billing")
    group.offsets.set_many({at(0): 6, at(2): 4})
    with group.instance("anna") as anna:
        anna.register([topic])
        anna.claim(at(2))
        [found] = zkgroups("groups", "describe", "billing", "-b", kafka, "-o", "json").json["groups"]
    rows = {row["partition"]: row for row in found["partitions"]}
    assert (rows[0]["note"], rows[0]["lag"], rows[0]["log_end"]) == ("unowned, past end", None, 5)
    assert (rows[2]["note"], rows[2]["lag"], rows[2]["log_start"]) == (None, 4, 3)


def test_watch_with_brokers_follows_the_log_end(
    zookeeper_hosts: str, kafka_broker: KafkaBroker, registry: Registry
) -> None:
    name = f"refunds-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name)
    registry.group("billing").offsets.set(TopicPartition(name, 0), 0)
    watch = ("groups", "describe", "billing", "--watch", "--interval", "0.2")
    with Terminal(*watch, "-z", zookeeper_hosts, "-b", kafka_broker.address, columns=200) as terminal:
        terminal.wait_for(name)
        producer = Producer({"bootstrap.servers": kafka_broker.address, "log_level": 0})
        for _ in range(77):
            producer.produce(name, b"", partition=0)
        assert producer.flush(30) == 0
        terminal.wait_for(" 77 ")
        terminal.type("\x03")
        assert terminal.end().code == 130


# Without an answer of the brokers


def test_without_brokers_a_description_shows_all_that_zookeeper_has(
    zkgroups: Zkgroups, billing: Any, kazoo: KazooClient
) -> None:
    whole, ended = (zkgroups("groups", "describe", "billing", "-o", "json", *brokers) for brokers in ([], ["-b", AWAY]))
    assert (whole.code, ended.code) == (0, 9)
    assert ended.json == whole.json
    assert {each["log_end"] for each in ended.json["groups"][0]["partitions"]} == {None}
    [line] = ended.err.splitlines()
    assert line.startswith(f"zkgroups: log ends and lag are unknown: no broker at {AWAY} answered within ")
    table = zkgroups("groups", "describe", "billing", "-b", AWAY)
    assert [line.split()[:6] for line in table.lines if line.startswith("orders")] == [
        ["orders", "0", "100", "-", "-", "anna"],
        ["orders", "1", "-", "-", "-", "-"],
    ]


def test_without_brokers_the_offsets_and_owners_are_shown_without_their_lag(zkgroups: Zkgroups, billing: Any) -> None:
    ended = zkgroups("lag", "billing", "-b", AWAY, "-o", "json", "--time", "--fail-over", "0")
    rows = [
        (row["partition"], row["offset"], row["lag"], [each["id"] for each in row["owners"]], row["note"])
        for row in ended.json["lags"]
    ]
    assert (ended.code, rows) == (
        9,
        [(0, 100, None, ["anna"], "log unknown"), (1, None, None, [], "never committed")],
    )
    [line] = ended.err.splitlines()
    assert line.startswith(f"zkgroups: log ends and lag are unknown: no broker at {AWAY} answered within ")
    assert zkgroups("lag", "--summary", "-b", AWAY).lines[1].split()[:3] == ["billing", "2", "-"]


def test_without_brokers_a_list_of_groups_shows_all_that_zookeeper_has(zkgroups: Zkgroups, billing: Any) -> None:
    ended = zkgroups("groups", "list", "-o", "json", "-b", AWAY)
    [group] = ended.json["groups"]
    assert (ended.code, group["group"], group["totals"]["owned"]) == (9, "billing", 1)
    assert [group[each] for each in ("total_lag", "max_lag", "unknown_lags")] == [None, None, None]
    assert ended.err.startswith("zkgroups: log ends and lag are unknown: no broker at ")
    wide = zkgroups("groups", "list", "-o", "wide", "-b", AWAY)
    assert (wide.code, wide.lines[1].split()[-3:]) == (9, ["-", "-", "-"])
    assert wide.lines[0].split()[-3:] == ["TOTAL-LAG", "MAX-LAG", "UNKNOWN-LAGS"]


def test_without_brokers_the_doctor_shows_what_it_finds_in_zookeeper(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/billing/offsets/orders/0", b"7 ", makepath=True)
    kazoo.create("/consumers/billing/offsets/orders/1", b"7")
    ended = zkgroups("doctor", "-o", "json", "-b", AWAY)
    assert ended.code == 9
    assert ended.json == zkgroups("doctor", "-o", "json").json
    assert ended.json["findings"][0]["code"] == "padded-offset"
    first, last = ended.err.splitlines()
    assert first.startswith(f"zkgroups: offsets were not compared with the logs: no broker at {AWAY} answered within ")
    assert last.startswith("Findings: ")


def test_brokers_that_refuse_connections_are_waited_for_only_with_a_timeout(zkgroups: Zkgroups, billing: Any) -> None:
    hint = "; use --timeout SECONDS to wait for brokers that are starting\n"
    ended = zkgroups("groups", "describe", "billing", "-b", AWAY)
    assert (ended.code, f"no broker at {AWAY} answered within 1 s: " in ended.err) == (9, True)
    assert ended.err.endswith(hint)
    assert zkgroups("lag", "-b", AWAY).err.endswith(hint)
    patient = zkgroups("groups", "describe", "billing", "-b", AWAY, "--timeout", "8")
    assert (patient.code, "answered within 8 s: " in patient.err, patient.err.endswith(hint)) == (9, True, False)


def test_a_wrong_address_of_brokers_is_still_wrong_usage(zkgroups: Zkgroups, billing: Any) -> None:
    for command in (("groups", "describe", "billing"), ("groups", "list", "-o", "wide"), ("doctor",)):
        ended = zkgroups(*command, "-b", "no port")
        assert (ended.code, ended.out) == (2, ""), ended.err


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

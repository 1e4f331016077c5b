"""`spark.read.format("zkgroups")`: every row and column on real ZooKeepers, checked with a plain client."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from kazoo.security import make_digest_acl
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import (
    AuthenticationError,
    InvalidOptionError,
    MissingDependencyError,
    NoPermissionError,
    NoRegistryError,
    NotConnectedError,
    SparkJobError,
    ZkgroupsException,
)
from zkgroups.spark import register
from zkgroups.spark.errors import translated
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer, fresh_chroot
from zkgroups.testing import server_configuration as server_side

from ..core.old_clients import scala_offset
from ..testing.test_secure_server import certificate
from ..testing.waiting import eventually
from .conftest import ENVIRONMENT_PASSWORD, Read, client_of, plant

pytestmark = pytest.mark.zookeeper

Rows = list[dict[str, Any]]

SECRET = "hunter2 of the operators"
OPERATORS = make_digest_acl("ops", SECRET, all=True)

SCALA = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1795255170109"}'
WHITE_LIST = b'{"version":1,"subscription":{"ord.*":1},"pattern":"white_list","timestamp":"1795255170109"}'
KAZOO_GO = b'{"pattern":"static","subscription":{"orders":1,"tax":3},"timestamp":1795255543,"version":1}'


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


def through(proxy: TcpProxy, hosts: str) -> str:
    """Return the address of the proxy."""
    return f"{proxy.address}/{hosts.partition('/')[2]}"


def told(read: DataFrame) -> Rows:
    """Return the rows sorted, with times in milliseconds and without `read_at`."""
    before = time.time()
    rows = [row.asDict() for row in read.collect()]
    for row in rows:
        assert before - 1 <= row.pop("read_at").timestamp() <= time.time() + 1
        for column, value in row.items():
            if isinstance(value, datetime):
                row[column] = round(value.timestamp() * 1000)
            elif isinstance(value, bytearray):
                row[column] = bytes(value)
    return in_order(rows)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: [repr(row.get(key)) for key in ("group", "topic", "partition", "problem")])


def offset_row(client: Any, hosts: str, path: str, /, **different: object) -> dict[str, Any]:
    """Compute the row of an offset node with a plain client and Kafka's own consumer."""
    group, _, topic, name = path.split("/")
    data, stat = client.get(f"/consumers/{path}")
    row: dict[str, Any] = {"cluster": hosts, "group": group, "topic": topic, "owner": None, "raw": None}
    row |= {"commit_count": stat.version, "committed_at": stat.mtime, "created_at": stat.ctime, "zxid": stat.mzxid}
    if "problem" not in different:
        row |= {"partition": int(name), "offset": scala_offset(data), "problem": None}
    return row | different


def denied(hosts: str, group: str, path: str, **known: object) -> dict[str, Any]:
    columns = ["topic", "partition", "offset", "commit_count", "committed_at", "created_at", "zxid", "owner", "raw"]
    problem = f"/consumers/{path}: no permission to read it"
    return dict.fromkeys(columns) | {"cluster": hosts, "group": group, "problem": problem} | known


# Offsets


def test_every_offset_has_a_row_with_all_details(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    nodes = {f"{g}/offsets/{t}/{n}": f"{n * 1000}".encode() for g in "ab" for t in ("orders", "tax") for n in range(12)}
    nodes |= {
        "a/offsets/orders/99": b"+7",
        "b/offsets/tax/2147483647": b"007",
        "b/offsets/tax/100": b"%d" % (2**63 - 1),
    }
    plant(raw, nodes)
    for _ in range(3):
        raw.set("/consumers/a/offsets/orders/3", b"12345")
    expected = in_order([offset_row(raw, zookeeper_hosts, path) for path in nodes])
    assert told(read()) == expected
    assert told(read(parallelism=3)) == expected
    assert {row["commit_count"] for row in expected} == {0, 3}


def test_the_owner_of_any_client_is_shown_beside_the_offset(
    read: Read, raw: Any, registry: Registry, zookeeper_hosts: str
) -> None:
    plant(raw, {f"billing/offsets/{topic}/{n}": b"5" for topic in ("accounts", "orders", "tax") for n in range(11)})
    me = registry.group("billing").instance("anna")
    me.register(["orders"])
    me.claim_many([TopicPartition("orders", n) for n in (0, 1, 10)])
    others = {"orders/2": b"billing_host-1-ab-0", "b'orders'/1001-3": b"host:uuid", "orders/4": b"", "orders/x": b"no"}
    both = {"orders/5": b"scala-0", "b'orders'/1001-5": b"pykafka", "accounts/5": b"scala-0", "b'accounts'/7-5": b"py"}
    plant(raw, {f"billing/owners/{path}": data for path, data in (others | both).items()}, ephemeral=True)
    plant(raw, {"aaa/owners/orders/0": b"of another group", "billing/owners/t/0": b"no offset"}, ephemeral=True)
    plant(raw, {"billing/owners/tax/0": b"of no session"})
    owned = {"orders/0": "anna", "orders/1": "anna", "orders/10": "anna", "orders/2": "billing_host-1-ab-0"}
    owned |= {"orders/3": "host:uuid", "orders/5": "pykafka", "accounts/5": "scala-0"}  # of two, the first by name
    for parallelism in (1, 3):
        rows = told(read(parallelism=parallelism))
        assert {f"{r['topic']}/{r['partition']}": r["owner"] for r in rows if r["owner"]} == owned
        assert len(rows) == 33


BAD = {
    "0": b"",
    "1": b"abc",
    "2": b"-5",
    "3": b"7.5",
    "4": b"9223372036854775808",
    "5": b"7 ",
    "6": b"\xff\x00",
    "7": "٣".encode(),
    "8": b"9" * 5_000,
    "9": b"x" * 300_000,
}


def test_a_malformed_offset_has_a_row_with_its_bytes_and_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    bad = {f"billing/offsets/orders/{name}": data for name, data in BAD.items()}
    good = {f"billing/offsets/orders/{n}": b"7" for n in range(10, 40)}
    plant(raw, bad | good)
    rows = told(read())
    assert len(rows) == len(bad) + len(good)
    problems = {row["partition"]: row.pop("problem") for row in rows if row["problem"]}
    assert sorted(problems) == list(range(10))
    assert all(p.startswith(f"/consumers/billing/offsets/orders/{n}: ") for n, p in problems.items())
    assert problems[1] == "/consumers/billing/offsets/orders/1: not a plain decimal number"
    for path, data in bad.items():
        unreadable = {"partition": int(path[-1]), "offset": None, "raw": data, "problem": None}
        expected = offset_row(raw, zookeeper_hosts, path, **unreadable)
        [row] = [row for row in rows if row["partition"] == expected["partition"]]
        assert row | {"problem": None} == expected


def test_names_that_are_not_partitions_have_rows_with_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    names = ["x", "07", "-1", "+1", "٣", "2147483648", "b'1'", " 1"]
    plant(raw, {f"billing/offsets/orders/{name}": b"5" for name in [*names, "3"]})
    for name in [*names, "3"]:
        raw.set(f"/consumers/billing/offsets/orders/{name}", b"7")
    expected = [offset_row(raw, zookeeper_hosts, "billing/offsets/orders/3")]
    for name in names:
        problem = f"/consumers/billing/offsets/orders/{name}: its name is not a partition"
        different = {"partition": None, "offset": None, "raw": b"7", "problem": problem}
        expected.append(offset_row(raw, zookeeper_hosts, f"billing/offsets/orders/{name}", **different))
    assert told(read()) == in_order(expected)


def test_a_forbidden_node_has_a_row_with_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    groups = ("closed", "half", "open")
    plant(raw, {f"{g}/offsets/{t}/{n}": b"7" for g in groups for t in ("orders", "tax") for n in range(12)})
    for path in ("closed/offsets", "half/offsets/tax", "half/offsets/orders/3"):
        raw.set_acls(f"/consumers/{path}", [OPERATORS])
    readable = [f"open/offsets/{t}/{n}" for t in ("orders", "tax") for n in range(12)]
    readable += [f"half/offsets/orders/{n}" for n in range(12) if n != 3]
    expected = [offset_row(raw, zookeeper_hosts, path) for path in readable]
    expected += [
        denied(zookeeper_hosts, "closed", "closed/offsets"),
        denied(zookeeper_hosts, "half", "half/offsets/tax", topic="tax"),
        denied(zookeeper_hosts, "half", "half/offsets/orders/3", topic="orders", partition=3),
    ]
    for parallelism in (1, 3):
        assert told(read(parallelism=parallelism)) == in_order(expected)
    assert [row["group"] for row in told(read(topics="nothing"))] == ["closed"]  # whose topics are unknown


def test_a_forbidden_list_of_groups_is_an_error(read: Read, raw: Any) -> None:
    plant(raw, {"a/offsets/t/0": b"7"})
    raw.set_acls("/consumers", [OPERATORS])
    with pytest.raises(NoPermissionError, match="no permission on /consumers"), translated("it"):
        read().count()


# Owners and members


def test_every_owner_of_any_client_has_a_row(read: Read, raw: Any, registry: Registry, zookeeper_hosts: str) -> None:
    me = registry.group("billing").instance("anna")
    me.register(["orders"])
    me.claim_many([TopicPartition("orders", n) for n in (0, 1)])
    plant(raw, {"billing/owners/orders/2": b"billing_host-1-ab-0"}, ephemeral=True)
    plant(raw, {"billing/owners/b'orders'/1001-3": b"host:uuid"}, ephemeral=True)
    pykafka = {"1001-0": b"pykafka", "1001-4": b"\xff"}
    plant(raw, {f"billing/owners/b'orders'/{name}": data for name, data in pykafka.items()}, ephemeral=True)
    plant(raw, {"billing/owners/orders/x": b"who", "other/owners/t/0": b"ben"}, ephemeral=True)
    plant(raw, {"billing/owners/orders/9": b"of no session", "closed/owners/t/0": b"x"})
    raw.set_acls("/consumers/closed/owners/t", [OPERATORS])
    expected = []
    for path, partition, owner, problem in (
        ("billing/owners/orders/0", 0, "anna", None),
        ("billing/owners/orders/1", 1, "anna", None),
        ("billing/owners/orders/2", 2, "billing_host-1-ab-0", None),
        ("billing/owners/b'orders'/1001-0", 0, "pykafka", None),
        ("billing/owners/b'orders'/1001-3", 3, "host:uuid", None),
        ("billing/owners/b'orders'/1001-4", 4, None, "not UTF-8"),
        ("billing/owners/orders/9", 9, None, "it belongs to no session, so no expired session will delete it"),
        ("billing/owners/orders/x", None, None, "its name is not a partition"),
        ("other/owners/t/0", 0, "ben", None),
    ):
        data, stat = raw.get(f"/consumers/{path}")
        expected.append(
            {
                "cluster": zookeeper_hosts,
                "group": path.split("/")[0],
                "topic": "t" if path.startswith("other") else "orders",
                "partition": partition,
                "owner": owner,
                "session": hex(stat.ephemeralOwner) if stat.ephemeralOwner else None,
                "claimed_at": stat.ctime,
                "zxid": stat.czxid,
                "raw": data if problem else None,
                "problem": problem and f"/consumers/{path}: {problem}",
            }
        )
    problem = "/consumers/closed/owners/t: no permission to read it"
    unknown = dict.fromkeys(["partition", "owner", "session", "claimed_at", "zxid", "raw"])
    expected.append({"cluster": zookeeper_hosts, "group": "closed", "topic": "t", "problem": problem} | unknown)
    key = lambda row: [repr(row[column]) for column in ("group", "topic", "partition", "problem", "owner")]  # noqa: E731
    for parallelism in (1, 3):
        assert sorted(told(read("owners", parallelism=parallelism)), key=key) == sorted(expected, key=key)


def test_every_member_has_a_row_with_its_subscription(
    read: Read, raw: Any, registry: Registry, zookeeper_hosts: str
) -> None:
    registry.group("billing").instance("anna").register({"orders": 2, "tax": 1})
    others = {"scala": SCALA, "list": WHITE_LIST, "go": KAZOO_GO, "py": b"orders", "junk": b"{", "empty": b""}
    plant(raw, {f"billing/ids/{name}": data for name, data in others.items()}, ephemeral=True)
    plant(raw, {"closed/ids/x": SCALA, "half/ids/denied": SCALA, "half/ids/ben": SCALA})
    raw.set_acls("/consumers/closed/ids", [OPERATORS])
    raw.set_acls("/consumers/half/ids/denied", [OPERATORS])
    orders2 = ({"orders": 2}, "static", "scala", None)
    expected = []
    for path, subscription, pattern, dialect, problem in (
        ("billing/ids/anna", {"orders": 2, "tax": 1}, "static", "zkgroups", None),
        ("billing/ids/scala", *orders2),
        ("billing/ids/list", {"ord.*": 1}, "white_list", "scala", None),
        ("billing/ids/go", {"orders": 1, "tax": 3}, "static", "kazoo-go", None),
        ("billing/ids/py", {"orders": 1}, "static", "pykafka", None),
        ("billing/ids/junk", None, None, None, "neither a JSON object nor the name of a topic"),
        ("billing/ids/empty", None, None, None, "empty"),
        ("half/ids/ben", *orders2),
    ):
        group, _, instance = path.split("/")
        data, stat = raw.get(f"/consumers/{path}")
        expected.append(
            {
                "cluster": zookeeper_hosts,
                "group": group,
                "instance": instance,
                "session": hex(stat.ephemeralOwner) if stat.ephemeralOwner else None,
                "registered_at": stat.ctime,
                "subscription": subscription,
                "pattern": pattern,
                "dialect": dialect,
                "raw": data if problem else None,
                "problem": problem and f"/consumers/{path}: {problem}",
            }
        )
    unknown = dict.fromkeys(["session", "registered_at", "subscription", "pattern", "dialect", "raw"])
    for group, instance, path in (("closed", None, "closed/ids"), ("half", "denied", "half/ids/denied")):
        problem = f"/consumers/{path}: no permission to read it"
        expected.append(
            {"cluster": zookeeper_hosts, "group": group, "instance": instance, "problem": problem} | unknown
        )
    key = lambda row: (row["group"], row["instance"] or "")  # noqa: E731
    for parallelism in (1, 3):
        assert sorted(told(read("members", parallelism=parallelism)), key=key) == sorted(expected, key=key)


# Selection


@pytest.mark.parametrize("table", ["offsets", "owners", "members"])
def test_an_empty_tree_has_no_rows(read: Read, raw: Any, table: str) -> None:
    assert read(table).count() == 0
    for path in ("a/offsets/orders", "b/ids", "b/owners", "c"):
        raw.ensure_path(f"/consumers/{path}")
    assert read(table, parallelism=2).count() == 0


@pytest.mark.parametrize("chroot", ["", "/kafka", "/a/ü b/日本語"])
def test_names_of_every_kind_are_read_below_every_chroot(read: Read, zookeeper_hosts: str, chroot: str) -> None:
    names = ["日本語", "über", "a b", "100%", "'\"\\", "...", "b'x'", "{}", "$1", "\u0301"]
    hosts = zookeeper_hosts + chroot
    with client_of(zookeeper_hosts) as client:
        client.ensure_path(chroot or "/")
        client.chroot += chroot
        plant(client, {f"{name}/offsets/{name}/0": b"7" for name in names})
        plant(client, {f"{name}/ids/{name}": SCALA for name in names})
        expected = in_order([offset_row(client, hosts, f"{name}/offsets/{name}/0") for name in names])
    assert told(read(zookeeper=hosts, parallelism=2)) == expected
    members = read("members", zookeeper=hosts).collect()
    assert sorted((row.group, row.instance) for row in members) == sorted((name, name) for name in names)


@pytest.fixture(scope="module")
def huge(zookeeper: Any) -> Iterator[str]:
    """A group with thousands of partitions in large and small topics, another group, and their owners."""
    with fresh_chroot(zookeeper) as hosts:
        with client_of(hosts) as client:
            large = {f"huge/offsets/large-{t}/{n}": b"%d" % n for t in range(3) for n in range(3_000)}
            small = {f"huge/offsets/small-{t:02}/{n}": b"%d" % n for t in range(40) for n in range(10)}
            other = {f"other/offsets/large-0/{n}": b"%d" % n for n in range(3_000)}
            plant(client, large | small | other)
        yield hosts


HUGE = 3 * 3_000 + 40 * 10


@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_one_huge_group_is_read_by_all_tasks_without_loss_or_duplicates(
    read: Read, huge: str, parallelism: int
) -> None:
    rows = read(zookeeper=huge, groups="huge", parallelism=parallelism).select(
        "topic", "partition", "offset", f.spark_partition_id()
    )
    found = [tuple(row) for row in rows.collect()]
    assert len({task for *_, task in found}) == parallelism
    assert len(found) == HUGE
    assert {each[:3] for each in found} == {
        *((f"large-{t}", n, n) for t in range(3) for n in range(3_000)),
        *((f"small-{t:02}", n, n) for t in range(40) for n in range(10)),
    }


@pytest.fixture
def some(raw: Any) -> None:
    """Three groups with three topics, one with forbidden topics, and members."""
    groups, topics = ("alpha", "beta", "gamma"), ("orders", "refunds", "tax")
    plant(raw, {f"{g}/offsets/{t}/{n}": b"%d" % n for g in groups for t in topics for n in range(5)})
    plant(raw, {f"{g}/owners/{t}/{n}": b"anna" for g in groups for t in topics for n in range(5)}, ephemeral=True)
    plant(raw, {f"{g}/ids/{m}": SCALA for g in groups for m in ("anna", "ben")}, ephemeral=True)
    plant(raw, {"hidden/offsets/orders/0": b"7", "hidden/owners/orders/0": b"7", "alpha/offsets/orders/x": b"7"})
    for part in ("offsets", "owners"):
        raw.set_acls(f"/consumers/hidden/{part}", [OPERATORS])


def test_expressions_match_whole_names_of_groups_and_topics(read: Read, some: None) -> None:
    def find_moment(table: str = "offsets", **options: str) -> set[tuple[str, str | None]]:
        return {(row.group, row.topic) for row in read(table, parallelism=2, **options).collect()}

    assert find_moment(groups="alpha|bet") == {("alpha", t) for t in ("orders", "refunds", "tax")}
    assert find_moment(groups="(alph|bet)a", topics="t.*|o") == {("alpha", "tax"), ("beta", "tax")}
    assert find_moment("owners", groups=".*m.*", topics="orders") == {("gamma", "orders")}
    assert find_moment(topics="nothing") == {("hidden", None)}
    members = read("members", groups="alpha", topics="nothing").collect()
    assert sorted((row.group, row.instance) for row in members) == [("alpha", "anna"), ("alpha", "ben")]


def test_a_cluster_may_have_a_name(read: Read, some: None) -> None:
    for table in ("offsets", "owners", "members"):
        assert {row.cluster for row in read(table, cluster="the main one").collect()} == {"the main one"}


SCHEMAS = {
    "offsets": """
root
 |-- cluster: string (nullable = false)
 |-- group: string (nullable = false)
 |-- topic: string (nullable = true)
 |-- partition: integer (nullable = true)
 |-- offset: long (nullable = true)
 |-- commit_count: integer (nullable = true)
 |-- committed_at: timestamp (nullable = true)
 |-- created_at: timestamp (nullable = true)
 |-- zxid: long (nullable = true)
 |-- owner: string (nullable = true)
 |-- raw: binary (nullable = true)
 |-- problem: string (nullable = true)
 |-- read_at: timestamp (nullable = false)
""",
    "owners": """
root
 |-- cluster: string (nullable = false)
 |-- group: string (nullable = false)
 |-- topic: string (nullable = true)
 |-- partition: integer (nullable = true)
 |-- owner: string (nullable = true)
 |-- session: string (nullable = true)
 |-- claimed_at: timestamp (nullable = true)
 |-- zxid: long (nullable = true)
 |-- raw: binary (nullable = true)
 |-- problem: string (nullable = true)
 |-- read_at: timestamp (nullable = false)
""",
    "members": """
root
 |-- cluster: string (nullable = false)
 |-- group: string (nullable = false)
 |-- instance: string (nullable = true)
 |-- session: string (nullable = true)
 |-- registered_at: timestamp (nullable = true)
 |-- subscription: map (nullable = true)
 |    |-- key: string
 |    |-- value: integer (valueContainsNull = false)
 |-- pattern: string (nullable = true)
 |-- dialect: string (nullable = true)
 |-- raw: binary (nullable = true)
 |-- problem: string (nullable = true)
 |-- read_at: timestamp (nullable = false)
""",
}


@pytest.mark.parametrize("table", SCHEMAS)
def test_columns_have_types_and_comments(
    read: Read, some: None, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read(table)
    rows.printSchema()
    assert capsys.readouterr().out.strip() == SCHEMAS[table].strip()
    assert all(column.metadata["comment"] for column in rows.schema)
    assert len(rows.collect()[0]) == len(rows.columns)


def test_sql_reads_a_view_and_a_table(read: Read, spark: SparkSession, some: None, zookeeper_hosts: str) -> None:
    read().createOrReplaceTempView("offsets")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW owners USING zkgroups "
        f"OPTIONS (zookeeper '{zookeeper_hosts}', table 'owners', parallelism 1)"
    )
    query = """
        SELECT topic, count(*) AS n, max(offset) AS most, count(w.owner) AS owned
        FROM offsets o LEFT JOIN owners w USING (group, topic, partition)
        WHERE o.problem IS NULL GROUP BY topic ORDER BY topic
    """
    assert [tuple(row) for row in spark.sql(query).collect()] == [
        ("orders", 15, 4, 15),
        ("refunds", 15, 4, 15),
        ("tax", 15, 4, 15),
    ]
    assert spark.sql("SELECT * FROM offsets WHERE group = 'beta' AND offset > 2").count() == 6


def test_a_repeated_query_reads_current_data(read: Read, raw: Any) -> None:
    plant(raw, {"a/offsets/t/0": b"7", "a/offsets/t/1": b"7"})
    rows = read()
    assert [row.offset for row in rows.orderBy("partition").collect()] == [7, 7]
    raw.set("/consumers/a/offsets/t/0", b"8")
    plant(raw, {"b/offsets/t/0": b"9"})
    assert [row.offset for row in rows.orderBy("group", "partition").collect()] == [8, 7, 9]


# Filters


@pytest.fixture(scope="module")
def selective(spark: SparkSession) -> SparkSession:
    """A session that pushes filters down to the source."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    register(session)
    return session


CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "GROUP = 'alpha'": lambda row: row.group == "alpha",
    "group IN ('alpha', 'gamma', 'nope')": lambda row: row.group in ("alpha", "gamma"),
    "topic LIKE 'or%'": lambda row: row.topic == "orders",
    "topic IS NULL": lambda row: row.topic is None,
    "NOT topic = 'orders'": lambda row: row.topic not in ("orders", None),
    "group = 'hidden' AND problem IS NOT NULL": lambda row: row.group == "hidden",
    "group = 'alpha' OR topic = 'tax'": lambda row: row.group == "alpha" or row.topic == "tax",
    "group = 'alpha' AND topic LIKE 't%' AND offset > 2": lambda row: (
        (row.group, row.topic) == ("alpha", "tax") and row.offset > 2
    ),
}


@pytest.mark.parametrize("handed", [False, True], ids=["kept by Spark", "offered to the source"])
def test_several_queries_on_one_dataframe_have_all_rows(
    read: Read, spark: SparkSession, selective: SparkSession, some: None, handed: bool
) -> None:
    """If a source accepts a filter, Spark 4.3 also applies it to the next query on the same DataFrame."""
    rows = read(session=selective if handed else spark).select("group", "topic", "partition", "offset", "problem")
    everything = rows.collect()
    assert len(everything) == 47
    for condition, holds in CONDITIONS.items():
        expected = sorted(filter(holds, everything), key=repr)
        assert sorted(rows.where(condition).collect(), key=repr) == expected, condition
    alpha, beta = rows.where("group = 'alpha' AND topic = 'tax'"), rows.where("group = 'beta'")
    assert (alpha.union(beta).count(), alpha.count(), beta.count(), rows.count()) == (20, 5, 15, 47)
    assert alpha.alias("a").join(beta.alias("b"), "partition").count() == 15


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"topics": "large-0"}, 6_000),
        ({"groups": "other"}, 3_000),
        ({"groups": "hu.*", "topics": "large-[01]"}, 6_000),
        ({"groups": "nobody"}, 0),
    ],
)
def test_unselected_nodes_are_not_requested(
    read: Read, proxy: TcpProxy, huge: str, options: dict[str, str], nodes: int
) -> None:
    address = through(proxy, huge)
    all_of_it, chosen = (spent(proxy, read(zookeeper=address, **given).count) for given in ({}, options))
    assert all_of_it > 40
    assert chosen < all_of_it * nodes / 12_400 + 15


def planned(rows: DataFrame) -> DataFrame:
    """The reader is planned only once."""
    assert rows._jdf.queryExecution().toRdd().getNumPartitions() == 1
    return rows


def spent(proxy: TcpProxy, act: Callable[[], object]) -> int:
    """Count the requests."""
    before = proxy.requests
    act()
    return proxy.requests - before


# Authentication


@pytest.fixture
def guarded(raw: Any) -> None:
    """Offsets that only the user `ops` may read."""
    plant(raw, {"billing/offsets/orders/0": b"7"})
    acl = [OPERATORS, make_digest_acl("ops2", ENVIRONMENT_PASSWORD, all=True)]
    for path in ("", "/offsets", "/offsets/orders", "/offsets/orders/0"):
        raw.set_acls(f"/consumers/billing{path}", acl)


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    return str(file)


def test_workers_read_the_password_from_its_file_or_from_their_environment(
    read: Read, guarded: None, password_file: str
) -> None:
    for login in ({"digestUser": "ops", "passwordFile": password_file}, {"digestUser": "ops2"}):
        [row] = read(**login).collect()
        assert (row.offset, row.problem) == (7, None)
    for login in ({}, {"digestUser": "ops"}):
        [row] = read(**login).collect()
        assert (row.offset, row.problem) == (None, "/consumers/billing/offsets: no permission to read it")


def test_secrets_appear_in_no_plan_log_or_error(
    read: Read,
    spark: SparkSession,
    spark_log: Path,
    guarded: None,
    password_file: str,
    proxy: TcpProxy,
    zookeeper_hosts: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = read(digestUser="ops", passwordFile=password_file, zookeeper=through(proxy, zookeeper_hosts), timeout=2)
    start = spark_log.stat().st_size
    spark.sparkContext.setLogLevel("DEBUG")
    try:
        rows.explain(True)
        shown = [str(rows._jdf.queryExecution().toString()), str(rows.schema), repr(rows)]
        assert planned(rows).count() == 1
        proxy.refuse()
        with pytest.raises(PythonException) as caught:
            rows.collect()
        shown.append(str(caught.value))
    finally:
        spark.sparkContext.setLogLevel("OFF")
    log = spark_log.read_bytes()[start:].decode(errors="replace")
    assert "Physical Plan" in capfd.readouterr().out
    assert "zkgroups" in log
    assert len(log) > 50_000
    for text in (*shown, log, "".join(capfd.readouterr())):
        assert SECRET not in text
        assert ENVIRONMENT_PASSWORD not in text


def test_a_password_is_refused_as_an_option_and_not_repeated(read: Read) -> None:
    with pytest.raises(AnalysisException) as caught:
        read(digestUser="ops", password=SECRET)
    assert "put the password into a file or an environment variable" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_sasl_server_is_read_and_a_wrong_password_is_reported(read: Read, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(SECRET)
    wrong.write_text("something else")
    with ZooKeeperServer(sasl=server_side.Sasl({"ops": SECRET})) as server:
        with client_of(server.address) as client:
            plant(client, {"billing/offsets/orders/0": b"7"})
        login = {"zookeeper": server.address, "saslUser": "ops"}
        [row] = read(**login, passwordFile=right).collect()
        assert row.offset == 7
        with pytest.raises(AuthenticationError) as caught, translated("it"):
            read(**login, passwordFile=wrong).count()
        assert "\n" not in str(caught.value)
        assert "something else" not in str(caught.value)


def test_a_server_is_read_over_tls(read: Read, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server_pem = certificate(authority, "127.0.0.1", tmp_path / "server.pem")
    ours = certificate(authority, "me@example.org", tmp_path / "ours.pem")
    with ZooKeeperServer(tls=server_side.Tls(Path(server_pem), tmp_path / "ca.pem")) as server:
        with client_of(server.address) as client:
            plant(client, {f"billing/offsets/orders/{n}": b"7" for n in range(30)})
        tls = {"zookeeper": server.secure_address, "tls": True, "tlsCa": tmp_path / "ca.pem"}
        assert read(**tls, tlsCert=ours).where("offset = 7").count() == 30
        # Spark may not learn why a worker ended while writing to it, so this fails sometimes.
        assert any("could not connect to" in refusal(lambda: read(**tls, timeout=1).count()) for _ in range(3))


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(ZkgroupsException) as caught, translated("it"):
        act()
    return str(caught.value)


# Old servers


def test_an_old_server_gives_the_same_rows(read: Read, raw: Any, zookeeper_hosts: str, old_hosts: str) -> None:
    groups, topics = ("alpha", "beta"), ("orders", "tax", "über")
    nodes = {f"{g}/offsets/{t}/{n}": b"%d" % n for g in groups for t in topics for n in range(40)}
    nodes |= {"alpha/offsets/orders/x": b"7", "alpha/offsets/tax/50": b"7.5", "closed/offsets/t/0": b"7"}
    nodes |= {f"{g}/owners/{t}/{n}": b"anna" for g in groups for t in topics for n in range(30)}
    nodes |= {"alpha/ids/anna": SCALA, "beta/ids/ben": b"junk{"}
    with client_of(old_hosts) as old:
        for client in (raw, old):
            plant(client, nodes)
            client.set_acls("/consumers/closed/offsets", [OPERATORS])
        for table in ("offsets", "owners", "members"):
            now, then = (
                sorted(
                    repr({c: v for c, v in row.items() if c not in UNLIKE})
                    for row in told(read(table, zookeeper=hosts, cluster="c", parallelism=2))
                )
                for hosts in (zookeeper_hosts, old_hosts)
            )
            assert now == then
            assert now


UNLIKE = {"committed_at", "created_at", "claimed_at", "registered_at", "zxid"}
"""The columns that differ between servers."""


# The interpreter


def test_workers_run_the_interpreter_of_the_driver(
    read: Read, spark: SparkSession, some: None, another_python: Path
) -> None:
    there = subprocess.run([another_python / "python3", "-c", "import kazoo"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in there.stderr
    assert spark.sparkContext.pythonExec == "python3", "as it was: other functions of the session are unchanged"
    assert read().count() == 47


def test_registration_may_be_repeated_for_any_session(read: Read, spark: SparkSession, some: None) -> None:
    other = spark.newSession()
    for session in (spark, other, other, spark):
        register(session)
        assert SparkSession.getActiveSession() == spark
        assert read(session=session).count() == 47


@pytest.mark.parametrize("said_by", ["environment", "setting"])
def test_a_configured_interpreter_is_used(
    read: Read, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, said_by: str
) -> None:
    context = spark.sparkContext
    session = spark.newSession()
    monkeypatch.setattr(context, "pythonExec", "/no/such/python")  # Spark sets it from either
    if said_by == "environment":
        monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    else:
        monkeypatch.setattr(context, "_conf", context.getConf().set("spark.pyspark.python", "/no/such/python"))
    register(session)
    assert context.pythonExec == "/no/such/python"
    with pytest.raises(MissingDependencyError, match=r"Cannot run program ./no/such/python."), translated("it"):
        read(session=session)


# Errors


NOWHERE = "127.0.0.1:1"

WRONG: dict[str, tuple[Mapping[str, str], type[ZkgroupsException], str]] = {
    "option": ({"groop": "x"}, InvalidOptionError, "option is 'groop', but no such option exists"),
    "table": ({"table": "groups"}, InvalidOptionError, "table is 'groups', but it must be one of offsets, owners, mem"),
    "hosts": ({"zookeeper": "a:b"}, InvalidOptionError, "zookeeper is 'a:b', but it must be like host:port"),
    "nobody": (
        {"zookeeper": NOWHERE, "timeout": "0.3"},
        NotConnectedError,
        f"could not connect to {NOWHERE} within 0.3 s",
    ),
    "chroot": ({"chroot": "/nope"}, NoRegistryError, "/.*/nope does not exist in the ZooKeeper at "),
    "password": ({"digestUser": "ops", "passwordFile": "/no/such"}, InvalidOptionError, "passwordFile is '/no/such', "),
}


@pytest.mark.parametrize(("options", "kind", "said"), WRONG.values(), ids=WRONG.keys())
def test_failures_are_zkgroups_errors(
    read: Read, zookeeper_hosts: str, options: dict[str, str], kind: type[ZkgroupsException], said: str
) -> None:
    options = dict(options)
    if below := options.pop("chroot", ""):
        options["zookeeper"] = zookeeper_hosts + below
    with pytest.raises(AnalysisException, match=rf"zkgroups\.(exceptions|input_errors)\.{kind.__name__}: ") as caught:
        read(**options).count()
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR"
    with pytest.raises(kind, match=f"^{said}") as ours, translated("it"):
        read(**options).count()
    assert isinstance(ours.value.__cause__, AnalysisException)


def test_a_missing_address_is_reported_with_the_right_option(spark: SparkSession) -> None:
    reader = spark.read.format("zkgroups")
    with pytest.raises(InvalidOptionError, match="it must be the address of ZooKeeper"), translated("it"):
        reader.load()
    with (
        pytest.raises(InvalidOptionError, match=r"use option\(\"zookeeper\", \"host:port/chroot\"\)"),
        translated("it"),
    ):
        reader.load("zk1:2181")


def test_another_schema_is_refused_and_the_table_s_own_is_accepted(
    read: Read, spark: SparkSession, some: None, zookeeper_hosts: str
) -> None:
    reader = spark.read.format("zkgroups").options(zookeeper=zookeeper_hosts, parallelism=1)
    assert reader.schema(read().schema).load().count() == 47
    others = reader.schema("group STRING, lag BIGINT").load()
    with pytest.raises(InvalidOptionError, match="each table has a fixed schema: do not set one"), translated("it"):
        others.count()


def test_a_server_lost_before_the_tasks_start_is_named(
    read: Read, spark: SparkSession, proxy: TcpProxy, zookeeper_hosts: str, some: None
) -> None:
    rows = read(zookeeper=through(proxy, zookeeper_hosts), timeout=2)
    planned(rows)
    proxy.refuse()
    with pytest.raises(NotConnectedError, match=r"^could not connect to .* within 2 s") as caught, translated("it"):
        rows.collect()
    assert isinstance(caught.value.__cause__, PythonException)


def test_other_errors_show_the_first_message_of_python_or_java(spark: SparkSession) -> None:
    with pytest.raises(SparkJobError, match=r"^it: .*no_such_column"), translated("it"):
        spark.range(1).select("no_such_column")
    with pytest.raises(SparkJobError, match=r"^it: .*DIVIDE_BY_ZERO"), translated("it"):
        spark.sql("SELECT 1 / id FROM range(1)").collect()
    with pytest.raises(SparkJobError, match=r"^it: .*org.apache.hadoop.*No FileSystem for scheme"), translated("it"):
        spark.range(1).write.parquet("nowhere://x/y")
    with pytest.raises(SparkJobError, match=r"^it: .*Parent path is not a directory: file:/dev/null"), translated("it"):
        spark.range(1).write.parquet("/dev/null/x")


def test_an_error_with_a_cause_is_converted_to_the_outer_error() -> None:
    text = (
        "Traceback (most recent call last):\nzkgroups.exceptions.NotFoundError: there is nothing\n\n"
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        "zkgroups.exceptions.NotConnectedError: no connection\n\tat org.apache.spark.X\n"
    )
    with pytest.raises(NotConnectedError, match=r"^no connection$"), translated("it"):
        raise PythonException(text)


def test_a_task_whose_process_is_killed_is_repeated(
    read: Read, spark: SparkSession, proxy: TcpProxy, huge: str
) -> None:
    before = proxy.requests_by_type[Op.SYNC]
    rows = read(zookeeper=through(proxy, huge)).groupBy().agg(f.count("*"), f.sum("offset"))
    result: list[Any] = []
    proxy.delay(0.05, direction="replies")
    query = threading.Thread(target=lambda: result.extend(rows.collect()))
    query.start()
    assert eventually(lambda: proxy.requests_by_type[Op.MULTI_READ] > 20, timeout=60)
    proxy.delay(3600.0, direction="replies")  # the task is still running when it is killed
    [worker] = processes_connected_to(proxy)
    os.kill(worker, signal.SIGKILL)
    proxy.delay(0)
    query.join(60)
    assert [tuple(row) for row in result] == [(12_400, 4 * sum(range(3_000)) + 40 * sum(range(10)))]
    assert proxy.requests_by_type[Op.SYNC] - before == 2, "it was begun twice"


def processes_connected_to(proxy: TcpProxy) -> list[int]:
    """Return the other processes with a connection to the proxy."""
    port = int(proxy.address.rpartition(":")[2])
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{fields[9]}]")
    processes = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
    return [int(process.name) for process in processes if sockets & open_files(process)]


def open_files(process: Path) -> set[str]:
    try:
        return {str(file.readlink()) for file in (process / "fd").iterdir()}
    except OSError:
        return set()

"""Options that select groups and topics, columns, SQL, and conditions that Spark pushes down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from zkgroups.spark import register
from zkgroups.testing import TcpProxy

from ..conftest import Read, plant
from .conftest import HUGE, spent, through

pytestmark = pytest.mark.zookeeper


# Selection


def test_an_empty_tree_has_no_rows(read: Read, raw: Any) -> None:
    assert read().count() == 0
    for path in ("a/offsets/orders", "b/ids", "b/owners", "c"):
        raw.ensure_path(f"/consumers/{path}")
    assert [read(table, parallelism=2).count() for table in ("offsets", "owners", "members")] == [0, 0, 0]


def test_one_huge_group_is_read_by_all_tasks_without_loss_or_duplicates(read: Read, huge: str) -> None:
    rows = read(zookeeper=huge, groups="huge", parallelism=7).select(
        "topic", "partition", "offset", f.spark_partition_id()
    )
    found = [tuple(row) for row in rows.collect()]
    assert len({task for *_, task in found}) == 7
    assert len(found) == HUGE
    assert {each[:3] for each in found} == {
        *((f"large-{t}", n, n) for t in range(3) for n in range(3_000)),
        *((f"small-{t:02}", n, n) for t in range(40) for n in range(10)),
    }


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
 |-- layout: string (nullable = true)
 |-- log_start: long (nullable = true)
 |-- log_end: long (nullable = true)
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
 |-- client_id: string (nullable = true)
 |-- client_host: string (nullable = true)
 |-- raw: binary (nullable = true)
 |-- problem: string (nullable = true)
 |-- read_at: timestamp (nullable = false)
""",
}


def test_columns_have_types_and_comments(read: Read, some: None, capsys: pytest.CaptureFixture[str]) -> None:
    """And a cluster may have a name."""
    for table, schema in SCHEMAS.items():
        rows = read(table, cluster="the main one")
        rows.printSchema()
        assert capsys.readouterr().out.strip() == schema.strip()
        assert all(column.metadata["comment"] for column in rows.schema)
        assert {row.cluster for row in rows.collect()} == {"the main one"}


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


def test_several_queries_on_one_dataframe_have_all_rows(read: Read, selective: SparkSession, some: None) -> None:
    """If a source accepts a filter, Spark 4.3 also applies it to the next query on the same DataFrame."""
    rows = read(session=selective).select("group", "topic", "partition", "offset", "problem")
    everything = rows.collect()
    assert len(everything) == 47
    for condition, holds in CONDITIONS.items():
        expected = sorted(filter(holds, everything), key=repr)
        assert sorted(rows.where(condition).collect(), key=repr) == expected, condition
    alpha, beta = rows.where("group = 'alpha' AND topic = 'tax'"), rows.where("group = 'beta'")
    assert (alpha.union(beta).count(), alpha.count(), beta.count(), rows.count()) == (20, 5, 15, 47)
    assert alpha.alias("a").join(beta.alias("b"), "partition").count() == 15


def test_unselected_nodes_are_not_requested(read: Read, proxy: TcpProxy, huge: str) -> None:
    address = through(proxy, huge)
    all_of_it = spent(proxy, read(zookeeper=address).count)
    assert all_of_it > 40
    for options, nodes in (
        ({"groups": "other"}, 3_000),
        ({"groups": "hu.*", "topics": "large-[01]"}, 6_000),
        ({"groups": "nobody"}, 0),
    ):
        assert spent(proxy, read(zookeeper=address, **options).count) < all_of_it * nodes / 12_400 + 15

"""Offsets out of a snapshot or an audit: which of them is meant, what is printed, and what is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest
from pyspark.sql import SparkSession

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition
from zkgroups.exceptions import InvalidInputError, InvalidOptionError, NotFoundError, RefusedError
from zkgroups.spark import SourceOptions, Table, read_snapshot, run_audit, take_snapshot
from zkgroups.spark.audit.journal import Journal
from zkgroups.spark.snapshots.clusters import choose
from zkgroups.spark.snapshots.layout import snapshot_time
from zkgroups.spark.snapshots.restore import KeptTopic, kept

from .commands import Command, command_on
from .model import files, plant, spoil

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
Take = Callable[..., str]


@pytest.fixture
def take(spark: SparkSession, zookeeper_hosts: str, tmp_path: Path) -> Take:
    """Takes a snapshot, of a cluster that may have a name; returns what the snapshot is called."""

    def take(cluster: str | None = None, **chosen: Any) -> str:
        source = SourceOptions(zookeeper=zookeeper_hosts, cluster=cluster, parallelism=1, **chosen)
        return take_snapshot(spark, str(tmp_path), source).name

    return take


@pytest.fixture
def zkgroups(spark: SparkSession, zookeeper_hosts: str) -> Iterator[Command]:
    with command_on(spark, zookeeper_hosts) as command:
        yield command


@pytest.fixture
def billing(registry: Registry) -> Any:
    group = registry.group("billing")
    group.offsets.commit_many({P0: 50, P1: 60, TopicPartition("refunds", 0): 7})
    return group


def there(registry: Registry) -> dict[str, int]:
    return {f"{each.group}/{each.at}": each.offset for each in registry.offsets() if isinstance(each, CommittedOffset)}


# What is in it


def test_every_offset_is_there_and_in_place_of_the_others_what_was_wrong(
    spark: SparkSession, take: Take, raw: Any, tmp_path: Path
) -> None:
    model = plant(raw, ["billing", "shipping"])
    spoil(model, raw)
    rows = read_snapshot(spark, str(tmp_path), take())
    found = list(kept(rows))
    expected = [row for row in model.rows[Table.OFFSETS] if row["problem"] is None]
    assert {(each.group, at.topic, at.partition): offset for each in found for at, offset in each.offsets.items()} == {
        (row["group"], row["topic"], row["partition"]): row["offset"] for row in expected
    }
    assert [(each.group, each.topic) for each in found] == sorted({(row.group, row.topic) for row in rows.collect()})
    problems = {node.path: node for each in found for node in each.problems}
    assert problems.keys() == {f"/consumers/odd/offsets/{name}" for name in ("t/1", "t/2", "hidden")}
    assert problems["/consumers/odd/offsets/t/1"].data == b"7.5"
    assert isinstance(problems["/consumers/odd/offsets/hidden"], ForbiddenNode)

    some = list(kept(rows, groups=["shipping", "odd"], topics={"t1": [1, 3], "t": [1]}))
    assert [(each.group, [at.partition for at in each.offsets], len(each.problems)) for each in some] == [
        ("odd", [], 1),
        ("shipping", [1, 3], 0),
    ]
    assert [len(each.problems) for each in kept(rows, groups=["odd"], topics={"hidden": [9]})] == [1]


def test_rows_that_others_have_written_are_not_trusted(spark: SparkSession) -> None:
    def of(*rows: str) -> list[KeptTopic]:
        return list(kept(spark.sql(f"select * from values {', '.join(rows)} as t(group, topic, partition, offset)")))

    [found] = of("('g', 't', 1, null)", "('g', 't', 0, 5)")
    assert (found.offsets, [node.path for node in found.problems]) == (
        {TopicPartition("t", 0): 5},
        ["/consumers/g/offsets/t/1"],
    )
    for row in ("('a/b', 't', 0, 5)", "('g', 't/0', 0, 5)", "('g', 't', -1, 5)", "('g', 't', 0, -5)"):
        with pytest.raises(InvalidInputError):
            of(row)
    with pytest.raises(InvalidInputError, match="t/0 of group 'g' is there twice"):
        of("('g', 't', 0, 5)", "('g', 't', 0, 6)")


def test_of_several_clusters_the_one_of_the_address_is_meant_or_the_one_named(
    spark: SparkSession, take: Take, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    registry.group("billing").offsets.commit(P0, 1)
    blue, ours, blue_again = take("blue"), take(), take("blue")
    (tmp_path / f"table=offsets/snapshot={blue}" / "_SUMMARY.json").unlink()  # as an earlier version left it

    def meant(at: str | None = None, **of: str | None) -> tuple[str, str | None]:
        found = choose(spark, str(tmp_path), at, **of)
        return found.name, found.cluster

    assert meant(address=zookeeper_hosts) == (ours, zookeeper_hosts)
    assert meant(cluster="blue", address=zookeeper_hosts) == (blue_again, "blue")
    assert meant("previous", cluster="blue") == (blue, "blue")
    assert meant(snapshot_time(ours).isoformat(), cluster="blue") == (blue, "blue")
    assert meant(blue, address=zookeeper_hosts) == (blue, "blue"), "it was named"
    for unclear in (None, "latest", "previous"):
        with pytest.raises(InvalidOptionError, match=f"there are {zookeeper_hosts}, blue|there are blue, "):
            meant(unclear, address="zk9:2181")
    for since in ({"address": zookeeper_hosts}, {"cluster": zookeeper_hosts}):
        with pytest.raises(NotFoundError, match=f"of {zookeeper_hosts} in "):
            meant(snapshot_time(blue).isoformat(), **since)
    with pytest.raises(InvalidOptionError, match="say which"):
        meant(snapshot_time(blue).isoformat(), address="zk9:2181")
    for at, cluster in ((None, "red"), (ours, "blue"), ("2001-01-01", None), ("yesterday", None)):
        with pytest.raises(NotFoundError, match="there is no snapshot"):
            meant(at, cluster=cluster)


def test_rows_of_another_cluster_in_the_same_snapshot_are_not_taken(
    spark: SparkSession, take: Take, registry: Registry, tmp_path: Path
) -> None:
    registry.group("billing").offsets.commit(P0, 1)
    blue = take("blue")
    registry.group("billing").offsets.commit(P0, 2)
    [file] = files(tmp_path, Table.OFFSETS, take("red"))
    copy(file, tmp_path / f"table=offsets/snapshot={blue}" / "part-of-red.parquet")
    [found] = kept(choose(spark, str(tmp_path), blue, cluster="blue").rows(spark))
    assert found.offsets == {P0: 1}


def test_a_snapshot_that_has_lost_offsets_is_not_taken_for_one_that_had_fewer(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    name = take()
    [file] = files(tmp_path, Table.OFFSETS, name)
    copy(file, file.with_name("part-beside.parquet"))
    file.unlink()
    before = there(registry)
    for asked in (("export", "billing"), ("import", "--execute"), ("reset", "billing", "--all-topics", "--execute")):
        option = "--to-snapshot" if asked[0] == "reset" else "--from-snapshot"
        ended = zkgroups("offsets", *asked, option, tmp_path)
        assert (ended.code, ended.out) == (10, "")
        assert f"is not whole: {file.name} of table=offsets is missing" in ended.err
    assert there(registry) == before


# Export


FORMS = {
    "json": ['{"schema": 1, "offsets": [', '{"group": "billing", "topic": "orders", "partition": 0, "offset": 50},'],
    "jsonl": ['{"schema": 1, "group": "billing", "topic": "orders", "partition": 0, "offset": 50}'],
    "csv": ["group,topic,partition,offset", "billing,orders,0,50"],
    "kafka-csv": ["billing,orders,0,50", "billing,orders,1,60"],
    "path": ["/consumers/billing/offsets/orders/0:50", "/consumers/billing/offsets/orders/1:60"],
    "spark": ['{"orders": {"0": 50, "1": 60}, "refunds": {"0": 7}}'],
}


def test_a_snapshot_is_printed_in_every_form_without_a_connection(
    spark: SparkSession, take: Take, billing: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    name = take()
    with command_on(spark, None) as zkgroups:
        for form, lines in FORMS.items():
            ended = zkgroups("offsets", "export", "billing", "--from-snapshot", tmp_path, "--format", form)
            assert (ended.code, ended.lines[: len(lines)]) == (0, lines)
        assert ended.err.splitlines() == [
            f"Starting Spark to read a snapshot in {tmp_path}.",
            f"Using snapshot {name} of cluster {zookeeper_hosts}.",
        ]
        some = ("--groups", "b.*", "--topic", "orders:1", "--from-snapshot", tmp_path, "--format", "kafka-csv", "-q")
        assert zkgroups("offsets", "export", *some).out == "billing,orders,1,60\n"


def test_a_newer_snapshot_that_is_not_whole_is_named_and_the_last_that_is_whole_is_read(
    zkgroups: Command, take: Take, billing: Any, tmp_path: Path
) -> None:
    whole, cut_off = take(), take()
    (tmp_path / f"table=offsets/snapshot={cut_off}" / "_SUCCESS").unlink()
    some = ("offsets", "export", "billing", "--from-snapshot", tmp_path)

    ended = zkgroups(*some, "-q")
    assert (ended.code, len(ended.json["offsets"])) == (0, 3)
    assert ended.err == (
        f"zkgroups: snapshot {cut_off} is newer, but not complete: check it with `zkgroups snapshots verify`\n"
    )
    assert zkgroups(*some, "-q", "--at", whole).err == "", "whoever names one does not ask for the newest"


def test_a_snapshot_with_a_time_in_the_future_is_told_where_it_counts_as_the_newest(
    zkgroups: Command, take: Take, billing: Any, tmp_path: Path
) -> None:
    name, wrong = take(), "29990131T120007.005Z"
    for table in tmp_path.glob("table=*"):
        copytree(table / f"snapshot={name}", table / f"snapshot={wrong}")
    told = f"zkgroups: the time of snapshot {wrong} is in the future: a clock was wrong, and others may be newer\n"
    some = ("offsets", "export", "billing", "--from-snapshot", tmp_path, "-q")

    assert zkgroups(*some).err == told
    assert zkgroups(*some, "--at", name).err == ""
    assert zkgroups("snapshots", "diff", tmp_path, "-q").err == told


def test_what_the_snapshot_does_not_have_is_said_and_the_rest_is_printed(
    zkgroups: Command, take: Take, billing: Any, raw: Any, tmp_path: Path
) -> None:
    raw.create("/consumers/billing/offsets/orders/2", b"many")
    name = take()
    ended = zkgroups("offsets", "export", "billing", "nobody", "--from-snapshot", tmp_path, "-q")
    assert (ended.code, [each["offset"] for each in ended.json["offsets"]]) == (9, [50, 60, 7])
    assert ended.err.splitlines() == [
        "zkgroups: /consumers/billing/offsets/orders/2 cannot be read: not a plain decimal number "
        f"(b'many'); recorded in snapshot {name}",
        f"zkgroups: snapshot {name} has no offsets of group 'nobody'",
    ]
    for names, code in ((("nobody",), 3), (("billing", "--topic", "orders:2"), 10)):
        assert zkgroups("offsets", "export", *names, "--from-snapshot", tmp_path).code == code
    several = zkgroups("offsets", "export", "billing", "other", "--from-snapshot", tmp_path, "--format", "spark")
    assert (several.code, several.out) == (2, "")


# Import


def test_what_was_lost_comes_back_and_what_is_further_stays_unless_told(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    registry.group("shipping").offsets.commit(P0, 5)
    before = there(registry)
    take()
    registry.group("shipping").delete()
    billing.offsets.reset({P1: 10})
    billing.offsets.commit(P0, 55)
    billing.offsets.commit(P2, 3)
    billing.offsets.delete([TopicPartition("refunds", 0)])
    mistaken = there(registry)

    asked = ("offsets", "import", "--from-snapshot", tmp_path)
    shown = zkgroups(*asked, "-o", "csv", "--no-headers")
    assert (shown.code, there(registry)) == (9, mistaken)
    assert shown.lines == [
        "billing,orders,0,55,50,-5,would go back",
        "billing,orders,1,10,60,50,",
        "billing,refunds,0,,7,,",
        "shipping,orders,0,,5,,",
    ]
    assert shown.err.endswith(
        "--backward allows it\nNothing was changed: --execute does it, except for the changes refused above.\n"
    )

    done = zkgroups(*asked, "--group", "billing", "--topic", "orders", "--execute", "-q")
    assert (done.code, there(registry)) == (9, mistaken | {"billing/orders/1": 60})
    done = zkgroups(*asked, "--groups", ".*", "--backward", "--execute", "--undo-file", tmp_path / "undo", "-q")
    assert (done.code, done.err) == (0, "")
    assert there(registry) == before | {"billing/orders/2": 3}
    assert zkgroups("offsets", "import", tmp_path / "undo", "--backward", "--execute", "-q").code == 9
    assert there(registry)["billing/orders/0"] == 55


def test_a_group_with_instances_is_refused_and_the_others_are_restored(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    registry.group("shipping").offsets.commit(P0, 5)
    take()
    registry.group("shipping").offsets.reset({P0: 1})
    billing.offsets.reset({P0: 1})
    with billing.instance("anna") as anna:
        anna.register(["orders"])
        ended = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--execute")
        alone = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--group", "billing", "--execute")
    assert (ended.code, alone.code) == (9, 4)
    assert "in use by anna" in ended.err
    assert (there(registry)["billing/orders/0"], there(registry)["shipping/orders/0"]) == (1, 5)


def test_what_was_no_offset_is_left_as_it_is_and_said(
    zkgroups: Command, take: Take, billing: Any, raw: Any, registry: Registry, tmp_path: Path
) -> None:
    raw.create("/consumers/billing/offsets/orders/2", b"many")
    name = take()
    raw.set("/consumers/billing/offsets/orders/2", b"8")
    billing.offsets.reset({P0: 1})
    ended = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--group", "billing", "--execute")
    assert (ended.code, f"recorded in snapshot {name}" in ended.err) == (9, True)
    assert there(registry) == {
        "billing/orders/0": 50,
        "billing/orders/1": 60,
        "billing/orders/2": 8,
        "billing/refunds/0": 7,
    }
    missing = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--group", "nobody", "--execute")
    assert (missing.code, there(registry).keys()) == (3, there(registry).keys() - {"nobody"})


def test_of_another_cluster_nothing_is_put_back_in_silence(
    zkgroups: Command, take: Take, billing: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    take("blue")
    alone = zkgroups("offsets", "import", "--from-snapshot", tmp_path)
    assert (alone.code, f"of cluster blue (not {zookeeper_hosts})." in alone.err) == (0, True)
    take("red")
    ended = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--execute")
    assert (ended.code, ended.out) == (2, "")
    assert "there are blue, red: say which" in ended.err
    assert zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--cluster", "blue").code == 0


# Reset


def test_a_group_goes_to_where_a_snapshot_found_it_also_back(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    first = take()
    billing.offsets.commit_many({P0: 55, P1: 65, P2: 3})
    take()
    billing.offsets.commit(P1, 70)
    registry.group("new").offsets.commit(P0, 1)
    to = ("offsets", "reset", "--to-snapshot", tmp_path, "-o", "csv", "--no-headers")
    shown = zkgroups(*to, "billing", "--all-topics", "--at", first)
    assert (shown.code, shown.lines) == (
        9,
        [
            "billing,orders,0,55,50,-5,",
            "billing,orders,1,70,60,-10,",
            "billing,orders,2,3,,,no offset is given for it",
            "billing,refunds,0,7,7,0,",
        ],
    )
    several = zkgroups(*to, "--groups", "billing|new", "--topic", "orders:0,1", "--at", "previous", "--execute")
    assert (several.code, "no offsets of group 'new' are recorded" in several.err) == (9, True)
    assert there(registry) == {
        "billing/orders/0": 50,
        "billing/orders/1": 60,
        "billing/orders/2": 3,
        "billing/refunds/0": 7,
        "new/orders/0": 1,
    }
    assert zkgroups(*to, "billing", "--topic", "orders:0,1", "--execute").code == 0
    assert (there(registry)["billing/orders/0"], there(registry)["billing/orders/1"]) == (55, 65)
    assert zkgroups(*to, "billing").code == 2, "the topics are to be said"


def test_a_group_goes_to_what_was_committed_at_a_time_without_brokers(
    spark: SparkSession, zkgroups: Command, billing: Any, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    def follow() -> None:
        run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)

    follow()
    before, since = there(registry), max(each.modified_ms for each in billing.offsets)
    while billing.offsets.fetch(P0).modified_ms == since or there(registry) == before:
        billing.offsets.commit(P0, there(registry)["billing/orders/0"] + 1)
    billing.offsets.commit_many({P1: 65, P2: 3})
    later = datetime.now(UTC)
    follow()
    to = ("offsets", "reset", "billing", "--all-topics", "--from-audit", tmp_path, "-o", "csv", "--no-headers")
    at = datetime.fromtimestamp(since / 1000, UTC).isoformat(timespec="milliseconds")
    done = zkgroups(*to, "--to-datetime", at, "--execute")
    assert done.code == 9
    assert done.lines[1:] == [
        "billing,orders,1,65,60,-5,",
        "billing,orders,2,3,,,no offset is given for it",
        "billing,refunds,0,7,7,0,",
    ]
    assert there(registry) == before | {"billing/orders/2": 3}
    forward = (*to, "--to-datetime", later.isoformat(timespec="milliseconds"))
    assert zkgroups(*forward).code == 9
    again = zkgroups(*forward, "--forward")
    assert (again.code, [line.split(",")[4] for line in again.lines][1:]) == (0, ["65", "3", "7"])
    refused = zkgroups(*to, "--by-duration", "PT0S")
    assert (refused.code, refused.out) == (4, "")
    assert "what was committed after that is not in it" in refused.err
    assert zkgroups(*to, "--by-duration", "P100D").code == 3


def test_the_audit_of_another_zookeeper_is_taken_only_where_it_is_named(
    spark: SparkSession, zkgroups: Command, billing: Any, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    registry.client.ensure_path("/other/consumers/billing/offsets/orders/0")
    registry.client.set("/other/consumers/billing/offsets/orders/0", b"999")
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    run_audit(spark, str(tmp_path), zookeeper_hosts, once=True)
    other = f"{zookeeper_hosts}/other"
    to = ("offsets", "reset", "billing", "--topic", "orders:0", "--to-datetime", at, "--from-audit", tmp_path)
    refused = zkgroups(*to, "--execute", "-z", other)
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.splitlines()[-1] == (
        f"zkgroups: the audit in file:{tmp_path} is of cluster {zookeeper_hosts}, not of the ZooKeeper now at {other}: "
        f"to use it anyway, add --cluster {zookeeper_hosts}"
    )
    assert registry.client.get("/other/consumers/billing/offsets/orders/0")[0] == b"999"
    assert zkgroups(*to, "--cluster", "red").code == 4
    named = zkgroups(*to, "--cluster", zookeeper_hosts, "--execute", "-z", other)
    assert (named.code, registry.client.get("/other/consumers/billing/offsets/orders/0")[0]) == (0, b"50")

    def whose() -> str:
        known = Journal(spark, str(tmp_path)).whose()
        assert known is not None
        return known.cluster

    with pytest.raises(RefusedError, match="is another ZooKeeper"):
        run_audit(spark, str(tmp_path), other, once=True)
    assert whose() == zookeeper_hosts, "who was refused has not made it his own"
    run_audit(spark, str(tmp_path), SourceOptions(zookeeper=other, begin_anew=True), once=True)
    assert whose() == other

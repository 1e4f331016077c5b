"""The list of snapshots, with counts from their summaries or from their rows."""

from __future__ import annotations

import shlex
from dataclasses import asdict, astuple, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkgroups_cli.snapshots.list import list_ as command

from zkgroups.exceptions import InvalidOptionError, NotFoundError
from zkgroups.snapshots.listing import ListedSnapshot, list_local_snapshots
from zkgroups.spark import Snapshot, SourceOptions, Table, list_snapshots, read_snapshot, take_snapshot
from zkgroups.spark.snapshots.layout import Layout
from zkgroups.spark.snapshots.listing import listing
from zkgroups.storage.timestamps import parse_timestamp

from ..cli.test_help import examples
from .commands import command_on
from .model import files, plant, spoil

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


@pytest.fixture
def taken(spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path) -> list[Snapshot]:
    """Three snapshots: the oldest is empty, the newest is of a named cluster."""
    empty = take_snapshot(spark, str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, parallelism=1))
    spoil(plant(raw, ["billing", "shipping"]), raw)
    raw.create("/consumers/idle")
    sources = [SourceOptions(zookeeper=zookeeper_hosts, cluster=name, parallelism=1) for name in (None, "blue")]
    return [empty, *(take_snapshot(spark, str(tmp_path), source) for source in sources)]


def expected(taken: Snapshot, cluster: str, destination: Path) -> ListedSnapshot:
    size = sum(file.stat().st_size for table in Table for file in files(destination, table, taken.name))
    counts = (taken.groups, taken.offsets, taken.owners, taken.members, taken.problems)
    return ListedSnapshot(taken.name, parse_timestamp(taken.name), cluster, *counts, size)


def jobs(spark: SparkSession, group: str) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_snapshots_are_listed_with_their_counts_without_a_job(
    spark: SparkSession, taken: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    spark.sparkContext.setJobGroup("of the list", "none")
    try:
        found = listing(spark, str(tmp_path))
        assert jobs(spark, "of the list") == 0
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    clusters = (zookeeper_hosts, zookeeper_hosts, "blue")
    assert found == [expected(each, of, tmp_path) for each, of in zip(taken, clusters, strict=True)]
    assert list_local_snapshots(str(tmp_path)) == found
    assert [each.groups for each in found] == [0, 4, 4]

    rows = list_snapshots(spark, str(tmp_path)).orderBy("time").collect()
    assert [row.asDict() | {"time": None} for row in rows] == [asdict(each) | {"time": None} for each in found]
    assert [row.time.timestamp() for row in rows] == [each.time.timestamp() for each in found]


def test_snapshots_without_summary_are_counted_and_their_groups_are_unknown(
    spark: SparkSession, taken: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    empty, newest = taken[0], taken[2]
    for each, said in ((empty, None), (newest, "{")):  # of an earlier version, and damaged
        folder = tmp_path / f"table=offsets/snapshot={each.name}"
        (folder / "._SUMMARY.json.crc").unlink()
        (folder / "_SUMMARY.json").unlink()
        if said is not None:
            (folder / "_SUMMARY.json").write_text(said)
    found = listing(spark, str(tmp_path))
    clusters = (None, zookeeper_hosts, "blue")
    whole = [expected(each, str(of), tmp_path) for each, of in zip(taken, clusters, strict=True)]
    assert found == [replace(whole[0], cluster=None, groups=None), whole[1], replace(whole[2], groups=None)]
    assert list_local_snapshots(str(tmp_path)) == found

    rmtree(tmp_path / f"table=owners/snapshot={newest.name}")
    for [*_, last] in (listing(spark, str(tmp_path)), list_local_snapshots(str(tmp_path))):
        assert (last.offsets, last.owners, last.problems) == (newest.offsets, None, None), (
            "a missing table is unknown, not 0"
        )
    for file in files(tmp_path, Table.OFFSETS, newest.name):
        file.write_text("cut")
    [first, second, last] = listing(spark, str(tmp_path))
    assert (first.offsets, second.offsets, last.offsets) == (None, newest.offsets, None), "listing still works"
    [first, second, last] = list_local_snapshots(str(tmp_path))
    assert (first.offsets, second.offsets, last.offsets) == (0, newest.offsets, None)


def test_the_command_prints_the_snapshots(
    spark: SparkSession, taken: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    with command_on(spark, None) as zkgroups:
        for _, lines in examples(command):
            for line in lines:
                [_, *words] = shlex.split(line.replace("/data/groups", str(tmp_path)))
                ended = zkgroups(*words)
                assert ended.code == 0
        assert [(each["name"], each["offsets"]) for each in ended.json["snapshots"]] == [
            (each.name, each.offsets) for each in taken
        ]
        header, *lines = (line.split() for line in zkgroups("snapshots", "list", tmp_path).lines)
        assert " ".join(header) == "SNAPSHOT TIME CLUSTER GROUPS OFFSETS OWNERS MEMBERS PROBLEMS LAG BYTES ZXID"
        time = f"{parse_timestamp(taken[2].name):%Y-%m-%dT%H:%M:%SZ}"
        *numbers, size = (str(number) for number in astuple(expected(taken[2], "blue", tmp_path))[3:9])
        assert lines[2] == [taken[2].name, time, "blue", *numbers, "-", size, "-"]


def test_an_empty_folder_has_an_empty_list_and_a_missing_one_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    assert list_snapshots(spark, str(tmp_path)).count() == 0
    with pytest.raises(NotFoundError, match=f"the folder file:{tmp_path}/nowhere does not exist$"):
        listing(spark, str(tmp_path / "nowhere"))
    with pytest.raises(NotFoundError, match=f"the folder file:{tmp_path}/nowhere does not exist$"):
        list_local_snapshots(str(tmp_path / "nowhere"))
    with command_on(spark, None) as zkgroups:
        ended = zkgroups("snapshots", "list", tmp_path)
        assert (ended.code, ended.out) == (0, "")
        assert f"No snapshots in {tmp_path}. To write one: zkgroups snapshot {tmp_path}\n" in ended.err
        assert zkgroups("snapshots", "list", tmp_path / "nowhere").code == 3


@pytest.mark.parametrize("destination", ["", Path("snapshots"), None])
def test_a_destination_that_is_empty_or_not_a_string_is_refused(spark: SparkSession, destination: Any) -> None:
    with pytest.raises(InvalidOptionError, match="destination is "):
        read_snapshot(spark, destination)
    with pytest.raises(InvalidOptionError, match="destination is "):
        Layout(spark, destination)

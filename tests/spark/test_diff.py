"""`diff_snapshots` and the command: every state in real snapshots, checked against a plain program."""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kazoo.security import OPEN_ACL_UNSAFE
from pyspark.sql import DataFrame, SparkSession
from zkgroups_cli.snapshots.diff import diff as command

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition
from zkgroups.core.offsets.changes import (
    CHANGE_FILTERS,
    STALLED,
    UNCHANGED_HELD,
    SnapshotChange,
    SummaryLevel,
    count_column,
)
from zkgroups.exceptions import DamagedFileError, InvalidOptionError, NotFoundError
from zkgroups.snapshots import local_diff
from zkgroups.snapshots.layout import ChosenSnapshot
from zkgroups.snapshots.local_snapshot import take_snapshot as take_local_snapshot
from zkgroups.snapshots.timeline import timeline
from zkgroups.spark import SourceOptions, Table, diff_snapshots, list_snapshots, read_snapshot, take_snapshot
from zkgroups.spark import diff as history
from zkgroups.spark.diff import DiffSide, aligned_parts
from zkgroups.spark.snapshots import Layout
from zkgroups.storage.files import parse_timestamp
from zkgroups.testing import KafkaBroker, Server, fresh_chroot

from ..cli.test_help import examples
from .commands import command_on
from .conftest import plant
from .model import ALICE, files, parquet

pytestmark = pytest.mark.zookeeper

Found = dict[str, dict[str, Any]]
Take = Callable[..., str]

HIDDEN = "hidden-before", "hidden-after", "t-hidden-before", "t-hidden-after"


@pytest.fixture
def take(spark: SparkSession, zookeeper_hosts: str, tmp_path: Path) -> Take:
    def take(**options: Any) -> str:
        source = SourceOptions(**{"zookeeper": zookeeper_hosts, "parallelism": 2} | options)
        return take_snapshot(spark, str(tmp_path), source).name

    return take


@dataclass(frozen=True)
class Change:
    """Two snapshots in one folder; and in another folder both again, with one more in three shares."""

    folder: Path
    more: Path
    before: str
    after: str
    in_three: str


@pytest.fixture(scope="module")
def change(spark: SparkSession, zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Change:
    """Every possible change of an offset. Most offsets are unchanged. No test modifies the snapshots."""
    folder, more = tmp_path_factory.mktemp("change"), tmp_path_factory.mktemp("more")
    with fresh_chroot(zookeeper) as hosts, lasting_client(hosts) as raw:

        def take(destination: Path, shares: int = 2) -> str:
            return take_snapshot(spark, str(destination), SourceOptions(zookeeper=hosts, parallelism=shares)).name

        before, after = _changed(raw, lambda: take(folder))
        copytree(folder, more, dirs_exist_ok=True)
        return Change(folder, more, before, after, take(more, 3))


@pytest.fixture
def changed(change: Change, tmp_path: Path) -> tuple[str, str]:
    """Copy both snapshots."""
    copytree(change.folder, tmp_path, dirs_exist_ok=True)
    return change.before, change.after


@pytest.fixture(scope="module")
def each_partition(spark: SparkSession, change: Change) -> Found:
    """The change of each offset."""
    return found(diff_snapshots(spark, str(change.folder), by="partition"))


def _changed(raw: Any, take: Callable[[], str]) -> tuple[str, str]:
    plant(raw, {f"g{group}/offsets/t{topic}/{n}": b"10" for group in range(3) for topic in range(3) for n in range(10)})
    plant(raw, {f"{group}/offsets/t/{n}": b"1" for group in HIDDEN for n in range(2)})
    plant(raw, {"g0/offsets/t0/10": b"x", "g0/offsets/t0/11": b"x", "g0/offsets/t0/a": b"1"})
    plant(raw, {"g0/owners/t0/1": b"anna-1"}, ephemeral=True)
    _hide(raw, "hidden-before/offsets", "t-hidden-before/offsets/t")
    before = take()
    _show(raw, "hidden-before/offsets", "t-hidden-before/offsets/t")
    _hide(raw, "hidden-after/offsets", "t-hidden-after/offsets/t")
    t0 = "/consumers/g0/offsets/t0"
    for partition, data in {0: b"25", 2: b"3", 4: b"x", 10: b"7", 6: b"9223372036854775807"}.items():
        raw.set(f"{t0}/{partition}", data)
    raw.delete(f"{t0}/3")
    raw.delete(f"{t0}/5")
    plant(raw, {"g0/offsets/t0/5": b"12", "g0/offsets/t0/20": b"1", "g0/offsets/t0/21": b"y", "late/offsets/t/0": b"5"})
    raw.delete("/consumers/g2/offsets/t2", recursive=True)
    return before, take()


def _hide(client: Any, *paths: str) -> None:
    for path in paths:
        client.set_acls(f"/consumers/{path}", [ALICE, *_but_reading()])


def _show(client: Any, *paths: str) -> None:
    for path in paths:
        client.set_acls(f"/consumers/{path}", OPEN_ACL_UNSAFE)


def _but_reading() -> list[Any]:
    [everybody] = OPEN_ACL_UNSAFE
    return [everybody._replace(perms=everybody.perms & ~1)]


def found(rows: DataFrame) -> Found:
    each = [row.asDict() for row in rows.collect()]
    named = {"/".join(str(row[name]) for name in history.KEY if name in row): row for row in each}
    assert len(named) == len(each)
    return named


def compared(spark: SparkSession, destination: Path, *which: str, **how: Any) -> DataFrame:
    """Compare with both engines, which must agree; return Spark's rows."""
    by_spark = diff_snapshots(spark, str(destination), *which, **how).cache()
    here = local_diff.diff_snapshots(str(destination), *which, **how)
    rows = [row.asDict() for row in by_spark.collect()]
    assert here.column_names == by_spark.columns
    assert in_order(here.to_pylist()) == in_order(rows)
    numbers = {state: [_number(row, state) for row in rows] for state in CHANGE_FILTERS}
    assert local_diff.totals(here) == {state: sum(each) for state, each in numbers.items()}
    for state, each in numbers.items():
        assert len(local_diff.with_states(here, [state])) == sum(number > 0 for number in each)
    return by_spark


def _number(row: dict[str, Any], state: str) -> int:
    """How many offsets of a row are in this state."""
    if "state" not in row:
        return int(row[count_column(state)] or 0)
    if state == STALLED:
        return int(row[STALLED] or 0)
    if state == UNCHANGED_HELD:
        return int(row["state"] == SnapshotChange.UNCHANGED and row["held"])
    return int(row["state"] == state)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by name; the engines return times with and without a zone, and add rates in another order."""
    shown = [
        row
        | {"committed_at": row["committed_at"] and row["committed_at"].timestamp()}
        | {"rate": None if row["rate"] is None else round(row["rate"], 6)}
        for row in rows
    ]
    return sorted(shown, key=lambda row: [str(row[name]) for name in history.KEY if name in row])


def modelled(destination: Path, before: str, after: str) -> dict[str, tuple[str, int | None]]:
    """Compute each offset's state and delta with a plain program."""
    sides = [list(parquet(destination, Table.OFFSETS, name)) for name in (before, after)]
    at = [{_name(row): row for row in side if row["partition"] is not None} for side in sides]
    unseen = [{_name(row) for row in side if row["partition"] is None and row["raw"] is None} for side in sides]

    def became(name: str) -> tuple[str, int | None]:
        group, topic, _ = name.split("/")
        rows = [side.get(name) for side in at]
        for row, hidden in zip(rows, unseen, strict=True):
            if row["offset"] is None if row else {f"{group}/{topic}/None", f"{group}/None/None"} & hidden:
                return "unreadable", None
        if rows[0] is None or rows[1] is None:
            return ("new" if rows[0] is None else "gone"), None
        delta = rows[1]["offset"] - rows[0]["offset"]
        return "moved" if delta > 0 else "went-back" if delta else "unchanged", delta

    return {name: became(name) for name in chain(*at)}


def _name(row: dict[str, Any]) -> str:
    return f"{row['group']}/{row['topic']}/{row['partition']}"


def test_every_state_equals_that_of_a_plain_program(
    spark: SparkSession,
    change: Change,
    changed: tuple[str, str],
    each_partition: Found,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With and without a shuffle, and with colliding hashes."""
    rows = each_partition
    assert {name: (row["state"], row["delta"]) for name, row in rows.items()} == modelled(tmp_path, *changed)
    assert {row["state"] for row in rows.values()} == set(SnapshotChange)

    shuffled = found(compared(spark, change.more, changed[0], change.in_three, by=SummaryLevel.PARTITION))
    assert shuffled == rows

    monkeypatch.setattr(history, "_HASH", "cast(partition % 2 as bigint)")
    back = found(diff_snapshots(spark, str(tmp_path), changed[1], changed[0], by="partition"))
    assert {name: (row["state"], row["delta"]) for name, row in back.items()} == modelled(tmp_path, *changed[::-1])


def test_a_row_has_all_details_and_unknown_values_are_null(each_partition: Found) -> None:
    rows = each_partition
    names = ("state", "before", "after", "delta", "commits", "recreated", "held")
    told = {n: tuple(rows[f"g0/t0/{n}"][name] for name in names) for n in (0, 1, 2, 3, 4, 5, 10, 11, 20, 21)}
    assert told == {
        0: ("moved", 10, 25, 15, 1, False, False),
        1: ("unchanged", 10, 10, 0, 0, False, True),
        2: ("went-back", 10, 3, -7, 1, False, False),
        3: ("gone", 10, None, None, None, False, False),
        4: ("unreadable", 10, None, None, 1, False, False),
        5: ("moved", 10, 12, 2, None, True, False),
        10: ("unreadable", None, 7, None, 1, False, False),
        11: ("unreadable", None, None, None, 0, False, False),
        20: ("new", None, 1, None, None, False, False),
        21: ("unreadable", None, None, None, None, False, False),
    }
    assert {rows[f"{group}/t/0"]["state"] for group in HIDDEN} == {"unreadable"}
    moved, other = rows["g0/t0/0"], rows["g0/t0/7"]
    assert moved["rate"] > 0
    assert moved["committed_at"] > other["committed_at"]
    assert [rows[f"g0/t0/{n}"]["rate"] for n in (1, 2, 3, 4, 20)] == [0.0, None, None, None, None]


def test_a_group_and_a_topic_are_the_sums_of_their_partitions(
    spark: SparkSession, change: Change, each_partition: Found
) -> None:
    each, folder = each_partition, str(change.folder)
    sums = {by: compared(spark, change.folder, by=by) for by in (SummaryLevel.GROUP, SummaryLevel.TOPIC)}
    for rows, length in zip(sums.values(), (1, 2), strict=True):
        together = found(rows)
        assert together.keys() == {"/".join(name.split("/")[:length]) for name in each}
        for name, row in together.items():
            its = [one for other, one in each.items() if f"{other}/".startswith(f"{name}/")]
            states = [one["state"] for one in its]
            assert {state: row[count_column(state)] for state in SnapshotChange} == {
                state: states.count(state) for state in SnapshotChange
            }
            assert (row["partitions"], row["recreated"]) == (len(its), sum(one["recreated"] for one in its))
            assert row["unchanged_held"] == sum(one["held"] for one in its if one["state"] == "unchanged")
            assert row["committed_at"] == max(one["committed_at"] for one in its)
            deltas = [one["delta"] for one in its if one["delta"] is not None]
            assert row["delta"] == (sum(deltas) if deltas else None)
        totals = history.totals(rows)
        assert dict(totals) == {
            name: sum(row[count_column(name)] or 0 for row in together.values()) for name in CHANGE_FILTERS
        }
    some = history.with_states(sums[SummaryLevel.GROUP], [SnapshotChange.NEW, SnapshotChange.WENT_BACK])
    assert found(some).keys() == {"g0", "late"}
    assert history.totals(diff_snapshots(spark, folder, by="partition")) == totals
    held = [
        history.with_states(rows, [UNCHANGED_HELD])
        for rows in (sums[SummaryLevel.GROUP], diff_snapshots(spark, folder, by=SummaryLevel.PARTITION))
    ]
    assert [found(rows).keys() for rows in held] == [{"g0"}, {"g0/t0/1"}]
    for rows in sums.values():
        rows.unpersist()


def test_only_groups_and_topics_whose_whole_names_match_are_compared(
    spark: SparkSession, changed: tuple[str, str], tmp_path: Path
) -> None:
    rows = found(compared(spark, tmp_path, by="topic", groups="g[02]|hidden-after", topics="t0|t2?"))
    assert rows.keys() == {"g0/t0", "g0/t2", "g2/t0", "g2/t2", "hidden-after/t"}
    assert (rows["g2/t2"]["gone"], rows["hidden-after/t"]["unreadable"]) == (10, 2)
    with pytest.raises(InvalidOptionError):
        diff_snapshots(spark, str(tmp_path), by="owner")
    with pytest.raises(NotFoundError):
        diff_snapshots(spark, str(tmp_path), "2001-01-01")


def test_files_are_joined_by_share_only_if_both_summaries_allow_it(
    spark: SparkSession, take: Take, raw: Any, tmp_path: Path
) -> None:
    """Otherwise the diff would be wrong without an error. A snapshot of an older version can still be compared."""
    plant(raw, {f"g{group}/offsets/t/{n}": b"1" for group in range(8) for n in range(4)})
    before, after, in_three = take(), take(), take(parallelism=3)
    sides = {name: _side(spark, tmp_path, name) for name in (before, after, in_three)}
    assert len(aligned_parts(spark, sides[before], sides[after])) == 2
    assert len(aligned_parts(spark, sides[before], sides[in_three])) == 1
    plan = _plan(diff_snapshots(spark, str(tmp_path), by="partition", before=before, after=after))
    assert "Exchange" not in plan
    _as_it_was(tmp_path, before)
    assert len(aligned_parts(spark, _side(spark, tmp_path, before), sides[after])) == 1
    rows = found(compared(spark, tmp_path, before, after, by="partition"))
    assert {(row["state"], row["held"], row["recreated"]) for row in rows.values()} == {("unchanged", False, False)}
    assert (len(rows), {row["commits"] for row in rows.values()}) == (32, {None})


def _side(spark: SparkSession, destination: Path, name: str) -> DiffSide:
    return DiffSide.of(spark, ChosenSnapshot(str(destination), name, None))


def _plan(rows: DataFrame) -> str:
    return str(rows._jdf.queryExecution().executedPlan().toString())


def _as_it_was(destination: Path, name: str) -> None:
    """Convert to an earlier version: no summary, fewer columns. The files of the two shares are exchanged."""
    its: list[Path] = sorted(files(destination, Table.OFFSETS, name))
    tables: Iterable[pa.Table] = [pq.ParquetFile(file).read() for file in reversed(its)]
    for file, table in zip(its, tables, strict=True):
        pq.write_table(table.drop_columns(["owner", "commit_count", "created_at"]), file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    (its[0].parent / "_SUMMARY.json").unlink()


def test_shares_of_an_inconsistent_summary_are_ignored(
    spark: SparkSession, take: Take, raw: Any, tmp_path: Path
) -> None:
    """With three shares one may be empty, so there may be as many files as with two."""
    plant(raw, {f"g{number}/offsets/t/0": b"1" for number in range(8)})
    name, other = take(), _side(spark, tmp_path, take())
    file = tmp_path / f"table=offsets/snapshot={name}" / "_SUMMARY.json"
    text = json.loads(file.read_text())
    assert text.pop("shares") == 2
    file.with_name(f".{file.name}.crc").unlink()
    for said in ({}, {"shares": 3}):
        file.write_text(json.dumps(text | said))
        assert [len(aligned_parts(spark, side, other)) for side in (_side(spark, tmp_path, name), other)] == [1, 2]


def test_snapshots_of_one_cluster_among_several_are_compared(
    spark: SparkSession, take: Take, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/t/0": b"1"})
    take(cluster="blue")
    take()
    raw.set("/consumers/g/offsets/t/0", b"2")
    take(cluster="blue")
    take()
    for cluster in ("blue", zookeeper_hosts):
        [row] = found(compared(spark, tmp_path, cluster=cluster)).values()
        assert (row["cluster"], row["delta"]) == (cluster, 1)
    with pytest.raises(InvalidOptionError, match="choose one"):
        diff_snapshots(spark, str(tmp_path))
    with pytest.raises(NotFoundError, match="of red"):
        diff_snapshots(spark, str(tmp_path), cluster="red")


def test_a_diff_of_a_snapshot_with_a_changed_byte_or_a_missing_file_is_an_error(
    spark: SparkSession, changed: tuple[str, str], tmp_path: Path
) -> None:
    file = next(iter(files(tmp_path, Table.OFFSETS, changed[1])))
    data = bytearray(file.read_bytes())
    data[data.index(b"hidden")] ^= 1
    file.write_bytes(data)
    with command_on(spark, None) as zkgroups:
        by_spark = zkgroups("snapshots", "diff", tmp_path, "--engine", "spark")
        here = zkgroups("snapshots", "diff", tmp_path, "--engine", "local")
    assert (by_spark.code, by_spark.out, here.code, here.out) == (10, "", 10, "")
    assert "the snapshots cannot be compared because a file is damaged: " in by_spark.err
    assert str(file) in by_spark.err
    assert f"because a file is damaged: {file}: " in here.err
    file.unlink()
    with pytest.raises(DamagedFileError, match=re.escape(f"snapshot {changed[1]}") + ".* is damaged"):
        diff_snapshots(spark, str(tmp_path))


def test_the_command_names_both_snapshots_and_fails_on_given_states(
    spark: SparkSession, changed: tuple[str, str], tmp_path: Path
) -> None:
    with command_on(spark, None) as zkgroups:
        options = ("--groups", "g0|late", "--fail-on", "gone,went-back")
        ended = zkgroups("snapshots", "diff", tmp_path, *options, "--engine", "spark")
        assert ended.code == 10
        assert f"From snapshot {changed[0]} to {changed[1]} of " in ended.err
        assert (
            "Offsets: 3 moved, 24 unchanged, 1 went-back, 2 new, 1 gone, 4 unreadable, 1 unchanged-held." in ended.err
        )
        lines = [line.split() for line in ended.lines]
        assert lines[0][:5] == ["GROUP", "PARTITIONS", "MOVED", "UNCHANGED", "UNCHANGED-HELD"]
        assert [line[:9] for line in lines[1:]] == [
            ["g0", "34", "3", "24", "1", "-", "1", "1", "1"],
            ["late", "1", "0", "0", "0", "-", "0", "1", "0"],
        ]
        here = zkgroups("snapshots", "diff", tmp_path, *options)
        assert (here.code, here.lines, here.err.splitlines()) == (10, ended.lines, ended.err.splitlines()[1:])
        some = ("--by", "partition", "--only", "went-back,new", "--fail-on", "moved", "-o", "csv")
        ended = zkgroups("snapshots", "diff", tmp_path, *changed, *some, "-q", "--engine", "spark")
        assert (ended.code, ended.err) == (10, "")
        columns = [line.split(",") for line in ended.lines]
        where = columns[0].index("state")
        assert [[*line[1:4], line[where]] for line in columns[1:]] == [
            ["g0", "t0", "2", "went-back"],
            ["g0", "t0", "20", "new"],
            ["late", "t", "0", "new"],
        ]
        ended = zkgroups("snapshots", "diff", tmp_path, "latest", "latest", "--fail-on", "moved,gone,new", "-o", "json")
        assert (ended.code, {row["moved"] for row in ended.json["groups"]}) == (0, {0})
        for moment, code in (("2001-01-01", 3), ("20010101T000000.000Z", 3), ("someday", 2)):
            assert zkgroups("snapshots", "diff", tmp_path, moment).code == code


def test_both_engines_record_and_compare_the_same_log_ends(
    spark: SparkSession,
    zookeeper_hosts: str,
    kafka_broker: KafkaBroker,
    registry: Registry,
    tmp_path: Path,
) -> None:
    """In a folder that also has a snapshot without log ends."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=2)
    kafka_broker.write(topic, 0, 9)
    source = SourceOptions(zookeeper=zookeeper_hosts, bootstrap_servers=kafka_broker.address, parallelism=2)
    destination, stuck, idle = str(tmp_path), *(TopicPartition(topic, number) for number in range(2))
    offsets = registry.group("billing").offsets
    offsets.set_many({stuck: 4, idle: 0, TopicPartition("gone", 0): 1})
    registry.group("lost").offsets.set(stuck, 99)
    old = take_snapshot(spark, destination, source.without_brokers())
    first = take_snapshot(spark, destination, source)
    same = take_local_snapshot(destination, source)
    kafka_broker.write(topic, 0, 3)
    last = take_snapshot(spark, destination, source)

    assert [(each.lag, each.unknown_lags) for each in (old, first, same, last)] == [
        (None, None),
        (5, 2),
        (5, 2),
        (8, 2),
    ]
    listed = list_snapshots(spark, destination).select("name", "lag", "unknown_lags").collect()
    assert [tuple(row) for row in listed] == [
        (each.name, each.lag, each.unknown_lags) for each in (old, first, same, last)
    ]
    tables = [read_snapshot(spark, destination, each.name).drop("read_at") for each in (first, same)]
    assert tables[0].exceptAll(tables[1]).union(tables[1].exceptAll(tables[0])).collect() == []
    assert tables[0].where("log_end = 9 and log_start = 0").count() == 2

    rows = found(compared(spark, tmp_path, same.name, last.name, by="partition"))
    states = {name: (row["state"], row["stalled"], row["lag"], row["lag_delta"]) for name, row in rows.items()}
    assert states == {
        f"billing/{topic}/0": ("unchanged", True, 8, 3),
        f"billing/{topic}/1": ("unchanged", False, 0, 0),
        "billing/gone/0": ("unchanged", None, None, None),
        f"lost/{topic}/0": ("unchanged", False, None, None),
    }
    groups = found(compared(spark, tmp_path, first.name, last.name))
    assert [groups["billing"][name] for name in ("stalled", "lag", "lag_delta")] == [1, 8, 3]
    unknown = found(compared(spark, tmp_path, old.name, last.name))
    assert [unknown["billing"][name] for name in ("stalled", "lag", "lag_delta")] == [None, 8, None]

    drawn = timeline(Layout(spark, destination), "billing", topics={topic: None})
    assert {line.name: [point.lag for point in line.points] for line in drawn.lines} == {
        f"{topic}/0": [None, 5, 5, 8],
        f"{topic}/1": [None, 0, 0, 0],
    }


@pytest.mark.soak
def test_the_examples_of_its_help_work(spark: SparkSession, changed: tuple[str, str], tmp_path: Path) -> None:
    [(_, lines)] = examples(command, everything=True)
    at = parse_timestamp(changed[0]).isoformat()
    codes = []
    with command_on(spark, None) as zkgroups:
        for line in lines:
            words = shlex.split(line.replace("/data/groups", str(tmp_path)).replace("2026-01-31T22:00:00", at))
            codes.append(zkgroups(*words[1:]).code)
    assert codes == [0, 0, 0, 4], "the snapshots have no log ends"

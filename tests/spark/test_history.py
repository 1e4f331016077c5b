"""The list of snapshots, their verification, and the digest of their rows: Spark finds what is found without it."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from shutil import copy, copytree, rmtree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from zkgroups_cli.snapshots.snapshots import list_ as list_command
from zkgroups_cli.snapshots.snapshots import verify as verify_command

from tests.lasting import lasting_client
from zkgroups.core.table_columns import COLUMNS
from zkgroups.exceptions import InvalidOptionError, NotFoundError, SparkJobError
from zkgroups.snapshots import digest as digest_by_arrow
from zkgroups.snapshots.layout import ListedSnapshot, list_local_snapshots
from zkgroups.snapshots.local_verify import verify as verify_here
from zkgroups.snapshots.verify import VerifiedSnapshot
from zkgroups.spark import (
    Snapshot,
    SourceOptions,
    Table,
    list_snapshots,
    read_snapshot,
    take_snapshot,
    verify_snapshots,
)
from zkgroups.spark.data_source import SCHEMAS
from zkgroups.spark.snapshots import Layout, digest, listing, verify
from zkgroups.storage.files import parse_timestamp
from zkgroups.storage.snapshot_folder import Summary, TableSummary
from zkgroups.tables.arrow import arrow_schema
from zkgroups.testing import Server
from zkgroups.testing.server_choice import fresh_chroot

from ..cli.test_help import examples
from .commands import command_on
from .model import files, plant, spoil

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


# The list


@pytest.fixture
def three(spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path) -> list[Snapshot]:
    """Three snapshots: the oldest is empty, the newest is of a named cluster."""
    empty = take_snapshot(spark, str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, parallelism=1))
    spoil(plant(raw, ["billing", "shipping"]), raw)
    raw.create("/consumers/idle")
    sources = [SourceOptions(zookeeper=zookeeper_hosts, cluster=name, parallelism=1) for name in (None, "blue")]
    return [empty, *(take_snapshot(spark, str(tmp_path), source) for source in sources)]


def listed(taken: Snapshot, cluster: str, destination: Path) -> ListedSnapshot:
    size = sum(file.stat().st_size for table in Table for file in files(destination, table, taken.name))
    counts = (taken.groups, taken.offsets, taken.owners, taken.members, taken.problems)
    return ListedSnapshot(taken.name, parse_timestamp(taken.name), cluster, *counts, size)


def jobs(spark: SparkSession, group: str) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_snapshots_are_listed_with_their_counts_without_a_job(
    spark: SparkSession, three: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    spark.sparkContext.setJobGroup("of the list", "none")
    try:
        found = listing(spark, str(tmp_path))
        assert jobs(spark, "of the list") == 0
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    clusters = (zookeeper_hosts, zookeeper_hosts, "blue")
    assert found == [listed(each, of, tmp_path) for each, of in zip(three, clusters, strict=True)]
    assert list_local_snapshots(str(tmp_path)) == found
    assert [each.groups for each in found] == [0, 4, 4]

    rows = list_snapshots(spark, str(tmp_path)).orderBy("time").collect()
    assert [row.asDict() | {"time": None} for row in rows] == [asdict(each) | {"time": None} for each in found]
    assert [row.time.timestamp() for row in rows] == [each.time.timestamp() for each in found]


def test_snapshots_without_summary_are_counted_and_their_groups_are_unknown(
    spark: SparkSession, three: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    empty, newest = three[0], three[2]
    for each, said in ((empty, None), (newest, "{")):  # of an earlier version, and damaged
        folder = tmp_path / f"table=offsets/snapshot={each.name}"
        (folder / "._SUMMARY.json.crc").unlink()
        (folder / "_SUMMARY.json").unlink()
        if said is not None:
            (folder / "_SUMMARY.json").write_text(said)
    found = listing(spark, str(tmp_path))
    clusters = (None, zookeeper_hosts, "blue")
    whole = [listed(each, str(of), tmp_path) for each, of in zip(three, clusters, strict=True)]
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


def test_a_destination_that_is_empty_or_not_a_string_is_refused(spark: SparkSession) -> None:
    for destination in ("", Path("snapshots"), None):
        with pytest.raises(InvalidOptionError, match="destination is "):
            read_snapshot(spark, destination)  # type: ignore[arg-type]


def test_the_command_prints_the_snapshots(
    spark: SparkSession, three: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    with command_on(spark, None) as zkgroups:
        for _, lines in examples(list_command):
            for line in lines:
                [_, *words] = shlex.split(line.replace("/data/groups", str(tmp_path)))
                ended = zkgroups(*words)
                assert ended.code == 0
        assert [(each["name"], each["offsets"]) for each in ended.json["snapshots"]] == [
            (each.name, each.offsets) for each in three
        ]
        header, *lines = (line.split() for line in zkgroups("snapshots", "list", tmp_path).lines)
        assert " ".join(header) == "SNAPSHOT TIME CLUSTER GROUPS OFFSETS OWNERS MEMBERS PROBLEMS LAG BYTES ZXID"
        time = f"{parse_timestamp(three[2].name):%Y-%m-%dT%H:%M:%SZ}"
        *numbers, size = (str(number) for number in astuple(listed(three[2], "blue", tmp_path))[3:9])
        assert lines[2] == [three[2].name, time, "blue", *numbers, "-", size, "-"]


# Verification

OLDER = "20200101T000000.000Z"


@pytest.fixture(scope="module")
def taken(spark: SparkSession, zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot that no test modifies, with problems and rows without a partition."""
    destination = tmp_path_factory.mktemp("taken")
    with fresh_chroot(zookeeper) as hosts, lasting_client(hosts) as client:
        spoil(plant(client, ["billing", "shipping"], partitions=50), client)
        source = SourceOptions(zookeeper=hosts, cluster="blue", parallelism=2)
        take_snapshot(spark, str(destination), source)
    return destination


@pytest.fixture
def destination(taken: Path, tmp_path: Path) -> Path:
    """A copy of the snapshot."""
    return Path(copytree(taken, tmp_path / "data"))


def found(spark: SparkSession, destination: Path, at: str | None = None) -> list[tuple[str | None, str]]:
    """Return the findings, each with its table. Both engines find the same."""
    engines = (verify(spark, str(destination), at), verify_here(str(destination), at))
    by_spark, here = (_kinds(checks) for checks in engines)
    assert here == by_spark
    return by_spark


def _kinds(found: Iterable[VerifiedSnapshot]) -> list[tuple[str | None, str]]:
    checks = list(found)
    assert all(each.detail and each.snapshot == check.name for check in checks for each in check.findings)
    return [(each.table, each.finding.value) for check in checks for each in check.findings]


def name_of(destination: Path) -> str:
    [folder] = destination.glob("table=offsets/*")
    return folder.name.removeprefix("snapshot=")


def summary_of(destination: Path) -> Path:
    return destination / f"table=offsets/snapshot={name_of(destination)}/_SUMMARY.json"


def file_of(destination: Path, table: Table = Table.OFFSETS) -> Path:
    """Return the largest file of a table."""
    return max(files(destination, table, name_of(destination)), key=lambda file: file.stat().st_size)


def without_sums(file: Path) -> Path:
    """Delete the checksum file, as on file systems without checksums or after a restore from a backup."""
    (file.parent / f".{file.name}.crc").unlink()
    return file


def test_an_intact_snapshot_has_no_findings(spark: SparkSession, taken: Path) -> None:
    assert found(spark, taken) == []
    assert verify_snapshots(spark, str(taken)).count() == 0


# Damage


def flip(file: Path, at: int | None = None) -> None:
    """Flip a bit of a random byte in the offset column."""
    data = bytearray(file.read_bytes())
    data[_in_offsets(file) if at is None else at] ^= 0x10
    file.write_bytes(data)


def _in_offsets(file: Path) -> int:
    """The last bytes of a column belong to a page, not to a header."""
    with pq.ParquetFile(file) as opened:
        columns = opened.metadata.row_group(0)
        [column] = [
            columns.column(n) for n in range(columns.num_columns) if columns.column(n).path_in_schema == "offset"
        ]
    first = column.dictionary_page_offset or column.data_page_offset
    return int(first + column.total_compressed_size - 2)


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = change(pq.ParquetFile(file).read())
    without_sums(file)
    pq.write_table(table.replace_schema_metadata(None), file, coerce_timestamps="us")  # which has Spark's columns


def one_further(table: pa.Table) -> pa.Table:
    """Rewrite the rows with one changed offset."""
    offsets = table["offset"].to_pylist()
    at = offsets.index(49 * 7)
    return with_column(table, "offset", pa.array([*offsets[:at], 1, *offsets[at + 1 :]], pa.int64()))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def in_summary(destination: Path, change: Callable[[Any], object]) -> None:
    file = without_sums(summary_of(destination))
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


def cut(destination: Path) -> None:
    file = file_of(destination)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def added(destination: Path) -> None:
    copy(file_of(destination), file_of(destination).with_name("part-9.parquet"))


def without_dialect(destination: Path) -> None:
    for file in files(destination, Table.MEMBERS, name_of(destination)):
        rewrite(file, lambda table: table.drop_columns(["dialect"]))


Damages = dict[str, tuple[Callable[[Path], object], set[tuple[str | None, str]]]]
DAMAGED_ROWS: Damages = {
    "a file is cut": (cut, {("offsets", "wrong-length"), ("offsets", "unreadable")}),
    "a file is added": (added, {("offsets", "other-file"), ("offsets", "wrong-rows"), ("offsets", "duplicate")}),
    "a bit is flipped without a checksum file": (
        lambda d: flip(without_sums(file_of(d))),
        {("offsets", "unreadable")},
    ),
    "an offset is another": (
        lambda d: rewrite(file_of(d), one_further),
        {("offsets", "wrong-length"), ("offsets", "wrong-digest")},
    ),
    "the summary is of another cluster": (
        lambda d: in_summary(d, lambda fields: fields.update(cluster="red")),
        {("offsets", "wrong-cluster"), ("owners", "wrong-cluster"), ("members", "wrong-cluster")},
    ),
    "a column is missing": (
        without_dialect,
        {("members", "wrong-length"), ("members", "wrong-columns"), ("members", "other-columns")},
    ),
}
DAMAGED_FILES: Damages = {
    "a file is missing": (
        lambda d: file_of(d, Table.OWNERS).unlink(),
        {("owners", "missing-file"), ("owners", "wrong-rows")},
    ),
    "a table is missing": (
        lambda d: rmtree(d / f"table=members/snapshot={name_of(d)}"),
        {("members", "missing-table")},
    ),
    "the mark is missing": (lambda d: summary_of(d).with_name("_SUCCESS").unlink(), {(None, "unmarked")}),
    "the summary is cut": (lambda d: without_sums(summary_of(d)).write_text("{"), {(None, "bad-summary")}),
    "the summary has no columns": (
        lambda d: in_summary(d, lambda fields: fields["tables"]["owners"].update(columns="{}")),
        {("owners", "unreadable")},
    ),
    "the summary counts otherwise": (
        lambda d: in_summary(d, lambda fields: fields["tables"]["offsets"].update(problems=0)),
        {("offsets", "wrong-rows")},
    ),
}


def test_damaged_rows_are_found_by_both_engines(spark: SparkSession, taken: Path, tmp_path: Path) -> None:
    for name, (damage, expected) in DAMAGED_ROWS.items():
        destination = Path(copytree(taken, tmp_path / name))
        damage(destination)
        assert set(found(spark, destination)) == expected, name


def test_damaged_files_are_found_by_the_rules_that_both_engines_share(taken: Path, tmp_path: Path) -> None:
    for name, (damage, expected) in DAMAGED_FILES.items():
        destination = Path(copytree(taken, tmp_path / name))
        damage(destination)
        assert set(_kinds(verify_here(str(destination)))) == expected, name


@pytest.mark.soak
def test_a_flipped_bit_is_found_or_does_not_change_the_rows(spark: SparkSession, taken: Path, tmp_path: Path) -> None:
    """Without checksum files. Parquet has no checksums for data beside its pages either."""

    def rows(destination: Path) -> list[Any]:
        return sorted(read_snapshot(spark, str(destination)).collect(), key=repr)

    places = random.Random(8)
    for number in range(25):
        destination = Path(copytree(taken, tmp_path / str(number)))
        file = without_sums(file_of(destination))
        flip(file, places.randrange(file.stat().st_size))
        if not found(spark, destination):
            assert rows(destination) == rows(taken)


def test_an_unfinished_snapshot_is_reported_as_info(spark: SparkSession, taken: Path, destination: Path) -> None:
    unfinished = Layout(spark, str(destination)).begin(parse_timestamp(OLDER))
    (destination / f"table=owners/snapshot={OLDER}").mkdir()  # it is moving its tables
    try:
        assert found(spark, destination) == [(None, "unfinished")]
        assert [check.has_errors for check in verify(spark, str(destination))] == [False, False]
        assert found(spark, destination, "latest") == []
    finally:
        unfinished.discard()
    assert found(spark, destination) == [(None, "unmarked")], "no process will finish it"


# Other versions


def of_another_version(spark: SparkSession, destination: Path) -> None:
    """Write a snapshot of another version: no owner column, counts as longs, and an additional column."""
    unfinished = Layout(spark, str(destination)).begin(parse_timestamp(OLDER))
    tables = {}
    for table in Table:
        rows = read_snapshot(spark, str(destination), name_of(destination), table=table)
        if table is Table.OFFSETS:
            rows = rows.drop("owner").withColumn("colour", f.lit("red"))
            rows = rows.withColumn("commit_count", f.col("commit_count").cast("long"))
        rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(unfinished.table(table))
        count = rows.agg(f.count("*"), f.count("problem"), digest(rows.schema)).collect()[0]
        tables[table] = TableSummary(*count, unfinished.files(table), rows.schema.json())
    unfinished.summarize(Summary("blue", 3, tables))
    unfinished.finish()


def test_snapshots_of_other_versions_are_intact_and_read_in_the_current_columns(
    spark: SparkSession, destination: Path
) -> None:
    of_another_version(spark, destination)
    assert found(spark, destination, OLDER) == [("offsets", "other-columns")]
    [row] = verify_snapshots(spark, str(destination)).collect()
    assert (row.severity, row.snapshot) == ("info", OLDER)
    assert row.detail == "on reading: commit_count: of another type; owner: null; colour: left out"
    old, new = (read_snapshot(spark, str(destination), name) for name in (OLDER, None))
    assert old.columns == new.columns
    assert old.where("owner is not null").count() == 0 < new.where("owner is not null").count()
    assert sorted(map(repr, old.drop("owner").collect())) == sorted(map(repr, new.drop("owner").collect()))


def test_a_snapshot_without_summary_is_checked_for_being_readable(spark: SparkSession, destination: Path) -> None:
    summary_of(destination).unlink()
    assert found(spark, destination) == [(None, "no-summary")]
    added(destination)
    assert found(spark, destination) == [(None, "no-summary"), ("offsets", "duplicate")]
    for file in files(destination, Table.OWNERS, name_of(destination)):
        rewrite(file, lambda t: with_column(t, "zxid", t["zxid"].cast(pa.string())))
    assert ("owners", "unreadable") in found(spark, destination)
    with pytest.raises(SparkJobError, match=f"snapshot {name_of(destination)} in .* has a column zxid of type string"):
        read_snapshot(spark, str(destination), table=Table.OWNERS)


# The command


@pytest.fixture
def zkgroups(spark: SparkSession) -> Iterator[Any]:
    with command_on(spark, None) as run:
        yield run


def test_the_command_prints_errors_and_the_number_of_damaged_snapshots(zkgroups: Any, destination: Path) -> None:
    for [*_], lines in examples(verify_command):
        for line in lines:
            [_, *words] = shlex.split(line.replace("/data/groups", str(destination)))
            ended = zkgroups(*words)
            assert (ended.code, ended.err.splitlines()[-1]) == (0, "1 snapshot verified: no errors.")
    assert ended.json == {"schema": 1, "findings": []}

    summary_of(destination).unlink()
    added(destination)
    ended = zkgroups("snapshots", "verify", destination, "--engine", "spark")
    here = zkgroups("snapshots", "verify", destination)
    assert (ended.code, ended.err.splitlines()[1:]) == (10, ["1 snapshot verified: 1 damaged."])
    assert (here.code, here.out, here.err) == (10, ended.out, "1 snapshot verified: 1 damaged.\n")
    header, *lines = (line.split(maxsplit=4) for line in ended.lines)
    assert header == ["SEVERITY", "SNAPSHOT", "TABLE", "FINDING", "DETAIL"]
    name = name_of(destination)
    assert [line[:4] for line in lines] == [["info", name, "-", "no-summary"], ["error", name, "offsets", "duplicate"]]


def test_a_destination_without_snapshots_is_an_error(
    spark: SparkSession, zkgroups: Any, taken: Path, tmp_path: Path
) -> None:
    assert zkgroups("snapshots", "verify", tmp_path).code == 3
    assert zkgroups("snapshots", "verify", tmp_path / "nowhere").code == 3
    assert zkgroups("snapshots", "verify", taken, "--at", "previous").code == 3
    (tmp_path / f"_unfinished/{OLDER}-01234567").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="no snapshot in"):
        found(spark, tmp_path)


# The digest

ROWS = 150
LENGTHS = [*range(18), 31, 32, 33, 36, 39, 40, 63, 64, 65, 71, 100]


def values(field: pa.Field) -> Sequence[Any]:
    """Texts of every length that XXH64 treats in a different way, the limits of numbers, and null."""
    match str(field.type):
        case "int32":
            found: list[Any] = [0, -1, 1, 2**31 - 1, -(2**31)]
        case "int64":
            found = [0, -1, 1, 2**63 - 1, -(2**63)]
        case "string":
            found = ["é" * (length // 2) + "x" * (length % 2) for length in LENGTHS]
        case "binary":
            found = [bytes(range(200, 200 - length, -1)) for length in LENGTHS]
        case "timestamp[us, tz=UTC]":
            found = [0, 1, 1_700_000_000_000_000]
        case _:
            found = [[(f"topic-{number}", number) for number in range(count)] for count in range(4)]
    return [*found, None] if field.nullable else found


def every_value(table: Table) -> pa.Table:
    columns = {}
    for place, field in enumerate(arrow_schema(COLUMNS[table])):
        each = values(field)
        columns[field.name] = pa.array([each[(place + row) % len(each)] for row in range(ROWS)], field.type)
    return pa.table(columns, arrow_schema(COLUMNS[table]))


def test_the_digest_of_arrow_equals_that_of_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all long texts are hashed by Arrow, as they are when many have the same length."""
    for table in Table:
        found = every_value(table)
        in_spark = spark.createDataFrame(found, SCHEMAS[table])
        [expected, one] = [
            frame.agg(digest(SCHEMAS[table])).collect()[0][0]
            for frame in (in_spark, in_spark.where(f.col("cluster") == found["cluster"][3].as_py()).limit(1))
        ]
        with monkeypatch.context() as patched:
            patched.setattr(digest_by_arrow, "_FEW", 0)
            assert digest_by_arrow.digest(found.to_batches()) == expected
        assert digest_by_arrow.digest(found.to_batches()) == expected
        assert digest_by_arrow.digest(found.to_batches(max_chunksize=7)) == expected
        assert digest_by_arrow.digest(found.slice(3, 1).to_batches()) == one
        assert digest_by_arrow.digest(found.slice(0, 0).to_batches()) == "0"

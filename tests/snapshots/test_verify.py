"""The list of snapshots, their verification, and the digest of their rows."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from shutil import copy, copytree, rmtree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zkgroups_cli.snapshots.snapshots import list_ as list_command
from zkgroups_cli.snapshots.snapshots import verify as verify_command

import zkgroups as library
from tests.lasting import lasting_client
from zkgroups.core.table_columns import Table
from zkgroups.exceptions import DamagedFileError, NotFoundError
from zkgroups.snapshots.layout import ListedSnapshot, listing
from zkgroups.snapshots.local_snapshot import ArrowLayout, take_snapshot
from zkgroups.snapshots.snapshot import Snapshot
from zkgroups.snapshots.verify import VerifiedSnapshot, verify
from zkgroups.storage.files import LocalFiles, parse_timestamp
from zkgroups.storage.snapshot_folder import SnapshotFolder
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import Server
from zkgroups.testing.server_choice import fresh_chroot

from ..cli.test_help import examples
from ..spark.commands import command_on
from ..spark.model import files, plant, spoil

pytestmark = pytest.mark.zookeeper


# The list


@pytest.fixture
def three(zookeeper_hosts: str, raw: Any, tmp_path: Path) -> list[Snapshot]:
    """Three snapshots: the oldest is empty, the newest is of a named cluster."""
    empty = take_snapshot(str(tmp_path), zookeeper_hosts)
    spoil(plant(raw, ["billing", "shipping"]), raw)
    raw.create("/consumers/idle")
    sources = [SourceOptions(zookeeper=zookeeper_hosts, cluster=name) for name in (None, "blue")]
    return [empty, *(take_snapshot(str(tmp_path), source) for source in sources)]


def all_in(destination: Path) -> list[ListedSnapshot]:
    return listing(SnapshotFolder(LocalFiles(), str(destination)))


def listed(taken: Snapshot, cluster: str | None, destination: Path) -> ListedSnapshot:
    size = sum(file.stat().st_size for table in Table for file in files(destination, table, taken.name))
    counts = (taken.groups, taken.offsets, taken.owners, taken.members, taken.problems)
    return ListedSnapshot(taken.name, parse_timestamp(taken.name), cluster, *counts, size)


def test_snapshots_are_listed_with_their_counts_and_those_without_summary_are_counted(
    three: list[Snapshot], zookeeper_hosts: str, tmp_path: Path
) -> None:
    whole = [listed(each, of, tmp_path) for each, of in zip(three, (*[zookeeper_hosts] * 2, "blue"), strict=True)]
    assert all_in(tmp_path) == whole
    assert [each.groups for each in whole] == [0, 4, 4]

    empty, newest = three[0], three[2]
    for each, said in ((empty, None), (newest, "{")):  # of an earlier version, and damaged
        (summary := tmp_path / f"table=offsets/snapshot={each.name}/_SUMMARY.json").unlink()
        if said is not None:
            summary.write_text(said)
    assert all_in(tmp_path) == [
        replace(whole[0], cluster=None, groups=None),
        whole[1],
        replace(whole[2], groups=None),
    ]
    rmtree(tmp_path / f"table=owners/snapshot={newest.name}")
    [*_, last] = all_in(tmp_path)
    assert (last.offsets, last.owners, last.problems) == (newest.offsets, None, None), "a missing table is not empty"
    for file in files(tmp_path, Table.OFFSETS, newest.name):
        file.write_text("cut")
    assert [each.offsets for each in all_in(tmp_path)] == [0, three[1].offsets, None], "the others are still listed"


def test_an_empty_folder_has_an_empty_list_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=f"the folder file:{tmp_path}/nowhere does not exist$"):
        all_in(tmp_path / "nowhere")
    with command_on(None, None) as zkgroups:
        ended = zkgroups("snapshots", "list", tmp_path)
        assert (ended.code, ended.out) == (0, "")
        assert f"No snapshots in {tmp_path}. To write one: zkgroups snapshot {tmp_path}\n" in ended.err
        assert zkgroups("snapshots", "list", tmp_path / "nowhere").code == 3


def test_the_command_prints_the_snapshots(three: list[Snapshot], tmp_path: Path) -> None:
    with command_on(None, None) as zkgroups:
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
def taken(zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot that no test modifies, with problems and rows without a partition."""
    destination = tmp_path_factory.mktemp("taken")
    with fresh_chroot(zookeeper) as hosts, lasting_client(hosts) as client:
        spoil(plant(client, ["billing", "shipping"], partitions=50), client)
        take_snapshot(str(destination), SourceOptions(zookeeper=hosts, cluster="blue"))
    return destination


@pytest.fixture
def destination(taken: Path, tmp_path: Path) -> Path:
    """A copy of the snapshot."""
    return Path(copytree(taken, tmp_path / "data"))


def verified(destination: Path, at: str | None = None) -> list[VerifiedSnapshot]:
    return list(verify(ArrowLayout.at(str(destination)), at))


def found(destination: Path, at: str | None = None) -> list[tuple[str | None, str]]:
    """Return the findings, each with its table."""
    checks = verified(destination, at)
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


def test_an_intact_snapshot_has_no_findings(taken: Path) -> None:
    assert found(taken) == []


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
    pq.write_table(table.replace_schema_metadata(None), file, coerce_timestamps="us")  # which has Spark's columns


def one_further(table: pa.Table) -> pa.Table:
    """Rewrite the rows with one changed offset."""
    offsets = table["offset"].to_pylist()
    at = offsets.index(49 * 7)
    return with_column(table, "offset", pa.array([*offsets[:at], 1, *offsets[at + 1 :]], pa.int64()))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def in_summary(destination: Path, change: Callable[[Any], object]) -> None:
    file = summary_of(destination)
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
DAMAGES: Damages = {
    "a file is cut": (cut, {("offsets", "wrong-length"), ("offsets", "unreadable")}),
    "a file is added": (added, {("offsets", "other-file"), ("offsets", "wrong-rows"), ("offsets", "duplicate")}),
    "a bit is flipped": (
        lambda d: flip(file_of(d)),
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
    "a file is missing": (
        lambda d: in_summary(d, lambda fields: fields["tables"]["owners"]["files"].update({"part-9": 100})),
        {("owners", "missing-file")},
    ),
    "a table is missing": (
        lambda d: rmtree(d / f"table=members/snapshot={name_of(d)}"),
        {("members", "missing-table")},
    ),
    "the mark is missing": (lambda d: summary_of(d).with_name("_SUCCESS").unlink(), {(None, "unmarked")}),
    "the summary is cut": (lambda d: summary_of(d).write_text("{"), {(None, "bad-summary")}),
    "the summary has no columns": (
        lambda d: in_summary(d, lambda fields: fields["tables"]["owners"].update(columns="{}")),
        {("owners", "unreadable")},
    ),
    "the summary counts otherwise": (
        lambda d: in_summary(d, lambda fields: fields["tables"]["offsets"].update(problems=0)),
        {("offsets", "wrong-rows")},
    ),
}


def test_every_damage_is_found(taken: Path, tmp_path: Path) -> None:
    for name, (damage, expected) in DAMAGES.items():
        destination = Path(copytree(taken, tmp_path / name))
        damage(destination)
        assert set(found(destination)) == expected, name


@pytest.mark.soak
def test_a_flipped_bit_is_found_or_does_not_change_the_rows(taken: Path, tmp_path: Path) -> None:
    """Parquet has no checksums for data beside its pages."""
    places = random.Random(8)
    for number in range(25):
        destination = Path(copytree(taken, tmp_path / str(number)))
        file = file_of(destination)
        flip(file, places.randrange(file.stat().st_size))
        if not found(destination):
            assert library.read_snapshot(str(destination)) == library.read_snapshot(str(taken))


def test_an_unfinished_snapshot_is_reported_as_info(destination: Path) -> None:
    unfinished = ArrowLayout.at(str(destination)).begin(parse_timestamp(OLDER))
    (destination / f"table=owners/snapshot={OLDER}").mkdir()  # it is moving its tables
    try:
        assert found(destination) == [(None, "unfinished")]
        assert [check.has_errors for check in verified(destination)] == [False, False]
        assert found(destination, "latest") == []
    finally:
        unfinished.discard()
    assert found(destination) == [(None, "unmarked")], "no process will finish it"


# Other versions


def test_a_snapshot_with_other_columns_is_intact_and_they_are_named(destination: Path) -> None:
    """No owner column, counts as longs, and an additional column."""

    def of_another_version(rows: pa.Table) -> pa.Table:
        rows = rows.drop_columns("owner").append_column("colour", pa.repeat("red", len(rows)))
        return with_column(rows, "commit_count", rows["commit_count"].cast(pa.int64()))

    rewrite(file_of(destination), of_another_version)
    assert found(destination) == [
        ("offsets", "wrong-length"),
        ("offsets", "wrong-columns"),
        ("offsets", "other-columns"),
    ]
    [*_, other] = verified(destination)[0].findings
    assert other.severity.value == "info"
    assert other.detail == "on reading: commit_count: of another type; owner: null; colour: left out"


def test_a_snapshot_without_summary_is_checked_for_being_readable(destination: Path) -> None:
    summary_of(destination).unlink()
    assert found(destination) == [(None, "no-summary")]
    added(destination)
    assert found(destination) == [(None, "no-summary"), ("offsets", "duplicate")]
    for file in files(destination, Table.OWNERS, name_of(destination)):
        rewrite(file, lambda t: with_column(t, "zxid", t["zxid"].cast(pa.string())))
    assert ("owners", "unreadable") in found(destination)
    with pytest.raises(
        DamagedFileError, match=f"snapshot {name_of(destination)} in .* has a column zxid of type string"
    ):
        library.read_snapshot(str(destination), table=Table.OWNERS)


# The command


@pytest.fixture
def zkgroups() -> Iterator[Any]:
    with command_on(None, None) as run:
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
    ended = zkgroups("snapshots", "verify", destination)
    assert (ended.code, ended.err) == (10, "1 snapshot verified: 1 damaged.\n")
    header, *lines = (line.split(maxsplit=4) for line in ended.lines)
    assert header == ["SEVERITY", "SNAPSHOT", "TABLE", "FINDING", "DETAIL"]
    name = name_of(destination)
    assert [line[:4] for line in lines] == [["info", name, "-", "no-summary"], ["error", name, "offsets", "duplicate"]]


def test_a_destination_without_snapshots_is_an_error(zkgroups: Any, taken: Path, tmp_path: Path) -> None:
    assert zkgroups("snapshots", "verify", tmp_path).code == 3
    assert zkgroups("snapshots", "verify", tmp_path / "nowhere").code == 3
    assert zkgroups("snapshots", "verify", taken, "--at", "previous").code == 3
    (tmp_path / f"_unfinished/{OLDER}-01234567").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="no snapshot in"):
        found(tmp_path)

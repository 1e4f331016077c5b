"""`zkgroups.read_snapshot`. tests/spark/snapshots/test_snapshot.py reads snapshots of both engines with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zkgroups
from zkgroups.core.table_columns import COLUMNS
from zkgroups.core.tables import Table
from zkgroups.exceptions import DamagedFileError, InvalidOptionError, NotFoundError
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.tables.arrow_schema import arrow_schema
from zkgroups.tables.source_options import SourceOptions

from ..spark.model import Model, files
from .test_local_snapshot import kazoo as kazoo
from .test_local_snapshot import model as model

pytestmark = pytest.mark.zookeeper


def offset(destination: Path, *at: str, **options: Any) -> int:
    rows = zkgroups.read_snapshot(str(destination), *at, **options).to_pylist()
    return next(row["offset"] for row in rows if (row["group"], row["topic"], row["partition"]) == ("billing", "t0", 1))


def test_the_latest_complete_snapshot_is_read_unless_another_one_is_chosen(
    zookeeper_hosts: str, kazoo: Any, model: Model, tmp_path: Path
) -> None:
    def take(number: int, cluster: str | None = None) -> str:
        kazoo.set("/consumers/billing/offsets/t0/1", b"%d" % number)
        return take_snapshot(str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, cluster=cluster)).name

    first, _second, _of_blue, incomplete = take(11), take(12), take(13, "blue"), take(14)
    (tmp_path / "table=offsets" / f"snapshot={incomplete}" / "_SUCCESS").unlink()
    found = zkgroups.read_snapshot(str(tmp_path))
    assert [(each.name, each.type) for each in found.schema] == [
        (each.name, each.type) for each in arrow_schema(COLUMNS[Table.OFFSETS])
    ]
    assert (offset(tmp_path), offset(tmp_path, "previous"), offset(tmp_path, first)) == (13, 12, 11)
    assert (offset(tmp_path, cluster=zookeeper_hosts), offset(tmp_path, "2999-01-01 12:00")) == (12, 13)
    members = zkgroups.read_snapshot(str(tmp_path), table="members")
    assert sorted(members["instance"].to_pylist()) == ["anna", "anna"]
    for wrong in (incomplete, "2001-01-01", "../x"):
        with pytest.raises(NotFoundError, match="no snapshot"):
            zkgroups.read_snapshot(str(tmp_path), wrong)


def test_a_snapshot_of_an_earlier_version_has_the_columns_of_this_one(
    zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    name = take_snapshot(str(tmp_path), zookeeper_hosts).name
    [file] = files(tmp_path, Table.OFFSETS, name)
    whole = pq.ParquetFile(file).read()
    older = whole.drop_columns(["owner"]).set_column(5, "commit_count", whole["commit_count"].cast(pa.int64()))
    pq.write_table(older.append_column("colour", pa.nulls(len(whole), pa.string())), file)
    (file.parent / "_SUMMARY.json").unlink()
    found = zkgroups.read_snapshot(str(tmp_path))
    assert found.column_names == arrow_schema(COLUMNS[Table.OFFSETS]).names
    assert (found["owner"].null_count, str(found["commit_count"].type)) == (len(whole), "int64")
    pq.write_table(whole.set_column(4, "offset", whole["offset"].cast(pa.string())), file)
    with pytest.raises(DamagedFileError, match=f"snapshot {name} in .* has a column offset of type string, not int64"):
        zkgroups.read_snapshot(str(tmp_path))


def test_a_damaged_file_is_named(zookeeper_hosts: str, model: Model, tmp_path: Path) -> None:
    name = take_snapshot(str(tmp_path), zookeeper_hosts).name
    [file] = files(tmp_path, Table.OFFSETS, name)
    data = bytearray(file.read_bytes())
    data[data.index(b"billing")] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedFileError, match=f"snapshot {name} cannot be read because a file is damaged: {file}: "):
        zkgroups.read_snapshot(str(tmp_path))
    file.unlink()
    with pytest.raises(DamagedFileError, match=f"snapshot {name} in .* is damaged: .* is missing"):
        zkgroups.read_snapshot(str(tmp_path))
    assert len(zkgroups.read_snapshot(str(tmp_path), table="owners")) == 4, "the other tables are intact"


def test_what_is_no_folder_of_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="it must be the name of a folder on this machine"):
        zkgroups.read_snapshot("s3a://bucket/groups")
    with pytest.raises(InvalidOptionError, match="it must be one of offsets, owners, members"):
        zkgroups.read_snapshot(str(tmp_path), table="groups")
    with pytest.raises(NotFoundError, match="does not exist"):
        zkgroups.read_snapshot(str(tmp_path / "nowhere"))


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path) -> None:
    program = """
import sys, zkgroups
from zkgroups.exceptions import MissingDependencyError
sys.modules["pyarrow"] = None
try:
    zkgroups.read_snapshot(sys.argv[1])
except MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "reading a snapshot needs pyarrow: pip install 'zkgroups[snapshots]'\n"

"""Taking and reading snapshots without Spark. tests/spark/test_snapshots.py compares their contents with Spark's."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zkgroups
from tests.cli.running import environment, run
from tests.spark.commands import command_on
from tests.spark.model import Model, assert_complete, files, left, plant
from zkgroups.core.table_columns import COLUMNS, Table
from zkgroups.exceptions import DamagedFileError, InvalidOptionError, NotFoundError
from zkgroups.migration.local import SnapshotSource, plan
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.storage.files import LocalFiles
from zkgroups.storage.snapshot_folder import SnapshotFolder
from zkgroups.tables.arrow import arrow_schema
from zkgroups.tables.source_options import SourceOptions

pytestmark = pytest.mark.zookeeper
WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def model(raw: Any) -> Model:
    return plant(raw, ["billing", "shipping"])


def complete(destination: Path) -> list[str]:
    return SnapshotFolder(LocalFiles(), str(destination)).snapshots()


def test_a_run_killed_before_any_change_of_the_disk_leaves_a_whole_snapshot_or_none(
    zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "tests.snapshots.killed_runs", zookeeper_hosts, str(tmp_path)], check=True)
    destinations = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(destinations) > 15, "every change was tried"
    found = [len(complete(each)) for each in destinations]
    assert found == sorted(found), "it appears once"
    assert found[-2:] == [1, 1], "the last change only deletes the empty folder"
    for each in destinations:
        assert_complete(model, each)
    half_written = destinations[found.index(1) - 1]
    taken = take_snapshot(str(half_written), zookeeper_hosts)
    assert complete(half_written) == [taken.name]


def test_a_signal_during_a_run_leaves_nothing(zookeeper_hosts: str, model: Model, tmp_path: Path) -> None:
    def told(step: str) -> None:
        if step == "moving into place":
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        take_snapshot(str(tmp_path), zookeeper_hosts, on_progress=told)
    assert left(tmp_path) == []


def test_a_snapshot_without_groups_suggests_a_chroot(raw: Any, zookeeper_hosts: str, tmp_path: Path) -> None:
    raw.ensure_path("/brokers/ids")
    with command_on(None, zookeeper_hosts) as zkgroups:
        ended = zkgroups("snapshot", tmp_path, "-q", "--engine", "local")
    assert ended.code == 0
    assert ended.err == "zkgroups: the snapshot has no groups: if they are below a chroot, add it to the address\n"


def test_the_local_commands_import_neither_spark_nor_pandas(zookeeper_hosts: str, model: Model, tmp_path: Path) -> None:
    program = """
import sys
from zkgroups_cli.main import run
assert run(["snapshot", sys.argv[1]]) == 0
assert run(["snapshots", "list", sys.argv[1], "-q", "-o", "name"]) == 0
assert "pyarrow.dataset" not in sys.modules  # it takes long to import, and only `diff` joins tables
assert run(["snapshots", "diff", sys.argv[1], "latest", "latest", "-q"]) == 0
assert run(["snapshots", "verify", sys.argv[1], "-q"]) == 0
from_snapshot = ["--from-snapshot", sys.argv[1], "-q"]
assert run(["offsets", "export", "billing", *from_snapshot]) == 0
assert run(["offsets", "import", "--group", "billing", *from_snapshot, "--force"]) == 0
assert run(["offsets", "reset", "billing", "--all-topics", "--to-snapshot", sys.argv[1], "-q", "--force"]) == 0
assert run(["snapshots", "plot", sys.argv[1], "billing", sys.argv[1] + "/plot.svg", "-q"]) == 0
assert run(["audit", sys.argv[2], "--once", "-q"]) == 0
to_audit = ["--from-audit", sys.argv[2], "--by-duration", "P1D"]
assert run(["offsets", "reset", "billing", "--all-topics", "-q", *to_audit]) == 3  # it has no offset of that time
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
assert not {name for name in sys.modules if name.startswith("zkgroups.spark")}
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "snapshots"), str(tmp_path / "audit")],
        env=environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts} | WITHOUT_JAVA),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [name] = complete(tmp_path / "snapshots")
    assert name in done.stdout
    counts = model.counts()
    assert done.stdout.splitlines()[1].split()[1:5] == [str(counts[key]) for key in ("groups", *Table)]


def test_old_snapshots_are_pruned_but_not_the_latest_of_a_cluster_nor_one_that_is_being_written(
    zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    def copied(name: str, *, of: str) -> str:
        for table in Table:
            folder = tmp_path / f"table={table}"
            copytree(folder / f"snapshot={of}", folder / f"snapshot={name}")
        return name

    def mark(name: str) -> Path:
        return tmp_path / "table=offsets" / f"snapshot={name}" / "_SUCCESS"

    blue = take_snapshot(str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, cluster="blue")).name
    now = take_snapshot(str(tmp_path), zookeeper_hosts).name
    old = [copied(f"20260{number}31T120000.000Z", of=now) for number in (1, 3)]
    old_blue = [copied("20250131T120000.000Z", of=blue), copied("20250331T120000.000Z", of=blue)]
    damaged, killed, running = (copied(f"2024013{number}T120000.000Z", of=now) for number in (1, 0, 2))
    for table in Table:
        rmtree(tmp_path / f"table={table}" / f"snapshot={blue}")
    mark(damaged).with_name("_SUMMARY.json").write_text("{")
    for name in (killed, running):
        mark(name).unlink()
    (tmp_path / "_unfinished" / f"{running}-0a1b2c3d").mkdir(parents=True)

    prune = ("snapshots", "prune", tmp_path, "--keep", "1d", "-o", "name")
    shown = run(*prune, env=WITHOUT_JAVA)
    assert shown.lines == [killed, old_blue[0], *old], "the later one is the latest of its cluster"
    assert (shown.code, len(complete(tmp_path))) == (9, 6)
    assert "_SUMMARY.json cannot be read" in shown.err
    done = run(*prune, "--execute", env=WITHOUT_JAVA)
    assert (done.code, done.lines) == (9, shown.lines)
    left = [damaged, running, old_blue[1], now]
    assert sorted(each.name for each in tmp_path.glob("table=*/*")) == sorted(3 * [f"snapshot={name}" for name in left])
    assert run("snapshots", "prune", tmp_path / "nowhere", "--keep", "1d").code == 3
    assert run("snapshots", "prune", tmp_path).code == 2


def test_what_needs_spark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('No module', name='pyarrow')")
    spark = "--master and --conf need --engine spark"
    for arguments, said in (
        (
            ("s3a://bucket/groups",),
            "--engine local needs a folder on this machine: use --engine spark for s3a://bucket",
        ),
        (("hdfs:///groups", "--dry-run"), "use --engine spark for hdfs:///groups"),
        (("d", "--master", "local[2]"), spark),
        (("d", "--shared-file-system"), spark),
        (("d", "--parallelism", "2"), "--parallelism needs --engine spark"),
    ):
        with command_on(None, NOWHERE) as zkgroups:
            ended = zkgroups("snapshot", "--engine", "local", *arguments)
        assert (ended.code, ended.out, said in ended.err) == (2, "", True), arguments
    for more in (("--engine", "local"), ("--dry-run",)):
        ended = run("snapshot", tmp_path / "data", "-z", NOWHERE, *more, env={"PYTHONPATH": str(tmp_path)})
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == "zkgroups: this command needs Arrow; from the checkout: pip install '.[snapshots]'\n"
    assert not (tmp_path / "data").exists()


# Reading


def offset(destination: Path, *at: str, **options: Any) -> int:
    rows = zkgroups.read_snapshot(str(destination), *at, **options).to_pylist()
    return next(row["offset"] for row in rows if (row["group"], row["topic"], row["partition"]) == ("billing", "t0", 1))


def test_the_latest_complete_snapshot_is_read_unless_another_one_is_chosen(
    zookeeper_hosts: str, raw: Any, model: Model, tmp_path: Path
) -> None:
    def take(number: int, cluster: str | None = None) -> str:
        raw.set("/consumers/billing/offsets/t0/1", b"%d" % number)
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
    with pytest.raises(DamagedFileError, match="is damaged"):
        plan(str(tmp_path / "plan"), SnapshotSource(destination=str(tmp_path)), None)
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
    assert done.stdout == "reading a snapshot needs pyarrow; from the checkout: pip install '.[snapshots]'\n"

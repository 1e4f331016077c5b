"""Plans in a folder on this machine, without Spark: complete or not at all, applied, verified and rolled back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest

from tests.migration.rows import tree
from tests.testing.unique import unique_numbers
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.plan_rows import Outcome
from zkgroups.exceptions import DamagedFileError, GuardFailedError, NotFoundError, RefusedError, StorageError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import BrokerOptions
from zkgroups.migration import arrow_rows, local, local_engine, source_nodes
from zkgroups.migration.local import ZooKeeperSource
from zkgroups.migration.plan_folder import PlanFolder
from zkgroups.storage.atomic_folder import publishing, write_list
from zkgroups.storage.files import LocalFiles, local_path
from zkgroups.testing import KafkaBroker

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]
_numbers = unique_numbers()
GROUPS = 5


class Scene:
    """Groups with two offsets each, and a folder for their plan."""

    def __init__(self, registry: Registry, hosts: str, broker: KafkaBroker, folder: Path) -> None:
        self.registry, self.folder = registry, str(folder)
        self.topic = f"locally-{next(_numbers)}"
        broker.create_topic(self.topic, 2)
        self.names = [f"{self.topic} größe {number}" for number in range(GROUPS)]
        for name in self.names:
            registry.group(name).offsets.set_many({TopicPartition(self.topic, number): 0 for number in range(2)})
        self.source, self.options = ZooKeeperSource(zookeeper=hosts), BrokerOptions(broker.address)

    def plan(self, **chosen: Any) -> local.PlanSummary:
        return local.plan(self.folder, self.source, self.options, **chosen)

    def call(self, step: Callable[..., Any], **chosen: Any) -> Any:
        return step(self.folder, self.options, self.source, **chosen)

    def stages(self) -> list[MigrationStage]:
        return [each.stage for each in self.call(local.status)]

    def sides(self) -> tuple[Any, Any]:
        """Return the offsets of both sides."""
        with self.options.connect() as brokers:
            return tree(self.registry.client, "/consumers"), brokers.committed(self.names)


@pytest.fixture
def scene(zookeeper_hosts: str, registry: Registry, broker: KafkaBroker, tmp_path: Path) -> Scene:
    return Scene(registry, zookeeper_hosts, broker, tmp_path / "move [1] é")


def test_a_plan_is_applied_in_several_chunks_and_groups_with_members_are_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_rows, "MAX_GROUPS", 2)
    monkeypatch.setattr(source_nodes, "MAX_NODES", 3)
    busy, *free = scene.names
    with scene.registry.group(busy).instance("anna") as anna:
        anna.register([scene.topic])
        planning, heard = list[str](), list[str]()
        planned = scene.plan(stale_after=3600.0, on_progress=planning.append)
        before = scene.sides()
        assert (planning[0], planned.groups, planned.blocked) == ("planning", GROUPS, 1)
        dry = scene.call(local.apply, execute=False, on_progress=heard.append)
        assert (dict(dry.counts), len(heard), scene.sides()) == ({"would write": 8, "left": 2}, 2, before)

        applied = scene.call(local.apply, execute=True)

    assert (applied.groups, applied.left, applied.failed) == (GROUPS, 1, 0)
    results = {each.group: each for each in local.group_results(scene.folder, applied.report)}
    assert results[busy].details == ("legacy instances are registered: anna",)
    assert results[free[0]].counts == {"written": 2}
    assert [row.outcome for row in local.report_rows(scene.folder) if row.group == busy] == [Outcome.LEFT] * 2
    assert scene.stages() == [MigrationStage.BLOCKED] + [MigrationStage.DONE] * 4
    [file] = Path(scene.folder, "reports", applied.report).glob("part-*")
    file.unlink()
    with pytest.raises(DamagedFileError, match="is missing"):
        local.report_rows(scene.folder)


def test_a_plan_appears_completely_or_not_at_all_and_is_never_overwritten(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no plan in file:"):
        local.groups(scene.folder)
    with pytest.raises(NotFoundError, match="none of the selected groups"):
        local.plan(scene.folder, ZooKeeperSource(zookeeper=scene.source.zookeeper, groups="nobody"), None)
    with pytest.raises(ZeroDivisionError):
        scene.plan(on_progress=lambda step: 1 / ("moving" not in step))
    assert list(Path(scene.folder).iterdir()) == []
    half = Path(scene.folder, "plan")
    half.mkdir()
    half.joinpath("part-0.parquet").write_bytes(b"half of it")  # by a killed run
    first = scene.plan()
    with pytest.raises(RefusedError, match="already has a plan"):
        scene.plan()
    with pytest.raises(RefusedError, match="already has a plan"):
        scene.plan(instead_of="another")
    assert local.summary(scene.folder) == first
    assert scene.plan(instead_of=first.plan).plan != first.plan
    with pytest.raises(InvalidOptionError, match="the name of a folder on this machine"):
        local.groups("hdfs://somewhere/plan")
    tmp_path.joinpath("file").write_text("")
    with pytest.raises(StorageError, match="cannot be written to"):
        local.plan(str(tmp_path / "file" / "plan"), scene.source, scene.options)


def _rewritten(file: Path, rows: Callable[[Any], Any]) -> None:
    parquet.write_table(rows(parquet.read_table(file)), file)


def _exploding(rows: Any) -> Any:
    return rows.set_column(rows.column_names.index("action"), "action", pa.array(["explode"] * len(rows)))


def _with_a_bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(b"unchanged")] ^= 1
    file.write_bytes(data)


FEWER = "fewer rows than its list says"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    FEWER: (lambda file: _without_a_row(file), "was written with 10 rows, but has 9 now"),
    "a missing file": (Path.unlink, "is missing"),
    "a truncated file": (lambda file: os.truncate(file, 30), "has 30 bytes, not"),
    "another file": (lambda file: file.with_name("part-1.parquet").write_bytes(b""), "is not in the list of files"),
    "changed bytes": (_with_a_bit_flipped, "because a file is damaged"),
    "no list, and no Parquet": (
        lambda file: (file.with_name("_SUCCESS").write_text(""), file.write_bytes(b"?" * 99)),
        "because a file is damaged",
    ),
    "no list, and no file": (
        lambda file: (file.with_name("_SUCCESS").write_text(""), file.unlink()),
        "are missing: make a new plan in another folder",
    ),
    "a damaged list": (lambda file: file.with_name("_SUCCESS").write_text("{}"), "is damaged"),
    "an unknown word": (
        lambda file: (file.with_name("_SUCCESS").write_text(""), _rewritten(file, _exploding)),
        r"^the plan in .+ (cannot be read|could not be processed): 'explode' is not a known Action: restore",
    ),
}


def test_a_damaged_plan_is_refused_before_anything_is_written(scene: Scene, tmp_path: Path) -> None:
    scene.plan()
    before, whole = scene.sides(), scene.folder
    for number, (damage, (do, said)) in enumerate(DAMAGES.items()):
        scene.folder = str(copytree(whole, tmp_path / str(number)))
        [file] = Path(scene.folder, "plan").glob("part-*")
        do(file)
        for step in (local.apply, local.rollback):
            with pytest.raises(DamagedFileError, match=said):
                scene.call(step, execute=True)
        if damage not in (FEWER, "no list, and no file"):
            with pytest.raises(DamagedFileError, match=said):
                list(local.plan_rows(scene.folder))
    assert scene.sides() == before


def _without_a_row(file: Path) -> None:
    _rewritten(file, lambda rows: rows.slice(1))
    listed = {"rows": 2 * GROUPS, "files": {file.name: file.stat().st_size}}
    file.with_name("_SUCCESS").write_text(json.dumps(listed))


def test_a_plan_of_an_earlier_version_without_its_constants_is_applied_and_damaged_constants_are_refused(
    scene: Scene,
) -> None:
    scene.plan()
    file = Path(scene.folder, "plan", "_CONSTANTS.json")
    constants, before = file.read_text(), scene.sides()
    for damaged in ("", "{}", "[]", constants[:-1]):
        file.write_text(damaged)
        with pytest.raises(DamagedFileError, match=r"_CONSTANTS\.json is damaged .*: make a new plan"):
            scene.call(local.apply, execute=True)
    assert scene.sides() == before
    file.unlink()
    scene.call(local.apply, execute=True)
    assert set(scene.stages()) == {MigrationStage.DONE}
    assert json.loads(constants)["plan"] == next(local.plan_rows(scene.folder)).plan


def test_a_plan_in_several_files_with_a_damaged_one_is_refused_before_anything_is_written(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_rows, "MAX_GROUPS", 1)
    monkeypatch.setattr(local_engine, "THREADS", 1)
    for number in range(GROUPS):  # some groups are read ahead
        scene.registry.group(f"{scene.topic} more {number}").offsets.set(TopicPartition(scene.topic, 0), 0)
    scene.plan()
    before = scene.sides()
    [file] = Path(scene.folder, "plan").glob("part-*")
    rows, second = parquet.read_table(file), file.with_name("part-00001.parquet")
    file.unlink()
    last = pc.max(rows.column("target"))
    first = pc.not_equal(rows.column("target"), last)
    options = {"write_page_checksum": True, "store_schema": False}
    parquet.write_table(rows.filter(first), file, **options)
    parquet.write_table(rows.filter(pc.invert(first)), second, **options)
    listed = {"rows": len(rows), "files": {each.name: each.stat().st_size for each in (file, second)}}
    file.with_name("_SUCCESS").write_text(json.dumps(listed))
    intact = second.read_bytes()
    _with_a_bit_flipped(second)
    with pytest.raises(DamagedFileError, match="because a file is damaged"):
        scene.call(local.apply, execute=True)
    assert scene.sides() == before
    second.write_bytes(intact)
    scene.call(local.apply, execute=True)
    assert set(scene.stages()) == {MigrationStage.DONE}


def test_impossible_requests_are_refused_at_once(scene: Scene) -> None:
    nobody = BrokerOptions("127.0.0.1:1", timeout=0.2)
    local.plan(scene.folder, scene.source, None)
    with pytest.raises(GuardFailedError, match="was made without brokers"):
        local.rollback(scene.folder, nobody, scene.source, execute=True)
    with pytest.raises(InvalidOptionError, match="to_zookeeper"):
        local.rollback(scene.folder, nobody, None, execute=True, to_zookeeper=True)
    with pytest.raises(NotFoundError, match="no report in"):
        list(local.report_rows(scene.folder))


def test_a_report_that_cannot_be_written_is_detected_before_the_work_or_has_advice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.plan()
    before = scene.sides()

    def full(*_arguments: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "write_text", full)
        with pytest.raises(StorageError, match="cannot be written to: No space") as early:
            scene.call(local.apply, execute=True)
    assert not hasattr(early.value, "__notes__")
    assert scene.sides() == before

    reports = Path(scene.folder, "reports")
    reports.write_text("not a folder")
    with pytest.raises(StorageError, match="could not be moved") as late:
        scene.call(local.apply, execute=True)
    assert "offsets may have been written" in late.value.__notes__[0]
    reports.unlink()
    assert scene.stages() == [MigrationStage.DONE] * GROUPS


@pytest.mark.parametrize(
    ("destination", "path"),
    [
        ("plan", "plan"),
        ("/data/a:b", "/data/a:b"),
        ("file:/data", "/data"),
        ("file:///data", "/data"),
        ("FILE:///data/[1] é", "/data/[1] é"),
        ("hdfs://nn/data", None),
        ("s3a://bucket/data", None),
    ],
)
def test_a_destination_is_on_the_local_disk_or_not(destination: str, path: str | None) -> None:
    assert local_path(destination) == (None if path is None else Path(path))


def test_of_two_plans_for_one_folder_that_are_finished_at_once_only_one_appears(tmp_path: Path) -> None:
    """The second plan is finished while the first is moved into place."""
    moving, checked = threading.Event(), threading.Event()

    class Slow(LocalFiles):
        def move(self, here: str, there: str) -> None:
            if there.endswith("/plan"):
                moving.set()
                checked.wait(0.5)
            super().move(here, there)

    def make(files: LocalFiles, text: str) -> None:
        with PlanFolder(files, str(tmp_path)).new_plan(datetime.now(UTC)) as path:
            files.make_folder(path)
            files.write_text(f"{path}/rows", text)
            write_list(files, path, 1)
            if text == "second":
                assert moving.wait(60)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(make, Slow(), "first"), threads.submit(make, LocalFiles(), "second")
        first.result(60)
        with pytest.raises(RefusedError, match="already has a plan"):
            second.result(60)
    assert (tmp_path / "plan" / "rows").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_unfinished", "plan"]
    assert not list((tmp_path / "_unfinished").iterdir())


def test_a_run_that_was_killed_while_it_moved_its_plan_does_not_stop_the_next_run(tmp_path: Path) -> None:
    folder, host = PlanFolder(LocalFiles(), str(tmp_path)), socket.gethostname()
    with subprocess.Popen(["true"]) as ended:
        pass
    waiting = tmp_path / "_unfinished"
    waiting.mkdir()
    (waiting / f"publishing-00000000-{ended.pid}-{host}").touch()
    with publishing(folder, 0):
        assert [path.name.rsplit("-", 2)[1] for path in waiting.iterdir()] == [str(os.getpid())]
    other = waiting / "publishing-00000000-1-elsewhere"
    other.touch()
    with pytest.raises(RefusedError, match=f"delete file:{other}"), publishing(folder, 0):
        pass
    assert list(waiting.iterdir()) == [other]

"""Audits: their interruptions, their ZooKeeper, and their files. tests/spark/test_audit.py lets Spark read offsets."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient

from tests.audit.commits import Committer, assert_whole, auditing, standing
from tests.cli.conftest import Zkgroups
from tests.cli.conftest import zkgroups as zkgroups
from tests.lasting import lasting_client
from tests.snapshots import killed_runs
from tests.spark.conftest import plant
from tests.waiting import eventually
from zkgroups import TopicPartition
from zkgroups.audit.audit import AuditResult, Batch, Ledger, locked, run_audit
from zkgroups.audit.journal import MERGE_FACTOR, AuditDescription, FinishedBatch, Journal, Piece
from zkgroups.audit.recorded_commits import KEPT, offsets_at, read_commits, recent_commits
from zkgroups.core.ensemble_position import EnsemblePosition
from zkgroups.core.table_columns import COMMITS, READ
from zkgroups.exceptions import ConflictError, InvalidOptionError, NotConnectedError, NotFoundError, RefusedError
from zkgroups.storage.files import LocalFiles
from zkgroups.tables.arrow import arrow_schema
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import ZooKeeperServer, fresh_chroot

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[KazooClient]:
    with lasting_client(zookeeper_hosts) as client:
        yield client


def record(destination: Path, source: SourceOptions | str, **options: Any) -> AuditResult:
    """Record one batch."""
    return run_audit(str(destination), source, once=True, **options)


def rows(destination: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_commits(str(destination)).to_pylist()
    return found


def journal(destination: Path) -> Journal:
    return Journal(LocalFiles(), str(destination))


# Interruptions


def test_a_run_killed_before_any_change_of_the_disk_loses_no_commit_and_repeats_none(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed run also merges pieces, and writes the last commit of each partition."""
    paths = [f"g/offsets/t/{number}" for number in range(3)]
    plant(raw, dict.fromkeys(paths, b"5"))
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", killed_runs.MERGE_FACTOR)
    begun, copies = tmp_path / "begun", tmp_path / "copies"
    for offset in (6, 7, 8):
        record(begun, zookeeper_hosts)
        raw.set(f"/consumers/{paths[0]}", b"%d" % offset)
    command = [sys.executable, "-m", "tests.snapshots.killed_runs", zookeeper_hosts, str(copies), str(begun)]
    subprocess.run(command, check=True)
    raw.set(f"/consumers/{paths[1]}", b"9")
    destinations = sorted(copies.iterdir(), key=lambda folder: int(folder.name))
    assert len(destinations) > 30, "every change was tried"
    for each in destinations:
        before = rows(each)
        record(each, zookeeper_hosts)
        assert rows(each)[: len(before)] == before, "later commits come later"
        assert_whole(rows(each), standing(raw, paths))


def test_a_restart_of_zookeeper_under_load_loses_no_commit(tmp_path: Path) -> None:
    with ZooKeeperServer(tick_time=2.0) as server:
        committer = Committer(server.address, 300)
        with (
            committer,
            auditing(lambda *of, **options: run_audit(str(tmp_path), *of, **options), server.address) as steps,
        ):
            steps.wait_for(1)
            server.restart()
            for _ in range(2):
                accepted = committer.accepted
                assert eventually(lambda accepted=accepted: committer.accepted > accepted + 100)
                steps.wait_for(2)  # the second one has begun after these commits
        record(tmp_path, server.address)
        assert_whole(found := rows(tmp_path), committer.standing())
        committer.close()
    hot = [row for row in found if (row["group"], row["topic"], row["partition"]) == ("g0", "t0", 0)]
    assert len(hot) > 2, "a partition that is committed all the time appears in many batches"


class SetAfter(threading.Event):
    """An event that is set after a number of questions."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self._left = questions

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0


def test_a_batch_is_interrupted_without_a_trace_and_recorded_by_the_next_run(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/t/0": b"5"})
    questions = 2  # before it connects, and before the batch
    assert record(tmp_path, zookeeper_hosts, stop=SetAfter(questions)).batches == 0
    assert not (tmp_path / "commits").exists()
    assert record(tmp_path, zookeeper_hosts, stop=SetAfter(questions + 2)).commits == 1


# One audit in a folder


def test_a_destination_holds_one_audit(zookeeper_hosts: str, raw: KazooClient, tmp_path: Path) -> None:
    plant(raw, {"g/offsets/t/0": b"5", "h/offsets/t/0": b"7"})
    some = SourceOptions(zookeeper=zookeeper_hosts, groups="g")
    assert record(tmp_path, some).commits == 1
    with pytest.raises(RefusedError, match=r"is of groups g, topics \.\*, not of groups \.\*, topics \.\*"):
        record(tmp_path, zookeeper_hosts)
    with locked(journal(tmp_path)), pytest.raises(ConflictError, match="another audit is writing to"):
        record(tmp_path, some)
    with pytest.raises(NotConnectedError):
        record(tmp_path / "b", SourceOptions(zookeeper="127.0.0.1:1", timeout=0.5))
    with pytest.raises(NotFoundError, match="no audit in"):
        read_commits(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidOptionError, match="every"):
        record(tmp_path, some, every=-1)


class WithoutLocks(LocalFiles):
    """An object store, where `locked` does nothing."""

    def local_path(self, path: str) -> str | None:
        return None if path else path


class Late(WithoutLocks):
    """An object store that does not list what was just written."""

    def names(self, folder: str) -> list[str]:
        return [] if folder.endswith("/batches") else super().names(folder)


def test_without_locks_the_run_that_began_first_notices_the_second_one(tmp_path: Path) -> None:
    first, second = (Journal(WithoutLocks(), str(tmp_path)) for _ in range(2))
    with locked(first), locked(second):
        assert (first.claim_batch(None), second.claim_batch(None), second.claim_batch(1)) == (0, 1, 2)
        with pytest.raises(ConflictError, match="another audit is writing to"):
            first.claim_batch(0)
    Journal(Late(), str(tmp_path / "late")).claim_batch(None)
    with pytest.raises(ConflictError, match="another audit is writing to"):
        Journal(Late(), str(tmp_path / "late")).claim_batch(None)


# The ZooKeeper


def test_an_audit_refuses_another_zookeeper_even_with_younger_groups(
    zookeeper: Any, zookeeper_hosts: str, raw: KazooClient, tmp_path: Path
) -> None:
    """A position alone cannot detect this ZooKeeper: it looks like the followed one with recreated groups."""
    plant(raw, {"g/offsets/t/0": b"5"})
    assert record(tmp_path, zookeeper_hosts).commits == 1
    raw.delete("/consumers", recursive=True)
    plant(raw, {"g/offsets/t/0": b"6"})
    assert record(tmp_path, zookeeper_hosts).commits == 1, "the same, with its groups made anew"
    with fresh_chroot(zookeeper) as other, lasting_client(other) as client:
        plant(client, {"g/offsets/t/0": b"7"})
        with pytest.raises(RefusedError, match=f"follows {zookeeper_hosts}, but {other} is another ZooKeeper"):
            record(tmp_path, other)
    assert [row["offset"] for row in rows(tmp_path)] == [5, 6]


def test_offsets_from_before_the_audit_started_over_are_not_current(
    zookeeper: Any, zookeeper_hosts: str, raw: KazooClient, tmp_path: Path
) -> None:
    """They are not the previous ones of the new ZooKeeper either."""
    plant(raw, {"g/offsets/t/0": b"900", "g/offsets/t/1": b"901"})
    record(tmp_path, zookeeper_hosts)
    with fresh_chroot(zookeeper) as other, lasting_client(other) as client:
        plant(client, {"g/offsets/t/0": b"5"})
        before = datetime.now(UTC)
        record(tmp_path, SourceOptions(zookeeper=other, start_over=True))
        assert [(row["before"], row["offset"]) for row in rows(tmp_path) if row["batch"]] == [(None, 5)]
        found = offsets_at(journal(tmp_path), before).to_pylist()
        assert [(row["partition"], row["offset"]) for row in found] == [(0, 5)]
        client.set("/consumers/g/offsets/t/0", b"6")
        record(tmp_path, other)
    assert rows(tmp_path)[-1]["before"] == 5


def test_a_commit_with_an_invalid_time_is_recorded_once(tmp_path: Path) -> None:
    """Its time is null. A server with such a clock cannot be started, so the ledger gets the rows."""
    ledger = Ledger(journal(tmp_path), SourceOptions(zookeeper="127.0.0.1:1"), threading.Event())
    recorded = {"group": "g", "topic": "t", "partition": 0, "offset": 5, "zxid": 7, "batch": 0}
    ledger.journal.write_commits([pa.Table.from_pylist([recorded], arrow_schema(COMMITS))], Piece(0, 0))
    again = [recorded, recorded | {"partition": 1}, recorded | {"zxid": 8}]
    read = pa.Table.from_pylist(again, arrow_schema(COMMITS)).select(READ)
    found = ledger._new(read, Batch(1, 0, (), 0)).sort_by("zxid").to_pylist()
    assert [(row["partition"], row["before"], row["zxid"]) for row in found] == [(1, None, 7), (0, 5, 8)]


def test_many_batches_are_merged_and_read_as_before(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recent commits are those of the pieces that count: merged pieces still exist."""
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", 2)
    monkeypatch.setattr("zkgroups.audit.journal._ROWS_OF_A_FILE", 2)
    plant(raw, {"g/offsets/t/0": b"0", "g/offsets/t/1": b"7", "g/offsets/t/2": b"no number"})
    for offset in range(1, 6):
        record(tmp_path, zookeeper_hosts)
        raw.set("/consumers/g/offsets/t/0", b"%d" % offset)
    assert [(row["partition"], row["before"], row["offset"]) for row in rows(tmp_path)] == [
        (0, None, 0),
        (1, None, 7),
        (2, None, None),
        *((0, offset - 1, offset) for offset in range(1, 5)),
    ]
    found = journal(tmp_path)
    assert [piece.name for piece in found.pieces()] == ["2-000000000000-000000000003", "0-000000000004-000000000004"]
    assert len(list(tmp_path.glob("commits/2-*/*.parquet"))) == 3
    assert found.standing_batch() == 3
    assert len(list((tmp_path / "commits").iterdir())) < 5 + MERGE_FACTOR
    assert (description := found.description()).ensemble is not None
    assert (description.groups, description.topics, description.ensemble.cluster) == (None, None, zookeeper_hosts)
    recent = [each for sweep in recent_commits(str(tmp_path)) for each in sweep.commits]
    of_0 = [each for each in recent if each.at.partition == 0]
    assert [each.offset for each in of_0] == [each.version for each in of_0] == list(range(5))
    assert [(each.at, each.offset) for each in recent if each not in of_0] == [(TopicPartition("t", 1), 7)]


def test_without_its_position_or_its_last_commits_an_audit_reads_all_and_repeats_no_commit(
    zookeeper_hosts: str, raw: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the last commits in merged pieces."""
    monkeypatch.setattr("zkgroups.audit.audit.MERGE_FACTOR", 2)
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6"})
    for offset in (6, 7):
        record(tmp_path, zookeeper_hosts)
        raw.set("/consumers/g/offsets/t/0", b"%d" % offset)
    [merged] = journal(tmp_path).pieces()
    assert merged.level == 1
    shutil.rmtree(tmp_path / "standing")
    assert record(tmp_path, zookeeper_hosts).commits == 1
    (tmp_path / "_position.json").unlink()
    shutil.rmtree(tmp_path / "batches")
    raw.set("/consumers/g/offsets/t/1", b"8")
    assert record(tmp_path, zookeeper_hosts).commits == 1
    assert [(row["partition"], row["before"], row["offset"], row["batch"]) for row in rows(tmp_path)] == [
        (0, None, 5, 0),
        (1, None, 6, 0),
        (0, 5, 6, 1),
        (0, 6, 7, 2),
        (1, 6, 8, 3),
    ]


# Small files that were changed, lost, or are being replaced


CHANGES = {
    "_audit.json": (
        "\0{",
        "[]",
        '{"groups": 5, "topics": null, "first_batch": 0}',
        '{"groups": null, "topics": null}',
        '{"groups": null, "topics": null, "first_batch": 0, "cluster": "c"}',
    ),
    "_position.json": ("abc", "[]", '{"batch": 0}'),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_small_file_is_an_error_that_names_it(
    zookeeper_hosts: str, raw: KazooClient, zkgroups: Zkgroups, tmp_path: Path, name: str
) -> None:
    plant(raw, {"g/offsets/t/0": b"5"})
    run_audit(str(tmp_path), zookeeper_hosts, once=True)
    for text in CHANGES[name]:
        (tmp_path / name).write_text(text)
        ended = zkgroups("audit", tmp_path, "--once", "--engine", "local")
        assert (ended.code, ended.out) == (10, ""), text
        assert f"{tmp_path}/{name} was changed after the audit wrote it" in ended.err


def test_an_audit_with_a_missing_file_is_neither_read_nor_continued(
    zookeeper_hosts: str, raw: KazooClient, zkgroups: Zkgroups, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/t/0": b"10"})
    for offset in (b"55", b"60"):
        record(tmp_path, zookeeper_hosts)
        raw.set("/consumers/g/offsets/t/0", offset)
    finished = journal(tmp_path).finished_batch()
    assert finished is not None
    [file] = tmp_path.glob("commits/0-000000000001-*/*.parquet")
    file.unlink()
    at = datetime.fromtimestamp(finished.read_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    reset = ("offsets", "reset", "g", "--all-topics", "--from-audit", tmp_path, "--to-datetime", at)
    for command in (("audit", tmp_path, "--show"), ("audit", tmp_path, "--once"), reset):
        ended = zkgroups(*command)
        assert (ended.code, ended.out) == (10, ""), command
        assert "is missing: restore it from a backup, or start a new" in ended.err


def test_an_audit_without_its_description_refuses_other_groups(
    zookeeper_hosts: str, raw: KazooClient, zkgroups: Zkgroups, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/t/0": b"5"})
    run_audit(str(tmp_path), zookeeper_hosts, once=True)
    about = (tmp_path / "_audit.json").read_bytes()
    (tmp_path / "_audit.json").unlink()

    for arguments in (("--once", "--groups", "g1"), ("--once",), ("--show",)):
        ended = zkgroups("audit", tmp_path, *arguments, "--engine", "local")
        assert (ended.code, ended.out) == (10, "")
        assert "has lost its _audit.json" in ended.err

    # A run was killed before it renamed the new file.
    (tmp_path / "_audit.json.new").write_bytes(about)
    with pytest.raises(RefusedError, match=r"is of groups \.\*, topics \.\*, not of groups g1"):
        run_audit(str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, groups="g1"), once=True)
    assert run_audit(str(tmp_path), zookeeper_hosts, once=True).commits == 0


def finished(number: int) -> FinishedBatch:
    return FinishedBatch(number, EnsemblePosition(7, 3, 5), 9)


class Steps(LocalFiles):
    """A file system that calls `after` after each rename or deletion."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after

    def move(self, here: str, there: str) -> None:
        super().move(here, there)
        self._after()

    def delete(self, path: str) -> None:
        super().delete(path)
        self._after()


def test_a_small_file_can_be_read_at_every_step_of_its_replacement(tmp_path: Path) -> None:
    Journal(LocalFiles(), str(tmp_path)).write_finished_batch(finished(1))
    seen: list[int] = []

    def look() -> None:
        found = Journal(LocalFiles(), str(tmp_path)).finished_batch()
        seen.append(-1 if found is None else found.number)

    Journal(Steps(look), str(tmp_path)).write_finished_batch(finished(2))

    assert seen == [1, 1, 2, 2]


# Recent commits, from the files alone


NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> Journal:
    found = Journal.at(str(tmp_path))
    found.begin(AuditDescription(None, None))
    return found


def add(files: Journal, batch: int, *commits: tuple[int, timedelta], count: int = 1) -> None:
    """Add a batch with offsets and their ages, each so many times."""
    values = {"group": "g", "topic": "t", "partition": 0, "commit_count": 1, "cluster": "c", "zxid": 1, "batch": batch}
    given: list[dict[str, Any]] = [{**values, "offset": offset, "committed_at": NOW - age} for offset, age in commits]
    rows = pa.Table.from_pylist(given, arrow_schema(COMMITS))
    files.write_commits([pa.concat_tables([rows] * count)], Piece(batch, batch))


def offsets(folder: Path) -> list[int]:
    return [commit.offset for sweep in recent_commits(str(folder)) for commit in sweep.commits]


COUNTING = pa.proxy_memory_pool(pa.default_memory_pool())
"""Lives as long as this process: threads of Arrow give memory back to it after a test has ended."""


def test_an_audit_in_one_large_piece_is_not_read_as_a_whole(files: Journal, tmp_path: Path) -> None:
    for batch in range(15):
        add(files, batch, (batch, timedelta(days=15 - batch)), count=20_000)
    add(files, 15, (15, timedelta()))
    files.merge(files.pieces(), Piece(0, 15, level=1))
    whole = read_commits(str(tmp_path)).nbytes
    before = pa.default_memory_pool()
    pa.set_memory_pool(COUNTING)
    try:
        assert offsets(tmp_path) == [15]
    finally:
        pa.set_memory_pool(before)
    assert COUNTING.max_memory() < whole / 4


def test_commits_of_the_last_hour_are_found_in_several_pieces_and_older_pieces_are_not_read(
    files: Journal, tmp_path: Path
) -> None:
    minute = timedelta(minutes=1)
    for batch, commits in enumerate(
        [
            [(0, KEPT + 2 * minute)],
            [(1, KEPT + minute)],
            [(2, KEPT), (3, KEPT + minute)],
            [],
            [(4, 2 * minute), (5, 3 * minute)],
            [(6, timedelta()), (7, timedelta())],
        ]
    ):
        add(files, batch, *commits)
    for file in (tmp_path / "commits" / Piece(0, 0).name).glob("*.parquet"):
        file.write_bytes(b"?" * file.stat().st_size)
    assert offsets(tmp_path) == [2, 5, 4, 6, 7]


def test_an_audit_without_rows_has_no_recent_commits(files: Journal, tmp_path: Path) -> None:
    add(files, 0)
    assert offsets(tmp_path) == []

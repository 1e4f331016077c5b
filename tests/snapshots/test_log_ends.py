"""Log ends in snapshots and audits without Spark. tests/spark/test_diff.py compares both engines."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zkgroups import Registry, TopicPartition, read_snapshot
from zkgroups.audit.audit import run_audit
from zkgroups.audit.recorded_commits import read_commits
from zkgroups.core.table_columns import COLUMNS, Table
from zkgroups.exceptions import InvalidOptionError
from zkgroups.snapshots import diff as comparison
from zkgroups.snapshots.layout import listing
from zkgroups.snapshots.local_snapshot import ArrowLayout, take_snapshot
from zkgroups.tables import table_reader
from zkgroups.tables.arrow import arrow_schema
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import KafkaBroker

from ..cli.conftest import Zkgroups
from ..cli.conftest import zkgroups as zkgroups

pytestmark = pytest.mark.zookeeper

NOBODY = "127.0.0.1:1"


@pytest.fixture
def topic(legacy_kafka: KafkaBroker) -> str:
    """A topic with 9 messages in its first partition, and none in its second one."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    legacy_kafka.create_topic(name, partitions=2)
    legacy_kafka.write(name, 0, 9)
    return name


@pytest.fixture
def billing(registry: Registry) -> Any:
    return registry.group("billing").offsets


@pytest.fixture
def source(zookeeper_hosts: str, legacy_kafka: KafkaBroker) -> SourceOptions:
    return SourceOptions(zookeeper=zookeeper_hosts, bootstrap_servers=legacy_kafka.address)


def ends(rows: Any) -> Mapping[str, tuple[int | None, int | None]]:
    """Return the log start and log end of each row."""
    return {f"{row['topic']}/{row['partition']}": (row["log_start"], row["log_end"]) for row in rows.to_pylist()}


def test_each_offset_has_the_log_of_its_partition_if_the_brokers_know_it(
    source: SourceOptions, topic: str, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    billing.set_many({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0, TopicPartition(topic, 2): 4})
    billing.set_many({TopicPartition("gone", 0): 1, TopicPartition("no topic", 0): 1})
    registry.group("lost").offsets.set(TopicPartition(topic, 0), 10)
    registry.client.create("/consumers/lost/offsets/gone/0", b"x", makepath=True)
    taken = take_snapshot(str(tmp_path), source)
    found = read_snapshot(str(tmp_path))
    unknown = None, None
    assert ends(found.filter(pa.compute.equal(found["group"], "billing"))) == {
        f"{topic}/0": (0, 9),
        f"{topic}/1": (0, 0),
        f"{topic}/2": unknown,
        "gone/0": unknown,
        "no topic/0": unknown,
    }
    assert (taken.lag, taken.unknown_lags, taken.log_ends_problem) == (5, 4, None), "one is past the log end"
    [listed] = listing(ArrowLayout.at(str(tmp_path)))
    assert (listed.lag, listed.unknown_lags) == (5, 4)


def test_offsets_are_read_before_their_log_ends(
    source: SourceOptions, topic: str, legacy_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer commits at the log end, while messages are written."""
    monkeypatch.setattr(table_reader, "_ROWS", 2)

    def read() -> Iterator[Any]:
        for offset in range(10, 15):
            legacy_kafka.write(topic, 0, 1)
            row = {"cluster": "c", "group": "g", "topic": topic, "partition": 0, "offset": offset, "read_at": 0}
            yield pa.RecordBatch.from_pylist([row], arrow_schema(COLUMNS[Table.OFFSETS]))

    found = pa.Table.from_batches(list(table_reader.with_log_ends(read(), source)))
    assert table_reader.lags(found["offset"], found["log_end"]).to_pylist() == [1, 0, 1, 0, 0]


def test_brokers_that_fail_during_a_read_are_asked_once(
    zookeeper_hosts: str, billing: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_reader, "_ROWS", 1)
    rows = [
        {"cluster": "c", "group": "g", "topic": "t", "partition": number, "offset": 1, "read_at": 0}
        for number in range(3)
    ]
    schema = arrow_schema(COLUMNS[Table.OFFSETS])
    batches = (pa.RecordBatch.from_pylist([row], schema) for row in rows)
    source = SourceOptions(zookeeper=zookeeper_hosts, bootstrap_servers=NOBODY)
    with caplog.at_level(logging.WARNING, "zkgroups.spark"):
        found = pa.Table.from_batches(list(table_reader.with_log_ends(batches, source)))
    assert (len(found), found["log_end"].null_count) == (3, 3)
    [said] = [record.getMessage() for record in caplog.records if record.name == "zkgroups.spark"]
    assert said.startswith(f"log ends are unknown: no broker at {NOBODY} answered within 1 s")


def test_without_an_answer_of_the_brokers_offsets_are_recorded_without_log_ends(
    zookeeper_hosts: str, billing: Any, zkgroups: Zkgroups, tmp_path: Path
) -> None:
    """Other mistakes are errors."""
    billing.set(TopicPartition("orders", 0), 5)
    local = ("--engine", "local", "-b", NOBODY)
    taken = zkgroups("snapshot", tmp_path / "snapshots", *local, "-o", "json")
    said = f"log ends and lag are unknown: no broker at {NOBODY} answered within 1 s"
    assert (taken.code, said in taken.err) == (9, True)
    [row] = taken.json["snapshots"]
    assert (row["offsets"], row["lag"], row["unknown_lags"]) == (1, None, None)
    audited = zkgroups("audit", tmp_path / "audit", "--once", *local)
    assert (audited.code, said in audited.err) == (9, True)
    assert read_commits(str(tmp_path / "audit"))["log_end"].to_pylist() == [None]
    wrong = zkgroups("snapshot", tmp_path / "snapshots", "--engine", "local", "-b", "no port")
    assert (wrong.code, wrong.out) == (2, "")
    assert len(listing(ArrowLayout.at(str(tmp_path / "snapshots")))) == 1
    with pytest.raises(InvalidOptionError, match="a data directory may be older than the log ends"):
        SourceOptions(data_dir="/data", bootstrap_servers=NOBODY)
    with pytest.raises(InvalidOptionError, match="it needs bootstrapServers"):
        SourceOptions(zookeeper=zookeeper_hosts, command_config="/etc/kafka")


def test_stalled_means_unchanged_and_behind_in_both_snapshots(
    source: SourceOptions, topic: str, billing: Any, legacy_kafka: KafkaBroker, zkgroups: Zkgroups, tmp_path: Path
) -> None:
    """In a folder that also has a snapshot without log ends."""
    stuck, idle = (TopicPartition(topic, number) for number in range(2))
    billing.set_many({stuck: 4, idle: 0, TopicPartition("gone", 0): 1})
    old = take_snapshot(str(tmp_path), source.without_brokers()).name
    first = take_snapshot(str(tmp_path), source).name
    legacy_kafka.write(topic, 0, 3)
    legacy_kafka.write(topic, 1, 2)
    second = take_snapshot(str(tmp_path), source).name
    billing.set_many({stuck: 11, idle: 2})
    third = take_snapshot(str(tmp_path), source).name

    def compared(before: str, after: str, by: str = "group") -> list[dict[str, Any]]:
        layout = ArrowLayout.at(str(tmp_path))
        return list(comparison.diff(layout, layout.choose_pair(before, after), by=by).to_pylist())

    def states(before: str, after: str) -> dict[str, tuple[Any, ...]]:
        rows = compared(before, after, by="partition")
        names = ("state", "stalled", "lag", "lag_delta")
        return {f"{row['topic']}/{row['partition']}": tuple(row[name] for name in names) for row in rows}

    unknown = ("unchanged", None, None, None)
    assert states(first, second) == {
        f"{topic}/0": ("unchanged", True, 8, 3),
        f"{topic}/1": ("unchanged", False, 2, 2),
        "gone/0": unknown,
    }
    assert states(second, third)[f"{topic}/0"] == ("moved", False, 1, -7)
    assert states(old, second) == {
        f"{topic}/0": ("unchanged", None, 8, None),
        f"{topic}/1": ("unchanged", None, 2, None),
        "gone/0": unknown,
    }
    [group] = compared(first, second)
    assert [group[name] for name in ("unchanged", "stalled", "lag", "lag_delta")] == [3, 1, 10, 5]
    [group] = compared(old, old)
    assert [group[name] for name in ("unchanged", "stalled", "lag", "lag_delta")] == [3, None, None, None]

    diff = ("snapshots", "diff", tmp_path, "--engine", "local", "--only", "stalled", "--fail-on", "stalled")
    shown = zkgroups(*diff, first, second, "--by", "partition", "-o", "csv", "--no-headers")
    assert (shown.code, shown.out.count("\n"), f"{topic},0,unchanged" in shown.out) == (10, 1, True)
    assert "1 unchanged-held" not in shown.err
    assert "1 stalled." in shown.err
    assert zkgroups(*diff, second, third).code == 0
    refused = zkgroups(*diff, old, second)
    assert (refused.code, refused.out) == (4, "")
    assert f"snapshot {old} in file:{tmp_path} has no log ends, so `stalled` is unknown" in refused.err
    listed = zkgroups("snapshots", "list", tmp_path, "-o", "csv")
    where = listed.lines[0].split(",").index("lag")
    assert [line.split(",")[where] for line in listed.lines[1:]] == ["", "5", "10", "1"]


def test_each_commit_has_the_log_of_its_partition(
    source: SourceOptions, topic: str, billing: Any, legacy_kafka: KafkaBroker, zkgroups: Zkgroups, tmp_path: Path
) -> None:
    """A batch without log ends, of an earlier version or without brokers, has unknown lags."""
    at = TopicPartition(topic, 0)
    for offset, options in ((2, source), (4, source.without_brokers()), (9, source)):
        billing.set(at, offset)
        run_audit(str(tmp_path), options, once=True)
    legacy_kafka.write(topic, 0, 1)
    assert ends(read_commits(str(tmp_path)).slice(2)) == {f"{topic}/0": (0, 9)}
    shown = zkgroups("audit", tmp_path, "--show", "-o", "json")
    assert [(row["offset"], row["lag"], row["log_end"]) for row in shown.json["commits"]] == [
        (2, 7, 9),
        (4, None, None),
        (9, 0, 9),
    ]

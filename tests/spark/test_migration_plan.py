"""Plans made with Spark, from ZooKeeper and from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tests.lasting import lasting_client
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, NoLog, Reason
from zkgroups.core.migration.plan_rows import PLAN_VERSION, GroupPlan, MatchRow, MigrationStep, PlanRow, ReportRow
from zkgroups.core.migration.target_names import Renaming
from zkgroups.exceptions import NotFoundError, RefusedError, SparkJobError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import BrokerOptions
from zkgroups.migration import local, planning
from zkgroups.migration.engines import arrow_rows, chunks
from zkgroups.migration.engines.chunks import group_chunks
from zkgroups.migration.engines.tasks import PlanGroups
from zkgroups.migration.plan import PlanSettings, SourceNode
from zkgroups.migration.plan_folder import PlanFolder
from zkgroups.migration.source_nodes import NamedGroup
from zkgroups.migration.summaries import plan_rows
from zkgroups.spark import SourceOptions, take_snapshot
from zkgroups.spark.migration import SnapshotSource, groups, plan, read_plan, summary
from zkgroups.spark.migration.engine import SparkEngine, schema
from zkgroups.spark.storage.writing import write_and_list
from zkgroups.storage.atomic_folder import ABANDONED_AFTER
from zkgroups.storage.timestamps import timestamp_text
from zkgroups.testing import KafkaBroker

from ..kafka.conftest import Writer
from .conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

SECRET = "thrice-hidden"
ODD = "moving größe: 日本 b"
COMMIT, SKIP = Action.COMMIT, Action.SKIP


# Columns and chunks

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
OBSTACLES = st.builds(
    Obstacle,
    st.sampled_from(ObstacleKind),
    st.lists(TEXTS, max_size=2).map(tuple),
    st.integers(0, 9),
    st.none() | st.sampled_from(Reason),
    TEXTS,
)
LONGS = st.none() | st.integers(-(2**63), 2**63 - 1)


def _row(target: str = "t", **fields: Any) -> PlanRow:
    given: dict[str, Any] = dict.fromkeys(PlanRow._fields)
    given |= {"plan": "p", "planned_ms": 1, "source": "s", "group": target, "stale": False, "target": target}
    return PlanRow(**given | {"action": SKIP, "reason": Reason.STALE, "obstacles": ()} | fields)


@given(
    st.lists(
        st.builds(
            _row,
            TEXTS,
            topic=st.none() | TEXTS,
            offset=LONGS,
            retention_seconds=st.none() | st.floats(0, 1e9),
            action=st.sampled_from(Action),
            reason=st.sampled_from(Reason),
            obstacles=st.lists(OBSTACLES, max_size=3).map(tuple),
        ),
        max_size=5,
    )
)
def test_rows_survive_conversion_to_columns_and_back(rows: list[PlanRow]) -> None:
    batches = arrow_rows.batches(PlanRow, rows)
    assert [row for batch in batches for row in arrow_rows.rows(PlanRow, batch)] == rows


@pytest.mark.parametrize("kind", [SourceNode, PlanRow, ReportRow, MatchRow])
def test_spark_and_arrow_have_the_same_columns(kind: type[Any]) -> None:
    assert arrow_rows.arrow_schema(kind).equals(to_arrow_schema(schema(kind)))


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 20))
def test_chunks_have_whole_groups_within_the_limits(sizes: list[int], size: int) -> None:
    rows = [_row(f"g{number}", offset=each) for number, count in enumerate(sizes) for each in range(count)]
    table = pa.Table.from_batches(arrow_rows.batches(PlanRow, rows), arrow_rows.arrow_schema(PlanRow))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MAX_GROUPS", 3)
        patch.setattr(chunks, "MAX_OFFSETS", 10)
        found = list(group_chunks(PlanRow, table.to_batches(max_chunksize=size)))
    assert [row for chunk in found for row in chunk] == rows
    seen: set[str] = set()
    for chunk in found:
        names = {row.target for row in chunk}
        assert not names & seen
        seen |= names
        assert len(names) <= 3
        assert len(chunk) <= 10 or len(names) == 1


# Plans


@pytest.fixture(scope="module")
def legacy(legacy_kafka: KafkaBroker) -> Iterator[tuple[str, str]]:
    """The address of a ZooKeeper with groups, and their topic; one group has a member."""
    topic = "moving"
    legacy_kafka.create_topic(topic, 4)
    writer = Writer(legacy_kafka.address)
    for partition in range(4):
        writer.produce(topic, partition, [1_795_255_543_000] * 10)
    writer.commit(ODD, {(topic, 0): 2, (topic, 3): 4}, note="before")
    with lasting_client(legacy_kafka.zookeeper) as client:
        plant(
            client,
            {
                f"{ODD}/offsets/{topic}/0": b"5",
                f"{ODD}/offsets/{topic}/1": b"-3",
                f"{ODD}/offsets/{topic}/2": b"abc",
                f"{ODD}/offsets/{topic}/9": b"5",
                "moving-alive/ids/gone_host-1": b"{}",  # without a session, so no client owns it
                "moving-past/ids/gone_host-1": f'{{"subscription":{{"{topic}":1}},"pattern":"static"}}'.encode(),
                f"moving-alive/offsets/{topic}/0": b"10",
                f"moving-one/offsets/{topic}/0": b"1",
                f"moving-two/offsets/{topic}/0": b"1",
                f"moving-nameless/offsets/{topic}/0": b"1",
                f"moving-past/offsets/{topic}/0": b"11",
                f"moving-past/offsets/{topic}/1": b"1",
                "moving-past/offsets/no-such-topic/0": b"1",
                f"not-asked-for/offsets/{topic}/0": b"1",
            },
        )
        plant(client, {"moving-alive/ids/alive_host-1": b"{}"}, ephemeral=True)
        yield legacy_kafka.zookeeper, topic


EVERY = "moving.*"
RENAMING = Renaming({"moving-one": "moving-two"}, "moving-nameless", "")
_ODD_REASONS = ("unchanged", "negative", "no offset", "only on the target", "no such partition")
EXPECTED = [
    GroupPlan(
        group=ODD,
        target=ODD,
        obstacles=(),
        counts={"commit": 1, "skip": 4} | dict.fromkeys(_ODD_REASONS, 1),
        lag_before=5,
        lag_after=11,
    ),
    GroupPlan(
        group="moving-alive",
        target="moving-alive",
        obstacles=(Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["alive_host-1"]),),
        counts={"commit": 1, "unchanged": 1},
        lag_before=0,
        lag_after=0,
    ),
    GroupPlan(
        group="moving-nameless",
        target="",
        obstacles=(Obstacle(ObstacleKind.INVALID_NAME, detail="group '' has no characters"),),
        counts={"commit": 1, "unchanged": 1},
        lag_before=9,
        lag_after=9,
    ),
    GroupPlan(
        group="moving-one",
        target="moving-two",
        obstacles=(Obstacle.of(ObstacleKind.TARGET_CONFLICT, ["moving-two"]),),
        counts={"commit": 1, "unchanged": 1},
        lag_before=9,
        lag_after=9,
    ),
    GroupPlan(
        group="moving-past",
        target="moving-past",
        obstacles=(Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END),),
        counts=dict.fromkeys(("commit", "skip", "refuse", "unchanged", "no such topic", "past the end"), 1),
        lag_before=9,
        lag_after=9,
    ),
    GroupPlan(
        group="moving-two",
        target="moving-two",
        obstacles=(Obstacle.of(ObstacleKind.TARGET_CONFLICT, ["moving-one"]),),
        counts={"commit": 1, "unchanged": 1},
        lag_before=9,
        lag_after=9,
    ),
]


def _plan_rows(spark: SparkSession, destination: str) -> list[PlanRow]:
    return sorted(
        plan_rows(SparkEngine(spark), destination), key=lambda row: (row.group, row.topic or "", row.partition or 0)
    )


def test_a_plan_has_all_offsets_live_and_from_a_snapshot_and_no_secret(
    spark: SparkSession, spark_log: Path, legacy: tuple[str, str], legacy_kafka: KafkaBroker, tmp_path: Path
) -> None:
    (hosts, topic), live, later = legacy, str(tmp_path / "[live] é"), str(tmp_path / "later")
    brokers = BrokerOptions(legacy_kafka.address, _properties(tmp_path / "client.properties"))
    source = SourceOptions(zookeeper=hosts, groups=EVERY)

    planned = plan(spark, live, source, brokers, renaming=RENAMING, stale_after=3600.0)

    assert groups(spark, live) == EXPECTED
    assert (planned.groups, planned.blocked) == (6, 5)
    assert [planned.counts[action] for action in Action] == [6, 5, 1]
    assert (planned.source, planned.brokers) == (hosts, legacy_kafka.address)
    with brokers.connect() as connected:
        assert planned.cluster == connected.cluster_id()
    assert planned.retention_seconds == 86_400.0  # one day in this release
    assert summary(spark, live) == planned
    rows = _plan_rows(spark, live)
    assert {(row.plan, row.planned_ms, row.stale) for row in rows} == {(planned.plan, planned.planned_ms, False)}
    assert {(row.cluster, row.topics) for row in rows} == {(planned.cluster, None)}
    assert [
        (row.partition, row.offset, row.before, row.log_end, row.reason, row.planned)
        for row in rows
        if row.group == ODD
    ] == [
        (0, 5, 2, 10, Reason.UNCHANGED, 5),
        (1, None, None, 10, Reason.NEGATIVE, None),
        (2, None, None, 10, Reason.NO_OFFSET, None),
        (3, None, 4, 10, Reason.ONLY_ON_TARGET, None),
        (9, 5, None, None, Reason.NO_PARTITION, None),
    ]
    with lasting_client(hosts) as client:
        stat = client.get(f"/consumers/{ODD}/offsets/{topic}/0")[1]
    assert (rows[0].zxid, rows[0].committed_ms) == (stat.mzxid, stat.mtime)

    taken = take_snapshot(spark, str(tmp_path / "snapshots"), SourceOptions(zookeeper=hosts))
    from_snapshot = SnapshotSource(destination=str(tmp_path / "snapshots"), groups=EVERY, topics=f"{topic}|no.*")
    said = f"no snapshot 2001-01-01 in .*: the oldest is {taken.name}, the latest {taken.name}$"
    with pytest.raises(NotFoundError, match=said):
        plan(spark, later, replace(from_snapshot, at="2001-01-01"), brokers, renaming=RENAMING)
    again = plan(spark, later, from_snapshot, brokers, renaming=RENAMING)

    assert again.source == f"snapshot {taken.name} in {tmp_path / 'snapshots'}"
    assert again.plan != planned.plan
    of_it = {"plan": again.plan, "planned_ms": again.planned_ms, "source": again.source, "topics": from_snapshot.topics}
    assert _plan_rows(spark, later) == [row._replace(**of_it) for row in rows]
    locally = local.plan(str(tmp_path / "locally"), from_snapshot, brokers, renaming=RENAMING)
    of_it |= {"plan": locally.plan, "planned_ms": locally.planned_ms}
    assert _plan_rows(spark, str(tmp_path / "locally")) == [row._replace(**of_it) for row in rows]
    _assert_no_secret(spark, source, brokers, [spark_log, *tmp_path.rglob("*[!s]")])


def _properties(path: Path) -> str:
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ben" password="{SECRET}";'
    path.write_text(f"security.protocol=PLAINTEXT\nsasl.jaas.config={login}\n")
    return str(path)


def _assert_no_secret(
    spark: SparkSession, source: SourceOptions, brokers: BrokerOptions, files: Sequence[Path]
) -> None:
    """No secret is in the files or in Spark's view of the job."""
    engine = SparkEngine(spark)
    work = PlanGroups(source, brokers, PlanSettings(plan="p", planned_ms=1), engine.tally_sum())
    named = engine.rows(NamedGroup, [NamedGroup(group=ODD, target=ODD)])
    shown = named.by_target().map(work, PlanRow).frame._jdf.queryExecution().toString()
    assert "PlanGroups" in shown
    assert SECRET not in shown
    for file in files:
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_a_recreated_topic_is_detected_in_a_live_zookeeper(
    spark: SparkSession, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Without brokers, which would treat it as any topic."""
    plant(raw, {"g/offsets/orders/0": b"5", "g/offsets/kept/0": b"6"})
    for topic in ("kept", "orders"):
        raw.create(f"/brokers/topics/{topic}", b"{}", makepath=True)
    raw.set("/consumers/g/offsets/kept/0", b"7")

    planned = plan(spark, str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts), None)

    assert (planned.brokers, planned.retention_seconds, planned.blocked) == (None, None, 0)
    assert [(row.topic, row.action, row.reason, row.planned) for row in _plan_rows(spark, str(tmp_path))] == [
        ("kept", COMMIT, Reason.LOG_NOT_CHECKED, 7),
        ("orders", SKIP, Reason(NoLog.NEWER), None),
    ]


def test_a_plan_appears_completely_or_not_at_all_and_is_never_overwritten(
    spark: SparkSession, raw: Any, zookeeper_hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    plant(raw, {"g/offsets/orders/0": b"5"})
    source, destination, told = SourceOptions(zookeeper=zookeeper_hosts), tmp_path / "plan of g", list[str]()
    properties = tmp_path / "client.properties"
    properties.write_text("client.id=planner\n")
    brokers = BrokerOptions(kafka_broker.address, str(properties))
    long_ago, lately = (_left(destination, age) for age in (ABANDONED_AFTER * 1.1, ABANDONED_AFTER * 0.9))

    with pytest.raises(NotFoundError, match="no plan in"):
        read_plan(spark, str(destination))
    with pytest.raises(InvalidOptionError, match="cannot be read"):  # the driver has read it, the workers have not
        plan(spark, str(destination), source, brokers, on_progress=lambda _step: properties.unlink())
    with pytest.raises(NotFoundError, match="none of the selected groups"):
        plan(spark, str(destination), replace(source, groups="h"), None)
    assert (_parts(destination), long_ago.exists(), lately.exists()) == ([], False, True)
    assert [each.name for each in (destination / "_unfinished").iterdir()] == [lately.name]

    (destination / "plan").mkdir()
    (destination / "plan" / "part-0.parquet").write_bytes(b"half of it")  # by a killed run
    assert not folder_of(spark, destination).has_plan()
    first = plan(spark, str(destination), source, None, on_progress=told.append)

    assert len(told) == planning.STEPS
    with pytest.raises(RefusedError, match="already has a plan"):
        plan(spark, str(destination), source, None)
    assert summary(spark, str(destination)) == first


def test_a_plan_with_another_format_is_refused_with_advice(
    spark: SparkSession, raw: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Plans of earlier versions have no `_VERSION`."""
    plant(raw, {"g/offsets/orders/0": b"5"})
    plan(spark, str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts), None)
    version = tmp_path / "plan" / "_VERSION"
    assert version.read_text() == str(PLAN_VERSION)

    for found, replace_version in (("1", version.unlink), ("99", lambda: version.write_text("99"))):
        (tmp_path / "plan" / "._VERSION.crc").unlink(missing_ok=True)
        replace_version()
        with pytest.raises(
            RefusedError, match=f"has format {found}, but .* reads format {PLAN_VERSION}: make a new plan in another"
        ):
            read_plan(spark, str(tmp_path))
        assert folder_of(spark, tmp_path).has_plan()


def test_reports_are_stored_beside_the_plan_and_listed_oldest_first(spark: SparkSession, tmp_path: Path) -> None:
    folder, now = folder_of(spark, tmp_path), datetime(2026, 1, 31, 12, tzinfo=UTC)
    for step, at in (
        (MigrationStep.TO_ZOOKEEPER, now + timedelta(seconds=1)),
        (MigrationStep.APPLY, now),
        (MigrationStep.APPLY, now),
    ):
        with folder.new_report(step, at) as report:
            write_and_list(spark.range(1), report.path)
        assert report.name in folder.reports()
    with pytest.raises(SparkJobError, match="no report"), folder.new_report(MigrationStep.ROLLBACK, now):
        raise SparkJobError("no report")

    names = folder.reports()

    assert names == [
        "20260131T120000.000Z-apply",
        "20260131T120000.001Z-apply",
        "20260131T120001.000Z-to-zookeeper",
    ]
    assert folder.report(names[0]) == (folder.path("reports", names[0]), ReportRow)
    assert folder.report()[0] == folder.path("reports", names[-1])
    with pytest.raises(NotFoundError, match="no report"):
        folder.report("20260131T120000.000Z-rollback")


def folder_of(spark: SparkSession, folder: Path) -> PlanFolder:
    return SparkEngine(spark).folder(str(folder))


def _left(destination: Path, age: timedelta) -> Path:
    folder = destination / "_unfinished" / f"{timestamp_text(datetime.now(UTC) - age)}-0123abcd"
    folder.mkdir(parents=True)
    return folder


def _parts(destination: Path) -> list[Path]:
    return list(destination.glob("plan/*"))

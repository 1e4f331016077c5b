"""`zkgroups migrate` on real servers: plan, show, apply, verify, export and rollback."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import UnknownPartitionError
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from ..conftest import Zkgroups
from ..kept_spark import Kept
from ..running import run
from .moving import MESSAGES, MOVED, NOWHERE, Migrate, make_topic, native


def test_groups_are_planned_applied_verified_and_rolled_back(
    migrate_by: Migrate,
    zkgroups: Zkgroups,
    registry: Registry,
    brokers: Brokers,
    group: str,
    topic: str,
    tmp_path: Path,
) -> None:
    """One group is blocked by a live member."""
    migrate = migrate_by
    folder, busy = tmp_path / "plan", f"busy-{uuid4().hex[:8]}"
    with registry.group(busy).instance("anna") as anna:
        anna.register([topic])
        anna.claim(TopicPartition(topic, 0)).commit(3)
        planned = migrate("plan", folder, "-o", "json")
        assert planned.code == 4
        assert planned.err.splitlines()[-1] == f"Blocked groups: 1 of 2. Reasons: zkgroups migrate show {folder}"
        [row] = planned.json["plans"]
        assert (row["groups"], row["blocked"], row["actions"]) == (2, 1, {"commit": 3, "skip": 0, "refuse": 0})
        expect_what_is_shown(migrate, folder, group, busy)
        expect_what_is_applied(migrate, folder, brokers, group, busy)

    claim = zkgroups("claim", group, topic, "0", "--", "true")
    assert claim.code == 4
    assert "was moved to Kafka's own offsets" in claim.err
    states = {row["group"]: row["stage"] for row in migrate("status", folder, "-o", "json").json["groups"]}
    assert states == {group: "done", busy: "blocked"}

    back = migrate("rollback", folder, "--execute")
    assert back.code == 0, back.err
    assert native(brokers, group) == {}
    assert zkgroups("claim", group, topic, "0", "--", "true").code == 0


def expect_what_is_shown(migrate: Migrate, folder: Path, group: str, busy: str) -> None:
    printed = migrate("show", folder, "-o", "json")
    shown = {row["group"]: row for row in printed.json["groups"]}
    assert shown[group] == {
        "group": group,
        "target": group,
        "state": "ready",
        "actions": {"commit": 2, "skip": 0, "refuse": 0},
        "reasons": {"unchanged": 2},
        "lag_before": MESSAGES - 5,
        "lag_after": MESSAGES - 5,
        "retention_seconds": 604800.0,
        "obstacles": [],
    }
    assert shown[busy]["obstacles"] == ["legacy instances are registered: anna"]
    assert "Groups: 1 ready, 1 blocked. Offsets: 3 commit (3 unchanged)." in printed.err
    assert "of an unused group for 7d" in printed.err
    offsets = list(csv.DictReader(migrate("show", folder, "--offsets", "-o", "csv").lines))
    assert [(row["group"], row["offset"], row["log_end"], row["planned"]) for row in offsets] == [
        (group, "5", str(MESSAGES), "5"),
        (group, str(MESSAGES), str(MESSAGES), str(MESSAGES)),
        (busy, "3", str(MESSAGES), "3"),
    ]


def expect_what_is_applied(migrate: Migrate, folder: Path, brokers: Brokers, group: str, busy: str) -> None:
    dry = migrate("apply", folder, "-o", "json")
    results = {row["group"]: row["result"] for row in dry.json["groups"]}
    assert (dry.code, results) == (4, {group: "ready", busy: "left"})
    assert dry.err.splitlines()[-1] == "Nothing was changed: add --execute to apply."
    assert native(brokers, group) == {}

    done = migrate("apply", folder, "--execute", "-o", "json")
    results = {row["group"]: (row["result"], row["details"]) for row in done.json["groups"]}
    assert done.code == 4
    assert results == {group: ("done", []), busy: ("left", ["legacy instances are registered: anna"])}
    assert native(brokers, group) == MOVED
    assert native(brokers, busy) == {}
    assert "offsets: 2 written, 1 left.\nReport: file:" in done.err

    compared = migrate("verify", folder, "-o", "jsonl")
    [row] = map(json.loads, compared.lines)
    assert compared.code == 4
    assert "Blocked groups were not moved. Reasons: zkgroups migrate show" in compared.err
    assert (row["group"], row["match"], row["dual_commit"]) == (busy, "blocked", "zookeeper")
    assert row["detail"] == "legacy instances are registered: anna"


def test_an_offset_that_brokers_refuse_gives_exit_code_9(
    migrate: Migrate, kafka_broker: KafkaBroker, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    lost, name = make_topic(kafka_broker), f"partly-{uuid4().hex[:8]}"
    registry.group(name).offsets.set_many({TopicPartition(lost, 0): 1, TopicPartition(topic, 0): 2})
    folder = tmp_path / "plan"
    assert migrate("plan", folder).code == 0
    admin = AdminClient({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    admin.delete_topics([lost])[lost].result()
    while brokers.partitions([lost]):
        pass
    done = migrate("apply", folder, "--execute", "-o", "json")
    assert done.code == 9
    [row] = done.json["groups"]
    assert (row["result"], row["outcomes"]["written"], row["outcomes"]["failed"]) == ("failed", 1, 1)
    assert native(brokers, name) == {0: 2}
    assert f"zkgroups migrate show {folder} --report" in done.err
    report = {row["topic"]: row for row in migrate("show", folder, "--report", "-o", "json").json["offsets"]}
    assert (report[topic]["outcome"], report[topic]["written"], report[topic]["detail"]) == ("written", 2, None)
    assert (report[lost]["outcome"], report[lost]["written"]) == ("failed", None)
    assert report[lost]["detail"] == str(UnknownPartitionError(TopicPartition(lost, 0)))


def test_a_plan_from_a_snapshot_is_applied_after_zookeeper_was_shut_down(
    migrate: Migrate, kept: Kept, brokers: Brokers, group: str, zookeeper_hosts: str, kafka: str, tmp_path: Path
) -> None:
    taken = kept.run("snapshot", tmp_path / "data", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    assert taken.code == 0, taken.err
    gone = {"ZKGROUPS_ZOOKEEPER": NOWHERE}
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module', name='pyspark')")
    without_spark = gone | {"ZKGROUPS_BOOTSTRAP_SERVER": kafka, "PYTHONPATH": str(tmp_path)}
    chosen = ("--from-snapshot", tmp_path / "data", "-o", "json")
    planned = run("migrate", "plan", tmp_path / "plan", *chosen, env=without_spark)
    assert planned.code == 0, planned.err
    assert planned.json["plans"][0]["source"].startswith("snapshot ")
    assert migrate("apply", tmp_path / "plan", "--without-zookeeper", "--execute", **gone).code == 0
    assert native(brokers, group) == MOVED


def test_a_plan_without_brokers_can_only_be_exported(migrate: Migrate, group: str, topic: str, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    assert migrate("plan", folder, "--without-brokers", ZKGROUPS_BOOTSTRAP_SERVER=NOWHERE).code == 0
    refused = migrate("apply", folder, "--execute")
    assert (refused.code, refused.out) == (4, "")
    assert "was made without brokers" in refused.err
    written = migrate("export", folder, tmp_path / "files", "-o", "json")
    assert written.code == 0
    assert written.json["exports"] == [
        {"groups": 1, "blocked": 0, "offsets": 2, "script": str(tmp_path / "files" / "reset-offsets.sh")}
    ]
    [file] = (tmp_path / "files").glob("*.csv")
    assert file.read_text() == f"{topic},0,5\n{topic},1,{MESSAGES}\n"
    assert migrate("export", folder, tmp_path / "files").code == 4


def test_a_plan_for_another_cluster_is_refused(
    migrate: Migrate, legacy_kafka: KafkaBroker, group: str, tmp_path: Path
) -> None:
    assert migrate("plan", tmp_path / "plan").code == 0
    for command in ("apply", "follow"):
        refused = migrate(command, tmp_path / "plan", "--execute", "-b", legacy_kafka.address)
        assert (refused.code, refused.out) == (4, "")
        assert "the plan was made for Kafka cluster" in refused.err


@pytest.mark.usefixtures("cluster")
def test_a_folder_without_a_plan_gives_exit_code_3(migrate: Migrate, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    for command in ("show", "apply", "verify", "rollback", "status", "follow"):
        for engine in ("auto", "local", "spark"):
            ended = migrate(command, nothing, "--engine", engine)
            assert (ended.code, ended.out) == (3, ""), (command, engine)
            assert ended.err == f"zkgroups: no plan in file:{nothing}: run `zkgroups migrate plan` first\n"
    assert migrate("export", nothing, tmp_path / "files").code == 3
    assert migrate("plan", nothing, "--groups", "nobody").code == 3

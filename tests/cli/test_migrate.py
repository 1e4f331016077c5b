"""`zkgroups migrate` on real servers: plan, show, apply, verify, export, rollback, and one group in one command.

Small plans are moved without Spark. tests/spark shows that both engines do the same.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as parquet
import pytest
from confluent_kafka.admin import AdminClient
from zkgroups_cli.migrate.tables import RESET_ADVICE

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition
from zkgroups.core.znodes.own_nodes import GroupRoute, MarkState, RouteState, encode_route
from zkgroups.exceptions import UnknownPartitionError
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from ..core.layouts.written import storm_of_one_topic
from .conftest import Zkgroups
from .running import Ended, environment, run


@pytest.fixture
def migrate(zookeeper_hosts: str, kafka: str) -> Migrate:
    """Run `zkgroups migrate`, with both sides named in the environment."""
    both = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka}
    return lambda *arguments, **env: run("migrate", *arguments, env=both | env)


@pytest.fixture
def brokers(kafka: str) -> Iterator[Brokers]:
    with Brokers.connect(kafka) as found:
        yield found


@pytest.fixture(scope="module")
def topic(kafka_broker: KafkaBroker) -> str:
    return make_topic(kafka_broker)


@pytest.fixture
def group(registry: Registry, topic: str) -> str:
    """A new group with two offsets, and without members."""
    name = f"a b:ü {uuid4().hex[:8]}"
    registry.group(name).create()
    registry.group(name).offsets.set_many({TopicPartition(topic, 0): 5, TopicPartition(topic, 1): MESSAGES})
    return name


NOWHERE = "127.0.0.1:1"
MESSAGES = 20
"""In each partition."""

MOVED = {0: 5, 1: MESSAGES}
"""The offsets of `group` after it was moved."""

Migrate = Callable[..., Ended]


def make_topic(broker: KafkaBroker) -> str:
    name = f"moved-{uuid4().hex[:12]}"
    broker.create_topic(name, 2)
    for partition in range(2):
        broker.write(name, partition, MESSAGES)
    return name


def native(brokers: Brokers, group: str) -> dict[int, int]:
    """The offsets of the brokers for each partition of the topic."""
    return {at.partition: it.offset for at, it in brokers.committed([group])[group].items()}


def test_groups_are_planned_applied_verified_and_rolled_back(
    migrate: Migrate,
    zkgroups: Zkgroups,
    registry: Registry,
    brokers: Brokers,
    group: str,
    topic: str,
    tmp_path: Path,
) -> None:
    """One group is blocked by a live member."""
    folder, busy = tmp_path / "plan", f"busy-{uuid4().hex[:8]}"
    with registry.group(busy).instance("anna") as anna:
        anna.register([topic])
        anna.claim(TopicPartition(topic, 0)).commit(3)
        planned = migrate("plan", folder, "--all", "-o", "json")
        assert planned.code == 4
        assert planned.err.splitlines()[-1] == f"Blocked groups: 1 of 2. Reasons: zkgroups migrate show {folder}"
        [row] = planned.json["plans"]
        assert (row["groups"], row["blocked"], row["actions"]) == (2, 1, {"commit": 3, "skip": 1, "refuse": 0})
        expect_what_is_shown(migrate, folder, group, busy)
        expect_what_is_applied(migrate, folder, brokers, group, busy)

    assert zkgroups("claim", group, topic, "0", "--", "true").code == 4
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
    assert "Groups: 1 ready, 1 blocked. Offsets: 3 commit (unchanged), 1 skip (never committed)." in printed.err
    assert "of an unused group for 7d" in printed.err
    offsets = list(csv.DictReader(migrate("show", folder, "--offsets", "-o", "csv").lines))
    assert [(row["group"], row["offset"], row["log_end"], row["planned"]) for row in offsets] == [
        (group, "5", str(MESSAGES), "5"),
        (group, str(MESSAGES), str(MESSAGES), str(MESSAGES)),
        (busy, "3", str(MESSAGES), "3"),
        (busy, "", str(MESSAGES), ""),
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
    assert "offsets: 2 written, 2 left.\nReport: file:" in done.err

    compared = migrate("verify", folder, "-o", "jsonl")
    row, without = map(json.loads, compared.lines)
    assert (compared.code, without["match"]) == (4, "no offset")
    assert "Blocked groups were not moved. Reasons: zkgroups migrate show" in compared.err
    assert (row["group"], row["match"], row["dual_commit"]) == (busy, "blocked", "zookeeper")
    assert row["detail"] == "legacy instances are registered: anna"


def test_an_unreadable_offset_blocks_its_group_until_the_operator_decides(
    migrate: Migrate, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    """Also in `group`, `follow` and `switch`. The number of groups is said before anything is written."""
    name = f"unreadable-{uuid4().hex[:8]}"
    registry.group(name).offsets.set(TopicPartition(topic, 0), 5)
    registry.client.create(f"/consumers/{name}/offsets/{topic}/1", b"abc")
    blocked = migrate("plan", tmp_path / "blocked", "--groups", name)
    assert blocked.code == 4
    assert "1 refused: no offset" in migrate("show", tmp_path / "blocked").out
    assert migrate("group", name, tmp_path / "one", "--execute").code == 4
    assert migrate("switch", name, "--to", "kafka").code == 4
    assert migrate("switch", name, "--to", "kafka", "--on-unreadable", "skip").code == 0
    assert native(brokers, name) == {}

    skipped = migrate("plan", tmp_path / "skip", "--groups", name, "--on-unreadable", "skip")
    assert (skipped.code, skipped.err) == (
        0,
        f"Partitions without an offset on the brokers: 1 no offset. {RESET_ADVICE}\n",
    )
    followed = migrate("follow", tmp_path / "skip", "--on-unreadable", "block", "--execute")
    assert (followed.code, native(brokers, name)) == (4, {0: 5})
    assert f"{topic}/1: no offset" in followed.out
    assert migrate("follow", tmp_path / "skip", "--execute").code == 0
    verified = migrate("verify", tmp_path / "skip")
    assert (verified.code, verified.lines[1].split()[:4]) == (0, [name, name, topic, "1"])
    assert "1 equal, 1 no offset" in verified.err

    assert migrate("rollback", tmp_path / "skip", "--force", "--execute").code == 0
    assert migrate("plan", tmp_path / "start", "--groups", name, "--on-unreadable", "earliest").code == 0
    applied = migrate("apply", tmp_path / "start", "--execute")
    assert applied.err.splitlines()[:2] == [f"Groups in the plan: 1 ({name}).", RESET_ADVICE]
    assert native(brokers, name) == {0: 5, 1: 0}


def test_an_offset_that_brokers_refuse_gives_exit_code_9(
    migrate: Migrate, kafka_broker: KafkaBroker, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    lost, name = make_topic(kafka_broker), f"partly-{uuid4().hex[:8]}"
    registry.group(name).offsets.set_many({TopicPartition(lost, 0): 1, TopicPartition(topic, 0): 2})
    folder = tmp_path / "plan"
    assert migrate("plan", folder, "--all").code == 0
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
    rows = migrate("show", folder, "--report", "-o", "json").json["offsets"]
    report = {row["topic"]: row for row in rows if row["partition"] == 0}
    assert (report[topic]["outcome"], report[topic]["written"], report[topic]["detail"]) == ("written", 2, None)
    assert (report[lost]["outcome"], report[lost]["written"]) == ("failed", None)
    assert report[lost]["detail"] == str(UnknownPartitionError(TopicPartition(lost, 0)))


def test_a_plan_from_a_snapshot_is_applied_after_zookeeper_was_shut_down(
    migrate: Migrate, zkgroups: Zkgroups, brokers: Brokers, group: str, tmp_path: Path
) -> None:
    assert zkgroups("snapshot", tmp_path / "data").code == 0
    gone = {"ZKGROUPS_ZOOKEEPER": NOWHERE}
    planned = migrate("plan", tmp_path / "plan", "--all", "--from-snapshot", tmp_path / "data", "-o", "json", **gone)
    assert planned.code == 0, planned.err
    assert planned.json["plans"][0]["source"].startswith("snapshot ")
    assert migrate("apply", tmp_path / "plan", "--without-zookeeper", "--execute", **gone).code == 0
    assert native(brokers, group) == MOVED


def test_a_plan_without_brokers_can_only_be_exported(migrate: Migrate, group: str, topic: str, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    assert migrate("plan", folder, "--all", "--without-brokers", ZKGROUPS_BOOTSTRAP_SERVER=NOWHERE).code == 0
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
    assert migrate("plan", tmp_path / "plan", "--all").code == 0
    for command in ("apply", "follow"):
        refused = migrate(command, tmp_path / "plan", "--execute", "-b", legacy_kafka.address)
        assert (refused.code, refused.out) == (4, "")
        assert "the plan was made for Kafka cluster" in refused.err


@pytest.mark.usefixtures("cluster")
def test_a_folder_without_a_plan_gives_exit_code_3(migrate: Migrate, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    for command in ("show", "apply", "verify", "rollback", "status", "follow"):
        ended = migrate(command, nothing)
        assert (ended.code, ended.out) == (3, ""), command
        assert ended.err == f"zkgroups: no plan in file:{nothing}: run `zkgroups migrate plan` first\n"
    assert migrate("export", nothing, tmp_path / "files").code == 3
    assert migrate("plan", nothing, "--groups", "nobody").code == 3


def test_one_group_is_moved_under_another_name_and_may_be_unmarked(
    migrate: Migrate, zkgroups: Zkgroups, brokers: Brokers, group: str, topic: str, tmp_path: Path
) -> None:
    folder, name = tmp_path / "one", f"renamed {uuid4().hex[:8]}"
    shown = migrate("group", group, folder, "--as", name)
    assert (shown.code, native(brokers, name)) == (0, {}), shown.err
    assert "2 would write" in shown.err

    done = migrate("group", group, folder, "--execute")
    assert (done.code, native(brokers, name)) == (0, MOVED), done.err
    assert "Continuing with the plan" in done.err
    assert migrate("verify", folder).code == 0
    assert native(brokers, group) == {}
    for others in (("other",), (group, "--as", "another name")):
        other = migrate("group", others[0], folder, *others[1:], "--execute")
        assert (other.code, other.out) == (4, "")
        assert "is for other groups" in other.err

    assert zkgroups("migrate", "unmark", group).err == (
        f"removed the mark of group {group!r}: "
        f"the group was moved to Kafka's own offsets as '{name}', by plan {plan_of(folder)}\n"
    )
    assert zkgroups("migrate", "unmark", group).err == f"group {group!r} has no migration mark: nothing was changed\n"
    assert zkgroups("migrate", "unmark", "nobody").code == 3
    assert zkgroups("claim", group, topic, "0", "--", "true").code == 0


def test_a_blocked_plan_of_one_group_is_recreated_by_the_next_run(
    migrate: Migrate, registry: Registry, brokers: Brokers, group: str, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    with registry.group(group).instance("anna") as anna:
        anna.register([topic])
        blocked = migrate("group", group, folder, "--execute")
        assert (blocked.code, native(brokers, group)) == (4, {}), blocked.err
    first = plan_of(folder)

    registry.group(group).offsets.set(TopicPartition(topic, 0), MESSAGES + 7)
    ready = migrate("group", group, folder, "--on-out-of-range", "latest", "-o", "json")
    assert (ready.code, ready.json["groups"][0]["result"]) == (0, "ready")
    assert "has nothing to write: making a new one" in ready.err
    last = plan_of(folder)
    assert last != first

    other = migrate("group", group, folder, "--on-out-of-range", "earliest", "--execute")
    assert (other.code, other.out) == (4, "")
    assert (
        "was made with on-out-of-range=latest, on-unreadable=block: for other options, use another folder" in other.err
    )
    done = migrate("group", group, folder, "--on-out-of-range", "latest", "--execute")
    assert (done.code, native(brokers, group)) == (0, {0: MESSAGES, 1: MESSAGES}), done.err
    assert plan_of(folder) == last


def test_the_plan_of_one_group_is_kept_if_offsets_were_written_since(
    migrate: Migrate, registry: Registry, brokers: Brokers, group: str, topic: str, tmp_path: Path
) -> None:
    """Even a blocked plan has the earlier offsets: the group may be followed with it."""
    folder = tmp_path / "one"
    with registry.group(group).instance("anna") as anna:
        anna.register([topic])
        assert migrate("group", group, folder).code == 4
    first = plan_of(folder)
    brokers.commit({group: {TopicPartition(topic, 0): 5}})
    again = migrate("group", group, folder)
    assert (again.code, plan_of(folder)) == (4, first)
    assert "Continuing with the plan" in again.err


def plan_of(folder: Path) -> str:
    """Return the id of a plan."""
    [name] = {each["plan"] for each in parquet.read_table(folder / "plan").to_pylist()}
    return str(name)


def test_following_ends_when_the_last_member_has_left(
    migrate: Migrate, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    name, at = f"followed-{uuid4().hex[:8]}", TopicPartition(topic, 0)
    with registry.group(name).instance("anna") as anna, ThreadPoolExecutor() as pool:
        anna.register([topic])
        claim = anna.claim(at)
        claim.commit(3)
        assert migrate("plan", tmp_path / "plan", "--all").code == 4
        looked = migrate("follow", tmp_path / "plan", "-o", "json")
        assert (looked.code, native(brokers, name)) == (0, {})
        assert looked.json["groups"][0]["state"] == "following"

        following = pool.submit(migrate, "follow", tmp_path / "plan", "--every", "0.1", "--execute", "-o", "json")
        for offset in (3, 7):
            claim.commit(offset)
            wait_for(following, lambda offset=offset: native(brokers, name) == {0: offset})
        claim.commit(9)
        anna.deregister()
        done = following.result(60)
    assert done.code == 0, done.err
    assert [(row["state"], row["behind"]) for row in done.json["groups"]] == [("done", 0)]
    assert f"{name}: following: all members have left" in done.err
    assert f"{name}: done" in done.err
    assert native(brokers, name) == {0: 9}


def wait_for(running: Any, holds: Callable[[], bool]) -> None:
    while not holds():
        assert not running.done(), running.result()


STORM = ("--layout", "storm:/kafkastorm")


@pytest.fixture
def spout(zookeeper_hosts: str, topic: str) -> Iterator[str]:
    """The offsets of a Storm spout."""
    name = f"spout {uuid4().hex[:8]}"
    with lasting_client(zookeeper_hosts) as client:
        offsets = {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): MESSAGES}
        for path, data in storm_of_one_topic(name, offsets).items():
            client.create(path, data, makepath=True)
        yield name


def test_one_group_of_another_system_is_moved_after_its_writers_were_stopped(
    migrate: Migrate, zkgroups: Zkgroups, brokers: Brokers, spout: str, tmp_path: Path
) -> None:
    """tests/layouts shows the same for a plan of many groups."""
    folder = tmp_path / "one"
    refused = migrate("group", spout, folder, *STORM, "--execute")
    assert (refused.code, native(brokers, spout)) == (4, {})
    assert "nothing in ZooKeeper shows whether the offsets of layout storm:/kafkastorm are still written" in refused.out
    assert migrate("group", spout, folder, *STORM, "--execute", "--writers-stopped").code == 0
    assert native(brokers, spout) == MOVED
    assert "Layout: storm:/kafkastorm." in migrate("show", folder).err
    for another in (["--layout", "storm:/other"], []):  # without one, a legacy group may have the same name
        refused = migrate("group", spout, folder, *another, "--execute")
        assert (refused.code, "with the layout storm:/kafkastorm: give the same" in refused.err) == (4, True)
    assert zkgroups("migrate", "unmark", spout).code == 3  # there is no such legacy group
    assert f"removed the mark of group {spout!r}" in zkgroups("migrate", "unmark", spout, *STORM).err
    assert zkgroups("migrate", "unmark", spout, *STORM).err.endswith("has no migration mark: nothing was changed\n")


def test_local_commands_import_neither_spark_nor_pandas(
    zookeeper_hosts: str, kafka: str, group: str, tmp_path: Path
) -> None:
    program = """
import sys
from zkgroups_cli.main import run
applied, back = ["apply", "--execute"], ["rollback", "--execute"]
for arguments in (["plan", "--all"], ["show"], applied, ["verify"], ["status"], back):
    command, *more = arguments
    assert run(["migrate", command, sys.argv[1], *more]) == 0, command
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
"""
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "plan")], env=environment(env), check=True, timeout=120
    )


@pytest.mark.zookeeper
def test_status_shows_groups_that_were_moved_by_a_plan_or_live(registry: Registry, zookeeper_hosts: str) -> None:
    for name in ("billing", "invoices", "orders"):
        registry.group(name).create()
    marks.put(registry._context, {"billing": "accounts"}, plan="p1", state=MarkState.MOVED)
    marks.put(registry._context, {"invoices": "invoices"}, plan="live-1", state=MarkState.MOVED)
    registry.client.create("/consumers/orders/migration", b"?")
    route = encode_route(GroupRoute("live-1", RouteState.KAFKA, 1_795_255_543_000))
    registry.client.create("/zkgroups/routes/invoices", route, makepath=True)
    for number, holder in enumerate((b"gateway g1", b"member anna")):
        registry.client.create(f"/zkgroups/routes/invoices/{number}", holder)
    shown = run("migrate", "status", "-z", zookeeper_hosts)
    assert shown.code == 0
    assert [(line.split()[:4], line.split("  ")[-1].strip()) for line in shown.lines[1:]] == [
        (["billing", "accounts", "moved", "p1"], "-"),
        (["invoices", "invoices", "kafka", "live-1"], "gateway g1, member anna"),
        (["orders", "-", "unreadable", "-"], "-"),
    ]

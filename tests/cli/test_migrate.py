"""`zkgroups migrate` on real servers: plan, show, apply, verify, follow and rollback, and their errors.

All runs that need Spark share one session in another process: see `migrating.py`.
"""

from __future__ import annotations

import csv
import doctest
import io
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import click
import pyarrow.parquet as parquet
import pytest
from confluent_kafka.admin import AdminClient
from zkgroups_cli.migrate import engines, tables
from zkgroups_cli.migrate.commands import migrate as migrate_commands
from zkgroups_cli.migrate.engines import EngineKind, EngineOptions
from zkgroups_cli.shared import progress
from zkgroups_cli.shared.options import Options
from zkgroups_cli.shared.spark_options import SparkOptions

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import UnknownPartitionError
from zkgroups.kafka import Brokers
from zkgroups.storage.files import CONFIGURATION
from zkgroups.testing import KafkaBroker

from .conftest import Zkgroups
from .migrating import Kept
from .running import Ended, environment, run

NOWHERE = "127.0.0.1:1"
MESSAGES = 20
"""In each partition."""

Migrate = Callable[..., Ended]


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    with Kept() as kept:
        yield kept


@pytest.fixture
def migrate(kept: Kept, zookeeper_hosts: str, kafka: str) -> Migrate:
    """Run `zkgroups migrate`, with both sides named in the environment. Small plans run without Spark."""
    both = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka}

    def migrate(*arguments: Any, **env: str) -> Ended:
        ended = kept.run("migrate", *arguments, env=both | env)
        assert "Traceback" not in ended.err
        return ended

    return migrate


@pytest.fixture(params=["local", "spark"])
def migrate_by(migrate: Migrate, request: pytest.FixtureRequest) -> Migrate:
    """Run it with each engine."""
    return lambda *arguments, **env: migrate(*arguments, "--engine", request.param, **env)


@pytest.fixture
def brokers(kafka: str) -> Iterator[Brokers]:
    with Brokers.connect(kafka) as found:
        yield found


def make_topic(broker: KafkaBroker) -> str:
    name = f"moved-{uuid4().hex[:12]}"
    broker.create_topic(name, 2)
    for partition in range(2):
        broker.write(name, partition, MESSAGES)
    return name


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


def native(brokers: Brokers, group: str) -> dict[int, int]:
    """The offsets of the brokers for each partition of the topic."""
    return {at.partition: it.offset for at, it in brokers.committed([group])[group].items()}


MOVED = {0: 5, 1: MESSAGES}


# From plan to rollback


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


def test_one_group_is_moved_under_another_name_and_may_be_unmarked(
    migrate_by: Migrate, zkgroups: Zkgroups, brokers: Brokers, group: str, topic: str, tmp_path: Path
) -> None:
    migrate = migrate_by
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
        f"unmarked {group}: the group was moved to Kafka's own offsets as '{name}', by plan {plan_of(folder)}\n"
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
    assert "had nothing to write: recreating it" in ready.err
    last = plan_of(folder)
    assert last != first

    other = migrate("group", group, folder, "--on-out-of-range", "earliest", "--execute")
    assert (other.code, other.out) == (4, "")
    assert "was made with on-out-of-range=latest: for other options, use another folder" in other.err
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


def test_an_offset_that_brokers_refuse_gives_exit_code_9(
    migrate: Migrate, kafka_broker: KafkaBroker, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    lost, name = make_topic(kafka_broker), f"partly-{uuid4().hex[:8]}"
    registry.group(name).offsets.set_many({TopicPartition(lost, 0): 1, TopicPartition(topic, 0): 2})
    folder = tmp_path / "plan"
    assert migrate("plan", folder).code == 0
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
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
    migrate: Migrate, kept: Kept, brokers: Brokers, group: str, zookeeper_hosts: str, tmp_path: Path
) -> None:
    taken = kept.run("snapshot", tmp_path / "data", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    assert taken.code == 0, taken.err
    gone = {"ZKGROUPS_ZOOKEEPER": NOWHERE}
    planned = migrate("plan", tmp_path / "plan", "--from-snapshot", tmp_path / "data", "-o", "json", **gone)
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


# Follow


def test_following_ends_when_the_last_member_has_left(
    migrate: Migrate, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    name, at = f"followed-{uuid4().hex[:8]}", TopicPartition(topic, 0)
    with registry.group(name).instance("anna") as anna, ThreadPoolExecutor() as pool:
        anna.register([topic])
        claim = anna.claim(at)
        claim.commit(3)
        assert migrate("plan", tmp_path / "plan").code == 4
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


def test_ctrl_c_ends_following_and_keeps_the_written_offsets(
    migrate: Migrate, kept: Kept, registry: Registry, brokers: Brokers, topic: str, tmp_path: Path
) -> None:
    name = f"left-{uuid4().hex[:8]}"
    with registry.group(name).instance("anna") as anna, ThreadPoolExecutor() as pool:
        anna.register([topic])
        anna.claim(TopicPartition(topic, 0)).commit(3)
        assert migrate("plan", tmp_path / "plan").code == 4
        following = pool.submit(migrate, "follow", tmp_path / "plan", "--every", "100", "--execute")
        wait_for(following, lambda: native(brokers, name) == {0: 3})
        kept.signal(signal.SIGINT)
        ended = following.result(30)
    assert ended.code == 130
    assert ended.lines[1].split()[:3] == [name, name, "following"]


def wait_for(running: Any, holds: Callable[[], bool]) -> None:
    while not holds():
        assert not running.done(), running.result()


# Without Spark


@pytest.mark.parametrize("module", [progress, tables], ids=lambda module: module.__name__)
def test_docstring_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_a_terminal_shows_progress_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.progress(Options(), 2, lambda: 0.5, 100_000) as on_progress:
        on_progress("applying")
        while "left" not in screen.getvalue():
            pass
    assert re.search(r"applying .*50,000 of 100,000 offsets, [0-9,]+/s, 0:00:0\d left", screen.getvalue())


@pytest.mark.parametrize("name", migrate_commands.commands)
def test_every_option_in_an_example_exists(name: str) -> None:
    """The examples are not run: the tests above show what the commands do."""
    command = migrate_commands.commands[name]
    _, _, text = (command.help or "").partition("Example:\n")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line)
        arguments = words[words.index(name) + 1 :]
        assert words[words.index(name) - 1] == "migrate"
        with click.Context(click.Command("zkgroups"), obj=Options()) as above:
            assert command.make_context(name, arguments, parent=above).params


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "x"), "a plan (or --without-brokers) needs the Kafka brokers"),
        (("plan", "x", "-b", NOWHERE, "--rename", "a"), "'a' is not of the form OLD=NEW"),
        (("plan", "x", "-b", NOWHERE, "--rename", "a=b", "--rename", "a=c"), "two new names for 'a'"),
        (("plan", "x", "-b", NOWHERE, "--rename-regex", "(", "b"), "it is not a regular expression"),
        (("plan", "x", "-b", NOWHERE, "--skip-stale"), "--skip-stale needs --stale-after"),
        (("plan", "x", "--without-brokers", "--at", "latest"), "--at needs --from-snapshot"),
        (("plan", "x", "-b", NOWHERE, "--groups", "("), "groups is '(', but it is not a regular expression"),
        (("plan", "x", "--without-brokers", "--groups", "("), "groups is '(', but it is not a regular expression"),
        (("apply", "x"), "migrate apply needs the Kafka brokers"),
        (("group", "a/b", "x", "-b", NOWHERE), "contains a slash"),
        (("apply", "x", "--conf", "y"), "'y' is not like KEY=VALUE"),
        (
            ("apply", "x", "-b", NOWHERE, "--engine", "local", "--master", "local"),
            "--master and --conf need --engine spark",
        ),
        (
            ("plan", "x", "-b", NOWHERE, "--engine", "local", "--from-snapshot", "y"),
            "--from-snapshot needs --engine spark",
        ),
        (("show", "hdfs://nn/x", "--engine", "local"), "it must be the name of a folder on this machine"),
    ],
    ids=str,
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    ended = run("migrate", *arguments, env={"ZKGROUPS_ZOOKEEPER": NOWHERE, "JAVA_HOME": "", "PATH": "/nowhere"})
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert len(ended.err.splitlines()) <= 2


def test_unreachable_servers_give_exit_code_7_before_spark_starts() -> None:
    away = ("-z", NOWHERE, "--timeout", "0.5")
    plans = (("plan", "x", "--without-brokers"), ("plan", "x", "-b", NOWHERE))
    for arguments in (*plans, ("apply", "x", "-b", NOWHERE, "--engine", "spark")):
        ended = run("migrate", *arguments, *away, env={"JAVA_HOME": "", "PATH": "/nowhere"})
        assert (ended.code, ended.out) == (7, "")


@pytest.mark.parametrize("command", ["apply", "rollback", "group", "follow", "unmark"])
def test_writing_commands_are_refused_with_read_only(command: str) -> None:
    arguments = {"group": ("g", "x", "--execute"), "unmark": ("g",)}.get(command, ("x", "--execute"))
    ended = run("migrate", command, *arguments, "--read-only", "-z", NOWHERE, "-b", NOWHERE)
    assert (ended.code, ended.out) == (4, "")
    assert ended.err == "zkgroups: this command writes, but --read-only was given: leave it out to write\n"


@pytest.mark.parametrize(
    ("module", "extra", "engine"),
    [("pyspark", "spark", "spark"), ("pyarrow", "migrate", "local"), ("kafka", "kafka", "auto")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, module: str, extra: str, engine: str
) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')")
    both = ("-z", NOWHERE, "-b", NOWHERE, "--timeout", "0.5", "--engine", engine)
    ended = run("migrate", "apply", "x", *both, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (1, "")
    assert f"pip install 'zkgroups[{extra}]'" in ended.err


def test_auto_starts_spark_for_large_plans_other_file_systems_and_chosen_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in CONFIGURATION:
        monkeypatch.delenv(name, raising=False)

    def is_local(destination: str, *, small: bool, master: str | None = None, **settings: str) -> bool:
        return EngineOptions(EngineKind.AUTO, SparkOptions(master, settings)).is_local(
            destination, is_small=lambda: small
        )

    assert is_local("plan", small=True)
    assert not is_local("plan", small=False)
    assert not is_local("s3a://plans/one", small=True)
    assert not is_local("plan", small=True, master="local[8]")
    assert not is_local("plan", small=True, setting="1")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")  # it may set another default file system
    assert not is_local("plan", small=True)
    assert is_local("file:/plan", small=True)


def test_without_spark_auto_moves_large_plans_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _name: None)
    assert EngineOptions(EngineKind.AUTO, SparkOptions(None, {})).is_local("plan", is_small=lambda: False)


def test_local_commands_import_neither_spark_nor_pandas(
    zookeeper_hosts: str, kafka: str, group: str, tmp_path: Path
) -> None:
    program = """
import sys
from zkgroups_cli.main import run
for arguments in (["plan"], ["show"], ["apply", "--execute"], ["verify"], ["status"], ["rollback", "--execute"]):
    command, *more = arguments
    assert run(["migrate", command, sys.argv[1], *more]) == 0, command
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
"""
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "plan")], env=environment(env), check=True, timeout=120
    )

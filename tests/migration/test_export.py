"""Exporting a plan: the files, and Kafka's own tool reading them, for any group name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import NAMES
from zkgroups import TopicPartition
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Reason
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.offsets.files import OffsetRecord, group_file_name, parse_offsets
from zkgroups.exceptions import RefusedError, StorageError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import Brokers
from zkgroups.migration.summaries import SCRIPT, export
from zkgroups.testing import KafkaBroker
from zkgroups.testing.java import fetch, find_java
from zkgroups.testing.kafka_broker import release_jars

from .rows import row

ROW = row("billing", "billing", TopicPartition("orders", 0), Decision(Action.COMMIT, Reason.UNCHANGED, 5), offset=5)


def of_group(name: str, *offsets: int, topic: str = "orders", **changes: Any) -> list[PlanRow]:
    """Return rows of a group with these offsets, from partition 0 on."""
    group = ROW._replace(group=name, target=name, topic=topic, **changes)
    return [group._replace(partition=n, offset=offset, planned=offset) for n, offset in enumerate(offsets)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_each_group_has_a_file_and_blocked_groups_have_none(tmp_path: Path) -> None:
    skipped = ROW._replace(action=Action.SKIP, reason=Reason.ALREADY_THERE, planned=None, partition=2)
    rows = [*of_group("billing", 5, 0), skipped, *of_group("done", 1, action=Action.SKIP)]
    rows += of_group("shipping", 3, obstacles=(Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["anna"]),))
    done = export(rows, tmp_path / "new" / "folder")
    assert (done.groups, done.offsets, done.blocked) == (1, 2, ("shipping",))
    assert files(done.script.parent) == {"billing.csv", SCRIPT}
    text = (tmp_path / "new" / "folder" / "billing.csv").read_text()
    assert text == "orders,0,5\norders,1,0\n"
    assert parse_offsets(text)[1] == OffsetRecord(None, TopicPartition("orders", 1), 0)
    assert "\nreset billing billing.csv\n" in done.script.read_text()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "billing.csv").write_text("orders,0,1\n")
    with pytest.raises(RefusedError, match="is not empty"):
        export([ROW], tmp_path)
    with pytest.raises(InvalidOptionError, match="cannot be used"):
        export([ROW], tmp_path / "billing.csv")
    assert files(tmp_path) == {"billing.csv"}


@given(st.lists(NAMES | st.text(min_size=1, max_size=4).filter(lambda name: name.isprintable()), max_size=5))
def test_file_names_of_groups_differ_even_if_case_is_ignored(names: list[str]) -> None:
    found = {group_file_name(name).lower() for name in names}
    assert len(found) == len(set(names))
    assert all(name.isascii() and "/" not in name and not name.startswith((".", "-")) for name in found)
    assert all(len(name) < 200 for name in found)


@pytest.mark.parametrize(
    ("arguments", "brokers", "said"),
    [(("--now",), "kafka1:9092", "usage: "), ((), None, "BOOTSTRAP_SERVER must name the brokers")],
)
def test_the_script_refuses_what_it_cannot_do(
    tmp_path: Path, arguments: tuple[str, ...], brokers: str | None, said: str
) -> None:
    script = export(of_group("billing", 5, brokers=brokers), tmp_path / "files").script
    done = subprocess.run(["sh", script, *arguments], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


# With Kafka's own tool

# One, because each call takes Java seconds.
ODD = "--it's a:ü $HOME `x` \"="


def tool(folder: Path, release: str) -> Path:
    """Create the tool as Kafka installs it: a script that starts Java."""
    jars, main = list(release_jars(release)), "kafka.admin.ConsumerGroupCommand"
    if not release.startswith("1."):
        more = ("org.apache.kafka:kafka-tools", "org.apache.kafka:kafka-tools-api")
        jars += fetch(*(f"{name}:{release}" for name in more), dependencies=False)
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    path = folder / "kafka consumer groups"
    java = f"'{find_java()}' -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    path.write_text(f"#!/bin/sh\nexec {java} -cp '{os.pathsep.join(map(str, jars))}' {main} \"$@\"\n")
    path.chmod(0o755)
    return path


def run(script: Path, tool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script in another folder, with the C locale."""
    environment = {"PATH": os.environ["PATH"], "KAFKA_CONSUMER_GROUPS": str(tool), "LC_ALL": "C"}
    command: Sequence[str | Path] = ["sh", script, *arguments]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=100)


@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)  # jars may have to be fetched
@pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"])
def test_kafkas_tool_reads_the_files_and_writes_the_offsets(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    running: KafkaBroker = request.getfixturevalue(broker)
    topic = f"exported-to-{broker}"
    running.create_topic(topic, 2)
    with Brokers.connect(running.address) as brokers:
        rows = of_group(f"{topic} {ODD}", 0, 0, topic=topic, brokers=running.address)
        script = export(rows, tmp_path / "files of a plan").script
        kafka = tool(tmp_path, running.release)

        shown = run(script, kafka)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.count(topic) >= 2
        assert brokers.committed([rows[0].target]) == {rows[0].target: {}}

        done = run(script, kafka, "--execute")
        assert done.returncode == 0, done.stderr
        found = brokers.committed([rows[0].target])[rows[0].target]
        assert {at: each.offset for at, each in found.items()} == {row.at: row.planned for row in rows}


def test_an_export_that_cannot_be_written_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any, **_options: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    folder = tmp_path / "files"
    with pytest.raises(StorageError, match=f"^{folder} could not be written: No space left on device; delete it"):
        export([ROW], folder)
    assert list(folder.iterdir()) == []

"""`zkgroups migrate` with groups of another system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.lasting import lasting_client
from zkgroups import TopicPartition
from zkgroups.kafka import Brokers

from ...core.layouts.written import storm_of_one_topic
from ..conftest import Zkgroups
from .moving import MESSAGES, MOVED, Migrate, native

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


def test_a_group_of_another_system_is_moved_after_its_writers_were_stopped(
    migrate_by: Migrate, zkgroups: Zkgroups, brokers: Brokers, spout: str, tmp_path: Path
) -> None:
    migrate, plan = migrate_by, tmp_path / "plan"
    assert migrate("plan", plan, *STORM, "--groups", spout).code == 0
    shown = migrate("show", plan)
    assert (shown.code, "Layout: storm:/kafkastorm." in shown.err) == (0, True), shown.err
    refused = migrate("apply", plan, "--execute")
    assert (refused.code, native(brokers, spout)) == (4, {})
    assert "nothing in ZooKeeper shows whether the offsets of layout storm:/kafkastorm are still written" in refused.out
    assert migrate("apply", plan, "--execute", "--writers-stopped").code == 0
    assert native(brokers, spout) == MOVED
    assert migrate("verify", plan).code == 0
    assert "done" in migrate("status", plan).out

    assert zkgroups("migrate", "unmark", spout).code == 3  # there is no such legacy group
    assert f"removed the mark of group {spout!r}" in zkgroups("migrate", "unmark", spout, *STORM).err
    assert zkgroups("migrate", "unmark", spout, *STORM).err.endswith("has no migration mark: nothing was changed\n")


def test_one_group_of_another_system_is_moved_in_one_command(
    migrate: Migrate, brokers: Brokers, spout: str, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    assert migrate("group", spout, folder, *STORM, "--execute").code == 4
    assert migrate("group", spout, folder, *STORM, "--execute", "--writers-stopped").code == 0
    assert native(brokers, spout) == MOVED
    for another in (["--layout", "storm:/other"], []):  # without one, a legacy group may have the same name
        refused = migrate("group", spout, folder, *another, "--execute")
        assert (refused.code, "with the layout storm:/kafkastorm: give the same" in refused.err) == (4, True)


def test_a_plan_from_a_snapshot_takes_no_layout(migrate: Migrate, tmp_path: Path) -> None:
    refused = migrate("plan", tmp_path / "plan", *STORM, "--from-snapshot", tmp_path)
    assert (refused.code, "--layout cannot be combined with --from-snapshot" in refused.err) == (2, True)

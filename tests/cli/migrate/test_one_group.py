"""`zkgroups migrate group`: one group is moved in one command."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as parquet

from zkgroups import Registry, TopicPartition
from zkgroups.kafka import Brokers

from ..conftest import Zkgroups
from .moving import MESSAGES, MOVED, Migrate, native


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

"""Restoring offsets from snapshots and audits, without Spark: choosing, printing and writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pyarrow as pa
import pytest

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition
from zkgroups.audit.audit import run_audit
from zkgroups.audit.journal import Journal
from zkgroups.core.table_columns import Table
from zkgroups.exceptions import InvalidInputError, InvalidOptionError, NotFoundError, RefusedError
from zkgroups.snapshots.local_snapshot import ArrowLayout, take_snapshot
from zkgroups.snapshots.read_snapshot import read_snapshot
from zkgroups.snapshots.restore import RestorableTopic, restorable_of, restorable_topics
from zkgroups.storage.files import parse_timestamp
from zkgroups.tables.source_options import SourceOptions

from ..spark.commands import Command, command_on
from ..spark.model import files, plant, spoil

pytestmark = pytest.mark.zookeeper

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
Take = Callable[..., str]


@pytest.fixture
def take(zookeeper_hosts: str, tmp_path: Path) -> Take:
    """Take a snapshot, optionally with a cluster name; return its name."""

    def take(cluster: str | None = None, **chosen: Any) -> str:
        source = SourceOptions(zookeeper=zookeeper_hosts, cluster=cluster, **chosen)
        return take_snapshot(str(tmp_path), source).name

    return take


@pytest.fixture
def zkgroups(zookeeper_hosts: str) -> Iterator[Command]:
    with command_on(None, zookeeper_hosts) as command:
        yield command


@pytest.fixture
def billing(registry: Registry) -> Any:
    group = registry.group("billing")
    group.offsets.set_many({P0: 50, P1: 60, TopicPartition("refunds", 0): 7})
    return group


def there(registry: Registry) -> dict[str, int]:
    return {f"{each.group}/{each.at}": each.offset for each in registry.offsets() if isinstance(each, CommittedOffset)}


# Contents


def test_every_offset_is_restorable_or_has_a_problem(take: Take, raw: Any, tmp_path: Path) -> None:
    model = plant(raw, ["billing", "shipping"])
    spoil(model, raw)
    table = read_snapshot(str(tmp_path), take())
    found, rows = list(restorable_topics(table)), table.to_pylist()
    expected = [row for row in model.rows[Table.OFFSETS] if row["problem"] is None]
    assert {(each.group, at.topic, at.partition): offset for each in found for at, offset in each.offsets.items()} == {
        (row["group"], row["topic"], row["partition"]): row["offset"] for row in expected
    }
    assert [(each.group, each.topic) for each in found] == sorted({(row["group"], row["topic"]) for row in rows})
    problems = {node.path: node for each in found for node in each.problems}
    assert problems.keys() == {f"/consumers/odd/offsets/{name}" for name in ("t/1", "t/2", "hidden")}
    assert problems["/consumers/odd/offsets/t/1"].data == b"7.5"
    assert isinstance(problems["/consumers/odd/offsets/hidden"], ForbiddenNode)

    layout = ArrowLayout.at(str(tmp_path))
    chosen = layout.choose_in_cluster()
    topics = {"t1": [1, 3], "t": [1]}
    some = list(restorable_of(layout, chosen, groups=["shipping", "odd"], topics=topics))
    assert [(each.group, [at.partition for at in each.offsets], len(each.problems)) for each in some] == [
        ("odd", [], 1),
        ("shipping", [1, 3], 0),
    ]
    hidden = restorable_of(layout, chosen, groups=["odd"], topics={"hidden": [9]})
    assert [len(each.problems) for each in hidden] == [1]


def test_rows_written_by_other_programs_are_checked() -> None:
    def of(*rows: tuple[str, str, int, int | None]) -> list[RestorableTopic]:
        names = ("group", "topic", "partition", "offset")
        return list(restorable_topics(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])))

    [found] = of(("g", "t", 1, None), ("g", "t", 0, 5))
    assert (found.offsets, [node.path for node in found.problems]) == (
        {TopicPartition("t", 0): 5},
        ["/consumers/g/offsets/t/1"],
    )
    for row in (("a/b", "t", 0, 5), ("g", "t/0", 0, 5), ("g", "t", -1, 5), ("g", "t", 0, -5)):
        with pytest.raises(InvalidInputError):
            of(row)
    with pytest.raises(InvalidInputError, match="two offsets for t/0 of group 'g'"):
        of(("g", "t", 0, 5), ("g", "t", 0, 6))


def test_the_cluster_of_the_address_or_the_named_one_is_chosen(
    take: Take, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    registry.group("billing").offsets.set(P0, 1)
    blue, ours, blue_again = take("blue"), take(), take("blue")
    (tmp_path / f"table=offsets/snapshot={blue}" / "_SUMMARY.json").unlink()  # as written by an earlier version

    def meant(at: str | None = None, **of: str | None) -> tuple[str, str | None]:
        found = ArrowLayout.at(str(tmp_path)).choose_in_cluster(at, **of)
        return found.name, found.cluster

    assert meant(address=zookeeper_hosts) == (ours, zookeeper_hosts)
    assert meant(cluster="blue", address=zookeeper_hosts) == (blue_again, "blue")
    assert meant("previous", cluster="blue") == (blue, "blue")
    assert meant(parse_timestamp(ours).isoformat(), cluster="blue") == (blue, "blue")
    assert meant(blue, address=zookeeper_hosts) == (blue, "blue"), "it was named"
    for unclear in (None, "latest", "previous"):
        with pytest.raises(InvalidOptionError, match=f"snapshots of {zookeeper_hosts}, blue|snapshots of blue, "):
            meant(unclear, address="zk9:2181")
    for since in ({"address": zookeeper_hosts}, {"cluster": zookeeper_hosts}):
        with pytest.raises(NotFoundError, match=f"of {zookeeper_hosts} in "):
            meant(parse_timestamp(blue).isoformat(), **since)
    with pytest.raises(InvalidOptionError, match="choose one"):
        meant(parse_timestamp(blue).isoformat(), address="zk9:2181")
    for at, cluster in ((None, "red"), (ours, "blue"), ("2001-01-01", None), ("yesterday", None)):
        with pytest.raises(NotFoundError, match="no snapshot"):
            meant(at, cluster=cluster)


def test_rows_of_another_cluster_in_the_same_snapshot_are_ignored(
    take: Take, registry: Registry, tmp_path: Path
) -> None:
    registry.group("billing").offsets.set(P0, 1)
    blue = take("blue")
    registry.group("billing").offsets.set(P0, 2)
    [file] = files(tmp_path, Table.OFFSETS, take("red"))
    copy(file, tmp_path / f"table=offsets/snapshot={blue}" / "part-of-red.parquet")
    layout = ArrowLayout.at(str(tmp_path))
    [found] = restorable_of(layout, layout.choose_in_cluster(blue, cluster="blue"), groups=None, topics=None)
    assert found.offsets == {P0: 1}


def test_a_snapshot_that_lost_offsets_is_an_error(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    name = take()
    [file] = files(tmp_path, Table.OFFSETS, name)
    copy(file, file.with_name("part-beside.parquet"))
    file.unlink()
    before = there(registry)
    for asked in (("export", "billing"), ("import", "--execute"), ("reset", "billing", "--all-topics", "--execute")):
        option = "--to-snapshot" if asked[0] == "reset" else "--from-snapshot"
        ended = zkgroups("offsets", *asked, option, tmp_path)
        assert (ended.code, ended.out) == (10, "")
        assert f"is damaged: {file.name} of table=offsets is missing" in ended.err
    assert there(registry) == before


# Export


FORMS = {
    "json": ['{"schema": 1, "offsets": [', '{"group": "billing", "topic": "orders", "partition": 0, "offset": 50},'],
    "jsonl": ['{"schema": 1, "group": "billing", "topic": "orders", "partition": 0, "offset": 50}'],
    "csv": ["group,topic,partition,offset", "billing,orders,0,50"],
    "kafka-csv": ["billing,orders,0,50", "billing,orders,1,60"],
    "path": ["/consumers/billing/offsets/orders/0:50", "/consumers/billing/offsets/orders/1:60"],
    "spark": ['{"orders": {"0": 50, "1": 60}, "refunds": {"0": 7}}'],
}


def test_a_snapshot_is_printed_in_every_form_without_a_connection(
    take: Take, billing: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    name = take()
    with command_on(None, None) as zkgroups:
        for form, lines in FORMS.items():
            ended = zkgroups("offsets", "export", "billing", "--from-snapshot", tmp_path, "--format", form)
            assert (ended.code, ended.lines[: len(lines)]) == (0, lines)
        assert ended.err.splitlines() == [
            f"Using snapshot {name} of cluster {zookeeper_hosts}.",
        ]
        some = ("--groups", "b.*", "--topic", "orders:1", "--from-snapshot", tmp_path, "--format", "kafka-csv", "-q")
        assert zkgroups("offsets", "export", *some).out == "billing,orders,1,60\n"


def test_a_newer_incomplete_snapshot_is_named_and_one_of_the_future_is_reported(
    zkgroups: Command, take: Take, billing: Any, tmp_path: Path
) -> None:
    whole, cut_off = take(), take()
    (tmp_path / f"table=offsets/snapshot={cut_off}" / "_SUCCESS").unlink()
    some = ("offsets", "export", "billing", "--from-snapshot", tmp_path)

    ended = zkgroups(*some, "-q")
    assert (ended.code, len(ended.json["offsets"])) == (0, 3)
    assert ended.err == (
        f"zkgroups: snapshot {cut_off} is newer, but not complete: check it with `zkgroups snapshots verify`\n"
    )
    assert zkgroups(*some, "-q", "--at", whole).err == "", "whoever names one does not ask for the newest"

    wrong = "29990131T120007.005Z"
    for table in tmp_path.glob("table=*"):
        copytree(table / f"snapshot={whole}", table / f"snapshot={wrong}")
    told = f"zkgroups: the time of snapshot {wrong} is in the future: "
    told += "a clock was wrong, and other snapshots may be newer\n"
    assert zkgroups(*some, "-q").err == told
    assert zkgroups("snapshots", "diff", tmp_path, "-q").err == told


def test_missing_offsets_are_reported_and_the_rest_is_printed(
    zkgroups: Command, take: Take, billing: Any, raw: Any, tmp_path: Path
) -> None:
    raw.create("/consumers/billing/offsets/orders/2", b"many")
    name = take()
    ended = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--group", "billing", "--execute")
    assert (ended.code, f"recorded in snapshot {name}" in ended.err) == (9, True)
    ended = zkgroups("offsets", "export", "billing", "nobody", "--from-snapshot", tmp_path, "-q")
    assert (ended.code, [each["offset"] for each in ended.json["offsets"]]) == (9, [50, 60, 7])
    assert ended.err.splitlines() == [
        "zkgroups: /consumers/billing/offsets/orders/2 is malformed: not a decimal number "
        f"('many'); recorded in snapshot {name}; choose another snapshot or time, or use `zkgroups offsets set`",
        f"zkgroups: snapshot {name} has no offsets of group 'nobody'",
    ]
    for names, code in ((("nobody",), 3), (("billing", "--topic", "orders:2"), 10)):
        assert zkgroups("offsets", "export", *names, "--from-snapshot", tmp_path).code == code
    several = zkgroups("offsets", "export", "billing", "other", "--from-snapshot", tmp_path, "--format", "spark")
    assert (several.code, several.out) == (2, "")


# Import


def test_lost_offsets_are_restored_and_later_ones_stay_without_force(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    registry.group("shipping").offsets.set(P0, 5)
    before = there(registry)
    take()
    registry.group("shipping").delete()
    billing.offsets.reset({P1: 10})
    billing.offsets.set(P0, 55)
    billing.offsets.set(P2, 3)
    billing.offsets.delete([TopicPartition("refunds", 0)])
    mistaken = there(registry)

    asked = ("offsets", "import", "--from-snapshot", tmp_path)
    shown = zkgroups(*asked, "-o", "csv", "--no-headers")
    assert (shown.code, there(registry)) == (9, mistaken)
    assert shown.lines == [
        "billing,orders,0,55,50,-5,would go back",
        "billing,orders,1,10,60,50,",
        "billing,refunds,0,,7,,",
        "shipping,orders,0,,5,,",
    ]
    assert shown.err.endswith(
        "--backward allows it\nNothing was changed: add --execute to apply, except for the changes refused above.\n"
    )

    done = zkgroups(*asked, "--group", "billing", "--topic", "orders", "--execute", "-q")
    assert (done.code, there(registry)) == (9, mistaken | {"billing/orders/1": 60})
    done = zkgroups(*asked, "--groups", ".*", "--backward", "--execute", "--undo-file", tmp_path / "undo", "-q")
    assert (done.code, done.err) == (0, "")
    assert there(registry) == before | {"billing/orders/2": 3}
    assert zkgroups("offsets", "import", tmp_path / "undo", "--backward", "--execute", "-q").code == 9
    assert there(registry)["billing/orders/0"] == 55


def test_offsets_of_another_cluster_are_not_restored_silently(
    zkgroups: Command, take: Take, billing: Any, zookeeper_hosts: str, tmp_path: Path
) -> None:
    take("blue")
    alone = zkgroups("offsets", "import", "--from-snapshot", tmp_path)
    assert (alone.code, f"of cluster blue (not {zookeeper_hosts})." in alone.err) == (0, True)
    take("red")
    ended = zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--execute")
    assert (ended.code, ended.out) == (2, "")
    assert "holds snapshots of blue, red: choose one" in ended.err
    assert zkgroups("offsets", "import", "--from-snapshot", tmp_path, "--cluster", "blue").code == 0


# Reset


def test_a_reset_to_a_snapshot_may_move_offsets_back(
    zkgroups: Command, take: Take, billing: Any, registry: Registry, tmp_path: Path
) -> None:
    first = take()
    billing.offsets.set_many({P0: 55, P1: 65, P2: 3})
    take()
    billing.offsets.set(P1, 70)
    registry.group("new").offsets.set(P0, 1)
    to = ("offsets", "reset", "--to-snapshot", tmp_path, "-o", "csv", "--no-headers")
    shown = zkgroups(*to, "billing", "--all-topics", "--at", first)
    assert (shown.code, shown.lines) == (
        9,
        [
            "billing,orders,0,55,50,-5,",
            "billing,orders,1,70,60,-10,",
            "billing,orders,2,3,,,no offset is given for it",
            "billing,refunds,0,7,7,0,",
        ],
    )
    several = zkgroups(*to, "--groups", "billing|new", "--topic", "orders:0,1", "--at", "previous", "--execute")
    assert (several.code, "no offsets of group 'new' are recorded" in several.err) == (9, True)
    assert there(registry) == {
        "billing/orders/0": 50,
        "billing/orders/1": 60,
        "billing/orders/2": 3,
        "billing/refunds/0": 7,
        "new/orders/0": 1,
    }
    assert zkgroups(*to, "billing", "--topic", "orders:0,1", "--execute").code == 0
    assert (there(registry)["billing/orders/0"], there(registry)["billing/orders/1"]) == (55, 65)
    assert zkgroups(*to, "billing").code == 2, "the topics are to be said"


def test_a_reset_to_a_time_uses_the_audit_without_brokers(
    zkgroups: Command, billing: Any, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    def follow() -> None:
        run_audit(str(tmp_path), zookeeper_hosts, once=True)

    follow()
    before, since = there(registry), max(each.committed_at for each in billing.offsets)
    while billing.offsets.fetch(P0).committed_at == since or there(registry) == before:
        billing.offsets.set(P0, there(registry)["billing/orders/0"] + 1)
    billing.offsets.set_many({P1: 65, P2: 3})
    later = datetime.now(UTC)
    follow()
    to = ("offsets", "reset", "billing", "--all-topics", "--from-audit", tmp_path, "-o", "csv", "--no-headers")
    at = since.isoformat(timespec="milliseconds")
    done = zkgroups(*to, "--to-datetime", at, "--execute")
    assert done.code == 9
    assert done.lines[1:] == [
        "billing,orders,1,65,60,-5,",
        "billing,orders,2,3,,,no offset is given for it",
        "billing,refunds,0,7,7,0,",
    ]
    assert there(registry) == before | {"billing/orders/2": 3}
    forward = (*to, "--to-datetime", later.isoformat(timespec="milliseconds"))
    assert zkgroups(*forward).code == 9
    again = zkgroups(*forward, "--forward")
    assert (again.code, [line.split(",")[4] for line in again.lines][1:]) == (0, ["65", "3", "7"])
    refused = zkgroups(*to, "--by-duration", "PT0S")
    assert (refused.code, refused.out) == (4, "")
    assert "does not know later commits" in refused.err
    assert zkgroups(*to, "--by-duration", "P100D").code == 3


def test_the_audit_of_another_zookeeper_is_used_only_if_named(
    zkgroups: Command, billing: Any, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    registry.client.ensure_path("/other/consumers/billing/offsets/orders/0")
    registry.client.set("/other/consumers/billing/offsets/orders/0", b"999")
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    run_audit(str(tmp_path), zookeeper_hosts, once=True)
    other = f"{zookeeper_hosts}/other"
    to = ("offsets", "reset", "billing", "--topic", "orders:0", "--to-datetime", at, "--from-audit", tmp_path)
    refused = zkgroups(*to, "--execute", "-z", other)
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.splitlines()[-1] == (
        f"zkgroups: the audit in file:{tmp_path} is of cluster {zookeeper_hosts}, not of the ZooKeeper now at {other}: "
        f"to use it anyway, add --cluster {zookeeper_hosts}"
    )
    assert registry.client.get("/other/consumers/billing/offsets/orders/0")[0] == b"999"
    assert zkgroups(*to, "--cluster", "red").code == 4
    named = zkgroups(*to, "--cluster", zookeeper_hosts, "--execute", "-z", other)
    assert (named.code, registry.client.get("/other/consumers/billing/offsets/orders/0")[0]) == (0, b"50")

    def followed_ensemble() -> str:
        known = Journal.at(str(tmp_path)).description().ensemble
        assert known is not None
        return known.cluster

    with pytest.raises(RefusedError, match="is another ZooKeeper"):
        run_audit(str(tmp_path), other, once=True)
    assert followed_ensemble() == zookeeper_hosts, "a refused command does not change the followed ensemble"
    run_audit(str(tmp_path), SourceOptions(zookeeper=other, start_over=True), once=True)
    assert followed_ensemble() == other

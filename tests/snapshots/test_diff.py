"""The comparison of two snapshots and its command: every state, checked against a plain program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow.parquet as pq
import pytest
from kazoo.security import OPEN_ACL_UNSAFE
from zkgroups_cli.snapshots.snapshots import diff as command

from tests.lasting import lasting_client
from zkgroups.core.offsets.changes import (
    CHANGE_FILTERS,
    STALLED,
    UNCHANGED_HELD,
    SnapshotChange,
    SummaryLevel,
    count_column,
)
from zkgroups.core.table_columns import Table
from zkgroups.exceptions import DamagedFileError, InvalidOptionError, NotFoundError
from zkgroups.snapshots.diff import KEY, diff, totals, with_states
from zkgroups.snapshots.local_snapshot import ArrowLayout, take_snapshot
from zkgroups.storage.files import parse_timestamp
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import Server, fresh_chroot

from ..cli.test_help import examples
from ..spark.commands import command_on
from ..spark.conftest import plant
from ..spark.model import ALICE, files, parquet

pytestmark = pytest.mark.zookeeper

Found = dict[str, dict[str, Any]]

HIDDEN = "hidden-before", "hidden-after", "t-hidden-before", "t-hidden-after"


@pytest.fixture(scope="module")
def change(zookeeper: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two snapshots with every possible change of an offset. Most offsets are unchanged. No test modifies them."""
    folder = tmp_path_factory.mktemp("change")
    with fresh_chroot(zookeeper) as hosts, lasting_client(hosts) as raw:
        _changed(raw, lambda: take_snapshot(str(folder), hosts))
    return folder


@pytest.fixture
def changed(change: Path, tmp_path: Path) -> tuple[str, str]:
    """Copy both snapshots, and return their names."""
    copytree(change, tmp_path, dirs_exist_ok=True)
    before, after = ArrowLayout.at(str(tmp_path)).snapshots()
    return before, after


@pytest.fixture(scope="module")
def each_partition(change: Path) -> Found:
    """The change of each offset."""
    return found(compared(change, by="partition"))


def _changed(raw: Any, take: Callable[[], object]) -> None:
    plant(raw, {f"g{group}/offsets/t{topic}/{n}": b"10" for group in range(3) for topic in range(3) for n in range(10)})
    plant(raw, {f"{group}/offsets/t/{n}": b"1" for group in HIDDEN for n in range(2)})
    plant(raw, {"g0/offsets/t0/10": b"x", "g0/offsets/t0/11": b"x", "g0/offsets/t0/a": b"1"})
    plant(raw, {"g0/owners/t0/1": b"anna-1"}, ephemeral=True)
    _hide(raw, "hidden-before/offsets", "t-hidden-before/offsets/t")
    take()
    for path in ("hidden-before/offsets", "t-hidden-before/offsets/t"):
        raw.set_acls(f"/consumers/{path}", OPEN_ACL_UNSAFE)
    _hide(raw, "hidden-after/offsets", "t-hidden-after/offsets/t")
    t0 = "/consumers/g0/offsets/t0"
    for partition, data in {0: b"25", 2: b"3", 4: b"x", 10: b"7", 6: b"9223372036854775807"}.items():
        raw.set(f"{t0}/{partition}", data)
    raw.delete(f"{t0}/3")
    raw.delete(f"{t0}/5")
    plant(raw, {"g0/offsets/t0/5": b"12", "g0/offsets/t0/20": b"1", "g0/offsets/t0/21": b"y", "late/offsets/t/0": b"5"})
    raw.delete("/consumers/g2/offsets/t2", recursive=True)
    take()


def _hide(client: Any, *paths: str) -> None:
    """Let everybody do everything but read."""
    [everybody] = OPEN_ACL_UNSAFE
    for path in paths:
        client.set_acls(f"/consumers/{path}", [ALICE, everybody._replace(perms=everybody.perms & ~1)])


def compared(destination: Path, *which: str, cluster: str | None = None, **how: Any) -> Any:
    layout = ArrowLayout.at(str(destination))
    return diff(layout, layout.choose_pair(*which, cluster=cluster), **how)


def found(rows: Any) -> Found:
    each = rows.to_pylist()
    named = {"/".join(str(row[name]) for name in KEY if name in row): row for row in each}
    assert len(named) == len(each)
    return named


def modelled(destination: Path, before: str, after: str) -> dict[str, tuple[str, int | None]]:
    """Compute each offset's state and delta with a plain program."""
    sides = [list(parquet(destination, Table.OFFSETS, name)) for name in (before, after)]
    at = [{_name(row): row for row in side if row["partition"] is not None} for side in sides]
    unseen = [{_name(row) for row in side if row["partition"] is None and row["raw"] is None} for side in sides]

    def became(name: str) -> tuple[str, int | None]:
        group, topic, _ = name.split("/")
        rows = [side.get(name) for side in at]
        for row, hidden in zip(rows, unseen, strict=True):
            if row["offset"] is None if row else {f"{group}/{topic}/None", f"{group}/None/None"} & hidden:
                return "unreadable", None
        if rows[0] is None or rows[1] is None:
            return ("new" if rows[0] is None else "gone"), None
        delta = rows[1]["offset"] - rows[0]["offset"]
        return "moved" if delta > 0 else "went-back" if delta else "unchanged", delta

    return {name: became(name) for name in chain(*at)}


def _name(row: dict[str, Any]) -> str:
    return f"{row['group']}/{row['topic']}/{row['partition']}"


def test_every_state_equals_that_of_a_plain_program(
    changed: tuple[str, str], each_partition: Found, tmp_path: Path
) -> None:
    """In both directions."""
    states = {name: (row["state"], row["delta"]) for name, row in each_partition.items()}
    assert states == modelled(tmp_path, *changed)
    assert {state for state, _delta in states.values()} == set(SnapshotChange)
    back = found(compared(tmp_path, *changed[::-1], by="partition"))
    assert {name: (row["state"], row["delta"]) for name, row in back.items()} == modelled(tmp_path, *changed[::-1])


def test_a_row_has_all_details_and_unknown_values_are_null(each_partition: Found) -> None:
    rows = each_partition
    names = ("state", "before", "after", "delta", "commits", "recreated", "held")
    told = {n: tuple(rows[f"g0/t0/{n}"][name] for name in names) for n in (0, 1, 2, 3, 4, 5, 10, 11, 20, 21)}
    assert told == {
        0: ("moved", 10, 25, 15, 1, False, False),
        1: ("unchanged", 10, 10, 0, 0, False, True),
        2: ("went-back", 10, 3, -7, 1, False, False),
        3: ("gone", 10, None, None, None, False, False),
        4: ("unreadable", 10, None, None, 1, False, False),
        5: ("moved", 10, 12, 2, None, True, False),
        10: ("unreadable", None, 7, None, 1, False, False),
        11: ("unreadable", None, None, None, 0, False, False),
        20: ("new", None, 1, None, None, False, False),
        21: ("unreadable", None, None, None, None, False, False),
    }
    assert {rows[f"{group}/t/0"]["state"] for group in HIDDEN} == {"unreadable"}
    moved, other = rows["g0/t0/0"], rows["g0/t0/7"]
    assert moved["rate"] > 0
    assert moved["committed_at"] > other["committed_at"]
    assert [rows[f"g0/t0/{n}"]["rate"] for n in (1, 2, 3, 4, 20)] == [0.0, None, None, None, None]


def test_a_group_and_a_topic_are_the_sums_of_their_partitions(change: Path, each_partition: Found) -> None:
    each = each_partition
    sums = {by: compared(change, by=by) for by in (SummaryLevel.GROUP, SummaryLevel.TOPIC)}
    for rows, length in zip(sums.values(), (1, 2), strict=True):
        together = found(rows)
        assert together.keys() == {"/".join(name.split("/")[:length]) for name in each}
        for name, row in together.items():
            its = [one for other, one in each.items() if f"{other}/".startswith(f"{name}/")]
            states = [one["state"] for one in its]
            assert {state: row[count_column(state)] for state in SnapshotChange} == {
                state: states.count(state) for state in SnapshotChange
            }
            assert (row["partitions"], row["recreated"]) == (len(its), sum(one["recreated"] for one in its))
            assert row["unchanged_held"] == sum(one["held"] for one in its if one["state"] == "unchanged")
            assert row["committed_at"] == max(one["committed_at"] for one in its)
            deltas = [one["delta"] for one in its if one["delta"] is not None]
            assert row["delta"] == (sum(deltas) if deltas else None)
        counted = totals(rows)
        assert counted == {
            name: sum(row[count_column(name)] or 0 for row in together.values()) for name in CHANGE_FILTERS
        }
    some = with_states(sums[SummaryLevel.GROUP], [SnapshotChange.NEW, SnapshotChange.WENT_BACK])
    assert found(some).keys() == {"g0", "late"}
    by_partition = compared(change, by="partition")
    assert totals(by_partition) == counted
    held = [with_states(rows, [UNCHANGED_HELD]) for rows in (sums[SummaryLevel.GROUP], by_partition)]
    assert [found(rows).keys() for rows in held] == [{"g0"}, {"g0/t0/1"}]


def test_only_groups_and_topics_whose_whole_names_match_are_compared(change: Path) -> None:
    rows = found(compared(change, by="topic", groups="g[02]|hidden-after", topics="t0|t2?"))
    assert rows.keys() == {"g0/t0", "g0/t2", "g2/t0", "g2/t2", "hidden-after/t"}
    assert (rows["g2/t2"]["gone"], rows["hidden-after/t"]["unreadable"]) == (10, 2)
    with pytest.raises(InvalidOptionError):
        compared(change, by="owner")
    with pytest.raises(NotFoundError):
        compared(change, "2001-01-01")


def test_a_snapshot_of_an_earlier_version_is_compared_by_the_columns_that_it_has(
    changed: tuple[str, str], tmp_path: Path
) -> None:
    [file] = files(tmp_path, Table.OFFSETS, changed[0])
    pq.write_table(pq.ParquetFile(file).read().drop_columns(["owner", "commit_count", "created_at"]), file)
    (file.parent / "_SUMMARY.json").unlink()
    rows = found(compared(tmp_path, *changed, by="partition"))
    assert {name: (row["state"], row["delta"]) for name, row in rows.items()} == modelled(tmp_path, *changed)
    assert {(row["commits"], row["recreated"]) for row in rows.values()} == {(None, False)}


def test_snapshots_of_one_cluster_among_several_are_compared(raw: Any, zookeeper_hosts: str, tmp_path: Path) -> None:
    sources = [SourceOptions(zookeeper=zookeeper_hosts, cluster=name) for name in ("blue", None)]
    plant(raw, {"g/offsets/t/0": b"1"})
    for data in (b"1", b"2"):
        raw.set("/consumers/g/offsets/t/0", data)
        for source in sources:
            take_snapshot(str(tmp_path), source)
    for cluster in ("blue", zookeeper_hosts):
        [row] = found(compared(tmp_path, cluster=cluster)).values()
        assert (row["cluster"], row["delta"]) == (cluster, 1)
    with pytest.raises(InvalidOptionError, match="choose one"):
        compared(tmp_path)
    with pytest.raises(NotFoundError, match="of red"):
        compared(tmp_path, cluster="red")


def test_a_diff_of_a_snapshot_with_a_changed_byte_or_a_missing_file_is_an_error(
    changed: tuple[str, str], tmp_path: Path
) -> None:
    [file] = files(tmp_path, Table.OFFSETS, changed[1])
    data = bytearray(file.read_bytes())
    data[data.index(b"hidden")] ^= 1
    file.write_bytes(data)
    with command_on(None, None) as zkgroups:
        ended = zkgroups("snapshots", "diff", tmp_path)
    assert (ended.code, ended.out) == (10, "")
    assert f"because a file is damaged: {file}: " in ended.err
    file.unlink()
    with pytest.raises(DamagedFileError, match=re.escape(f"snapshot {changed[1]}") + ".* is damaged"):
        compared(tmp_path)


def test_the_command_names_both_snapshots_and_fails_on_given_states(changed: tuple[str, str], tmp_path: Path) -> None:
    with command_on(None, None) as zkgroups:
        ended = zkgroups("snapshots", "diff", tmp_path, "--groups", "g0|late", "--fail-on", "gone,went-back")
        assert ended.code == 10
        assert f"From snapshot {changed[0]} to {changed[1]} of " in ended.err
        assert (
            "Offsets: 3 moved, 24 unchanged, 1 went-back, 2 new, 1 gone, 4 unreadable, 1 unchanged-held." in ended.err
        )
        lines = [line.split() for line in ended.lines]
        assert lines[0][:5] == ["GROUP", "PARTITIONS", "MOVED", "UNCHANGED", "UNCHANGED-HELD"]
        assert [line[:9] for line in lines[1:]] == [
            ["g0", "34", "3", "24", "1", "-", "1", "1", "1"],
            ["late", "1", "0", "0", "0", "-", "0", "1", "0"],
        ]
        some = ("--by", "partition", "--only", "went-back,new", "--fail-on", "moved", "-o", "csv")
        ended = zkgroups("snapshots", "diff", tmp_path, *changed, *some, "-q")
        assert (ended.code, ended.err) == (10, "")
        columns = [line.split(",") for line in ended.lines]
        where = columns[0].index("state")
        assert [[*line[1:4], line[where]] for line in columns[1:]] == [
            ["g0", "t0", "2", "went-back"],
            ["g0", "t0", "20", "new"],
            ["late", "t", "0", "new"],
        ]
        ended = zkgroups("snapshots", "diff", tmp_path, "latest", "latest", "--fail-on", "moved,gone,new", "-o", "json")
        assert (ended.code, {row["moved"] for row in ended.json["groups"]}) == (0, {0})
        for moment, code in (("2001-01-01", 3), ("20010101T000000.000Z", 3), ("someday", 2)):
            assert zkgroups("snapshots", "diff", tmp_path, moment).code == code
        ended = zkgroups("snapshots", "diff", tmp_path, "--only", STALLED)
        assert (ended.code, "has no log ends" in ended.err) == (4, True)


def test_the_examples_of_its_help_work(changed: tuple[str, str], tmp_path: Path) -> None:
    [(_, lines)] = examples(command, everything=True)
    at = parse_timestamp(changed[0]).isoformat()
    codes = []
    with command_on(None, None) as zkgroups:
        for line in lines:
            words = shlex.split(line.replace("/data/groups", str(tmp_path)).replace("2026-01-31T22:00:00", at))
            codes.append(zkgroups(*words[1:]).code)
    assert codes == [0, 0, 0, 4], "the snapshots have no log ends"

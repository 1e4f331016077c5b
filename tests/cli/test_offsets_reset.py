"""`zkgroups offsets reset` and `delete`: targets, selection, refusals and undo files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import click
import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions
from zkgroups_cli.offsets import reset_time
from zkgroups_cli.offsets.apply_changes import ApplyOptions, GroupChanges, apply_changes
from zkgroups_cli.offsets.from_parquet import AuditSource, OffsetSelection
from zkgroups_cli.offsets.reset_request import ResetRequest
from zkgroups_cli.offsets.reset_time import with_time
from zkgroups_cli.shared.errors_to_exit_codes import Tally
from zkgroups_cli.shared.options import Options
from zkgroups_cli.shared.spark_options import SparkOptions

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.offsets.reset import OffsetChange
from zkgroups.core.times import to_ms
from zkgroups.exceptions import NoPermissionError, RefusedError, UnavailableError
from zkgroups.testing import TcpProxy

from .conftest import Zkgroups
from .test_groups import tree

pytestmark = pytest.mark.zookeeper

YEAR = 366 * 86_400.0

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
REFUNDS = TopicPartition("refunds", 0)


@pytest.fixture
def invoices(registry: Registry) -> Any:
    """A group of offsets only: orders/0 at 50, orders/1 at 60, and refunds/0 at 7."""
    group = registry.group("invoices")
    group.offsets.set_many({P0: 50, P1: 60, REFUNDS: 7})
    return group


def numbers(group: Any) -> dict[str, int | None]:
    return {str(each.at): each.offset for each in group.offsets if isinstance(each, CommittedOffset)}


def moves(ended: Any) -> list[tuple[Any, ...]]:
    return [(f"{row['topic']}/{row['partition']}", row["old"], row["new"]) for row in ended.json["changes"]]


def test_a_duration_counts_back_from_the_time_of_the_server_if_offsets_are_written(
    zookeeper_hosts: str,
    kazoo: KazooClient,
    invoices: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reset_time, "time", SimpleNamespace(time=lambda: time.time() + YEAR))
    options = Options(zookeeper=zookeeper_hosts)
    names = ("missing", "invoices")
    request = ResetRequest(
        "by_duration", 1, OffsetSelection(names), AuditSource("audit", 1, None, SparkOptions(None, {}))
    )
    before_ms = max(to_ms(found.committed_at) for found in invoices.offsets) - 1

    def start_ms(*, execute: bool) -> float:
        found = with_time(options, request, execute=execute)
        assert found.source == AuditSource("audit", found.value, None, SparkOptions(None, {}))
        return found.value - before_ms

    year_ms = YEAR * 1000
    assert 0 <= start_ms(execute=True) < year_ms <= start_ms(execute=False)
    assert re.findall("differs from ZooKeeper's by ([0-9]+) s", capsys.readouterr().err) == [ANY]
    kazoo.set_acls("/consumers/invoices", [ACL(Permissions.READ, Id("world", "anyone"))])
    assert start_ms(execute=True) >= year_ms
    assert "ZooKeeper's time cannot be read: no permission on /consumers/invoices" in capsys.readouterr().err


def test_a_dry_run_shows_the_new_offsets_and_changes_nothing(
    zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient
) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("offsets", "reset", "invoices", "--all-topics", "--shift-by", "-10")
    assert (ended.code, ended.err) == (0, "Nothing was changed: add --execute to apply.\n")
    assert [line.split() for line in ended.lines] == [
        ["GROUP", "TOPIC", "PARTITION", "OLD", "NEW", "DELTA", "NOTE"],
        ["invoices", "orders", "0", "50", "40", "-10", "-"],
        ["invoices", "orders", "1", "60", "50", "-10", "-"],
        ["invoices", "refunds", "0", "7", "0", "-7", "-3", "is", "below", "0"],
    ]
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("denied", ["secret/offsets", "secret/offsets/orders"])
@pytest.mark.parametrize("which", ["--all-topics", "--topic=orders"])
@pytest.mark.parametrize("command", [("reset", "--to-offset=3"), ("delete",)], ids=lambda command: command[0])
def test_forbidden_offsets_are_not_reported_as_missing(
    zkgroups: Zkgroups, secret: str, kazoo: KazooClient, denied: str, which: str, command: tuple[str, ...]
) -> None:
    for directory in {"secret/ids", "secret/offsets"} - {denied}:
        kazoo.set_acls(f"/consumers/{directory}", OPEN_ACL_UNSAFE)
    ended = zkgroups("offsets", command[0], secret, which, *command[1:])
    assert (ended.code, ended.err) == (
        6,
        f"zkgroups: {NoPermissionError(f'/consumers/{denied}')}\n",
    )


@pytest.mark.parametrize("target", ["--to-offset=90", "--shift-by=5", "--to-latest", "--to-current"])
def test_forward_is_refused_where_it_has_no_effect(zkgroups: Zkgroups, invoices: Any, target: str) -> None:
    ended = zkgroups("offsets", "reset", "invoices", "--all-topics", target, "--forward", "--execute")
    assert (ended.code, numbers(invoices)["orders/0"]) == (2, 50)
    assert (
        f"--forward is only for --to-datetime and --by-duration: {target.split('=')[0]} always moves both ways"
        in ended.err
    )


def test_execute_makes_the_changes_of_the_dry_run(zkgroups: Zkgroups, invoices: Any) -> None:
    arguments = ("offsets", "reset", "invoices", "--topic", "orders:1", "--topic", "refunds", "--to-offset", "9")
    shown = zkgroups(*arguments, "-o", "json")
    done = zkgroups(*arguments, "-o", "json", "--execute")
    assert {row["done"] for row in shown.json["changes"]} == {False}
    as_shown = {**done.json, "changes": [row | {"done": False} for row in done.json["changes"]]}
    assert (done.code, done.err, as_shown) == (0, "Changed: 2. Unchanged: 0.\n", shown.json)
    assert done.json["changes"][0] == {
        "group": "invoices",
        "topic": "orders",
        "partition": 1,
        "old": 60,
        "new": 9,
        "delta": -51,
        "note": None,
        "done": True,
    }
    assert numbers(invoices) == {"orders/0": 50, "orders/1": 9, "refunds/0": 9}


def test_an_offset_with_the_target_value_is_not_written(zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient) -> None:
    before = tree(kazoo, "/consumers")
    for target in (("--to-current",), ("--shift-by", "0")):
        ended = zkgroups("offsets", "reset", "invoices", "--all-topics", *target, "--execute", "-o", "json")
        assert (ended.code, ended.err, {row["delta"] for row in ended.json["changes"]}) == (0, "", {0})
    assert tree(kazoo, "/consumers") == before


def test_many_groups_are_reset_by_an_expression_and_one_in_use_does_not_stop_the_others(
    zkgroups: Zkgroups, registry: Registry, billing: Any
) -> None:
    for name in ("bill", "billions"):
        registry.group(name).offsets.set(P0, 5)
    ended = zkgroups(
        "offsets", "reset", "--groups", "bill.*", "nobody", "--topic", "orders", "--to-offset", "9", "--execute"
    )
    assert ended.code == 9
    assert "zkgroups: group 'nobody' does not exist: check the name and the address\n" in ended.err
    assert "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n" in ended.err
    assert [line.split()[0] for line in ended.lines[1:]] == ["bill", "billions"]
    assert numbers(registry.group("bill")) == numbers(registry.group("billions")) == {"orders/0": 9}
    assert numbers(billing) == {"orders/0": 100}


def test_a_malformed_offset_can_be_set_but_not_shifted(
    zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient, tmp_path: Path
) -> None:
    kazoo.create("/consumers/invoices/offsets/orders/2", b"many")
    kazoo.create("/consumers/invoices/offsets/orders/x", b"5")
    shifted = zkgroups("offsets", "reset", "invoices", "--topic", "orders", "--shift-by", "1", "-o", "json")
    assert (shifted.code, moves(shifted)[-1]) == (9, ("orders/2", None, None))
    assert "group 'invoices': 1 offset is left unchanged: invalid offset: not a plain decimal number" in shifted.err
    assert "/consumers/invoices/offsets/orders/x is left unchanged: its name is not a partition" in shifted.err
    undo = tmp_path / "undo"
    ended = zkgroups(
        "offsets", "reset", "invoices", "--topic", "orders:2", "--to-offset", "5", "--execute", "--undo-file", str(undo)
    )
    assert (ended.code, numbers(invoices)["orders/2"]) == (0, 5)
    assert "Partitions among them that had no valid offset: 1." in ended.err
    [kept] = json.loads(undo.read_text())["offsets"]
    assert (kept["offset"], kept["note"]) == (None, "invalid offset: b'many'")
    back = zkgroups("offsets", "import", str(undo), "--backward", "--execute")
    assert (back.code, numbers(invoices)["orders/2"]) == (4, 5)
    assert "no offset is given for it" in back.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("invoices", "--all-topics"), "give exactly one target: --to-earliest, --to-latest,"),
        (("invoices", "--all-topics", "--to-current", "--to-offset", "0"), "give exactly one target"),
        (("invoices", "--to-offset", "0"), "either --topic"),
        (("invoices", "--all-topics", "--topic", "orders", "--to-offset", "0"), "either --topic"),
        (("--all-topics", "--to-offset", "0"), "no group is chosen"),
        (("invoices", "--all-topics", "--to-datetime", "yesterday"), "Invalid value for '--to-datetime': the time is"),
        (("invoices", "--all-topics", "--by-duration", "7 days"), "Invalid value for '--by-duration': the duration is"),
        (("invoices", "--all-topics", "--shift-by", "x"), "--shift-by"),
        (("--groups", "(", "--all-topics", "--to-offset", "0"), "is not a regular expression"),
        (("invoices", "--all-topics", "--to-earliest"), "--to-earliest needs the Kafka brokers"),
        (("invoices", "--all-topics", "--to-latest"), "--to-latest needs the Kafka brokers"),
        (("invoices", "--all-topics", "--by-duration", "P7D"), "--by-duration needs the Kafka brokers"),
        (
            ("invoices", "--all-topics", "--to-datetime", "2026-01-31T12:00:00.000"),
            "--to-datetime needs the Kafka brokers",
        ),
        (("invoices", "--from-file", "/nowhere/plan.csv"), "/nowhere/plan.csv cannot be read: No such file"),
    ],
)
def test_an_ambiguous_command_line_is_wrong_usage_and_changes_nothing(
    zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient, arguments: tuple[str, ...], said: str
) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("offsets", "reset", *arguments, "--execute")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert tree(kazoo, "/consumers") == before


def test_offsets_come_from_kafkas_file_of_one_group(zkgroups: Zkgroups, invoices: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("orders,0,5\norders,2,6\n")
    ended = zkgroups("offsets", "reset", "invoices", "--from-file", str(plan), "--execute", "-o", "json")
    assert (ended.code, moves(ended)) == (0, [("orders/0", 50, 5), ("orders/2", None, 6)])
    assert numbers(invoices) == {"orders/0": 5, "orders/1": 60, "orders/2": 6, "refunds/0": 7}
    assert zkgroups("offsets", "reset", "--from-file", str(plan)).code == 2
    assert zkgroups("offsets", "reset", "a", "b", "--from-file", str(plan)).code == 2


def test_offsets_come_from_kafkas_file_of_several_groups(
    zkgroups: Zkgroups, registry: Registry, invoices: Any, tmp_path: Path
) -> None:
    registry.group("a").offsets.set(P0, 1)
    plan = tmp_path / "plan.csv"
    plan.write_text("invoices,orders,0,5\na,orders,0,6\ninvoices,refunds,0,8\n")

    def planned(*arguments: str) -> Any:
        return zkgroups("offsets", "reset", *arguments, "--from-file", str(plan), "-o", "json")

    assert moves(planned()) == [("orders/0", 50, 5), ("refunds/0", 7, 8), ("orders/0", 1, 6)]
    assert moves(planned("invoices")) == [("orders/0", 50, 5), ("refunds/0", 7, 8)]
    assert moves(planned("invoices", "--topic", "refunds")) == [("refunds/0", 7, 8)]
    assert planned("nobody").code == 2
    plan.write_text("invoices,orders,0,5\ninvoices,orders,1,-1\n")
    broken = planned("--execute")
    assert (broken.code, broken.out) == (2, "")
    assert broken.err.startswith(f"zkgroups: {plan}, line 2: ")
    assert numbers(invoices)["orders/0"] == 50


# Delete


def test_delete_deletes_offsets_and_keeps_the_group(zkgroups: Zkgroups, invoices: Any, kazoo: KazooClient) -> None:
    kazoo.create("/consumers/invoices/offsets/refunds/1", b"many")
    ended = zkgroups("offsets", "delete", "invoices", "--topic", "orders:1", "--topic", "refunds", "--execute")
    assert ended.code == 0
    assert [line.split()[1:6] for line in ended.lines[1:]] == [
        ["orders", "1", "60", "-", "-"],
        ["refunds", "0", "7", "-", "-"],
        ["refunds", "1", "-", "-", "-"],
    ]
    assert numbers(invoices) == {"orders/0": 50}
    assert zkgroups("offsets", "delete", "invoices", "--all-topics", "--execute").code == 0
    again = zkgroups("offsets", "delete", "invoices", "--all-topics", "--execute")
    assert (again.code, again.out, again.err) == (0, "", "There are no offsets to delete.\n")


def test_all_offsets_are_deleted_only_with_all_topics(zkgroups: Zkgroups, invoices: Any) -> None:
    assert zkgroups("offsets", "delete", "invoices", "--execute").code == 2
    assert zkgroups("offsets", "delete", "invoices", "--all-topics", "--topic", "orders", "--execute").code == 2
    assert len(numbers(invoices)) == 3


# Changes since the dry run


def planned(group: Any, new: int) -> GroupChanges:
    return GroupChanges(group.name, [OffsetChange(each.at, each, new) for each in group.offsets])


def outcome(registry: Registry, plans: Any, *, undo_file: Path | None = None) -> int:
    apply = ApplyOptions(execute=True, force=False, undo_file=undo_file)
    try:
        apply_changes(Options(output="json"), registry, plans, apply, Tally())
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def test_an_offset_changed_since_the_dry_run_is_not_overwritten_and_is_reported(
    registry: Registry, invoices: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(invoices, 1)
    invoices.offsets.set(P0, 51)
    assert outcome(registry, [plan]) == 9
    rows = json.loads((seen := capsys.readouterr()).out)["changes"]
    assert [(row["old"], row["new"], row["note"]) for row in rows] == [
        (50, None, "left unchanged: another client changed it"),
        (60, 1, None),
        (7, 1, None),
    ]
    assert (
        seen.err
        == "zkgroups: offset of orders/0 was changed by another client and is now 51: check it before you try again\n"
        "Changed: 2. Unchanged: 1.\n"
    )
    assert numbers(invoices) == {"orders/0": 51, "orders/1": 1, "refunds/0": 1}


def test_an_undo_file_that_appears_meanwhile_is_not_overwritten_and_nothing_is_changed(
    registry: Registry, invoices: Any, tmp_path: Path
) -> None:
    undo = tmp_path / "undo"
    undo.write_text("precious")
    with pytest.raises(RefusedError, match="already exists"):
        outcome(registry, [planned(invoices, 1)], undo_file=undo)
    assert (undo.read_text(), numbers(invoices)["orders/0"]) == ("precious", 50)


def test_it_is_a_conflict_if_all_offsets_were_changed(
    registry: Registry, invoices: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(invoices, 1)
    invoices.offsets.set_many({P0: 51, P1: 61, REFUNDS: 8})
    assert outcome(registry, [plan]) == 5


class Interrupted(GroupChanges):
    """A plan that calls `act` whenever its changes are read, in order to simulate a concurrent event."""

    __slots__ = ("act", "shown")
    shown: GroupChanges
    act: Callable[[], object]

    @classmethod
    def by(cls, shown: GroupChanges, act: Callable[[], object]) -> Interrupted:
        made = object.__new__(cls)
        for name, value in {"group": shown.group, "shown": shown, "act": act}.items():
            object.__setattr__(made, name, value)
        return made

    @property
    def changes(self) -> Any:
        self.act()
        return self.shown.changes


def test_a_registration_after_the_check_keeps_the_offsets_unchanged(
    registry: Registry, invoices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undo, late, saved = tmp_path / "undo", invoices.instance("late"), []

    def register() -> None:
        if undo.exists() and not late.registered:
            saved.extend(undone(undo))
            late.register(["orders"])

    assert outcome(registry, [Interrupted.by(planned(invoices, 1), register)], undo_file=undo) == 4
    told = capsys.readouterr().err
    assert "in use by late" in told
    assert f"Nothing was changed, so {undo} was deleted." in told
    assert numbers(invoices) == {"orders/0": 50, "orders/1": 60, "refunds/0": 7}
    assert (saved, undo.exists()) == ([50, 60, 7], False)


def undone(file: Path) -> list[int]:
    """The offsets in an undo file."""
    return [each["offset"] for each in json.loads(file.read_text())["offsets"]]


def test_an_undo_file_does_not_restore_an_offset_that_another_client_has_changed_instead(
    registry: Registry, invoices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    undo, plan = tmp_path / "undo", planned(invoices, 1)
    invoices.offsets.set(P0, 9000)
    assert outcome(registry, [plan], undo_file=undo) == 9
    assert f"Offsets that were not changed are no longer in {undo}: 1." in capsys.readouterr().err
    assert (undone(undo), undo.stat().st_mode & 0o777) == ([60, 7], 0o600)


def test_an_undo_file_keeps_the_group_in_which_a_command_was_interrupted_and_no_later_ones(
    registry: Registry, invoices: Any, tmp_path: Path
) -> None:
    """Some offsets of that group may have been written."""
    undo, looks = tmp_path / "undo", iter([True, True])

    def interrupt() -> None:
        if undo.exists() and next(looks, False):
            raise KeyboardInterrupt

    for name, offset in ("a", 5), ("z", 8):
        registry.group(name).offsets.set(P0, offset)
    first, last = (planned(registry.group(name), 1) for name in "az")
    with pytest.raises(KeyboardInterrupt):
        outcome(registry, [first, Interrupted.by(planned(invoices, 1), interrupt), last], undo_file=undo)
    assert undone(undo) == [5, 50, 60, 7]
    assert numbers(registry.group("z")) == {"orders/0": 8}


def test_applied_changes_are_shown_even_if_the_connection_is_lost_later(
    registry: Registry, zookeeper: Any, zookeeper_hosts: str, invoices: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.group("a").offsets.set(P0, 5)
    with TcpProxy(zookeeper.address) as proxy:

        def go_away() -> None:
            proxy.refuse()
            proxy.cut()

        plans = [planned(registry.group("a"), 1), Interrupted.by(planned(invoices, 1), go_away)]
        with (
            Registry.connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=10.0) as proxied,
            pytest.raises(UnavailableError),
        ):
            outcome(proxied, plans)
    seen = capsys.readouterr()
    assert [row["group"] for row in json.loads(seen.out)["changes"]] == ["a"]
    assert "interrupted in group 'invoices': some of its offsets may be written; later groups are unchanged" in seen.err
    assert numbers(registry.group("a")) == {"orders/0": 1}
    assert numbers(invoices)["orders/0"] == 50


def test_applied_changes_are_shown_even_if_ctrl_c_stops_the_next_group(
    registry: Registry, invoices: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    registry.group("a").offsets.set(P0, 5)
    with pytest.raises(KeyboardInterrupt):
        outcome(registry, [planned(registry.group("a"), 1), Interrupted.by(planned(invoices, 1), interrupt)])
    assert [row["group"] for row in json.loads(capsys.readouterr().out)["changes"]] == ["a"]
    assert numbers(registry.group("a")) == {"orders/0": 1}
    assert numbers(invoices)["orders/0"] == 50

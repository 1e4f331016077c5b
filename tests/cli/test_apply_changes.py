"""Changes of offsets while other clients, signals or a full disk interfere: see `cli/offsets/apply_changes.py`.

These tests call it, because only code of this process can act in between.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import click
import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions
from zkgroups_cli.offsets import reset
from zkgroups_cli.offsets.apply_changes import ApplyOptions, GroupChanges, apply_changes
from zkgroups_cli.offsets.from_parquet import AuditSource, OffsetSelection
from zkgroups_cli.offsets.reset import ResetRequest, with_time
from zkgroups_cli.shared.engine_options import SparkOptions
from zkgroups_cli.shared.errors import Tally
from zkgroups_cli.shared.options import Options

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.offsets.reset import OffsetChange
from zkgroups.core.times import to_ms
from zkgroups.exceptions import UnavailableError
from zkgroups.testing import TcpProxy

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
    registry: Registry, invoices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a conflict if others changed all of them. The undo file has only those that were written."""
    plan, undo = planned(invoices, 1), tmp_path / "undo"
    invoices.offsets.set(P0, 51)
    assert outcome(registry, [plan], undo_file=undo) == 9
    assert (undone(undo), undo.stat().st_mode & 0o777) == ([60, 7], 0o600)
    rows = json.loads((seen := capsys.readouterr()).out)["changes"]
    assert [(row["old"], row["new"], row["note"]) for row in rows] == [
        (50, None, "left unchanged: another client changed it"),
        (60, 1, None),
        (7, 1, None),
    ]
    assert (
        "zkgroups: group 'invoices': offset of orders/0 was changed by another client and is now 51: check it "
        "before you try again\n" in seen.err
    )
    assert f"Offsets that were not changed are no longer in {undo}: 1." in seen.err
    assert "Changed: 2. Unchanged: 1.\n" in seen.err
    assert numbers(invoices) == {"orders/0": 51, "orders/1": 1, "refunds/0": 1}
    plan = planned(invoices, 2)
    invoices.offsets.set_many({P0: 52, P1: 61, REFUNDS: 8})
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
    assert f"No offset was changed, so {undo} was deleted." in told
    assert numbers(invoices) == {"orders/0": 50, "orders/1": 60, "refunds/0": 7}
    assert (saved, undo.exists()) == ([50, 60, 7], False)


def undone(file: Path) -> list[int]:
    """The offsets in an undo file."""
    return [each["offset"] for each in json.loads(file.read_text())["offsets"]]


@pytest.mark.parametrize("in_place", [True, False])
def test_on_a_full_disk_the_undo_file_is_shortened_in_place_after_the_changes_are_shown(
    registry: Registry,
    invoices: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    in_place: bool,
) -> None:
    undo, plan, real = tmp_path / "undo", planned(invoices, 1), tempfile.mkstemp
    invoices.offsets.set(P0, 9000)

    def full(*args: Any, **options: Any) -> Any:
        if undo.exists():
            if not in_place:
                undo.chmod(0o600)
                monkeypatch.setattr(os, "O_NOFOLLOW", os.O_DIRECTORY)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **options)

    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert outcome(registry, [plan], undo_file=undo) == 9
    told = capsys.readouterr()
    assert [row["new"] for row in json.loads(told.out)["changes"]] == [None, 1, 1]
    assert undone(undo) == ([60, 7] if in_place else [50, 60, 7])
    assert ("1 offsets that were not changed: do not restore" in told.err) is not in_place
    assert (f"{undo} could not be shortened: " in told.err) is not in_place


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


def test_a_duration_counts_back_from_the_time_of_the_server_if_offsets_are_written(
    zookeeper_hosts: str,
    kazoo: KazooClient,
    invoices: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reset, "time", SimpleNamespace(time=lambda: time.time() + YEAR))
    options = Options(zookeeper=zookeeper_hosts)
    names = ("missing", "invoices")
    request = ResetRequest(
        "by_duration", 0.001, OffsetSelection(names), AuditSource("audit", 0, None, SparkOptions(None, {}))
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

"""`zkgroups groups prune`: deletes only unused groups, and saves their offsets first."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from zkgroups_cli import main
from zkgroups_cli.groups import prune

from zkgroups import Registry, TopicPartition
from zkgroups.core.offsets.file_formats import FileFormat
from zkgroups.core.offsets.file_reader import parse_offsets
from zkgroups.core.times import to_ms

from .conftest import Zkgroups
from .running import COMMAND, environment, run_without_space, started
from .test_groups import tree

pytestmark = pytest.mark.zookeeper

YEAR = 366 * 86_400.0

P0, P1 = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture
def old(registry: Registry) -> Registry:
    """Two unused groups, one of them without offsets. `billing`, if it exists, is in use."""
    registry.group("invoices").offsets.set_many({P0: 5, P1: 0})
    registry.group("litter").create()
    return registry


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "pruned.jsonl"


def test_without_execute_the_unused_groups_are_shown_and_nothing_changes(
    zkgroups: Zkgroups, kazoo: KazooClient, old: Registry, billing: Any, export: Path
) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export)
    assert (ended.code, ended.err) == (0, "Nothing was changed: add --execute to apply.\n")
    [header, *lines] = [line.split() for line in ended.lines]
    assert header == ["GROUP", "OFFSETS", "LAST-COMMIT", "AGE"]
    assert [line[:2] for line in lines] == [["invoices", "2"], ["litter", "0"]]
    assert (lines[0][2][-1], lines[1][2]) == ("Z", "-")
    assert all(re.fullmatch(r"\d+[sm]", line[3]) for line in lines)
    assert tree(kazoo, "/consumers") == before
    assert not export.exists()


def test_in_json_numbers_are_numbers_and_a_missing_commit_is_null(
    zkgroups: Zkgroups, kazoo: KazooClient, old: Registry
) -> None:
    found = zkgroups("groups", "prune", "--older-than", "0s", "-o", "json").json["groups"]
    assert all(isinstance(group.pop("idle_seconds"), int) for group in found)
    assert found == [
        {
            "group": "invoices",
            "offsets": 2,
            "last_commit_ms": to_ms(old.group("invoices").describe().last_commit_at),
            "created_ms": kazoo.get("/consumers/invoices")[1].ctime,
        },
        {
            "group": "litter",
            "offsets": 0,
            "last_commit_ms": None,
            "created_ms": kazoo.get("/consumers/litter")[1].ctime,
        },
    ]


def test_with_execute_the_groups_are_deleted_and_their_offsets_are_in_the_file(
    zkgroups: Zkgroups, old: Registry, billing: Any, export: Path
) -> None:
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export, "--execute", "-o", "name")
    assert (ended.code, ended.lines) == (0, ["invoices", "litter"])
    assert ended.err == (
        f"Saved their offsets to {export}. To restore them: zkgroups offsets import {export} --execute\n"
        "deleted invoices\ndeleted litter\n"
    )
    assert old.groups() == ["billing"]
    lines = [json.loads(line) for line in export.read_text().splitlines()]
    assert [(line["group"], line["topic"], line["partition"], line["offset"]) for line in lines] == [
        ("invoices", "orders", 0, 5),
        ("invoices", "orders", 1, 0),
    ]
    assert [(found.group, found.at, found.offset) for found in parse_offsets(export.read_text(), FileFormat.JSONL)] == [
        ("invoices", P0, 5),
        ("invoices", P1, 0),
    ]


@pytest.mark.parametrize(
    "command",
    [
        ("groups", "prune", "--older-than", "0s", "--export"),
        ("offsets", "delete", "invoices", "--all-topics", "--undo-file"),
    ],
)
def test_nothing_is_deleted_if_the_disk_is_too_full_for_the_saved_offsets(
    kazoo: KazooClient, zookeeper_hosts: str, old: Registry, export: Path, command: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    ended = run_without_space(*command, export, "--execute", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    assert (ended.code, ended.err) == (
        1,
        f"zkgroups: {export} could not be written: File too large; no offset was changed\n",
    )
    assert not export.exists()
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize("act", ["commit", "register"])
def test_a_commit_or_registration_after_the_export_keeps_the_group(
    old: Registry,
    kazoo: KazooClient,
    zookeeper_hosts: str,
    export: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    act: str,
) -> None:
    """It runs in this process, because only this process can act in between."""
    real = prune._export
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # the command sets its own
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def meanwhile(*arguments: Any) -> None:
        real(*arguments)
        if act == "commit":
            old.group("invoices").offsets.set(P0, 6)
        else:
            kazoo.create("/consumers/invoices/ids/late", b"{}", ephemeral=True, makepath=True)

    monkeypatch.setattr(prune, "_export", meanwhile)
    arguments = ["groups", "prune", "--older-than", "0s", "--export", str(export), "--execute", "-o", "name"]
    assert main.run(["-z", zookeeper_hosts, *arguments]) == 9
    told = capsys.readouterr()
    reason = "offset of orders/0 was changed" if act == "commit" else "group 'invoices' is in use by late"
    assert told.out == "litter\n"
    assert f"zkgroups: {reason}" in told.err
    assert old.groups() == ["invoices"]
    assert [found.offset for found in old.group("invoices").offsets] == [6 if act == "commit" else 5, 0]  # type: ignore[union-attr]


def test_a_group_with_a_recent_commit_stays(zkgroups: Zkgroups, old: Registry, export: Path) -> None:
    ended = zkgroups("groups", "prune", "--older-than", "1h", "--export", export, "--execute")
    assert (ended.code, ended.out, ended.err) == (0, "", "Nothing to delete: no group has been unused for that long.\n")
    assert old.groups() == ["invoices", "litter"]
    assert not export.exists()


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (["invoices"], ["litter", "test-1", "test-2"]),
        (["--groups", "test-.*"], ["invoices", "litter"]),
        (["litter", "--groups", "test-1"], ["invoices", "test-2"]),
        (["--groups", "test"], ["invoices", "litter", "test-1", "test-2"]),
    ],
)
def test_only_selected_groups_are_examined(
    zkgroups: Zkgroups, old: Registry, export: Path, choice: list[str], left: list[str]
) -> None:
    for name in ("test-1", "test-2"):
        old.group(name).offsets.set(P0, 1)
    ended = zkgroups("groups", "prune", *choice, "--older-than", "0s", "--export", export, "--execute")
    assert (ended.code, old.groups()) == (0, left)


def test_a_named_group_that_stays_is_reported_with_the_reason(zkgroups: Zkgroups, old: Registry, billing: Any) -> None:
    ended = zkgroups("groups", "prune", "billing", "invoices", "--older-than", "1d")
    assert (ended.code, ended.out) == (0, "")
    assert (
        ended.err == "group billing is not deleted: it is in use\ngroup invoices is not deleted: it is not old enough\n"
    )


def test_an_owner_without_a_registration_keeps_a_group(zkgroups: Zkgroups, kazoo: KazooClient, old: Registry) -> None:
    kazoo.create("/consumers/invoices/owners/orders/0", b"somebody", makepath=True)
    kazoo.create("/consumers/litter/owners/b'orders'/1001-0", b"somebody", ephemeral=True, makepath=True)
    assert zkgroups("groups", "prune", "--older-than", "0s", "-o", "name").out == ""


def test_a_group_with_an_unreadable_offset_stays_and_is_reported(
    zkgroups: Zkgroups, kazoo: KazooClient, old: Registry, export: Path
) -> None:
    kazoo.create("/consumers/invoices/offsets/orders/9", b"many")
    before = tree(kazoo, "/consumers/invoices")
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export, "--execute", "-o", "name")
    path = "/consumers/invoices/offsets/orders/9"
    assert (ended.code, ended.lines) == (9, ["litter"])
    assert f"zkgroups: group invoices is not deleted: {path} cannot be read (not a plain decimal number)\n" in ended.err
    assert tree(kazoo, "/consumers/invoices") == before


def test_a_forbidden_group_is_not_pruned(zkgroups: Zkgroups, kazoo: KazooClient, secret: str, export: Path) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export, "--execute")
    assert (ended.code, ended.out) == (6, "")
    assert ended.err.startswith("zkgroups: no permission on /consumers/secret/")
    assert (tree(kazoo, "/consumers"), export.exists()) == (before, False)


def test_a_named_group_that_is_missing_is_exit_code_3(zkgroups: Zkgroups, old: Registry) -> None:
    ended = zkgroups("groups", "prune", "nobody", "--older-than", "0s")
    assert (ended.code, ended.out, ended.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )
    some = zkgroups("groups", "prune", "nobody", "litter", "--older-than", "0s", "-o", "name")
    assert (some.code, some.lines) == (9, ["litter"])


def test_a_file_that_exists_is_never_overwritten(
    zkgroups: Zkgroups, kazoo: KazooClient, old: Registry, export: Path
) -> None:
    export.write_text("groups of last year\n")
    before = tree(kazoo, "/consumers")
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--export", export, "--execute")
    assert (ended.code, ended.err) == (
        4,
        f"zkgroups: {export} already exists and is not overwritten: choose another name\n",
    )
    assert export.read_text() == "groups of last year\n"
    assert tree(kazoo, "/consumers") == before


def test_if_the_file_cannot_be_created_or_written_nothing_is_deleted(
    zookeeper_hosts: str, kazoo: KazooClient, old: Registry, export: Path
) -> None:
    before = tree(kazoo, "/consumers")
    for place, limit, code in ((export.parent / "nowhere" / "file", "unlimited", 2), (export, "0", 1)):
        limited = ["sh", "-c", f'ulimit -f {limit}; exec "$0" "$@"', COMMAND, "groups", "prune", "-z", zookeeper_hosts]
        ended = subprocess.run(
            [*limited, "--older-than", "0s", "--export", place, "--execute"],
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert (ended.returncode, ended.stdout) == (code, "")
        assert ended.stderr.startswith(f"zkgroups: {place}")
    assert tree(kazoo, "/consumers") == before


def test_a_group_is_kept_if_only_the_clock_of_this_machine_says_that_it_is_old(
    zookeeper_hosts: str,
    old: Registry,
    export: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # the command sets its own
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(prune, "time", SimpleNamespace(time=lambda: time.time() + YEAR))
    arguments = ["groups", "prune", "--older-than", "90d", "--export", str(export), "--execute"]
    assert main.run(["-z", zookeeper_hosts, *arguments]) == 9
    assert old.groups() == ["invoices", "litter"]
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" s ago ")[2] for line in told[1:]] == [
        "by the server's clock, so it is not deleted: check the clock of this machine"
    ] * 2


def test_execute_needs_a_file(zkgroups: Zkgroups, kazoo: KazooClient, old: Registry) -> None:
    before = tree(kazoo, "/consumers")
    ended = zkgroups("groups", "prune", "--older-than", "0s", "--execute")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: --execute needs --export FILE, to save the deleted offsets\n")
    assert tree(kazoo, "/consumers") == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["--older-than", "90"],
        ["--older-than", "-1d"],
        ["--older-than", "soon"],
        [],
        ["a/ids", "--older-than", "0s"],
        ["--groups", "(", "--older-than", "0s"],
    ],
)
def test_wrong_usage_is_exit_code_2(zkgroups: Zkgroups, arguments: list[str]) -> None:
    ended = zkgroups("groups", "prune", *arguments, "-z", "127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")


def test_with_read_only_the_dry_run_works_and_execute_is_refused(
    zkgroups: Zkgroups, old: Registry, export: Path
) -> None:
    arguments = ("groups", "prune", "--older-than", "0s", "--read-only", "-o", "name")
    assert zkgroups(*arguments).lines == ["invoices", "litter"]
    assert zkgroups(*arguments, "--export", export, "--execute").code == 4
    assert (old.groups(), export.exists()) == (["invoices", "litter"], False)


def test_pruning_is_completed_when_stdout_is_closed(zookeeper_hosts: str, old: Registry, export: Path) -> None:
    arguments = ("groups", "prune", "--older-than", "0s", "--export", export, "--execute", "-o", "jsonl")
    with started(*arguments, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 0
    assert old.groups() == []

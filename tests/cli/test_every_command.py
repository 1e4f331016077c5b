"""What holds for every command: help, exit codes, formats of output, and what is done with bad groups."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from kazoo.client import KazooClient
from zkgroups_cli.main import COMMANDS, root
from zkgroups_cli.shared import parameter_types
from zkgroups_cli.shared.global_options import root_parameters
from zkgroups_cli.shared.options import ExitCode, Options

from zkgroups import Registry, TopicPartition

from ..zookeeper.tree import dump
from .conftest import Zkgroups
from .running import Ended, run

AWAY = "127.0.0.1:1"

# Every command that connects, with the group G. It reads (r) or writes (w); the group must exist (g).
USES: dict[str, str] = {
    "groups list --groups G -o wide": "r",
    "groups describe G": "r g",
    "groups explain G": "r g",
    "groups create G": "w",
    "groups delete G --execute": "w g",
    "groups copy G blue --execute": "w g",
    "groups prune G --older-than 0s --export FILE --execute": "w g",
    "members list G": "r g",
    "members show G anna": "r g",
    "members evict G anna --execute": "w g",
    "owners list G": "r g",
    "release G orders 0 --expect-owner anna": "w",
    "claim G orders 0": "w g",
    "consume G orders -b AWAY": "w",
    "offsets get G": "r g",
    "offsets export G": "r g",
    "offsets diff G invoices": "r g",
    "offsets set G orders 0 500": "w g",
    "offsets reset G --all-topics --to-offset 500 --execute": "w g",
    "offsets delete G --all-topics --execute": "w g",
    "offsets import FILE --execute": "w",
    "offsets adopt G --execute": "w g",
    "layouts detect": "r",
    "lag G -b AWAY": "r g",
    "status G": "r g",
    "watch G": "r g",
    "doctor G": "r g",
    "doctor G --repair --execute": "w g",
    "snapshot FOLDER": "r",
    "audit FOLDER --once": "r",
    "migrate plan ./FOLDER --all --without-brokers": "r",
    "migrate group G ./FOLDER -b AWAY --execute": "w",
    "migrate switch G --to kafka -b AWAY --execute": "w g",
    "migrate unmark G": "w g",
    "migrate status": "r",
}
OTHERS = {
    *("snapshots list", "snapshots diff", "snapshots verify", "snapshots plot", "snapshots prune"),
    *("migrate show", "migrate apply", "migrate verify", "migrate rollback", "migrate export", "migrate follow"),
    *("history offsets", "history owners", "history members", "history groups", "history check"),
    *("context add", "context use", "context list", "context show", "context delete"),
    *("gateway", "serve", "spark-package", "completion", "zookeeper", "demo"),
}
"""Commands that do not connect to ZooKeeper, or only once they have read their files, or go on without it."""

MAY_BE_FORBIDDEN = ("groups create", "consume", "status", "migrate")
"""Commands that have other answers for a group that may not be read."""
ANYWHERE = ("groups create", "layouts", "offsets set", "offsets import", "migrate group")
"""Commands that need no other group, or no group at all, or first ask the brokers."""
OF_A_GROUP = [line for line in USES if " G" in line or "FILE --" in line]
WRITING = [line for line, kind in USES.items() if "w" in kind]


def leaves(command: click.Command = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group of commands."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*path, name))


@pytest.fixture
def use(zkgroups: Zkgroups, tmp_path: Path) -> Any:
    """Run a line of the table on a group."""

    def use(line: str, group: str, *more: str) -> Ended:
        file, export = tmp_path / "offsets", tmp_path / "export"
        file.write_text(json.dumps({"group": group, "topic": "orders", "partition": 0, "offset": 500}) + "\n")
        places = {"G": group, "AWAY": AWAY, "FOLDER": tmp_path / "folder", "./FOLDER": tmp_path / "folder"}
        places["FILE"] = export if "--export" in line else file
        return zkgroups(*(places.get(word, word) for word in shlex.split(line)), *more)

    return use


def test_the_table_has_every_command() -> None:
    found = {name for name, _ in leaves()}
    assert found >= OTHERS
    for name in found - OTHERS:
        assert any(line.startswith(name) for line in USES), name


# Help and parameters


def test_help_lists_every_command_and_every_exit_code() -> None:
    text = run("--help").out
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in COMMANDS)
    assert all(re.search(rf"^  {code.value} +{re.escape(code.meaning[:30])}", text, re.MULTILINE) for code in ExitCode)


def test_help_of_every_command_has_an_example() -> None:
    for name, command in leaves():
        text = command.get_help(click.Context(command, info_name=f"zkgroups {name}"))
        assert f"zkgroups {name}" in re.sub("-[zb] [^ ]+ ", "", text.partition("Example:")[2]), name


def test_without_a_command_the_help_is_shown_as_an_error() -> None:
    for arguments in ([], ["groups"]):
        ended = run(*arguments)
        assert (ended.code, ended.out, "Commands:" in ended.err) == (2, "", True)


def test_every_global_option_has_a_field() -> None:
    assert {option.name for option in root_parameters()} == {field.name for field in fields(Options)} - {"given"}


NAMES: dict[type[click.ParamType], set[str]] = {
    parameter_types.Duration: {
        *("timeout", "session_timeout", "wait", "grace", "every", "interval", "seconds", "age", "older_than"),
        *("stale_after", "abandoned_after", "fail_over_age", "by_duration"),
    },
    parameter_types.Time: {"since", "until", "to_datetime"},
    parameter_types.SnapshotChoice: {"at", "before", "after"},
    parameter_types.PartitionNumbers: {"partitions", "partition"},
    parameter_types.TopicOrPartitions: {"topic"},
}
"""The names of parameters that are durations, times, snapshots and partitions, and their types."""


def test_all_durations_times_and_partitions_have_the_one_type() -> None:
    for path, command in leaves():
        for parameter in (*command.params, *root.params):
            kind = parameter.type
            assert not isinstance(kind, click.types.FloatParamType), f"{path}: {parameter.name} has a type of its own"
            assert parameter.metavar not in {"SECONDS", "DURATION", "TIME"}, f"{path}: {parameter.name}"
            for wanted, names in NAMES.items():
                if parameter.name in names:
                    assert isinstance(kind, wanted), f"{path}: {parameter.name} is not a {wanted.__name__}"
            if parameter.name == "topics" and isinstance(parameter, click.Option) and "--topic" in parameter.opts:
                assert isinstance(kind, parameter_types.TopicOrPartitions), path


# Exit codes


@pytest.mark.parametrize("line", USES)
def test_an_unreachable_server_is_exit_code_7_and_one_sentence(use: Any, tmp_path: Path, line: str) -> None:
    ended = use(line, "billing", "-z", AWAY, "--timeout", "0.2")
    assert (ended.code, ended.out) == (7, "")
    assert re.match(f"zkgroups: (could not connect to|no broker at) {AWAY} (answered )?within 0.2 s: ", ended.err)
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("line", OF_A_GROUP)
def test_a_bad_name_is_exit_code_2_before_anything_is_sent(use: Any, line: str) -> None:
    ended = use(line.replace("--groups G", "--groups ("), "a/ids", "-z", AWAY)
    assert (ended.code, ended.out) == (2, "")
    assert "contains a slash" in ended.err or "is not a regular expression" in ended.err
    assert len(ended.err.splitlines()) <= 2


@pytest.mark.zookeeper
@pytest.mark.parametrize("line", [line for line, kind in USES.items() if "g" in kind])
def test_a_missing_group_is_exit_code_3_with_a_similar_name_and_is_not_created(
    use: Any, kazoo: KazooClient, registry: Registry, line: str
) -> None:
    registry.group("billing").create()
    before = dump(kazoo)
    for name, hint in ("nobody", ""), ("biling", "; did you mean 'billing'?"):
        ended = use(line, name)
        said = f"group '{name}' does not exist: check the name and the address{hint}"
        assert (ended.code, said in ended.err.splitlines()[0]) == (3, True), ended
    assert dump(kazoo) == before


@pytest.mark.zookeeper
@pytest.mark.parametrize("line", [line for line in OF_A_GROUP if not line.startswith(MAY_BE_FORBIDDEN)])
def test_a_forbidden_group_is_exit_code_6_and_is_not_changed(
    use: Any, kazoo: KazooClient, secret: str, registry: Registry, line: str
) -> None:
    registry.group("invoices").offsets.set(TopicPartition("orders", 0), 5)
    kazoo.create("/consumers/secret/owners/orders/0", b"anna", ephemeral=True, makepath=True)
    before = dump(kazoo)
    ended = use(line, secret)
    assert (ended.code, "no permission on /consumers/secret" in ended.err) == (6, True), ended
    assert dump(kazoo) == before


@pytest.mark.zookeeper
@pytest.mark.parametrize("line", WRITING)
def test_with_read_only_nothing_is_written(
    use: Any, kazoo: KazooClient, billing: Any, registry: Registry, line: str
) -> None:
    registry.group("invoices").offsets.set(TopicPartition("orders", 0), 5)
    before = dump(kazoo)
    for group in ("billing", "invoices"):
        ended = use(line, group, "--read-only")
        said = "zkgroups: this command writes, but --read-only was given: leave it out to write\n"
        assert (ended.code, ended.out, ended.err) == (4, "", said)
    assert dump(kazoo) == before


@pytest.mark.zookeeper
@pytest.mark.parametrize("line", [line for line in USES if not line.startswith(ANYWHERE)])
def test_a_chroot_with_neither_groups_nor_brokers_is_exit_code_3(
    use: Any, zookeeper_hosts: str, kazoo: KazooClient, tmp_path: Path, line: str
) -> None:
    kazoo.ensure_path("/storm/supervisors")
    ended = use(line, "billing", "-z", f"{zookeeper_hosts}/storm")
    assert (ended.code, ended.out) == (3, "")
    assert "contains neither /consumers nor /brokers" in ended.err
    assert not (tmp_path / "folder").exists()


# Formats

FORMATS = {
    "groups list": ("groups", "There are no groups.", "GROUP"),
    "groups describe billing": ("groups", None, "GROUP"),
    "groups explain billing": ("groups", None, None),
    "members list": ("members", "There are no registered instances.", "GROUP"),
    "members show billing anna": ("members", None, "GROUP"),
    "owners list": ("owners", "There are no owners.", "GROUP"),
    "offsets get": ("offsets", "There are no offsets.", "GROUP"),
    "offsets diff billing invoices": ("differences", None, "TOPIC"),
    "offsets reset invoices --all-topics --to-offset 5": ("changes", None, "GROUP"),
    "groups prune --older-than 0s": ("groups", "Nothing to delete: no group has been unused for that long.", "GROUP"),
    "groups copy invoices blue": ("offsets", None, "GROUP"),
    "groups delete invoices": ("groups", None, "GROUP"),
    "members evict billing anna": ("partitions", None, "TOPIC"),
    "doctor": ("findings", "No problems found.", "SEVERITY"),
    "layouts detect": ("layouts", "No offsets were found.", "LAYOUT"),
}
"""Commands with data of `billing` and `invoices`; the name of their rows, the message without rows, and the header."""


def ageless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in {"schema", "idle_seconds"}} for row in rows]


@pytest.mark.zookeeper
@pytest.mark.oldest
@pytest.mark.parametrize("line", FORMATS)
def test_all_formats_have_the_same_rows(zkgroups: Zkgroups, billing: Any, registry: Registry, line: str) -> None:
    registry.group("invoices").offsets.set(TopicPartition("orders", 0), 7)
    key, _, header = FORMATS[line]

    def shown(*options: str) -> Ended:
        ended = zkgroups(*line.split(), *options)
        assert ended.code in (0, 10), ended.err
        return ended

    document, in_yaml = shown("-o", "json").json, shown("-o", "yaml").out
    rows = ageless(document[key])
    assert (document["schema"], bool(rows), in_yaml.splitlines()[:2]) == (1, True, ["---", "schema: 1"])
    assert ageless(yaml.safe_load(in_yaml)[key]) == rows
    lines = [json.loads(each) for each in shown("-o", "jsonl").lines]
    assert (ageless(lines), {each["schema"] for each in lines}) == (rows, {1})
    assert len(list(csv.DictReader(shown("-o", "csv").lines))) >= len(rows)
    assert len(shown("-o", "name").lines) == len(rows)
    if header is not None:
        assert shown().lines[0].split()[0] == header
        assert header not in shown("--no-headers").out.split()


@pytest.mark.zookeeper
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("line", [line for line, (_, message, _) in FORMATS.items() if message])
def test_without_rows_the_data_is_empty_and_a_message_goes_to_stderr(zkgroups: Zkgroups, line: str) -> None:
    key, message, _ = FORMATS[line]
    ended = zkgroups(*line.split())
    assert (ended.code, ended.out, ended.err.splitlines()[0]) == (0, "", message)
    empty = zkgroups(*line.split(), "-o", "json").json
    assert (empty["schema"], empty[key]) == (1, [])
    assert zkgroups(*line.split(), "-o", "jsonl").out == ""
    assert zkgroups(*line.split(), "-q").err == ""


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "line",
    [
        line
        for line in USES
        if re.match(r"(groups (describe|delete)|members list|owners|offsets (get|export)|doctor G$)", line)
    ],
)
def test_a_missing_group_does_not_hide_the_others(use: Any, registry: Registry, line: str) -> None:
    for name in ("a", "c"):
        registry.group(name).offsets.set(TopicPartition("orders", 0), 5)
    ended = use(line.replace(" G", " a nobody c", 1), "")
    assert ended.code == 9
    assert "zkgroups: group 'nobody' does not exist: check the name and the address\n" in ended.err
    if not line.startswith(("members", "owners")):
        assert all(name in ended.out for name in ("a", "c"))

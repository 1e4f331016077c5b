"""Global options before and after the command, the environment, help, and a start that imports little."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import click
import pytest
from zkgroups_cli.main import COMMANDS, root
from zkgroups_cli.shared.exit_codes import ExitCode
from zkgroups_cli.shared.global_options import root_parameters
from zkgroups_cli.shared.options import Options

from .conftest import Zkgroups
from .running import environment, run

NOWHERE = "127.0.0.1:1"


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    found = [path]
    with click.Context(command) as ctx:
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            found += every_command(below, (*path, name))
    return found


def test_every_global_option_has_a_field() -> None:
    assert {option.name for option in root_parameters()} == {field.name for field in fields(Options)} - {"given"}


def test_help_needs_neither_kazoo_nor_rich_nor_pyspark() -> None:
    code = (
        "import sys; sys.argv = ['zkgroups', '--help']; from zkgroups_cli.main import main; assert main() == 0;"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert not {"kazoo", "rich", "pyspark", "zkgroups"} & set(done.stderr.split())


def test_help_lists_every_command_and_every_exit_code() -> None:
    text = run("--help").out
    assert all(re.search(rf"^  {name} ", text, re.MULTILINE) for name in COMMANDS)
    assert all(re.search(rf"^  {code.value} +{re.escape(code.meaning[:30])}", text, re.MULTILINE) for code in ExitCode)


@pytest.mark.parametrize("path", every_command(root), ids=" ".join)
def test_help_of_every_command_has_an_example(path: tuple[str, ...]) -> None:
    command: click.Command = root
    with click.Context(command, info_name="zkgroups") as ctx:
        for name in path:
            assert isinstance(command, click.Group)
            command = command.get_command(ctx, name) or pytest.fail(name)
        assert f"zkgroups {' '.join(path)}".strip() in re.sub("-[zb] [^ ]+ ", "", command.get_help(ctx))


def test_without_a_command_the_help_is_shown_as_an_error() -> None:
    for arguments in ([], ["groups"]):
        ended = run(*arguments)
        assert (ended.code, ended.out) == (2, "")
        assert "Commands:" in ended.err


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run([sys.executable, "-m", "zkgroups_cli", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, run("--version").out)


def test_without_an_address_the_error_names_the_option() -> None:
    ended = run("groups", "list")
    assert (ended.code, ended.out) == (2, "")
    assert "-z HOST:PORT/CHROOT" in ended.err
    assert "ZKGROUPS_ZOOKEEPER" in ended.err


@pytest.mark.parametrize(
    "arguments", [("groups", "list", "--no-such"), ("no-such",), ("groups", "no-such"), ("groups", "create")], ids=str
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, env={"ZKGROUPS_ZOOKEEPER": NOWHERE})
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: ")
    assert "Try 'zkgroups" in ended.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("-z", "a:b:c"),
        ("-z", ""),
        ("-z", "zk1/a//b"),
        ("--timeout", "-1"),
        ("--timeout", "nan"),
        ("--timeout", "soon"),
        ("--session-timeout", "301"),
        ("-o", "xml"),
        ("--color", "red"),
    ],
)
def test_a_wrong_value_of_an_option_is_exit_code_2(option: str, value: str) -> None:
    ended = run("groups", "list", "-z", NOWHERE, option, value)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("zkgroups: ")
    assert len(ended.err.splitlines()) <= 2


def test_a_wrong_value_in_the_environment_is_named() -> None:
    ended = run("groups", "list", "-z", NOWHERE, env={"ZKGROUPS_TIMEOUT": "soon"})
    assert ended.code == 2
    assert "ZKGROUPS_TIMEOUT" in ended.err
    assert "'soon'" in ended.err


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "arguments",
    [("-o", "name", "groups", "list"), ("groups", "-o", "name", "list"), ("groups", "list", "-o", "name")],
    ids=" ".join,
)
def test_a_global_option_may_be_before_or_after_the_command(zkgroups: Zkgroups, arguments: tuple[str, ...]) -> None:
    zkgroups("groups", "create", "billing")
    assert zkgroups(*arguments).out == "billing\n"


@pytest.mark.zookeeper
def test_a_later_option_overrides_an_earlier_one_and_both_override_the_environment(zkgroups: Zkgroups) -> None:
    zkgroups("groups", "create", "billing")
    assert zkgroups("groups", "list", ZKGROUPS_OUTPUT="name").out == "billing\n"
    assert zkgroups("-o", "name", "groups", "list", ZKGROUPS_OUTPUT="json").out == "billing\n"
    assert zkgroups("-o", "json", "groups", "list", "-o", "name", ZKGROUPS_OUTPUT="csv").out == "billing\n"


@pytest.mark.usefixtures("cluster")
@pytest.mark.zookeeper
def test_the_option_for_zookeeper_overrides_the_environment(zkgroups: Zkgroups, zookeeper_hosts: str) -> None:
    assert zkgroups("groups", "list", "-z", zookeeper_hosts, ZKGROUPS_ZOOKEEPER=NOWHERE).code == 0
    assert zkgroups("-z", zookeeper_hosts, "groups", "list", ZKGROUPS_ZOOKEEPER=NOWHERE).code == 0


@pytest.mark.zookeeper
def test_a_flag_is_taken_from_the_environment(zkgroups: Zkgroups) -> None:
    zkgroups("groups", "create", "billing", ZKGROUPS_QUIET="1")
    assert zkgroups("groups", "list", ZKGROUPS_NO_HEADERS="true").out == "billing\n"


@pytest.mark.zookeeper
def test_quiet_shows_only_errors(zkgroups: Zkgroups) -> None:
    assert zkgroups("groups", "create", "billing", "-q").err == ""
    assert (
        zkgroups("groups", "describe", "nobody", "-q").err
        == "zkgroups: group 'nobody' does not exist: check the name and the address\n"
    )


@pytest.mark.zookeeper
def test_read_only_refuses_to_write(zkgroups: Zkgroups) -> None:
    assert zkgroups("groups", "create", "billing", "--read-only").code == 4
    assert zkgroups("groups", "list", "-o", "name", "--read-only").out == ""


@pytest.mark.usefixtures("cluster")
@pytest.mark.zookeeper
def test_a_short_session_timeout_causes_a_warning_of_one_line(zkgroups: Zkgroups) -> None:
    ended = zkgroups("groups", "list", "--session-timeout", "9")
    assert ended.code == 0
    assert ended.err.splitlines()[0].startswith("zkgroups: a session timeout of 9 s")

"""`zkgroups migrate` without servers and Spark: usage errors, progress, and the examples in the help."""

from __future__ import annotations

import doctest
import io
import re
import shlex
from types import ModuleType

import click
import pytest
from zkgroups_cli.migrate import tables
from zkgroups_cli.migrate.commands import migrate as migrate_commands
from zkgroups_cli.shared import progress
from zkgroups_cli.shared.options import Options

from ..running import run
from .moving import NOWHERE


@pytest.mark.parametrize("module", [progress, tables], ids=lambda module: module.__name__)
def test_docstring_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_a_terminal_shows_progress_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.progress(Options(), 2, lambda: 0.5, 100_000) as on_progress:
        on_progress("applying")
        while "left" not in screen.getvalue():
            pass
    assert re.search(r"applying .*50,000 of 100,000 offsets, [0-9,]+/s, 0:00:0\d left", screen.getvalue())


@pytest.mark.parametrize("name", migrate_commands.commands)
def test_every_option_in_an_example_exists(name: str) -> None:
    """The examples are not run: the tests above show what the commands do."""
    command = migrate_commands.commands[name]
    _, _, text = (command.help or "").partition("Example:\n")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line)
        arguments = words[words.index(name) + 1 :]
        assert words[words.index(name) - 1] == "migrate"
        with click.Context(click.Command("zkgroups"), obj=Options()) as above:
            assert command.make_context(name, arguments, parent=above).params


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "x"), "a plan (or --without-brokers) needs the Kafka brokers"),
        (("plan", "x", "-b", NOWHERE, "--rename", "a"), "'a' is not of the form OLD=NEW"),
        (
            ("plan", "x", "-b", NOWHERE, "--rename", "a=b", "--rename", "a=c"),
            "group 'a' has two new names: give it only one",
        ),
        (("plan", "x", "-b", NOWHERE, "--rename-regex", "(", "b"), "it is not a regular expression"),
        (("plan", "x", "-b", NOWHERE, "--skip-stale"), "--skip-stale needs --stale-after"),
        (("plan", "x", "--without-brokers", "--at", "latest"), "--at needs --from-snapshot"),
        (("plan", "x", "-b", NOWHERE, "--groups", "("), "groups is '(', but it is not a regular expression"),
        (("plan", "x", "--without-brokers", "--groups", "("), "groups is '(', but it is not a regular expression"),
        (("apply", "x"), "migrate apply needs the Kafka brokers"),
        (("group", "a/b", "x", "-b", NOWHERE), "contains a slash"),
        (("apply", "x", "--conf", "y"), "'y' is not like KEY=VALUE"),
        (
            ("apply", "x", "-b", NOWHERE, "--engine", "local", "--master", "local"),
            "--master and --conf need --engine spark",
        ),
        (("show", "hdfs://nn/x", "--engine", "local"), "it must be the name of a folder on this machine"),
    ],
    ids=str,
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    ended = run("migrate", *arguments, env={"ZKGROUPS_ZOOKEEPER": NOWHERE, "JAVA_HOME": "", "PATH": "/nowhere"})
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert len(ended.err.splitlines()) <= 2


def test_unreachable_servers_give_exit_code_7_before_spark_starts() -> None:
    away = ("-z", NOWHERE, "--timeout", "0.5")
    plans = (("plan", "x", "--without-brokers"), ("plan", "x", "-b", NOWHERE))
    for arguments in (*plans, ("apply", "x", "-b", NOWHERE, "--engine", "spark")):
        ended = run("migrate", *arguments, *away, env={"JAVA_HOME": "", "PATH": "/nowhere"})
        assert (ended.code, ended.out) == (7, "")


@pytest.mark.parametrize("command", ["apply", "rollback", "group", "follow", "unmark"])
def test_writing_commands_are_refused_with_read_only(command: str) -> None:
    arguments = {"group": ("g", "x", "--execute"), "unmark": ("g",)}.get(command, ("x", "--execute"))
    ended = run("migrate", command, *arguments, "--read-only", "-z", NOWHERE, "-b", NOWHERE)
    assert (ended.code, ended.out) == (4, "")
    assert ended.err == "zkgroups: this command writes, but --read-only was given: leave it out to write\n"

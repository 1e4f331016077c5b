"""Formats, terminals and closed pipes, with hostile data."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from zkgroups_cli.shared.messages import printable

from zkgroups import Registry, TopicPartition
from zkgroups.testing import TcpProxy

from .conftest import Zkgroups
from .running import COMMAND, TIMEOUT, Terminal, environment, started

pytestmark = pytest.mark.zookeeper

EVIL = "a\x1b[2J\nb\u202ec"


@pytest.fixture
def evil(kazoo: KazooClient) -> str:
    """An instance whose registration has a screen-clearing topic."""
    registration = json.dumps({"version": 1, "subscription": {EVIL: 1}, "pattern": "static", "timestamp": "1"})
    kazoo.create("/consumers/evil/ids/one", registration.encode(), ephemeral=True, makepath=True)
    return "evil"


def on_terminal(hosts: str, *arguments: str, columns: int = 100) -> str:
    with Terminal(*arguments, env={"ZKGROUPS_ZOOKEEPER": hosts}, columns=columns) as terminal:
        ended = terminal.end()
    assert ended.code == 0, ended.out
    return ended.out


def without_colour(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_invisible_characters_are_escaped() -> None:
    assert printable(EVIL + "\udcff\x9b") == r"a\x1b[2J\nb\u202ec\udcff\x9b"


def test_without_pyyaml_nothing_is_done_for_yaml(registry: Registry, zookeeper_hosts: str) -> None:
    code = (
        "import sys; sys.modules['yaml'] = None; from zkgroups_cli.main import main;"
        "sys.argv = ['zkgroups', 'groups', 'list', '-o', 'yaml']; sys.exit(main())"
    )
    env = environment({"ZKGROUPS_ZOOKEEPER": zookeeper_hosts})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert (done.stdout, done.stderr) == (
        "",
        "zkgroups: -o yaml needs PyYAML; from the checkout: pip install '.[yaml]'\n",
    )


def test_a_table_in_a_pipe_is_plain_and_never_cut(zkgroups: Zkgroups, registry: Registry) -> None:
    name = "x" * 500
    registry.group(name).create()
    [header, line] = zkgroups("groups", "list", "-o", "wide").lines
    assert line.split()[0] == name
    assert header.index("STATE") == line.index("Empty")
    assert "\x1b" not in header + line


def test_a_table_on_a_terminal_fits_and_is_complete(zookeeper_hosts: str, registry: Registry) -> None:
    name = "x" * 70 + "z"
    registry.group(name).create()
    registry.group(name).offsets.set(TopicPartition("t", 0), 1)
    text = without_colour(on_terminal(zookeeper_hosts, "offsets", "get", columns=60))
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("x") == 70
    assert text.count("z") == 1


def test_a_wide_table_on_a_terminal_exceeds_its_width_without_wrapping_cells(
    zookeeper_hosts: str, registry: Registry
) -> None:
    registry.group("x" * 70 + "z").create()
    text = without_colour(on_terminal(zookeeper_hosts, "groups", "list", "-o", "wide", columns=60))
    assert "x" * 70 + "z" in text, "a copied name is complete"


def test_a_terminal_has_colours_unless_disabled(zookeeper_hosts: str, registry: Registry) -> None:
    registry.group("billing").create()
    listing = ("groups", "list")
    assert "\x1b[" in on_terminal(zookeeper_hosts, *listing)
    assert "\x1b" not in on_terminal(zookeeper_hosts, *listing, "--color", "never")


@pytest.mark.parametrize("output", ["table", "wide", "json", "jsonl"])
def test_control_characters_in_foreign_data_are_escaped(zkgroups: Zkgroups, evil: str, output: str) -> None:
    out = zkgroups("groups", "describe", evil, "-o", output).out
    assert "a" in out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)


@pytest.mark.parametrize("output", ["table", "csv", "name"])
def test_control_characters_in_foreign_data_do_not_reach_a_terminal(
    zookeeper_hosts: str, registry: Registry, evil: str, output: str
) -> None:
    registry.group("turn\u202e").create()
    out = on_terminal(zookeeper_hosts, "groups", "describe", evil, "turn\u202e", "-o", output, "--color", "never")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out)


def test_no_text_in_csv_becomes_a_formula_in_a_spreadsheet_and_numbers_stay_numbers(
    zkgroups: Zkgroups, registry: Registry
) -> None:
    registry.group("=cmd|'C calc'!A0").offsets.set(TopicPartition("-orders", 0), 200)
    arguments = ("=cmd|'C calc'!A0", "--all-topics", "--shift-by", "-150", "-o", "csv")
    [row] = csv.DictReader(io.StringIO(zkgroups("offsets", "reset", *arguments).out))
    assert (row["group"], row["topic"], row["delta"]) == ("'=cmd|'C calc'!A0", "'-orders", "-150")


@pytest.mark.parametrize("output", ["table", "jsonl"])
def test_a_closed_pipe_is_not_an_error(zookeeper_hosts: str, registry: Registry, output: str) -> None:
    for letter in "abc":  # more than a pipe holds, so that some output is left to write
        registry.group(letter * 60_000).create()
    with started("groups", "list", "-o", output, env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert (process.wait(TIMEOUT), process.stderr.read()) == (0, "")


def test_a_full_disk_is_an_error_of_one_sentence(zookeeper_hosts: str, registry: Registry) -> None:
    registry.group("billing").create()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [COMMAND, "groups", "list", "-z", zookeeper_hosts],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert (done.returncode, done.stderr) == (1, "zkgroups: No space left on device\n")


def test_characters_that_the_encoding_lacks_are_escaped(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("日本").create()
    assert zkgroups("groups", "list", "-o", "name", PYTHONIOENCODING="ascii").out == "\\u65e5\\u672c\n"


def test_progress_is_shown_on_a_terminal_and_erased_at_the_end(zookeeper_hosts: str, registry: Registry) -> None:
    registry.group("billing").create()
    server, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(server) as proxy:
        proxy.delay(1.0, direction="replies")
        address = f"{proxy.address}/{chroot}"
        with Terminal("groups", "list", "-o", "wide", "-z", address, "--timeout", "60") as terminal:
            terminal.wait_for("0 groups")
            proxy.delay(0)
            ended = terminal.end()
    assert ended.code == 0
    assert ended.out.rpartition("\x1b[2K")[2].splitlines()[-1].startswith("billing")


@pytest.mark.parametrize("quietly", [("-q",), ("-o", "jsonl")])
def test_no_progress_is_shown_in_a_pipe_or_with_quiet(
    zookeeper_hosts: str, registry: Registry, quietly: tuple[str, ...]
) -> None:
    registry.group("billing").create()
    server, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(server) as proxy:
        proxy.delay(0.5, direction="replies")
        with Terminal("groups", "list", "-o", "wide", *quietly, "-z", f"{proxy.address}/{chroot}") as terminal:
            ended = terminal.end()
    assert ended.code == 0
    assert "0 groups" not in ended.out

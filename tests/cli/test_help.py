"""The examples of every `--help` work, and docs/cli.md is up to date."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import click
import pytest
from kazoo.client import KazooClient
from zkgroups_cli.history.commands import history
from zkgroups_cli.main import root
from zkgroups_cli.migrate.commands import migrate

from zkgroups import Registry, TopicPartition
from zkgroups.testing import KafkaBroker

from ..core.layouts.written import WRITERS, storm_of_one_topic
from .running import environment

ROOT = Path(__file__).parent.parent.parent
ADDRESS = re.compile(r"zk1:2181(,zk2:2181)?(/kafka)?\b")
BROKERS = "kafka1:9092"

ELSEWHERE = {
    ("snapshot",),
    ("snapshots",),
    ("snapshots", "diff"),
    ("snapshots", "list"),
    ("snapshots", "plot"),
    ("snapshots", "verify"),
    ("audit",),
    ("gateway",),
    ("serve",),
    ("spark-package",),
    ("zookeeper",),
    ("demo",),
    ("migrate",),
    ("history",),
} | {("migrate", name) for name in migrate.commands if name != "unmark"}
ELSEWHERE |= {("history", name) for name in history.commands}
"""Commands whose examples have their own tests: with Spark, on a cluster, without an end, or with files of a server."""

GOES_ON = re.compile(r"zkgroups (-\S+ \S+ )*(watch |claim (?!.* -- )|groups describe .*--watch)")
"""The command runs until its user ends it."""

FINE = {0, 10}
"""Success, and success with findings."""


def examples(
    command: click.Command, path: tuple[str, ...] = (), *, everything: bool = False
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each command with examples, and their lines."""
    _, _, text = (command.help or "").partition("Example:\n")
    lines = [line.strip() for line in text.split("\n\n")[0].splitlines() if line.strip()]
    if everything or path not in ELSEWHERE:
        yield path, lines
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None
                yield from examples(below, (*path, name), everything=everything)


OF_SNAPSHOTS = re.compile("--(from|to)-snapshot|--from-audit")
"""Lines that start Spark: test_offsets_snapshot.py runs them."""

EXAMPLES = [(path, [line for line in lines if not OF_SNAPSHOTS.search(line)]) for path, lines in examples(root)]
WITH_BROKERS = [example for example in EXAMPLES if any(BROKERS in line for line in example[1])]
WITHOUT_BROKERS = [example for example in EXAMPLES if example not in WITH_BROKERS]


@pytest.fixture
def tree(registry: Registry, kazoo: KazooClient) -> Iterator[None]:
    """`billing` has two live instances, `invoices` has none. Both have offsets of `orders`; so has a Storm spout."""
    kazoo.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}', makepath=True)
    partitions = [TopicPartition("orders", number) for number in range(3)]
    offsets = dict.fromkeys(partitions[:1], 5)
    of_others = storm_of_one_topic("spout", offsets) | WRITERS["kafka-1.1.0"]("invoices", offsets)
    for path, data in of_others.items():
        kazoo.create(path, data, makepath=True)
    with ExitStack() as stack:
        for name in ("anna", "ben"):
            instance = stack.enter_context(registry.group("billing").instance(name))
            instance.register(["orders"])
            if name == "anna":
                instance.claim_many(partitions[:2]).commit(dict.fromkeys(partitions[:2], 1200))
        registry.group("billing").offsets.set(partitions[2], 900)
        registry.group("invoices").create()
        registry.group("invoices").offsets.set_many({at: 100 * at.partition for at in partitions})
        yield


class Shell:
    """Runs lines in a new folder, like a user who has copied them."""

    def __init__(self, hosts: str, brokers: str, folder: Path) -> None:
        self._hosts, self._brokers, self._folder = hosts, brokers, folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = environment(
            {"PATH": path, "ZKGROUPS_ZOOKEEPER": hosts, "ZKGROUPS_CONFIG": str(folder / "contexts.ini")}
        )

        subprocess.run(["zkgroups", "context", "add", "prod", "-z", hosts], env=self._environment, check=True)

    def run(self, line: str) -> None:
        """Assert that the line succeeds."""
        line = ADDRESS.sub(self._hosts, line).replace(BROKERS, self._brokers)
        goes_on = GOES_ON.match(line) is not None
        with subprocess.Popen(
            ["bash", "-c", f"exec {line}" if goes_on else line],
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                if goes_on:
                    self._interrupt(process)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode in ({130} if goes_on else FINE), (line, out, err)
        assert "Traceback" not in err

    def _interrupt(self, process: Any) -> None:
        """Send Ctrl-C once the command reports that it has begun."""
        (process.stderr if "watch" in " ".join(process.args) else process.stdout).readline()
        process.send_signal(signal.SIGINT)


@pytest.mark.zookeeper
@pytest.mark.parametrize(("path", "lines"), WITHOUT_BROKERS, ids=[" ".join(path) for path, _ in WITHOUT_BROKERS])
def test_the_examples_of_a_command_work(
    tree: None, zookeeper_hosts: str, tmp_path: Path, path: tuple[str, ...], lines: list[str]
) -> None:
    assert lines, f"{' '.join(path)} has no example"
    shell = Shell(zookeeper_hosts, BROKERS, tmp_path)
    for line in lines:
        shell.run(line)


@pytest.fixture(scope="session")
def orders(kafka_broker: KafkaBroker) -> str:
    """Brokers that have the topic. Another test may have created it before."""
    with suppress(Exception):
        kafka_broker.create_topic("orders", 3)
    return kafka_broker.address


@pytest.mark.zookeeper
@pytest.mark.parametrize(("path", "lines"), WITH_BROKERS, ids=[" ".join(path) for path, _ in WITH_BROKERS])
def test_the_examples_of_a_command_that_needs_brokers_work(
    tree: None, orders: str, zookeeper_hosts: str, tmp_path: Path, path: tuple[str, ...], lines: list[str]
) -> None:
    shell = Shell(zookeeper_hosts, orders, tmp_path)
    for line in lines:
        shell.run(line)


def test_the_reference_is_up_to_date() -> None:
    """If this fails: `make docs`."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "cli_reference.py", "--check"], check=False)
    assert done.returncode == 0, "docs/cli.md is out of date: make docs"

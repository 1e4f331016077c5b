"""The examples of every `--help` work, and docs/cli.md is up to date."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from kazoo.client import KazooClient
from zkgroups_cli.main import root
from zkgroups_cli.offsets import reset

from tests.waiting import LONGEST
from zkgroups import Registry, TopicPartition
from zkgroups.testing import KafkaBroker

from ..core.layouts.written import WRITERS, storm_of_one_topic
from .running import environment, run

ROOT = Path(__file__).parent.parent.parent
ADDRESS = re.compile(r"zk1:2181(,zk2:2181)?(/kafka)?\b")
BROKERS = "kafka1:9092"

ELSEWHERE = ("snapshot", "audit", "gateway", "serve", "spark-package", "zookeeper", "demo", "migrate", "history")
"""Commands whose examples have their own tests: with Spark, on a cluster, without an end, or with files of a server."""

GOES_ON = re.compile(r"zkgroups (-\S+ \S+ )*(watch |claim (?!.* -- )|groups describe .*--watch)")
"""The command runs until its user ends it."""

FOR_A_SHELL = re.compile(r"^(?!zkgroups )|[|<>&;$`]")

FINE = {0, 10}
"""Success, and success with findings."""


def examples(
    command: click.Command, path: tuple[str, ...] = (), *, everything: bool = False
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each command with examples, and their lines."""
    _, _, text = (command.help or "").partition("Example:\n")
    lines = [line.strip() for line in text.split("\n\n")[0].splitlines() if line.strip()]
    if everything or path == ("migrate", "unmark") or not " ".join(path).startswith(ELSEWHERE):
        yield path, lines
    if isinstance(command, click.Group):
        with click.Context(command) as ctx:
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None
                yield from examples(below, (*path, name), everything=everything)


OF_SNAPSHOTS = re.compile("--(from|to)-snapshot|--from-audit")
"""Lines that read snapshots or audits: test_the_examples_with_snapshots_work runs them."""

EXAMPLES = {" ".join(path): [line for line in lines if not OF_SNAPSHOTS.search(line)] for path, lines in examples(root)}
WITH_BROKERS = [path for path, lines in EXAMPLES.items() if any(BROKERS in line for line in lines)]


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
    """Runs lines in a new folder, like a user who has copied them. Only a line with more than one command, or one that
    goes on until Ctrl-C, needs a process."""

    def __init__(self, hosts: str, brokers: str, folder: Path) -> None:
        self._hosts, self._brokers, self._folder = hosts, brokers, folder
        self._environment = {"ZKGROUPS_ZOOKEEPER": hosts, "ZKGROUPS_CONFIG": str(folder / "contexts.ini")}
        run("context", "add", "prod", "-z", hosts, env=self._environment)

    def run(self, line: str) -> None:
        """Assert that the line succeeds."""
        line = ADDRESS.sub(self._hosts, line).replace(BROKERS, self._brokers)
        goes_on = GOES_ON.match(line) is not None
        if goes_on or FOR_A_SHELL.search(line):
            code, err = self._in_a_shell(line, goes_on)
        else:
            with contextlib.chdir(self._folder):
                ended = run(*shlex.split(line)[1:], env=self._environment)
            code, err = ended.code, ended.err
        assert code in ({130} if goes_on else FINE), (line, err)
        assert "Traceback" not in err

    def _in_a_shell(self, line: str, goes_on: bool) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with subprocess.Popen(
            ["bash", "-c", f"exec {line}" if goes_on else line],
            env=environment(self._environment | {"PATH": path}),
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                if goes_on:
                    self._interrupt(process)
                _, err = process.communicate(timeout=2 * LONGEST)
            finally:
                process.kill()
        return process.returncode, err

    def _interrupt(self, process: Any) -> None:
        """Send Ctrl-C once the command reports that it has begun."""
        (process.stderr if "watch" in " ".join(process.args) else process.stdout).readline()
        process.send_signal(signal.SIGINT)


@pytest.mark.zookeeper
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path not in WITH_BROKERS])
def test_the_examples_of_a_command_work(tree: None, zookeeper_hosts: str, tmp_path: Path, path: str) -> None:
    assert EXAMPLES[path], f"{path} has no example"
    shell = Shell(zookeeper_hosts, BROKERS, tmp_path)
    for line in EXAMPLES[path]:
        shell.run(line)


@pytest.fixture(scope="session")
def orders(kafka_broker: KafkaBroker) -> str:
    """Brokers that have the topic with three partitions. Another test may have created it before, with fewer."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.address, "log_level": 0})
    topics = admin.list_topics(timeout=LONGEST).topics
    if "orders" not in topics:
        kafka_broker.create_topic("orders", 3)
    elif len(topics["orders"].partitions) < 3:
        admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(LONGEST)
    return kafka_broker.address


@pytest.mark.zookeeper
@pytest.mark.parametrize("path", WITH_BROKERS)
def test_the_examples_of_a_command_that_needs_brokers_work(
    tree: None, orders: str, zookeeper_hosts: str, tmp_path: Path, path: str
) -> None:
    shell = Shell(zookeeper_hosts, orders, tmp_path)
    for line in EXAMPLES[path]:
        shell.run(line)


def test_the_reference_is_up_to_date() -> None:
    """If this fails: `make docs`."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "cli_reference.py", "--check"], check=False)
    assert done.returncode == 0, "docs/cli.md is out of date: make docs"


@pytest.mark.zookeeper
def test_the_examples_with_snapshots_work(
    zookeeper_hosts: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `--help` examples that read snapshots or an audit."""
    for group in ("billing", "invoices"):
        registry.group(group).offsets.set(TopicPartition("orders", 0), 5)
    shell = Shell(zookeeper_hosts, "", tmp_path)
    between = datetime.now(UTC)  # after the commits, and before the audit reads them
    for line in ("snapshot /data/groups", "snapshot /data/groups", "audit /data/audit --once"):
        shell.run(f"zkgroups {line}".replace("/data", str(tmp_path)))
    lines = [line for _, some in examples(root, everything=True) for line in some]
    ours = re.compile(f" offsets .*({OF_SNAPSHOTS.pattern})| snapshots (list|plot|verify) ")
    lines = [line for line in lines if ours.search(line)]
    assert len(lines) >= 6
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # "Two hours ago", the offsets existed, and the audit had not read them yet.
    clock = SimpleNamespace(time=lambda: (between + timedelta(hours=2)).timestamp())
    monkeypatch.setattr(reset, "time", clock)
    for line in lines:
        at = now if "--at" in line else "2026-01-31T22:00:00"
        shell.run(re.sub("2026-01-31T[0-9:]*", at, line).replace("/data", str(tmp_path)))
    assert {"billing.svg", "night.png"} <= {file.name for file in tmp_path.iterdir()}

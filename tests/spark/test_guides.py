"""The guides that need Spark: README, tutorial, spark and migration. Most use the servers that the tutorial starts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.spark import run_audit, take_snapshot
from zkgroups.testing import ZooKeeperServer, missing

from ..docs.guides import (
    ON_OWN_SERVERS,
    ON_SPARK,
    ROOT,
    Block,
    Runner,
    assert_printed,
    blocks,
    environment,
    groups_shown,
    programs,
)
from ..environments import python_with
from .commands import command_on

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.timeout(1000)]

[PLAYGROUND] = [program for program in programs("docs/tutorial.md") if "KafkaBroker" in program]


@dataclass(frozen=True)
class Playground:
    """The servers of the tutorial: a ZooKeeper, and a broker that knows the topic `orders`."""

    zookeeper: str
    broker: str


@pytest.fixture(scope="module")
def playground() -> Iterator[Playground]:
    """Run `playground.py` as the tutorial shows it."""
    command = [sys.executable, "-c", PLAYGROUND]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        exported = re.findall(r"^export \w+=(\S+)$", running.stdout.readline() + running.stdout.readline(), re.M)
        if len(exported) != 2:
            _, error = running.communicate()
            assert "MissingDependencyError" in error, error
            missing("kafka", error.splitlines()[-1])
        yield Playground(*exported)
        running.communicate("\n", timeout=60)
        assert running.returncode == 0


@pytest.fixture
def brokers(playground: Playground) -> Iterator[Brokers]:
    """A client of the broker, which has no groups at first."""
    with Brokers.connect(playground.broker) as brokers:
        brokers.delete_groups(["billing", "invoices"])
        yield brokers


def _starts_the_servers(block: Block) -> bool:
    return block.text == PLAYGROUND


def _is_an_endless_loop(block: Block) -> bool:
    """The consumer of the README has a test of its own in `tests/docs/test_guides.py`."""
    return "for message in consumer" in block.text


@pytest.mark.timeout(1000)
def test_the_tutorial_prints_what_it_shows(
    spark: SparkSession, playground: Playground, brokers: Brokers, tmp_path: Path
) -> None:
    with command_on(spark, playground.zookeeper, together=True) as command:
        Runner(tmp_path, playground.zookeeper, playground.broker, command, _starts_the_servers).run("docs/tutorial.md")


def test_the_guide_of_histories_prints_what_it_shows(spark: SparkSession, tmp_path: Path) -> None:
    """On a server of its own, whose logs have nothing else."""
    with ZooKeeperServer(data_dir=tmp_path / "zookeeper") as server:
        with lasting_client(server.address) as client:
            client.ensure_path("/kafka")
        hosts = f"{server.address}/kafka"
        with Registry.connect(hosts) as registry, groups_shown(hosts, registry), command_on(spark, hosts) as command:
            Runner(tmp_path, hosts, spark=command).run("docs/history.md")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("guide", sorted({*ON_SPARK} - {*ON_OWN_SERVERS}))
def test_a_guide_prints_what_it_shows(
    guide: str,
    spark: SparkSession,
    registry: Registry,
    zookeeper_hosts: str,
    playground: Playground,
    brokers: Brokers,
    tmp_path: Path,
) -> None:
    with groups_shown(zookeeper_hosts, registry), command_on(spark, zookeeper_hosts, together=True) as command:
        Runner(tmp_path, zookeeper_hosts, playground.broker, command, _is_an_endless_loop).run(guide)


# Programs that need packages of other projects

GUIDE = "docs/spark.md"
WITH_SPARK = ("pyspark==4.1.*", "pyarrow", "kazoo<2.12", "google-re2<2")
PACKAGES = {
    "import duckdb": ("duckdb", "pandas", "polars", "pyarrow"),
    "org.apache.iceberg": WITH_SPARK,
    "io.delta": WITH_SPARK,
}
"""What a program needs, by words in it."""


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("words", PACKAGES)
def test_a_program_with_other_packages_prints_what_it_shows(
    words: str, spark: SparkSession, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    found = blocks(GUIDE)
    [number] = [number for number, block in enumerate(found) if block.needs_other_packages and words in block.text]
    with groups_shown(zookeeper_hosts, registry):
        take_snapshot(spark, str(tmp_path / "groups"), zookeeper_hosts)
        for offset in (1200, 1300):
            registry.group("invoices").offsets.set(TopicPartition("orders", 0), offset)
            run_audit(spark, str(tmp_path / "audit"), zookeeper_hosts, once=True)
        program = tmp_path / "program.py"
        program.write_text(Runner(tmp_path, zookeeper_hosts).here(found[number].text))
        done = subprocess.run(
            [python_with(*PACKAGES[words]), program],
            cwd=tmp_path,
            env=environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert_printed(found[number + 1].text, done.stdout, str(found[number]))


def test_every_such_program_has_an_environment() -> None:
    programs = [block.text for block in blocks(GUIDE) if block.needs_other_packages]
    assert len(programs) == len(PACKAGES)
    assert all(any(words in program for program in programs) for words in PACKAGES)

"""The Spark examples of the README run, and print the output shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.spark import snapshot_names

from ..test_readme import ADDRESS, SNAPSHOT, WITH_SPARK, assert_printed, commands, groups_shown, here, shown
from .commands import command_on

pytestmark = pytest.mark.zookeeper


def test_the_program_shown_reads_the_offsets_and_takes_a_snapshot(
    spark: SparkSession,
    registry: Registry,
    zookeeper_hosts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry.group("billing").create()
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 1200)
    [program] = WITH_SPARK
    assert ADDRESS in program

    exec(compile(here(program, zookeeper_hosts, tmp_path), "README.md", "exec"), {})

    assert "|billing|orders|        0|  1200|" in capsys.readouterr().out
    assert len(snapshot_names(spark, str(tmp_path / "groups"))) == 1


def test_the_snapshot_shown_prints_what_is_shown(
    spark: SparkSession, registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    [block] = SNAPSHOT
    [command] = commands(block)
    with groups_shown(zookeeper_hosts, registry), command_on(spark, zookeeper_hosts) as zkgroups:
        ended = zkgroups(*here(command, zookeeper_hosts, tmp_path).split()[1:])
    assert ended.code == 0, ended.err
    assert_printed(here(shown(block), zookeeper_hosts, tmp_path), ended.err + ended.out)

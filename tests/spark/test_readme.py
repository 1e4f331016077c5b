"""The program for Spark that the README shows runs, in the Spark that is there, and prints what it should."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.spark import snapshots

from ..test_readme import ADDRESS, WITH_SPARK, here

pytestmark = pytest.mark.zookeeper


def test_the_program_shown_reads_the_offsets_and_takes_a_snapshot(
    spark: SparkSession,
    registry: Registry,
    zookeeper_hosts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry.group("billing").create()
    registry.group("billing").offsets.commit(TopicPartition("orders", 0), 1200)
    [program] = WITH_SPARK
    assert ADDRESS in program

    exec(compile(here(program, zookeeper_hosts, tmp_path), "README.md", "exec"), {})

    assert "|billing|orders|        0|  1200|" in capsys.readouterr().out
    assert len(snapshots(spark, str(tmp_path / "groups"))) == 1

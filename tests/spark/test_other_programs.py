"""The programs of docs/spark.md that need packages of other projects, each in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.spark import run_audit, take_snapshot

from ..docs.guides import ROOT, Runner, assert_printed, blocks, environment, groups_shown
from ..environments import python_with

GUIDE = "docs/spark.md"
ON_SPARK = ("pyspark==4.1.*", "pyarrow", "kazoo<2.12", "google-re2<2")
PACKAGES = {
    "import duckdb": ("duckdb", "pandas", "polars", "pyarrow"),
    "org.apache.iceberg": ON_SPARK,
    "io.delta": ON_SPARK,
}
"""What a program needs, by words in it."""


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.zookeeper
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

"""Fixtures: both engines that record an audit, and Spark to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from zkgroups.audit.local_audit import run_audit as run_local_audit
from zkgroups.spark import AuditResult, read_audit, run_audit


@dataclass(frozen=True)
class Engines:
    """The functions that record with each engine, by name."""

    spark: Callable[..., AuditResult]
    local: Callable[..., AuditResult]


@pytest.fixture
def engines(spark: SparkSession, tmp_path: Path) -> Engines:
    """Both engines, for one destination."""
    return Engines(partial(run_audit, spark, str(tmp_path)), partial(run_local_audit, str(tmp_path)))


@pytest.fixture(params=["spark", "local"])
def engine(request: pytest.FixtureRequest, engines: Engines) -> Callable[..., AuditResult]:
    """Record with each engine."""
    found: Callable[..., AuditResult] = getattr(engines, request.param)
    return found


@pytest.fixture
def record(engine: Callable[..., AuditResult]) -> Callable[..., AuditResult]:
    """Record one batch with each engine. Spark reads both."""
    return partial(engine, once=True)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Read all commits with Spark, in the order of batches and transactions."""

    def rows() -> list[dict[str, Any]]:
        return [row.asDict() for row in read_audit(spark, str(tmp_path)).orderBy("batch", "zxid").collect()]

    return rows

"""Record commits with Spark, as Parquet on any file system.

    run_audit(spark, "/data/audit", "zk1:2181/kafka", every=10.0)
    read_audit(spark, "/data/audit").where("offset < before").show()

See `zkgroups/audit/journal.py` for the files, and `zkgroups/audit/audit.py` for the steps and the guarantees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import SparkSession

from ...audit.audit import AuditResult, AuditStep, Recording, check_interval
from ...exceptions import SparkStoppedError
from ...tables.source_options import MAX_PARALLELISM, SourceOptions
from ..pyspark_internals import is_stopped
from ..snapshots.snapshot import session_beside
from ..spark_thread import stoppable
from ..storage.writing import check_shared
from .ledger import SparkLedger


def run_audit(
    spark: SparkSession,
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    on_progress: Callable[[AuditStep], None] | None = None,
    stop: threading.Event | None = None,
) -> AuditResult:
    """Record all current offsets as Parquet, then every commit, until `stop` is set.

    - `destination`: a folder that Spark's driver and workers can see. An interrupted audit continues there.
    - `source`: the address of ZooKeeper, or `SourceOptions` that also select groups and topics.
    - `every`: how often to look for commits, in seconds. A commit that is overwritten between two looks is not seen.
    - `once`: stop after one batch.
    - `on_progress`: called with an `AuditStep` after each batch, and after an error, on another thread.
    - `stop`: set it to stop the audit; a batch that is being recorded is interrupted, and continued by the next run.

    While ZooKeeper is unreachable it retries, unless `once` is set.
    """
    if is_stopped(spark):
        raise SparkStoppedError("cannot run an audit: this Spark session was stopped; create a new one")
    check_interval(every)
    check_shared(spark, destination)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    cores = min(spark.sparkContext.defaultParallelism, MAX_PARALLELISM)
    source = replace(source, parallelism=source.parallelism or cores)
    ledger = SparkLedger(session_beside(spark), destination, source)
    return stoppable(spark, lambda ended: Recording(ledger, source, every, once, on_progress, ended).go(), stop)

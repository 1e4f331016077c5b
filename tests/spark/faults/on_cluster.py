"""A program on a Spark cluster whose workers get zkgroups from a file.

    python -m tests.spark.faults.on_cluster MASTER ZOOKEEPER BROKERS PACKAGE FOLDER WORKER...

It reads, takes a snapshot, audits, plans and applies. While the snapshot is written, it kills an executor. WORKER is
the process id of a worker of Spark. It prints the results as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from tests.waiting import eventually
from zkgroups.kafka import BrokerOptions
from zkgroups.spark import SourceOptions, read_audit, register, run_audit, take_snapshot
from zkgroups.spark.files import SHARED
from zkgroups.spark.migration import apply, plan, verify
from zkgroups.spark.session import own_session
from zkgroups.testing import TcpProxy

from ..processes import sigkill, wait_until_gone
from .cluster import PYTHON, SMALL, executors

TASKS = 4
DELAY = 1.0
"""In seconds. It keeps tasks busy until the executor is killed."""


def shipped(package: str) -> dict[str, str]:
    """The settings that ship zkgroups to the workers."""
    return {"spark.submit.pyFiles": package, "spark.pyspark.python": PYTHON}


class Killer(threading.Thread):
    """Kills an executor while its tasks read from ZooKeeper."""

    def __init__(self, proxy: TcpProxy, folder: Path, workers: list[int]) -> None:
        super().__init__()
        self._proxy, self._folder, self._workers = proxy, folder, workers
        self.killed: list[int] = []
        self._seen: set[str] = set()

    def run(self) -> None:
        assert eventually(self._all_tables_begun)
        before = self._proxy.connections
        self._proxy.delay(DELAY)
        try:
            assert eventually(lambda: self._proxy.connections > before)
            assert not list(self._folder.glob("table=*"))
            victim = executors(self._workers)[0]
            sigkill(victim)
            wait_until_gone([victim])
            self.killed.append(victim)
        finally:
            self._proxy.delay(0)

    def _all_tables_begun(self) -> bool:
        self._seen |= {path.name for path in self._folder.glob("_unfinished/*/table=*")}
        return len(self._seen) == 3


def main(master: str, zookeeper: str, brokers: str, package: str, folder: str, *workers: str) -> None:
    server, _, chroot = zookeeper.partition("/")
    settings = SMALL | shipped(package) | {SHARED: "true"}
    with TcpProxy(server) as proxy, own_session(settings, master=master) as spark:
        source = SourceOptions(zookeeper=f"{proxy.address}/{chroot}", parallelism=TASKS)
        target, plans = BrokerOptions(brokers), f"{folder}/plan"
        register(spark)
        read = spark.read.format("zkgroups").options(**source.as_text()).load()
        killer = Killer(proxy, Path(folder, "groups"), [int(pid) for pid in workers])
        results = {"read": read.count()}
        killer.start()
        taken = take_snapshot(spark, f"{folder}/groups", source)
        killer.join()
        results |= {"killed": len(killer.killed), "snapshot": asdict(taken)}
        results["audit"] = asdict(run_audit(spark, f"{folder}/audit", source, once=True))
        results["audited"] = read_audit(spark, f"{folder}/audit").count()
        results["plan"] = asdict(plan(spark, plans, source, target))["counts"]
        results["apply"] = asdict(apply(spark, plans, target, source, execute=True))["counts"]
        results["verify"] = asdict(verify(spark, plans, target, source))["counts"]
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])

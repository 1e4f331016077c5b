"""A program whose runs are cut off from an S3 server after each possible number of writes.

    python -m tests.spark.faults.s3_runs SERVER ZOOKEEPER KILLS SEED

For the store, this is the same as a kill: it keeps what was written, and nothing follows. But Spark need not start
again. After each kill, readers see a complete result or none, and the next run succeeds.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

from pyspark.sql import SparkSession

from tests.waiting import eventually
from zkgroups.exceptions import NotFoundError, RefusedError, ZkgroupsException
from zkgroups.snapshots.layout import UnfinishedSnapshot
from zkgroups.spark import (
    SourceOptions,
    Table,
    read_audit,
    read_snapshot,
    run_audit,
    snapshot_names,
    take_snapshot,
    verify_snapshots,
)
from zkgroups.spark.files import HadoopFiles
from zkgroups.spark.migration import plan, read_plan
from zkgroups.spark.session import own_session
from zkgroups.spark.snapshots import Layout
from zkgroups.storage.atomic_folder import ABANDONED_AFTER
from zkgroups.storage.snapshot_folder import IN_ORDER
from zkgroups.testing import java
from zkgroups.testing.child_process import ChildProcess
from zkgroups.testing.java import pyspark_jars

from ...environments import python_with

MOTO = "moto[server]>=5.1,<6"
BUCKET = "zkgroups"

SDK = "2.35.4"
"""The release of Amazon's SDK that hadoop-aws is built with. Its parts have 20 MB, its bundle 600 MB."""
ACCELERATOR = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1"
PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client")


def s3a_jars() -> tuple[Path, ...]:
    """Return the jars that Spark needs for s3a."""
    [hadoop] = pyspark_jars("hadoop-client-api")
    release = hadoop.stem.rpartition("-")[2]
    own = java.fetch(f"org.apache.hadoop:hadoop-aws:{release}", ACCELERATOR, dependencies=False)
    return own + java.fetch(*(f"software.amazon.awssdk:{part}:{SDK}" for part in PARTS))


def s3a_settings(address: str) -> dict[str, str]:
    """Return the settings for a server at this address."""
    access = {
        "endpoint": address,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "access.key": "nobody",
        "secret.key": "nothing",
        "attempts.maximum": "1",
        "retry.limit": "1",
    }
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in access.items()}
    return settings | {"spark.jars": ",".join(map(str, s3a_jars()))}


class Store:
    """A running server with one bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.address = ""

    def __enter__(self) -> Self:
        server = Path(__file__).with_name("s3_server.py")
        log = self._folder / "s3.log"
        process = self._stack.enter_context(ChildProcess([str(python_with(MOTO)), str(server)], log=log))
        eventually(lambda: re.search(r"^\d+$", log.read_text(), re.MULTILINE) or not process.running)
        found = re.search(r"^\d+$", log.read_text(), re.MULTILINE)
        assert found is not None, process.tail()
        self.address = f"http://127.0.0.1:{found[0]}"
        _send("PUT", f"{self.address}/{BUCKET}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def allow(address: str, writes: int | None) -> int:
    """Let a server refuse all requests after that many writes; None ends that. Return the number of writes so far."""
    return int(json.loads(_send("POST", f"{address}/-/{'all' if writes is None else writes}")))


def _send(method: str, url: str) -> bytes:
    with urlopen(Request(url, method=method), timeout=60) as answer:
        return bytes(answer.read())


# Killed runs


@dataclass
class Scene:
    """A server, a Spark session, and a source whose counts do not change."""

    server: str
    spark: SparkSession
    source: SourceOptions

    def writes(self, work: Callable[[str], object], folder: str) -> int:
        """Return the number of writes of an undisturbed run."""
        before = allow(self.server, None)
        work(folder)
        return allow(self.server, None) - before

    def kill(self, work: Callable[[str], object], folder: str, writes: int) -> bool:
        """Cut a run off after some writes. Return whether it reports success."""
        allow(self.server, writes)
        try:
            work(folder)
        except ZkgroupsException:
            return False
        finally:
            allow(self.server, None)
        return True

    # The moves into place

    def check_moves(self) -> None:
        """Cut off a snapshot after each write of its last step, which copies all files. This needs no job of Spark."""
        for number in range(self.writes(lambda folder: self._staged(folder).finish(), f"s3a://{BUCKET}/moves") + 1):
            folder = f"s3a://{BUCKET}/moves-{number}"
            unfinished = self._staged(folder)
            succeeded = self.kill(partial(_finish, unfinished), folder, number)
            layout = self._as_a_week_later(folder)
            assert layout.started_names() == layout.snapshots() == [unfinished.name] * succeeded, number

    def _staged(self, folder: str) -> UnfinishedSnapshot:
        unfinished = Layout(self.spark, folder).begin(datetime.now(UTC))
        files = HadoopFiles(self.spark, folder)
        for table in IN_ORDER:
            for number in range(2):
                files.write_text(f"{unfinished.table(table)}/part-{number}.parquet", "rows")
        return unfinished

    def _as_a_week_later(self, folder: str) -> Layout:
        """Begin another snapshot a week later, which deletes what killed runs have left."""
        layout = Layout(self.spark, folder)
        layout.begin(datetime.now(UTC) + ABANDONED_AFTER + timedelta(hours=1)).discard()
        assert layout.staged() == []
        return layout

    # Snapshots

    def snapshot(self, folder: str) -> None:
        take_snapshot(self.spark, folder, self.source)

    def check_snapshot(self, folder: str, counts: dict[Table, int], succeeded: bool) -> None:
        """A killed run leaves a complete snapshot or none, and later runs delete all that it has left."""
        names = snapshot_names(self.spark, folder)
        assert len(names) >= succeeded
        self.snapshot(folder)
        now = snapshot_names(self.spark, folder)
        assert now[: len(names)] == names
        assert len(now) == len(names) + 1
        for name in now:
            assert self.snapshot_counts(folder, name) == counts, name
        assert self._as_a_week_later(folder).started_names() == now
        assert verify_snapshots(self.spark, folder).collect() == []

    def snapshot_counts(self, folder: str, name: str | None = None) -> dict[Table, int]:
        return {table: read_snapshot(self.spark, folder, name, table=table).count() for table in Table}

    # Audits

    def audit(self, folder: str) -> None:
        run_audit(self.spark, folder, self.source, once=True)

    def check_audit(self, folder: str, offsets: int, succeeded: bool) -> None:
        """The next run records what the killed run has not, and nothing twice."""
        found = 0
        with suppress(NotFoundError):
            found = read_audit(self.spark, folder).count()
        assert found in ((offsets,) if succeeded else (0, offsets))
        self.audit(folder)
        assert read_audit(self.spark, folder).distinct().count() == read_audit(self.spark, folder).count() == offsets

    # Plans

    def plan(self, folder: str) -> None:
        plan(self.spark, folder, self.source, None)

    def check_plan(self, folder: str, offsets: int, succeeded: bool) -> None:
        """There is a complete plan, which cannot be replaced, or none."""
        found = 0
        with suppress(NotFoundError):
            found = read_plan(self.spark, folder).count()
        assert found in ((offsets,) if succeeded else (0, offsets))
        with suppress(RefusedError):
            self.plan(folder)
            assert not found
        assert read_plan(self.spark, folder).count() == offsets


def _finish(unfinished: UnfinishedSnapshot, _folder: str) -> None:
    """Do what `take_snapshot` does at the end."""
    try:
        unfinished.finish()
    except BaseException:
        unfinished.discard()
        raise


def main(server: str, zookeeper: str, kills: str, seed: str) -> None:
    with own_session(s3a_settings(server), master="local[2]") as spark:
        scene = Scene(server, spark, SourceOptions(zookeeper=zookeeper, parallelism=1))
        scene.check_moves()
        chance, folder = random.Random(int(seed)), f"s3a://{BUCKET}/whole"
        numbers = {
            work: scene.writes(work, f"{folder}-{work.__name__}") for work in (scene.snapshot, scene.audit, scene.plan)
        }
        counts = scene.snapshot_counts(f"{folder}-snapshot")
        checks = {
            scene.snapshot: lambda folder, succeeded: scene.check_snapshot(folder, counts, succeeded),
            scene.audit: lambda folder, succeeded: scene.check_audit(folder, counts[Table.OFFSETS], succeeded),
            scene.plan: lambda folder, succeeded: scene.check_plan(folder, counts[Table.OFFSETS], succeeded),
        }
        todo = [(work, number) for work, writes in numbers.items() for number in range(writes + 1)]
        chance.shuffle(todo)
        print({work.__name__: writes for work, writes in numbers.items()}, counts, flush=True)
        for work, number in sorted(todo[: int(kills)], key=lambda each: (each[0].__name__, each[1])):
            place = f"s3a://{BUCKET}/{work.__name__}-{number}"
            succeeded = scene.kill(work, place, number)
            print(work.__name__, number, "succeeded" if succeeded else "was cut off", flush=True)
            checks[work](place, succeeded)


if __name__ == "__main__":
    main(*sys.argv[1:])

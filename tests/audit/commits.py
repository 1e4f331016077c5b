"""Commits of other clients under load, and the check that an audit has recorded all current offsets once."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.retry import KazooRetry

from zkgroups.audit.audit import AuditResult, AuditStep
from zkgroups.tables.source_options import SourceOptions

from ..lasting import through_restarts
from ..spark.conftest import plant

PATIENCE = 400.0

Key = tuple[str, str, int]
Standing = dict[Key, tuple[int, int]]
"""The offset and the zxid of each partition."""


def standing(client: Any, paths: Sequence[str]) -> Standing:
    """Return the current offsets, as a plain client reads them."""
    found = {}
    for path in paths:
        data, stat = client.get(f"/consumers/{path}")
        group, _, topic, partition = path.split("/")
        found[group, topic, int(partition)] = (int(data), stat.mzxid)
    return found


def assert_whole(rows: Sequence[dict[str, Any]], wanted: Standing) -> None:
    """Assert that all current offsets are recorded once, each with the previous recorded offset.

    The rows are in the order of batches and transactions.
    """
    chains: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        chains[row["group"], row["topic"], row["partition"]].append(row)
    assert {key: (chain[-1]["offset"], chain[-1]["zxid"]) for key, chain in chains.items()} == wanted
    for chain in chains.values():
        assert [row["before"] for row in chain] == [None, *(row["offset"] for row in chain[:-1])]
        assert all(one["zxid"] < other["zxid"] for one, other in itertools.pairwise(chain))


class Committer:
    """Commits at a given rate on many partitions, and knows what the server has accepted."""

    def __init__(self, hosts: str, rate: int, *, partitions: int = 400) -> None:
        self._rate = rate
        # A client that connects while the server starts is not left waiting: see ZooKeeperServer.
        patient = KazooRetry(max_tries=-1, delay=0.05, backoff=1, max_delay=0.2)
        self._client = KazooClient(through_restarts(hosts), timeout=40.0, connection_retry=patient)
        self._client.start()
        self._paths = [f"g{n % 10}/offsets/t{n % 4}/{n}" for n in range(partitions)]
        plant(self._client, dict.fromkeys(self._paths, b"0"))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.commits = 0
        self.accepted = 0

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            due = int((time.monotonic() - began) * self._rate) - self.commits
            asked = []
            for number in range(self.commits, self.commits + min(due, self._rate)):
                # One partition is committed so often that it changes before it can be read.
                path = self._paths[0 if number % 10 == 0 else number % len(self._paths)]
                asked.append(self._client.set_async(f"/consumers/{path}", str(number + 1).encode()))
            self.commits += len(asked)
            for each in asked:
                with suppress(KazooException):  # the server may have accepted it
                    each.get(timeout=60)
                    self.accepted += 1
            self._over.wait(0.02)

    def __enter__(self) -> Committer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def standing(self) -> Standing:
        """Return the offset and zxid of all current offsets."""
        return standing(self._client, self._paths)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class Steps:
    """Collects the batches of a running audit."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches = 0
        self.troubles: list[str] = []

    def __call__(self, step: AuditStep) -> None:
        with self._changed:
            self._batches += not step.trouble
            self.troubles += [step.trouble] * bool(step.trouble)
            self._changed.notify_all()

    def wait_for(self, batches: int) -> None:
        """Wait for this many more batches."""
        with self._changed:
            wanted = self._batches + batches
            assert self._changed.wait_for(lambda: self._batches >= wanted, PATIENCE)


@contextmanager
def auditing(run_audit: Callable[..., AuditResult], hosts: str) -> Iterator[Steps]:
    """Run an audit during the block, with little time between two batches."""
    steps, stop = Steps(), threading.Event()
    source = SourceOptions(zookeeper=hosts, timeout=15.0)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            run_audit(source, every=0.1, on_progress=steps, stop=stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield steps
    finally:
        stop.set()
        thread.join()
    assert not failed

"""A server in a process of its own, with log ends that are computed: 200,000 partitions would need a cluster.

python -m benchmarks._served ZOOKEEPER PORT EVERY
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import OffsetRange
from zkgroups.kafka import Brokers
from zkgroups.serve.settings import MetricSettings, SweepSettings, share_one_pool
from zkgroups.serve.sweeper import Sweeper
from zkgroups.serve.web.access import Access
from zkgroups.serve.web.app import App, listening_socket, served

LARGEST = 10**11


class ComputedLogs:
    """Answers as brokers would. Logs grow by ten messages a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def partitions(self, _topics: Iterable[str] | None = None) -> Mapping[str, tuple[int, ...]]:
        """Return no topic: no group subscribes to one."""
        return {}

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        """Return a log for each partition."""
        log = OffsetRange(0, LARGEST + int(10 * (time.monotonic() - self._began)))
        return dict.fromkeys(partitions, log)

    def message_times(self, offsets: Mapping[TopicPartition, int], **_: int) -> dict[TopicPartition, int | None]:
        """Return no time, as old brokers do."""
        return dict.fromkeys(offsets)


def sweeper(hosts: str, every: float) -> Sweeper:
    """Return a sweeper with such logs."""
    brokers = cast(Brokers, ComputedLogs())
    return Sweeper(lambda: Registry.connect(hosts), brokers, SweepSettings(cluster="bench", every=every))


async def _serve(app: App, port: int) -> None:
    async with served(app, listening_socket("127.0.0.1", port)):
        print("serving", flush=True)
        await asyncio.Event().wait()


def main(hosts: str, port: str, every: str, *_: Any) -> None:
    """Serve until the process is killed."""
    share_one_pool()
    with sweeper(hosts, float(every)) as running:
        asyncio.run(_serve(App(running.publisher, MetricSettings(), Access()), int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])

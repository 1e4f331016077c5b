"""The settings of `zkgroups serve`."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..core.health import COMMITS_IN_PERIOD, Limits

# One pool of memory for all threads.
#
# glibc gives each thread a pool of its own, and keeps in it what the thread has once used. The sweeps, the metrics
# and the pages are made in different threads, and with 200,000 offsets each of them needs hundreds of megabytes for a
# moment. With one pool, the process takes half as much.


_ARENA_MAX: Final = -8
"""M_ARENA_MAX of glibc's `mallopt`."""


def share_one_pool() -> None:
    """Call this before any thread starts. It does nothing without glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


class MetricNames(StrEnum):
    """The exporter that gives the compatible metrics their names. Metrics with the prefix `zkgroups_` always exist."""

    KAFKA_EXPORTER = "kafka-exporter"
    LAG_EXPORTER = "lag-exporter"


class Granularity(StrEnum):
    """The finest level of the metrics of groups. Coarser levels are always there."""

    PARTITION = "partition"
    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """How often to sweep, and from when on a partition is unhealthy.

    - `cluster`: the name of the cluster for pages, metrics and the API.
    - `every`: the time between two complete sweeps, in seconds.
    - `allowed_lag`: a lag of at most this many messages is always OK.
    - `abandoned_after`, `stale_after`: when a group without members counts as abandoned, and as unused, in seconds.
    - `matching`: show only the groups whose whole name matches; None: all.
    - `all_topics`: read the logs of topics without groups, too.
    - `live`: hear of changes of members and owners at once, if the server supports it.
    """

    cluster: str
    every: float = 15.0
    allowed_lag: int = 0
    abandoned_after: float = 86_400.0
    stale_after: float = 90 * 86_400.0
    matching: re.Pattern[str] | None = None
    all_topics: bool = False
    live: bool = True

    @property
    def limits(self) -> Limits:
        """The limits of the rules for statuses."""
        period_ms = int(COMMITS_IN_PERIOD * self.every * 1000)
        return Limits(
            period_ms=period_ms,
            allowed_lag=self.allowed_lag,
            abandoned_ms=int(self.abandoned_after * 1000),
            stale_ms=int(self.stale_after * 1000),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSettings:
    """Which metrics to hand out. Above `most_series`, coarser ones are handed out, and the rest is counted."""

    names: MetricNames = MetricNames.KAFKA_EXPORTER
    granularity: Granularity = Granularity.PARTITION
    most_series: int = 2_000_000

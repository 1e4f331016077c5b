"""The settings of `zkgroups serve`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..core.health.partition_health import COMMITS_IN_WINDOW, Limits


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
    - `live`: hear of changes of members and owners at once, if the server supports it.
    """

    cluster: str
    every: float = 15.0
    allowed_lag: int = 0
    live: bool = True

    @property
    def limits(self) -> Limits:
        """The limits of the rules for statuses."""
        window_ms = int(COMMITS_IN_WINDOW * self.every * 1000)
        return Limits(window_ms=window_ms, allowed_lag=self.allowed_lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSettings:
    """Which metrics to hand out. Above `most_series`, coarser ones are handed out, and the rest is counted."""

    names: MetricNames = MetricNames.KAFKA_EXPORTER
    granularity: Granularity = Granularity.PARTITION
    most_series: int = 2_000_000

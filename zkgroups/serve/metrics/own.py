"""The metrics with the prefix `zkgroups_`: what no exporter knows, and the state of this server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from ..._version import VERSION
from ...core.doctor.findings import Severity
from ...core.health import Status
from ..picture.values import GroupPicture, PartitionPicture, Picture
from .exposition import Family, Format, Kind, Number, SeriesNames, TopicTotals, escaped, labels, lines
from .kafka_exporter import group_labels, log_labels, partition_labels, topic_labels

_SEVERITIES: Final = {None: 0, Severity.INFO: 1, Severity.WARNING: 2, Severity.ERROR: 3}


def _gauge(name: str, help: str) -> Family:
    return Family(f"zkgroups_{name}", Kind.GAUGE, help)


def _counter(name: str, help: str) -> Family:
    return Family(f"zkgroups_{name}", Kind.COUNTER, help)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _committed(partition: PartitionPicture) -> float | None:
    return _seconds(partition.committed_ms)


def _topic_committed(topic: TopicTotals) -> float | None:
    return _seconds(topic.last_commit_ms)


def _group_committed(group: GroupPicture) -> float | None:
    return _seconds(group.last_commit_ms)


def _status(group: GroupPicture) -> Iterator[tuple[str, Number]]:
    yield f'{{consumergroup="{escaped(group.name)}",status="{group.verdict.status}"}} ', 1


def _state(group: GroupPicture) -> Iterator[tuple[str, Number]]:
    yield f'{{consumergroup="{escaped(group.name)}",state="{group.state}"}} ', 1


def _migration(group: GroupPicture) -> Iterator[tuple[str, Number]]:
    if group.migration is not None:
        yield labels(consumergroup=group.name, state=group.migration.value), 1


def _findings(group: GroupPicture) -> Iterator[tuple[str, Number]]:
    counted = Counter((each.code, each.severity) for each in group.findings)
    for (code, severity), count in sorted(counted.items()):
        yield labels(consumergroup=group.name, code=code.value, severity=severity.value), count


NAMES: Final = SeriesNames(
    partition_labels,
    topic_labels,
    group_labels,
    log_labels,
    has_moved_groups=True,
    partitions=(
        (_counter("commits", "Commits of a partition since its node was created."), attrgetter("commits")),
        (_gauge("last_commit_timestamp_seconds", "Time of the last commit of a partition."), _committed),
        (_gauge("time_lag_seconds", "Age of the first unread message of a partition."), attrgetter("time_lag")),
    ),
    topics=(
        (_counter("topic_commits", "Commits of all partitions of a topic."), attrgetter("commits")),
        (_gauge("topic_last_commit_timestamp_seconds", "Time of the last commit in a topic."), _topic_committed),
    ),
    groups=(
        (_gauge("group_lag", "Sum of the known lags of a group, in messages."), attrgetter("lag")),
        (
            _gauge("group_time_lag_seconds", "Age of the oldest unread message of a group."),
            attrgetter("time_lag"),
        ),
        (_gauge("group_catch_up_seconds", "Time until the lag is 0 at the present rates."), attrgetter("catch_up")),
        (_gauge("group_consumed_per_second", "Messages per second that a group consumes."), attrgetter("consumed")),
        (
            _gauge(
                "group_produced_per_second", "Messages per second that producers write to the partitions of a group."
            ),
            attrgetter("produced"),
        ),
        (_gauge("group_last_commit_timestamp_seconds", "Time of the last commit of a group."), _group_committed),
        (
            _gauge("group_severity", "0: OK, 1: info, 2: warning, 3: error."),
            lambda group: _SEVERITIES[group.verdict.severity],
        ),
        (_gauge("group_members", "Registered instances that may be alive."), attrgetter("living")),
        (
            _gauge("group_in_use", "1 if the group has members, owners, or a commit within --abandoned-after."),
            lambda group: int(group.in_use),
        ),
        (_gauge("group_partitions", "Partitions of a group."), lambda group: len(group.partitions)),
        (_gauge("group_unknown_lags", "Partitions of a group whose lag is unknown."), attrgetter("unknown_lags")),
        (_gauge("group_unowned_partitions", "Partitions that no member owns."), attrgetter("unowned")),
        (_gauge("group_orphaned_partitions", "Partitions whose owner is not registered."), attrgetter("orphaned")),
        (
            _gauge("group_blocked_partitions", "Partitions whose owner does not subscribe to the topic."),
            attrgetter("blocked"),
        ),
        (
            _counter("group_members_joined", "Members that joined since the server started."),
            attrgetter("counters.joined"),
        ),
        (_counter("group_members_left", "Members that left since the server started."), attrgetter("counters.left")),
        (
            _counter("group_owner_changes", "Partitions that got another owner, or none, since the server started."),
            attrgetter("counters.owner_changes"),
        ),
    ),
    details=(
        (_gauge("group_status", "1 for the status of a group."), _status),
        (_gauge("group_state", "1 for the state of a group."), _state),
        (_gauge("group_migration", "1 for the state of a group's migration."), _migration),
        (_gauge("group_findings", "Findings of the doctor."), _findings),
    ),
)


def of_server(picture: Picture, format: Format, *, left_out: int) -> str:
    """Format the metrics of the server, which depend only on the picture."""
    statuses = Counter(group.verdict.status for group in picture.groups.values())
    stats = picture.stats
    sources = {"zookeeper": picture.zookeeper} | ({"brokers": picture.brokers} if picture.brokers else {})
    found: list[tuple[Family, Iterable[tuple[str, Number | None]]]] = [
        (_gauge("build_info", "Always 1."), [(labels(version=VERSION), 1)]),
        (_gauge("groups", "Groups by status."), [(labels(status=each.value), statuses[each]) for each in Status]),
        (_gauge("up", "1 if the source answers."), [(labels(source=s), int(v.answers)) for s, v in sources.items()]),
        (
            _gauge("source_read_timestamp_seconds", "When the source was last read."),
            [(labels(source=name), _seconds(source.read_ms)) for name, source in sources.items()],
        ),
        (_gauge("live", "1 if changes of members arrive at once."), [(" ", int(picture.live))]),
        (_gauge("read_only", "1 if ZooKeeper has no quorum."), [(" ", int(picture.zookeeper.is_read_only))]),
        (_counter("sweeps", "Complete sweeps."), [(" ", stats.sweeps)]),
        (_counter("sweep_failures", "Sweeps that failed."), [(" ", stats.failures)]),
        (_counter("zookeeper_requests", "Requests to ZooKeeper."), [(" ", stats.requests)]),
        (_gauge("sweep_requests", "Requests to ZooKeeper in the last sweep."), [(" ", stats.last_requests)]),
        (_gauge("sweep_duration_seconds", "Duration of the last sweep."), [(" ", round(stats.last_seconds, 3))]),
        (_gauge("series_left_out", "Series that are missing because of the limit --max-series."), [(" ", left_out)]),
    ]
    return "".join(family.header(format) + lines(family, samples) for family, samples in found)


AGE: Final = _gauge("picture_age_seconds", "Seconds since ZooKeeper was last read.")


def of_scrape(read_ms: int | None, format: Format, now_ms: int) -> str:
    """Format the metrics that change with each scrape, and the end of the answer. `read_ms`: see `SourceState`."""
    age = None if read_ms is None else max(0, now_ms - read_ms) / 1000
    return ("" if age is None else AGE.header(format) + lines(AGE, [(" ", age)])) + format.end

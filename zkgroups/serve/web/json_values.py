"""Pictures as JSON, for the API. Times are in milliseconds since 1970. Unknown values are null."""

from __future__ import annotations

from typing import Any

from ...core.doctor.findings import Finding
from ...core.health import Verdict
from ..picture.values import (
    GroupEvent,
    GroupPicture,
    MemberPicture,
    PartitionPicture,
    Picture,
    SourceState,
    TopicPicture,
    TrendPoint,
)

Json = dict[str, Any]


def picture_json(picture: Picture, now_ms: int) -> Json:
    """Return the state of the server."""
    return {
        "cluster": picture.cluster,
        "number": picture.number,
        "age_seconds": picture.age(now_ms),
        "live": picture.live,
        "groups": len(picture.groups),
        "topics": len(picture.topics),
        "zookeeper": _source(picture.zookeeper),
        "brokers": None if picture.brokers is None else _source(picture.brokers),
    }


def _source(source: SourceState) -> Json:
    return {
        "answers": source.answers,
        "read_ms": source.read_ms,
        "problem": source.problem or None,
        "since_ms": source.since_ms,
        "read_only": source.is_read_only,
    }


def verdict_json(verdict: Verdict) -> Json:
    """Return a status with its severity and reason."""
    severity = None if verdict.severity is None else verdict.severity.value
    return {"status": verdict.status.value, "severity": severity, "reason": verdict.reason}


def summary_json(group: GroupPicture) -> Json:
    """Return a group without its members and partitions."""
    return {
        "group": group.name,
        "state": group.state.value,
        **verdict_json(group.verdict),
        "next_step": group.next_step,
        "in_use": group.in_use,
        "members": group.living,
        "partitions": len(group.partitions),
        "lag": group.lag,
        "time_lag_seconds": group.time_lag,
        "consumed_per_second": group.consumed,
        "produced_per_second": group.produced,
        "catch_up_seconds": group.catch_up,
        "last_commit_ms": group.last_commit_ms,
        "unowned": group.unowned,
        "orphaned": group.orphaned,
        "blocked": group.blocked,
        "unknown_lags": group.unknown_lags,
        "migration": None if group.migration is None else group.migration.value,
    }


def group_json(group: GroupPicture) -> Json:
    """Return a whole group."""
    return summary_json(group) | {
        "instances": [_member(each) for each in group.members],
        "offsets": [_partition(each) for each in group.partitions],
        "trend": [_trend(each) for each in group.trend.points],
        "events": [_event(each) for each in group.events],
        "findings": [_finding(each) for each in group.findings],
    }


def _member(member: MemberPicture) -> Json:
    return {**member._asdict(), "state": member.state.value}


def _partition(each: PartitionPicture) -> Json:
    return {
        "topic": each.at.topic,
        "partition": each.at.partition,
        **verdict_json(each.verdict),
        "offset": each.offset,
        "log_start": None if each.log is None else each.log.start,
        "log_end": None if each.log is None else each.log.end,
        "lag": each.lag,
        "time_lag_seconds": each.time_lag,
        "commits": each.commits,
        "committed_ms": each.committed_ms,
        "owner": each.owner,
        "claimed_ms": each.owner_ms,
        "consumed_per_second": each.consumed,
        "produced_per_second": each.produced,
    }


def _trend(point: TrendPoint) -> Json:
    return point._asdict()


def _event(event: GroupEvent) -> Json:
    at = None if event.at is None else {"topic": event.at.topic, "partition": event.at.partition}
    return {"ms": event.ms, "kind": event.kind.value, "subject": event.subject, "at": at}


def _finding(finding: Finding) -> Json:
    return {
        "severity": finding.severity.value,
        "code": finding.code.value,
        "path": finding.path,
        "what": finding.what,
        "fix": finding.fix,
    }


def topic_json(name: str, topic: TopicPicture) -> Json:
    """Return a topic with its logs and its readers."""
    return {
        "topic": name,
        "produced_per_second": topic.produced,
        "groups": list(topic.groups),
        "partitions": [
            {"partition": number, "log_start": log.start, "log_end": log.end} for number, log in topic.logs.items()
        ],
    }

"""Stored commits as JSON lines, for audit and replay."""

from __future__ import annotations

import json

from .actions import ReportCommit


def commit_lines(commit: ReportCommit) -> list[str]:
    """Return one JSON object for each committed offset, without line ends.

    >>> from zkgroups.coordinator import CommittedValue
    >>> offsets = {TopicPartition("orders", 0): CommittedValue(17, committed_at=5.0)}
    >>> commit_lines(ReportCommit("billing", "app-1", 3, offsets))[0][:76]
    '{"time": 5.0, "group": "billing", "topic": "orders", "partition": 0, "offset'
    """
    return [
        json.dumps(
            {
                "time": value.committed_at,
                "group": commit.group,
                "topic": at.topic,
                "partition": at.partition,
                "offset": value.offset,
                "metadata": value.metadata,
                "leader_epoch": value.leader_epoch,
                "member": commit.member_id,
                "generation": commit.generation,
            }
        )
        for at, value in sorted(commit.offsets.items(), key=lambda item: item[0])
    ]

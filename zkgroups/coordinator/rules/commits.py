"""Offset commits of members and of simple consumers."""

from __future__ import annotations

from ..actions import ReportCommit
from ..group.events import CommitReceived
from ..group.group import Group
from ..storage.work import OffsetsStored, Result, StoreOffsets, WorkFailed
from ..values.answers import CommitAnswer
from ..values.kafka_errors import KafkaError
from ..values.offset_values import CommittedValue


def refuse_commit(group: Group, event: CommitReceived) -> None:
    """The member knows the generation, but not its assignment: it cannot have processed anything."""
    errors = dict.fromkeys(event.request.offsets, KafkaError.REBALANCE_IN_PROGRESS)
    group.outbox.answer(event.request_id, CommitAnswer(errors))


def commit(group: Group, event: CommitReceived) -> None:
    """Store the offsets, and answer with the result. Like a heartbeat, a commit renews the session of the member.

    During a rebalance, members may commit until the next generation starts: clients do so when partitions are revoked.
    """
    request = event.request
    if (member := group.members.get(request.member_id)) is not None:
        group.renew_session(member)
    limit = group.config.max_offset_metadata
    now = group.outbox.time
    kept = {
        at: CommittedValue(each.offset, each.metadata, each.leader_epoch, now)
        for at, each in request.offsets.items()
        if len(each.metadata) <= limit
    }

    def stored(result: Result) -> None:
        errors = dict.fromkeys(request.offsets, KafkaError.OFFSET_METADATA_TOO_LARGE)
        failed = result.errors if isinstance(result, OffsetsStored) else {}
        everywhere = result.error if isinstance(result, WorkFailed) else KafkaError.NONE
        errors |= {at: failed.get(at, everywhere) for at in kept}
        group.outbox.answer(event.request_id, CommitAnswer(errors))
        done = {at: each for at, each in kept.items() if not errors[at]}
        group.outbox.report_commit(ReportCommit(group.name, request.member_id, request.generation, done))

    if not kept:
        stored(OffsetsStored())
        return
    work = StoreOffsets(group.name, request.member_id, request.generation, kept)
    group.outbox.start(work, stored)

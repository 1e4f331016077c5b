"""When members are removed, their parked requests are answered, and the storage releases their partitions."""

from __future__ import annotations

from collections.abc import Iterable

from ..deadlines import DeadlineKind
from ..group.group import Group
from ..group.members import Member
from ..storage.work import ReleaseMembers, Result
from ..values.kafka_errors import KafkaError


def remove_members(group: Group, members: Iterable[Member], *, release: bool = True) -> None:
    """Remove members. Their parked requests get UNKNOWN_MEMBER_ID, so their clients join as new members."""
    gone = list(members)
    for member in gone:
        group.answer_parked(member, KafkaError.UNKNOWN_MEMBER_ID)
        group.members.remove(member)
        group.cancel_deadline(DeadlineKind.SESSION, member.id)
    holding = tuple(member.id for member in gone if member.has_had_generation)
    if release and holding:
        _release(group, holding)


def drop_pending_id(group: Group, member_id: str) -> None:
    """Forget an id that was given to a new member."""
    group.members.pending_ids.discard(member_id)
    group.cancel_deadline(DeadlineKind.PENDING_ID, member_id)


def _release(group: Group, member_ids: tuple[str, ...]) -> None:
    group.leaving.update(member_ids)

    def released(_result: Result) -> None:
        group.leaving.difference_update(member_ids)

    group.outbox.start(ReleaseMembers(group.name, member_ids), released)

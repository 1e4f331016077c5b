"""The members of a generation, as values for the storage."""

from __future__ import annotations

from collections.abc import Mapping

from ..storage.work import StoredMember
from .group import Group


def stored_members(group: Group, assignments: Mapping[str, bytes]) -> dict[str, StoredMember]:
    """Return all members of a group with these assignments. A member without one gets an empty assignment."""
    found = {}
    for member in group.members:
        subscription = member.subscription(group.protocol)
        found[member.id] = StoredMember(
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol),
            assignments.get(member.id, b""),
            frozenset() if subscription is None else subscription.owned,
        )
    return found

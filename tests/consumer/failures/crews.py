"""Owners and limits that the tests of failures share."""

from __future__ import annotations

from zkgroups import TopicPartition

from ..crew import Crew
from ..history import Kind

TOPICS = {"orders": 4}
QUICK = ("--reconcile-every", "1")
BUSY = 30.0
"""In seconds. Time that a busy machine may need."""


def owners(crew: Crew) -> dict[TopicPartition, tuple[str, int]]:
    """The id and session of each owner."""
    return {owner.at: (owner.id, owner.session) for owner in crew.group.owners()}  # type: ignore[union-attr]


def has_lost(crew: Crew, count: int) -> bool:
    return len(crew.events(Kind.LOST)) >= count

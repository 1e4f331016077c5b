"""The rules that every member of a group must keep, checked for each event of a history.

ZooKeeper has one owner node for each partition, so two owners never overlap in its log, with two exceptions: clients
that name the owner nodes differently, and a node that another session deletes while its owner still works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ..znodes.session_ids import session_hex
from ..znodes.values import Dialect
from .events import Commit, CommitAction, HistoryEvent, OwnerAction, OwnerChange, PastInstance, PastOwner


class Rule(StrEnum):
    """The rules, by the code of a violation.

    - two-owners: a partition is claimed while another owner has it
    - claim-taken: an owner node is deleted by another session
    - claim-unregistered: a partition is claimed by a session without a registration
    - commit-not-owner: a partition is committed while another session owns it
    - commit-unowned: a partition is committed while nobody owns it
    - commit-unregistered: a partition is committed by its owner, which has no registration
    - went-back: an offset is lower than the previous one
    - malformed: an offset is written that clients cannot read
    - deleted: an offset is deleted
    """

    TWO_OWNERS = "two-owners"
    CLAIM_TAKEN = "claim-taken"
    CLAIM_UNREGISTERED = "claim-unregistered"
    COMMIT_NOT_OWNER = "commit-not-owner"
    COMMIT_UNOWNED = "commit-unowned"
    COMMIT_UNREGISTERED = "commit-unregistered"
    WENT_BACK = "went-back"
    MALFORMED = "malformed"
    DELETED = "deleted"


Judged: TypeAlias = Commit | OwnerChange
"""The events that can break a rule."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An event that breaks a rule.

    - `rule`: the rule.
    - `event`: the commit, or the change of an owner.
    - `by`: the instance that broke the rule; None if the session has not registered any.
    - `text`: what happened.
    """

    rule: Rule
    event: Judged
    by: PastInstance | None
    text: str

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the instance, None if it is not known."""
        return self.by.dialect if self.by else None


def violations(event: HistoryEvent) -> Iterator[Violation]:
    """Yield the violations in one event. Nothing is reported that may be due to missing transactions."""
    if isinstance(event, Commit):
        yield from _of_commit(event)
    elif isinstance(event, OwnerChange):
        yield from _of_owner(event)


def _of_commit(commit: Commit) -> Iterator[Violation]:
    by, who = commit.instance, f"session {session_hex(commit.session)}"
    if commit.action is CommitAction.DELETED:
        yield Violation(Rule.DELETED, commit, by, f"{who} deleted the offset")
        return
    did = f"{who} committed {'a malformed offset' if commit.offset is None else commit.offset}"
    if commit.is_without_claim:
        if commit.owner is None:
            yield Violation(Rule.COMMIT_UNOWNED, commit, by, f"{did}, but nobody owned the partition")
        else:
            yield Violation(Rule.COMMIT_NOT_OWNER, commit, by, f"{did}, but {_shown(commit.owner)} owned the partition")
    elif commit.is_unregistered:
        yield Violation(Rule.COMMIT_UNREGISTERED, commit, by, f"{did} without a registration")
    if commit.problem is not None:
        yield Violation(Rule.MALFORMED, commit, by, f"{did}: {commit.problem}")
    elif commit.went_back:
        yield Violation(Rule.WENT_BACK, commit, by, f"{did} after {commit.before}")


def _of_owner(change: OwnerChange) -> Iterator[Violation]:
    who = f"session {session_hex(change.session)}"
    if change.action is OwnerAction.TAKEN:
        text = f"{who} deleted the owner node of {_shown(change.owner)}"
        yield Violation(Rule.CLAIM_TAKEN, change, change.instance, text)
    if change.action is not OwnerAction.CLAIMED:
        return
    did = f"{who} claimed the partition as {change.owner.id!r}"
    if change.others:
        owners = " and ".join(map(_shown, change.others))
        yield Violation(Rule.TWO_OWNERS, change, change.instance, f"{did}, but {owners} owned it")
    if change.is_complete and change.instance is None:
        yield Violation(Rule.CLAIM_UNREGISTERED, change, change.instance, f"{did} without a registration")


def _shown(owner: PastOwner) -> str:
    session = "no session" if not owner.session else f"session {session_hex(owner.session)}"
    return f"{owner.id!r} of {session}"

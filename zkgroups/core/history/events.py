"""The events of a history: commits, changes of owners, members and groups, and the rules that they may break."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from ..session_lifetime import session_hex
from ..znodes.registrations import host_of_instance
from ..znodes.values import (
    Dialect,
    ForbiddenNode,
    MalformedNode,
    ReadRegistration,
    Registration,
    UnevaluableRegistration,
)

# The events of a history: commits, and changes of owners, members and groups.
#
# All are named tuples, because a log can have millions. Each has these fields:
#
# - `zxid`, `time_ms`: the transaction, and its time by the clock of the server that led then.
# - `session`: the session that made the change; 0 for the server itself. If a session has ended, that session.
# - `group`: the name of the group.
# - `instance`: the instance that the session had registered in the group then, None if there was none.
# - `is_complete`: False where earlier transactions are missing, as at the beginning of the logs: an instance or an
#   owner
#   that is None may only be unknown.


@dataclass(frozen=True, slots=True)
class PastInstance:
    """An instance, as it was registered at some moment.

    - `group`, `id`: its group and its id.
    - `session`: the session of its registration; 0 if the registration belonged to no session, None if it is unknown.
    - `registered_zxid`, `registered_ms`: the transaction that registered it, and its time; 0 if they are unknown.
    - `read`: its registration; None if its data is unknown.
    """

    group: str
    id: str
    session: int | None
    registered_zxid: int = 0
    registered_ms: int = 0
    read: ReadRegistration | None = None

    @property
    def registration(self) -> Registration | None:
        """The registration; None if it was malformed or is unknown."""
        match self.read:
            case UnevaluableRegistration(registration=registration):
                return registration
            case MalformedNode() | ForbiddenNode() | None:
                return None
            case Registration() as registration:
                return registration

    @property
    def dialect(self) -> Dialect | None:
        """The client that wrote the registration, judged by its form."""
        return self.registration.dialect if self.registration else None

    @property
    def host(self) -> str | None:
        """The host: that of a gateway's client, or the one in the id of an old client."""
        client_host = self.registration.client_host if self.registration else ""
        return client_host or host_of_instance(self.group, self.id)


class PastOwner(NamedTuple):
    """An owner node, as it was at some moment.

    - `id`: its data: the id of an instance, with or without the number of a stream.
    - `session`: the session of the node; 0 if it belonged to no session, None if it is unknown.
    - `claimed_zxid`, `claimed_ms`: the transaction that claimed the partition, and its time; 0 if they are unknown.
    - `path`: the path of the node, below `/consumers/`.
    """

    id: str
    session: int | None
    claimed_zxid: int = 0
    claimed_ms: int = 0
    path: bytes = b""


class CommitAction(StrEnum):
    """What happened to an offset."""

    CREATED = "created"
    COMMITTED = "committed"
    DELETED = "deleted"


class Commit(NamedTuple):
    """A commit, or the deletion of an offset.

    - `before`: the previous offset. None if there was none, if it was malformed, or after a `gap`.
    - `offset`: the new one. None if it was deleted or is malformed; then `problem` has the reason.
    - `version`: the version of the node, which counts the commits since it was created.
    - `owner`: the owner of the partition at that moment; None if it had none.
    - `gap`: True if the logs do not have the previous commit, so `before` is unknown.
    """

    zxid: int
    time_ms: int
    session: int
    group: str
    topic: str
    partition: int
    action: CommitAction
    before: int | None
    offset: int | None
    version: int
    instance: PastInstance | None
    owner: PastOwner | None
    gap: bool
    is_complete: bool
    problem: str | None

    @property
    def went_back(self) -> bool:
        """True if the offset is lower than the previous one."""
        return self.offset is not None and self.before is not None and self.offset < self.before

    @property
    def is_of_owner(self) -> bool:
        """True if the session owned the partition."""
        return self.owner is not None and self.owner.session == self.session

    @property
    def is_without_claim(self) -> bool:
        """True if it is certain that the session did not own the partition."""
        return not self.is_of_owner and (self.is_complete or self.owner is not None)

    @property
    def is_unregistered(self) -> bool:
        """True if it is certain that the session had no registration in the group."""
        return self.instance is None and self.is_complete


class OwnerAction(StrEnum):
    """What happened to an owner node.

    - released: its own session deleted it
    - taken: another session deleted it
    - deleted: the same, but the log does not show which of the two
    - closed, expired: its session has ended
    """

    CLAIMED = "claimed"
    CHANGED = "changed"
    RELEASED = "released"
    TAKEN = "taken"
    DELETED = "deleted"
    CLOSED = "closed"
    EXPIRED = "expired"


class OwnerChange(NamedTuple):
    """A claim, or the end of one.

    - `owner`: the owner node, after the change or before its deletion.
    - `holder`: the instance of the owner's session. It differs from `instance` if another session made the change.
    - `others`: other owner nodes of the partition at that moment. Clients that name the nodes differently, such as
      pykafka, may own a partition beside an owner.
    """

    zxid: int
    time_ms: int
    session: int
    group: str
    topic: str
    partition: int
    action: OwnerAction
    owner: PastOwner
    holder: PastInstance | None
    others: tuple[PastOwner, ...]
    instance: PastInstance | None
    is_complete: bool


class MemberAction(StrEnum):
    """What happened to a registration.

    - deregistered: its own session deleted it
    - removed: another session deleted it
    - deleted: the same, but the log does not show which of the two
    - closed, expired: its session has ended
    """

    REGISTERED = "registered"
    CHANGED = "changed"
    DEREGISTERED = "deregistered"
    REMOVED = "removed"
    DELETED = "deleted"
    CLOSED = "closed"
    EXPIRED = "expired"


class MemberChange(NamedTuple):
    """A registration, a change of one, or its end.

    - `member`: the instance that is registered, after the change or before its deletion.
    - `instance`: the instance of the session that made the change, which may be another one.
    """

    zxid: int
    time_ms: int
    session: int
    group: str
    action: MemberAction
    member: PastInstance
    instance: PastInstance | None
    is_complete: bool


class GroupAction(StrEnum):
    """What happened to the node of a group."""

    CREATED = "created"
    DELETED = "deleted"


class GroupChange(NamedTuple):
    """The creation or deletion of a group's node."""

    zxid: int
    time_ms: int
    session: int
    group: str
    action: GroupAction
    instance: PastInstance | None
    is_complete: bool


HistoryEvent: TypeAlias = Commit | OwnerChange | MemberChange | GroupChange
"""An event of any kind."""


# The rules that every member of a group must keep, checked for each event of a history.
#
# ZooKeeper has one owner node for each partition, so two owners never overlap in its log, with two exceptions:
# clients that name the owner nodes differently, and a node that another session deletes while its owner still works.


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

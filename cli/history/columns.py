"""The rows of the history commands, and the columns that several of them have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from zkgroups.core.history.events import Commit, HistoryEvent, PastInstance, PastOwner
from zkgroups.core.times import utc_exactly
from zkgroups.core.znodes.session_ids import session_hex

from ..shared.output import Column, Row

TIME: Final = Column("TIME", "time_ms", show=utc_exactly)
ZXID: Final = Column("ZXID", "zxid", show=hex)
SESSION: Final = Column("SESSION", "session")
GROUP: Final = Column("GROUP", "group")
TOPIC: Final = Column("TOPIC", "topic")
PARTITION: Final = Column("PARTITION", "partition", right=True)
INSTANCE: Final = Column("INSTANCE", "instance")
HOST: Final = Column("HOST", "host", wide=True)
DIALECT: Final = Column("DIALECT", "dialect", wide=True)
MARKS: Final = Column("MARKS", "marks", styles={"went-back": "red", "not-owner": "red"})


def event_row(event: HistoryEvent) -> Row:
    """Return the fields that all events have."""
    return {
        "time_ms": event.time_ms,
        "zxid": event.zxid,
        "session": shown_session(event.session),
        "group": event.group,
        "event": event.action.value,
        "complete": event.is_complete,
    }


def instance_row(instance: PastInstance | None) -> Row:
    """Return the fields of an instance."""
    registration = instance.registration if instance else None
    return {
        "instance": instance.id if instance else None,
        "host": instance.host if instance else None,
        "dialect": registration.dialect.value if registration else None,
        "client_id": registration.client_id or None if registration else None,
    }


def owner_row(owner: PastOwner | None) -> Row:
    """Return the fields of an owner."""
    return {
        "owner": owner.id if owner else None,
        "owner_session": shown_session(owner.session) if owner else None,
        "claimed_ms": (owner.claimed_ms or None) if owner else None,
    }


def shown_session(session: int | None) -> str | None:
    """Format a session; None if it is unknown, or if a node belongs to none."""
    return session_hex(session) if session else None


def marks(event: HistoryEvent) -> Iterator[str]:
    """Yield the words that mark an event."""
    if isinstance(event, Commit):
        if event.went_back:
            yield "went-back"
        if event.gap:
            yield "gap"
        if event.is_without_claim:
            yield "unowned" if event.owner is None else "not-owner"
        if event.is_unregistered:
            yield "unregistered"
    if not event.is_complete:
        yield "incomplete"

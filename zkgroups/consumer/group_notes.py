"""Notes on oddities of a group: missing topics, unreadable nodes, and members of other clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..core.rebalance.roster import Roster
from ..core.znodes.offset_sides import OffsetSides, Side
from ..core.znodes.paths import BROKER_TOPICS, broker_topic
from ..core.znodes.subscribed_topics import subscribed_topics
from ..core.znodes.values import Dialect, Registration, UnreadableNode
from .events import EventKind

_NAMED: Final = 5
"""How many nodes, ids or topics a note lists."""


def few(names: Iterable[str], separator: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return separator.join(found[:_NAMED]) + more


def unreadable_nodes(nodes: Iterable[UnreadableNode]) -> str:
    """Return the text of a note about these nodes."""
    return few((f"{node.path}: {node.reason}" for node in nodes), "; ")


def missing_topics(registration: Registration, roster: Roster) -> dict[EventKind, str]:
    """Note the topics that do not exist. There may be none at all if the address lacks Kafka's chroot."""
    hidden = {node.path for node in roster.unreadable_topics}
    wanted = subscribed_topics(registration, roster.partitions)
    missing = [t for t in sorted(wanted) if t not in roster.partitions and broker_topic(t) not in hidden]
    if wanted and not missing:
        return {}
    names = few(missing) or f"topic that matches {', '.join(registration.streams)}"
    return {EventKind.MISSING: f"{names} not found in {BROKER_TOPICS}; waiting (is the chroot right?)"}


def oddities(roster: Roster) -> dict[EventKind, str]:
    """Note unreadable nodes and members of other clients."""
    notes: dict[EventKind, str] = {}
    if unreadable := [*roster.unreadable_registrations, *roster.unreadable_topics]:
        notes[EventKind.MALFORMED] = unreadable_nodes(unreadable)
    foreign = {dialect: ids for dialect, ids in roster.dialects.items() if not dialect.is_of_zkgroups}
    if foreign:
        notes[EventKind.FOREIGN] = "; ".join(f"{dialect}: {few(ids)}" for dialect, ids in sorted(foreign.items()))
    return notes


def offsets_elsewhere(own: OffsetSides, roster: Roster) -> dict[EventKind, str]:
    """Note members that do not find the offsets of this one, or whose offsets this one does not find.

    Where Scala members commit is not visible in ZooKeeper.
    """
    sides = {id: _sides(registration) for id, registration in roster.participants.items()}
    others = [f"{id} ({found})" for id, found in sides.items() if found is not None and not found.suits(own)]
    if not others:
        return {}
    return {EventKind.DIFFER: f"this member commits to {own}, others elsewhere: {few(others)}"}


def _sides(registration: Registration) -> OffsetSides | None:
    match registration.dialect:
        case Dialect.SCALA:
            return None
        case Dialect.PYKAFKA:
            return OffsetSides(Side.KAFKA)
    return registration.offsets

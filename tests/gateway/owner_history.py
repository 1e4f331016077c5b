"""Who owned the partitions of a group, from ZooKeeper's transaction log, and what the clients of gateways had.

ZooKeeper has one owner node for each partition, so two owners never overlap in its log. What a client has is another
question: a gateway must give a partition to its client after the owner node was created, and must not delete the node
before the client has given the partition up. Then a client never has a partition together with any other member.

There is one exception. If the session of a gateway expires, ZooKeeper deletes the owner nodes of its clients, who learn
of it later. Their commits are refused until then: `unfenced` of `tests/consumer/history.py` looks for such commits.

All times are those of the machine's clock, on which the server and the clients run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from tests.consumer import journal
from tests.consumer.history import Violation, at
from zkgroups.core.history.events import MemberAction, MemberChange, OwnerAction, OwnerChange


@dataclass(slots=True)
class Ownership:
    """The time in which an owner node existed. `expired`: the node was deleted together with its session."""

    at: str
    owner: str
    session: int
    start: float
    end: float = inf
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Belief:
    """The time in which a client believed that it had a partition."""

    at: str
    member_id: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class OwnerHistory:
    """All owners of a group in order, and the sessions in which its members were registered, by instance id."""

    owners: list[Ownership]
    sessions: dict[str, set[int]]


def read(data_dir: Path, group: str, chroot: str) -> OwnerHistory:
    """Read the transaction log of a server."""
    owners: list[Ownership] = []
    sessions: dict[str, set[int]] = {}
    current: dict[str, Ownership] = {}
    for event in journal.read(data_dir, group, chroot=chroot):
        if isinstance(event, MemberChange) and event.action is MemberAction.REGISTERED:
            sessions.setdefault(event.member.id, set()).add(event.session)
        if isinstance(event, OwnerChange):
            time = event.time_ms / 1000
            if (before := current.pop(at(event), None)) is not None:
                before.end, before.expired = time, event.action in (OwnerAction.CLOSED, OwnerAction.EXPIRED)
            if event.action in (OwnerAction.CLAIMED, OwnerAction.CHANGED):
                current[at(event)] = Ownership(at(event), event.owner.id, event.owner.session or 0, time)
                owners.append(current[at(event)])
    return OwnerHistory(owners, sessions)


def unowned(history: OwnerHistory, beliefs: Iterable[Belief]) -> Iterator[Violation]:
    """Partitions that a client had before its gateway had claimed them, or after its gateway had released them."""
    for belief in beliefs:
        owned = [
            each
            for each in history.owners
            if (each.at, each.owner) == (belief.at, f"{belief.member_id}-0") and each.start <= belief.start <= each.end
        ]
        if not owned:
            yield Violation("a partition without an owner node", str(belief))
        elif owned[0].end < belief.end and not owned[0].expired:
            yield Violation("a partition that was released before", f"{belief}, {owned[0]}")

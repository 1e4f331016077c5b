"""Turn changes of owner nodes into events."""

from __future__ import annotations

from .changes import ChangeKind, KnownNode, NodeChange, SessionEnd
from .events import OwnerAction, OwnerChange, PastOwner
from .known_groups import KnownGroups, KnownPartition


def add_owner(known: KnownGroups, partition: KnownPartition, node: KnownNode) -> PastOwner:
    """Add the owner in a node that exists."""
    owner = PastOwner(_id(node.data), node.session, node.czxid, node.created_ms, node.path)
    known.put_owner(partition, owner)
    return owner


def change_owner(known: KnownGroups, partition: KnownPartition, change: NodeChange) -> OwnerChange:
    """Apply a change of an owner node, and return its event."""
    owner = partition.owner_at(change.path) or PastOwner("", None, path=change.path)
    if change.kind is ChangeKind.CREATED:
        action, owner = OwnerAction.CLAIMED, add_owner(known, partition, change.node)
    elif change.kind is ChangeKind.WRITTEN:
        action, owner = OwnerAction.CHANGED, owner._replace(id=_id(change.data))
        known.put_owner(partition, owner)
    else:
        action = _ending(owner, change.session)
        known.remove_owner(partition, change.path)
    return _event(known, partition, change, action, owner)


def end_owner(known: KnownGroups, partition: KnownPartition, change: NodeChange, path: bytes) -> OwnerChange:
    """Remove an owner node of a session that has ended, and return the event."""
    owner = partition.owner_at(path) or PastOwner("", change.session, path=path)
    action = OwnerAction.EXPIRED if change.end is SessionEnd.EXPIRED else OwnerAction.CLOSED
    known.remove_owner(partition, path)
    return _event(known, partition, change, action, owner)


def _id(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _ending(owner: PastOwner, session: int) -> OwnerAction:
    """Return what it means that a session deletes the owner node."""
    if owner.session is None:
        return OwnerAction.DELETED
    return OwnerAction.RELEASED if owner.session == session else OwnerAction.TAKEN


def _event(
    known: KnownGroups, partition: KnownPartition, change: NodeChange, action: OwnerAction, owner: PastOwner
) -> OwnerChange:
    zxid, time_ms, session, *_ = change
    return OwnerChange(
        zxid,
        time_ms,
        session,
        partition.group,
        partition.topic,
        partition.number,
        action,
        owner,
        known.instance_of(owner.session or 0, partition.group, owner.id),
        tuple(other for other in partition.owners if other.path != owner.path),
        known.instance_of(session, partition.group, owner.id),
        zxid > known.complete_from,
    )

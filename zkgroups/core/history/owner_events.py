"""Turn changes of owner nodes into events."""

from __future__ import annotations

from .changes import ChangeKind, KnownNode, NodeChange, SessionEnd
from .events import OwnerAction, OwnerChange, PastOwner
from .known_groups import KnownGroups, KnownPartition


def add_owner(known: KnownGroups, partition: KnownPartition, node: KnownNode) -> PastOwner:
    """Add the owner in a node that exists."""
    id = node.data.decode(errors="backslashreplace")
    owner = PastOwner(id, node.session, node.czxid, node.created_ms)
    known.put_owner(partition, node.path, owner)
    return owner


def change_owner(known: KnownGroups, partition: KnownPartition, change: NodeChange) -> OwnerChange:
    """Apply a change of an owner node, and return its event."""
    path = change.path
    owner = partition.owners.get(path) or PastOwner("", None)
    if change.kind is ChangeKind.CREATED:
        action, owner = OwnerAction.CLAIMED, add_owner(known, partition, change.node)
    elif change.kind is ChangeKind.WRITTEN:
        id = change.data.decode(errors="backslashreplace")
        action, owner = OwnerAction.CHANGED, PastOwner(id, owner.session, owner.claimed_zxid, owner.claimed_ms)
        known.put_owner(partition, path, owner)
    else:
        action = _ending(owner, change.session)
        known.remove_owner(partition, path)
    return _event(known, partition, change, path, action, owner)


def end_owner(known: KnownGroups, partition: KnownPartition, change: NodeChange, path: bytes) -> OwnerChange:
    """Remove an owner node of a session that has ended, and return the event."""
    owner = partition.owners.get(path) or PastOwner("", change.session)
    action = OwnerAction.EXPIRED if change.end is SessionEnd.EXPIRED else OwnerAction.CLOSED
    known.remove_owner(partition, path)
    return _event(known, partition, change, path, action, owner)


def _ending(owner: PastOwner, session: int) -> OwnerAction:
    """Return what it means that a session deletes the owner node."""
    if owner.session is None:
        return OwnerAction.DELETED
    return OwnerAction.RELEASED if owner.session == session else OwnerAction.TAKEN


def _event(
    known: KnownGroups,
    partition: KnownPartition,
    change: NodeChange,
    path: bytes,
    action: OwnerAction,
    owner: PastOwner,
) -> OwnerChange:
    return OwnerChange(
        change.zxid,
        change.time_ms,
        change.session,
        partition.group,
        partition.topic,
        partition.number,
        action,
        owner,
        known.instance_of(owner.session, partition.group, owner.id),
        partition.owners_beside(path),
        known.instance_of(change.session, partition.group, owner.id),
        known.is_complete(change.zxid),
    )

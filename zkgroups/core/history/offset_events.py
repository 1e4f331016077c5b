"""Turn changes of offset nodes into commits.

Each write increases the version of its node by 1. So a version that does not follow the known one shows that the
previous commit is missing in the logs: a `gap`.
"""

from __future__ import annotations

from ..znodes.offset_codec import PLAIN_BYTES, decode_offset
from .changes import ChangeKind, NodeChange
from .events import Commit, CommitAction
from .known_groups import UNKNOWN_VERSION, KnownGroups, KnownPartition


def offset_of(data: bytes) -> tuple[int | None, str | None]:
    """Return the offset in the data of a node, or the reason why it is malformed.

    >>> offset_of(b"17"), offset_of(b"")
    ((17, None), (None, 'empty'))
    """
    found = decode_offset("", data)
    return (found, None) if isinstance(found, int) else (None, found.reason)


def change_offset(known: KnownGroups, partition: KnownPartition, change: NodeChange) -> Commit:
    """Apply a change of an offset node, and return its event."""
    zxid, time_ms, session, kind, path, data, version, writes, *_ = change
    if kind is ChangeKind.DELETED:
        return _delete_offset(known, partition, change)
    if partition.version == UNKNOWN_VERSION:
        known.keep_offset(partition, path)
    action = CommitAction.CREATED if kind is ChangeKind.CREATED else CommitAction.COMMITTED
    return write_offset(known, partition, zxid, time_ms, session, data, version, writes, action)


def write_offset(
    known: KnownGroups,
    partition: KnownPartition,
    zxid: int,
    time_ms: int,
    session: int,
    data: bytes,
    version: int,
    writes: int = 1,
    action: CommitAction = CommitAction.COMMITTED,
) -> Commit:
    """Apply a write of a known offset node, and return its event. Logs have millions of them, so this must be fast."""
    gap, before, problem = partition.version != version - writes, partition.offset, None
    if data.isdigit() and len(data) < PLAIN_BYTES:
        offset: int | None = int(data)
    else:
        offset, problem = offset_of(data)
    partition.offset, partition.version = offset, version
    group, owners, owner = partition.group, partition.owners, None
    if owners:
        owner = owners[0] if len(owners) == 1 else partition.owner_for(session)
    instance = known.instance_of(session, group, owner.id if owner else "")
    commit: Commit = tuple.__new__(  # the constructor takes twice the time
        Commit,
        (zxid, time_ms, session, group, partition.topic, partition.number, action, None if gap else before, offset,
         version, instance, owner, gap, zxid > known.complete_from, problem),
    )  # fmt: skip
    return commit


def _delete_offset(known: KnownGroups, partition: KnownPartition, change: NodeChange) -> Commit:
    zxid, time_ms, session, *_ = change
    gap, before = partition.version == UNKNOWN_VERSION, partition.offset
    owner = partition.owner_for(session)
    instance = known.instance_of(session, partition.group, owner.id if owner else "")
    known.remove_offset(partition, change.path)
    return Commit(
        zxid,
        time_ms,
        session,
        partition.group,
        partition.topic,
        partition.number,
        CommitAction.DELETED,
        before,
        None,
        UNKNOWN_VERSION,
        instance,
        owner,
        gap,
        zxid > known.complete_from,
        None,
    )

"""Turn changes of offset nodes into commits.

Each write increases the version of its node by 1. So a version that does not follow the known one shows that the
previous commit is missing in the logs: a `gap`.
"""

from __future__ import annotations

from ..znodes.offset_codec import decode_offset, is_plain_offset
from .changes import ChangeKind, NodeChange
from .events import Commit, CommitAction
from .known_groups import UNKNOWN_VERSION, KnownGroups, KnownPartition


def offset_of(data: bytes) -> tuple[int | None, str | None]:
    """Return the offset in the data of a node, or the reason why it is malformed.

    >>> offset_of(b"17"), offset_of(b"")
    ((17, None), (None, 'empty'))
    """
    if is_plain_offset(data):
        return int(data), None
    found = decode_offset("", data)
    return (found, None) if isinstance(found, int) else (None, found.reason)


def change_offset(known: KnownGroups, partition: KnownPartition, change: NodeChange) -> Commit:
    """Apply a change of an offset node, and return its event."""
    zxid, time_ms, session, kind, path, data, version, writes, *_ = change
    before, previous, problem = partition.offset, partition.version, None
    if kind is ChangeKind.DELETED:
        action, gap, offset, version = CommitAction.DELETED, previous == UNKNOWN_VERSION, None, UNKNOWN_VERSION
        known.remove_offset(partition, path)
    else:
        action = CommitAction.COMMITTED if kind is ChangeKind.WRITTEN else CommitAction.CREATED
        gap = previous != version - writes
        if is_plain_offset(data):
            offset = int(data)
        else:
            offset, problem = offset_of(data)
        known.put_offset(partition, path, offset, version)
    owner = partition.owner(session) if partition.owners else None
    instance = known.instance_of(session, partition.group, owner.id if owner else "")
    before = None if gap else before
    is_complete = zxid > known.complete_from
    group, topic, number = partition.group, partition.topic, partition.number
    # Logs have millions of commits, and the constructor takes twice the time.
    commit: Commit = tuple.__new__(
        Commit,
        (zxid, time_ms, session, group, topic, number, action, before, offset, version, instance, owner, gap,
         is_complete, problem),
    )  # fmt: skip
    return commit

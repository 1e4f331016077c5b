"""Turn changes of nodes into events: the tracker knows the offsets, the owners and the registrations at each moment.

A history may begin in the middle, with the nodes of a snapshot, or without any. Earlier changes may then be missing: an
instance or an owner that is not known may still exist. Such events are not `is_complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ..znodes.offset_codec import decode_offset_path
from ..znodes.owner_codec import decode_owner_path
from ..znodes.paths import Part
from .changes import ChangeKind, KnownNode, NodeChange
from .events import GroupAction, GroupChange, HistoryEvent
from .known_groups import KnownGroups, KnownPartition
from .member_events import add_member, change_member, end_member
from .offset_events import change_offset, offset_of
from .owner_events import add_owner, change_owner, end_owner

_NOTHING: Final[tuple[HistoryEvent, ...]] = ()
_IDS: Final = f"/{Part.IDS}/".encode()


class GroupsTracker:
    """Follows the changes of groups. `has_group` selects groups by name; changes of other groups are ignored.

    >>> tracker = GroupsTracker()
    >>> made = NodeChange(7, 1000, 0xA, ChangeKind.CREATED, b"billing/offsets/orders/0", b"5")
    >>> [commit] = tracker.apply(made)
    >>> commit.group, commit.topic, commit.partition, commit.before, commit.offset
    ('billing', 'orders', 0, None, 5)
    """

    def __init__(self, has_group: Callable[[str], bool] = lambda _group: True) -> None:
        self.groups: set[str] = set()
        """The selected groups of which any node was seen."""
        self._has_group = has_group
        self._known = KnownGroups()
        self._known.complete_from = 0

    def begin(self, nodes: Iterable[KnownNode]) -> None:
        """Begin with these nodes, or begin again after a gap in the logs: all that was known before is forgotten.

        No event is complete until `complete_from` is called.
        """
        self._known = known = KnownGroups()
        for node in nodes:
            match self._names(node.path):
                case [group, Part.IDS, id]:
                    add_member(known, group, id, node)
                case [group, Part.OWNERS, topic, name] if partition := self._owned(group, topic, name):
                    add_owner(known, partition, node)
                case [group, Part.OFFSETS, topic, name] if partition := self._committed(group, topic, name):
                    known.put_offset(partition, node.path, offset_of(node.data)[0], node.version)

    def complete_from(self, zxid: int) -> None:
        """Set the transaction after which no earlier change is missing."""
        self._known.complete_from = zxid

    def apply(self, change: NodeChange) -> Sequence[HistoryEvent]:
        """Apply the next change, and return its events."""
        known = self._known
        partition = known.offsets.get(change.path)
        if partition is not None:
            return (change_offset(known, partition, change),)
        if change.kind is ChangeKind.SESSION_ENDED:
            return tuple(self._end_session(change))
        match self._names(change.path):
            case [group, Part.IDS, id]:
                return (change_member(known, group, id, change),)
            case [group, Part.OWNERS, topic, name] if partition := self._owned(group, topic, name):
                return (change_owner(known, partition, change),)
            case [group, Part.OFFSETS, topic, name] if partition := self._committed(group, topic, name):
                return (change_offset(known, partition, change),)
            case [group] if change.kind is not ChangeKind.WRITTEN:
                return (self._change_group(group, change),)
        return _NOTHING

    def _names(self, path: bytes) -> list[str]:
        """Return the names in the path of a node of a selected group; none for other paths."""
        names = path.decode(errors="backslashreplace").split("/")
        if names[0] not in self.groups:
            if not self._has_group(names[0]):
                return []
            self.groups.add(names[0])
        return names

    def _owned(self, group: str, topic: str, name: str) -> KnownPartition | None:
        """Return the partition of an owner node; None if its names are not those of a partition."""
        at = decode_owner_path(topic, name)
        return None if at is None else self._known.partition(group, at.topic, at.partition)

    def _committed(self, group: str, topic: str, name: str) -> KnownPartition | None:
        """Return the partition of an offset node; None if its names are not those of a partition."""
        at = decode_offset_path(topic, name)
        return None if at is None else self._known.partition(group, at.topic, at.partition)

    def _end_session(self, change: NodeChange) -> Iterator[HistoryEvent]:
        """Yield the end of each node of a session: of those that are known, and of those that the server lists.

        The registrations come last, because each owner belongs to one.
        """
        paths = {*self._known.nodes_of(change.session), *change.ended}
        for path in sorted(paths, key=lambda path: (_IDS in path, path)):
            match self._names(path):
                case [group, Part.IDS, id]:
                    yield end_member(self._known, group, id, change, path)
                case [group, Part.OWNERS, topic, name] if partition := self._owned(group, topic, name):
                    yield end_owner(self._known, partition, change, path)

    def _change_group(self, group: str, change: NodeChange) -> GroupChange:
        zxid, time_ms, session, *_ = change
        action = GroupAction.CREATED if change.kind is ChangeKind.CREATED else GroupAction.DELETED
        instance = self._known.instance_of(session, group)
        return GroupChange(zxid, time_ms, session, group, action, instance, self._known.is_complete(zxid))

"""Turn changes of nodes into events: the tracker knows the offsets, the owners and the registrations at each moment.

A history may begin in the middle, with the nodes of a snapshot, or without any. Earlier changes may then be missing: an
instance or an owner that is not known may still exist. Such events are not `is_complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from .changes import ChangeKind, KnownNode, NodeChange
from .events import GroupAction, GroupChange, HistoryEvent
from .known_groups import KnownGroups, KnownPartition
from .member_events import add_member, change_member, end_member
from .offset_events import change_offset, offset_of, write_offset
from .owner_events import add_owner, change_owner, end_owner
from .places import Place, PlaceKind, place_of

_NOTHING: Final[tuple[HistoryEvent, ...]] = ()


class GroupsTracker:
    """Follows the changes of groups. `has_group` selects groups by name; changes of other groups are ignored.

    >>> tracker = GroupsTracker()
    >>> made = NodeChange(7, 1000, 0xA, ChangeKind.CREATED, b"billing/offsets/orders/0", b"5")
    >>> [commit] = tracker.apply([made])
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
            place = place_of(node.path)
            if not self._is_selected(place.group):
                continue
            if place.kind is PlaceKind.REGISTRATION:
                add_member(known, place.group, place.id, node)
            elif place.kind is PlaceKind.OWNER:
                add_owner(known, self._partition(place), node)
            elif place.kind is PlaceKind.OFFSET:
                partition = self._partition(place)
                partition.offset, partition.version = offset_of(node.data)[0], node.version
                known.keep_offset(partition, node.path)

    def complete_from(self, zxid: int) -> None:
        """Set the transaction after which no earlier change is missing."""
        self._known.complete_from = zxid

    def write(
        self, zxid: int, time_ms: int, session: int, path: bytes, data: bytes, version: int
    ) -> HistoryEvent | None:
        """Apply a transaction that only writes a node. The same as `apply`, but faster for commits."""
        partition = self._known.offsets.get(path)
        if partition is not None:
            return write_offset(self._known, partition, zxid, time_ms, session, data, version)
        events = self.apply([NodeChange(zxid, time_ms, session, ChangeKind.WRITTEN, path, data, version)])
        return events[0] if events else None

    def apply(self, changes: Iterable[NodeChange]) -> Sequence[HistoryEvent]:
        """Apply the changes of the next transaction, and return their events."""
        return [event for change in changes for event in self._apply(change)]

    def _apply(self, change: NodeChange) -> Sequence[HistoryEvent]:
        known = self._known
        if (partition := known.offsets.get(change.path)) is not None:  # first, because most changes are commits
            return (change_offset(known, partition, change),)
        if change.kind is ChangeKind.SESSION_ENDED:
            return tuple(self._end_session(change))
        place = place_of(change.path)
        if not self._is_selected(place.group):
            return _NOTHING
        match place.kind:
            case PlaceKind.REGISTRATION:
                return (change_member(known, place.group, place.id, change),)
            case PlaceKind.OWNER:
                return (change_owner(known, self._partition(place), change),)
            case PlaceKind.OFFSET:
                return (change_offset(known, self._partition(place), change),)
            case PlaceKind.GROUP if change.kind is not ChangeKind.WRITTEN:
                return (self._change_group(place.group, change),)
        return _NOTHING

    def _is_selected(self, group: str) -> bool:
        if group in self.groups:
            return True
        if not self._has_group(group):
            return False
        self.groups.add(group)
        return True

    def _partition(self, place: Place) -> KnownPartition:
        return self._known.partition(place.group, place.topic, place.number)

    def _end_session(self, change: NodeChange) -> Iterator[HistoryEvent]:
        """Yield the end of each node of a session: the nodes known so far, and the nodes that the server lists.

        The registrations come last, because each owner belongs to one.
        """
        paths = {*self._known.nodes_of(change.session), *change.ended}
        places = [(path, place_of(path)) for path in sorted(paths)]
        places = [(path, place) for path, place in places if self._is_selected(place.group)]
        for path, place in places:
            if place.kind is PlaceKind.OWNER:
                yield end_owner(self._known, self._partition(place), change, path)
        for path, place in places:
            if place.kind is PlaceKind.REGISTRATION:
                yield end_member(self._known, place.group, place.id, change, path)

    def _change_group(self, group: str, change: NodeChange) -> GroupChange:
        zxid, time_ms, session, *_ = change
        action = GroupAction.CREATED if change.kind is ChangeKind.CREATED else GroupAction.DELETED
        instance = self._known.instance_of(session, group)
        return GroupChange(zxid, time_ms, session, group, action, instance, zxid > self._known.complete_from)

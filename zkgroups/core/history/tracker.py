"""Turn changes of nodes into events: the tracker knows the offsets, the owners and the registrations at each moment.

A history may begin in the middle, with the nodes of a snapshot, or without any. Earlier changes may then be missing: an
instance or an owner that is not known may still exist. Such events are not `is_complete`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, TypeVar

from ..znodes.codecs import PLAIN_BYTES, decode_offset
from ..znodes.paths import CONSUMERS, Part, join
from ..znodes.registrations import decode_registration
from ..znodes.values import ReadRegistration, instance_of_owner
from .changes import ChangeKind, KnownNode, NodeChange, Place, PlaceKind, SessionEnd, place_of
from .events import (
    Commit,
    CommitAction,
    GroupAction,
    GroupChange,
    HistoryEvent,
    MemberAction,
    MemberChange,
    OwnerAction,
    OwnerChange,
    PastInstance,
    PastOwner,
)

# The known registrations, offsets and owners of all groups at one moment of a history.


_BY_ID: Final = attrgetter("id")
_BY_CLAIM: Final = attrgetter("claimed_zxid", "id")

Key = TypeVar("Key", bound=Hashable)

UNKNOWN_VERSION: Final = -1
NEVER: Final = 2**63
"""Later than any transaction."""


class KnownPartition:
    """The offset and the owners of a partition.

    Without a known offset, the version is `UNKNOWN_VERSION`: no offset exists, or it was written before the first
    known transaction.
    """

    __slots__ = ("group", "number", "offset", "owners", "topic", "version")

    def __init__(self, group: str, topic: str, number: int) -> None:
        self.group = group
        self.topic = topic
        self.number = number
        self.offset: int | None = None
        self.version = UNKNOWN_VERSION
        self.owners: tuple[PastOwner, ...] = ()
        """In the order of their claims. There are several only if clients name the owner nodes differently."""

    def owner_for(self, session: int) -> PastOwner | None:
        """Return the owner. Of several, the one of this session is preferred, and then the first claim."""
        return next((owner for owner in self.owners if owner.session == session), next(iter(self.owners), None))

    def owner_at(self, path: bytes) -> PastOwner | None:
        """Return the owner in a node."""
        return next((owner for owner in self.owners if owner.path == path), None)


class KnownGroups:
    """The nodes that exist, as far as they are known. All paths are below `/consumers/`."""

    def __init__(self) -> None:
        self.complete_from = NEVER
        """The transaction after which no earlier change is missing."""
        self.offsets: dict[bytes, KnownPartition] = {}
        """The partitions by the paths of their offsets."""
        self._partitions: dict[tuple[str, str, int], KnownPartition] = {}
        self._instances: dict[bytes, PastInstance] = {}
        self._of_session: dict[tuple[int, str], tuple[PastInstance, ...]] = {}
        """By session and group, sorted by id."""
        self._ephemeral: dict[int, set[bytes]] = {}

    def nodes_of(self, session: int) -> Iterable[bytes]:
        """Return the paths of the registrations and owner nodes of a session."""
        return self._ephemeral.get(session, ())

    def instance_at(self, path: bytes) -> PastInstance | None:
        """Return the instance that is registered at a path."""
        return self._instances.get(path)

    def instance_of(self, session: int, group: str, owner: str = "") -> PastInstance | None:
        """Return the instance of a session in a group. Of several, the one with the id of an owner is preferred."""
        found = self._of_session.get((session, group))
        if found is None or len(found) == 1:
            return found[0] if found else None
        named = instance_of_owner(owner, {each.id for each in found})
        return next((each for each in found if each.id == named), found[0])

    def register(self, path: bytes, instance: PastInstance) -> None:
        """Add a registration, or replace the one at its path."""
        self.deregister(path)
        self._instances[path] = instance
        if instance.session:
            key = (instance.session, instance.group)
            self._of_session[key] = tuple(sorted((*self._of_session.get(key, ()), instance), key=_BY_ID))
            self._add_ephemeral(instance.session, path)

    def deregister(self, path: bytes) -> None:
        """Remove the registration at a path, if there is one."""
        instance = self._instances.pop(path, None)
        if instance is not None and instance.session:
            key = (instance.session, instance.group)
            self._of_session[key] = tuple(each for each in self._of_session[key] if each is not instance)
            _delete_if_empty(self._of_session, key)
            self._remove_ephemeral(instance.session, path)

    def partition(self, group: str, topic: str, number: int) -> KnownPartition:
        """Return a partition. It is kept only if something is put into it."""
        return self._partitions.get((group, topic, number)) or KnownPartition(group, topic, number)

    def keep_offset(self, partition: KnownPartition, path: bytes) -> None:
        """Keep a partition whose offset exists."""
        self.offsets[path] = partition
        self._keep(partition)

    def remove_offset(self, partition: KnownPartition, path: bytes) -> None:
        """Remove the offset of a partition."""
        partition.offset, partition.version = None, UNKNOWN_VERSION
        self.offsets.pop(path, None)
        self._forget_unused(partition)

    def put_owner(self, partition: KnownPartition, owner: PastOwner) -> None:
        """Add an owner, or replace the one at its path."""
        self.remove_owner(partition, owner.path)
        self._keep(partition)
        partition.owners = tuple(sorted((*partition.owners, owner), key=_BY_CLAIM))
        if owner.session:
            self._add_ephemeral(owner.session, owner.path)

    def remove_owner(self, partition: KnownPartition, path: bytes) -> None:
        """Remove the owner at a path, if there is one."""
        owner = partition.owner_at(path)
        if owner is not None:
            partition.owners = tuple(each for each in partition.owners if each is not owner)
            if owner.session:
                self._remove_ephemeral(owner.session, path)
        self._forget_unused(partition)

    def _keep(self, partition: KnownPartition) -> None:
        self._partitions[partition.group, partition.topic, partition.number] = partition

    def _forget_unused(self, partition: KnownPartition) -> None:
        """Keep memory bounded by the nodes that exist."""
        if partition.version == UNKNOWN_VERSION and not partition.owners:
            self._partitions.pop((partition.group, partition.topic, partition.number), None)

    def _add_ephemeral(self, session: int, path: bytes) -> None:
        self._ephemeral.setdefault(session, set()).add(path)

    def _remove_ephemeral(self, session: int, path: bytes) -> None:
        self._ephemeral[session].discard(path)
        _delete_if_empty(self._ephemeral, session)


def _delete_if_empty(found: dict[Key, Any], key: Key) -> None:
    if not found[key]:
        del found[key]


# Turn changes of registrations into events.


def add_member(known: KnownGroups, group: str, id: str, node: KnownNode) -> PastInstance:
    """Add the registration in a node that exists."""
    read = _decode(group, id, node.data, session=node.session, version=node.version)
    member = PastInstance(group, id, node.session, node.czxid, node.created_ms, read)
    known.register(node.path, member)
    return member


def change_member(known: KnownGroups, group: str, id: str, change: NodeChange) -> MemberChange:
    """Apply a change of a registration, and return its event."""
    member = known.instance_at(change.path) or PastInstance(group, id, None)
    if change.kind is ChangeKind.CREATED:
        action, member = MemberAction.REGISTERED, add_member(known, group, id, change.node)
    elif change.kind is ChangeKind.WRITTEN:
        read = _decode(group, id, change.data, session=member.session or 0, version=change.version)
        action, member = MemberAction.CHANGED, replace(member, read=read)
        known.register(change.path, member)
    else:
        action = _member_ending(member, change.session)
        known.deregister(change.path)
    return _member_event(known, change, action, member)


def end_member(known: KnownGroups, group: str, id: str, change: NodeChange, path: bytes) -> MemberChange:
    """Remove a registration of a session that has ended, and return the event."""
    member = known.instance_at(path) or PastInstance(group, id, change.session)
    known.deregister(path)
    action = MemberAction.EXPIRED if change.end is SessionEnd.EXPIRED else MemberAction.CLOSED
    return _member_event(known, change, action, member)


def _member_ending(member: PastInstance, session: int) -> MemberAction:
    """Return what it means that a session deletes the registration."""
    if member.session is None:
        return MemberAction.DELETED
    return MemberAction.DEREGISTERED if member.session == session else MemberAction.REMOVED


def _member_event(known: KnownGroups, change: NodeChange, action: MemberAction, member: PastInstance) -> MemberChange:
    is_its_own = member.session == change.session
    instance = member if is_its_own else known.instance_of(change.session, member.group)
    zxid, time_ms, session, *_ = change
    return MemberChange(zxid, time_ms, session, member.group, action, member, instance, zxid > known.complete_from)


def _decode(group: str, id: str, data: bytes, *, session: int, version: int) -> ReadRegistration:
    return decode_registration(join(CONSUMERS, group, Part.IDS, id), data, session=session, version=version)


# Turn changes of offset nodes into commits.
#
# Each write increases the version of its node by 1. So a version that does not follow the known one shows that the
# previous commit is missing in the logs: a `gap`.


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


# Turn changes of owner nodes into events.


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
        action = _owner_ending(owner, change.session)
        known.remove_owner(partition, change.path)
    return _owner_event(known, partition, change, action, owner)


def end_owner(known: KnownGroups, partition: KnownPartition, change: NodeChange, path: bytes) -> OwnerChange:
    """Remove an owner node of a session that has ended, and return the event."""
    owner = partition.owner_at(path) or PastOwner("", change.session, path=path)
    action = OwnerAction.EXPIRED if change.end is SessionEnd.EXPIRED else OwnerAction.CLOSED
    known.remove_owner(partition, path)
    return _owner_event(known, partition, change, action, owner)


def _id(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _owner_ending(owner: PastOwner, session: int) -> OwnerAction:
    """Return what it means that a session deletes the owner node."""
    if owner.session is None:
        return OwnerAction.DELETED
    return OwnerAction.RELEASED if owner.session == session else OwnerAction.TAKEN


def _owner_event(
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

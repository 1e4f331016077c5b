"""What is known of all groups at one moment of a history: registrations, offsets and owners."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

from ..znodes.values import instance_of_owner
from .events import PastInstance, PastOwner

_BY_ID: Final = attrgetter("id")
_BY_CLAIM: Final = attrgetter("claimed_zxid", "id")

Key = TypeVar("Key", bound=Hashable)

_NOBODY: Final[Mapping[bytes, PastOwner]] = {}
"""The owners of most partitions. One object for all of them saves memory."""

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
        self.owners: Mapping[bytes, PastOwner] = _NOBODY
        """By path. There is more than one only if clients name the owner nodes differently."""

    def owner(self, session: int) -> PastOwner | None:
        """Return the owner. Of several, the one of this session is preferred, and then the first claim."""
        owners = self.owners.values()
        if len(owners) < 2:
            return next(iter(owners), None)
        return min(owners, key=lambda owner: (owner.session != session, *_BY_CLAIM(owner)))

    def owners_beside(self, path: bytes) -> tuple[PastOwner, ...]:
        """Return the owners in other nodes, in the order of their claims."""
        return tuple(sorted((owner for other, owner in self.owners.items() if other != path), key=_BY_CLAIM))


class KnownGroups:
    """The nodes that exist, as far as they are known. All paths are below `/consumers/`."""

    def __init__(self) -> None:
        self.offsets: dict[bytes, KnownPartition] = {}
        """The partitions by the paths of their offsets."""
        self.complete_from = NEVER
        """The transaction after which no earlier change is missing."""
        self._partitions: dict[tuple[str, str, int], KnownPartition] = {}
        self._instances: dict[bytes, PastInstance] = {}
        self._by_session: dict[int, dict[str, list[PastInstance]]] = {}
        self._ephemeral: dict[int, set[bytes]] = {}

    def is_complete(self, zxid: int) -> bool:
        """Return whether no earlier change is missing."""
        return zxid > self.complete_from

    def nodes_of(self, session: int) -> Iterable[bytes]:
        """Return the paths of the registrations and owner nodes of a session."""
        return self._ephemeral.get(session, ())

    # Registrations

    def instance_at(self, path: bytes) -> PastInstance | None:
        """Return the instance that is registered at a path."""
        return self._instances.get(path)

    def instance_of(self, session: int | None, group: str, owner: str = "") -> PastInstance | None:
        """Return the instance of a session in a group. Of several, the one with the id of an owner is preferred."""
        groups = self._by_session.get(session or 0)
        found = None if groups is None else groups.get(group)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        named = instance_of_owner(owner, {each.id for each in found})
        return min(found, key=lambda each: (each.id != named, each.id))

    def register(self, path: bytes, instance: PastInstance) -> None:
        """Add a registration, or replace the one at its path."""
        self.deregister(path)
        self._instances[path] = instance
        if instance.session:
            self._by_session.setdefault(instance.session, {}).setdefault(instance.group, []).append(instance)
            self._add_ephemeral(instance.session, path)

    def deregister(self, path: bytes) -> None:
        """Remove the registration at a path, if there is one."""
        instance = self._instances.pop(path, None)
        if instance is not None and instance.session:
            groups = self._by_session[instance.session]
            groups[instance.group].remove(instance)
            _delete_if_empty(groups, instance.group)
            _delete_if_empty(self._by_session, instance.session)
            self._remove_ephemeral(instance.session, path)

    # Partitions

    def partition(self, group: str, topic: str, number: int) -> KnownPartition:
        """Return a partition. It is kept only if something is put into it."""
        key = (group, topic, number)
        return self._partitions.get(key) or KnownPartition(group, topic, number)

    def put_offset(self, partition: KnownPartition, path: bytes, offset: int | None, version: int) -> None:
        """Set the offset of a partition, which is None if it is malformed."""
        partition.offset, partition.version = offset, version
        if path not in self.offsets:
            self.offsets[path] = partition
            self._keep(partition)

    def remove_offset(self, partition: KnownPartition, path: bytes) -> None:
        """Remove the offset of a partition."""
        partition.offset, partition.version = None, UNKNOWN_VERSION
        self.offsets.pop(path, None)
        self._forget_unused(partition)

    def put_owner(self, partition: KnownPartition, path: bytes, owner: PastOwner) -> None:
        """Add an owner, or replace the one at its path."""
        self.remove_owner(partition, path)
        self._keep(partition)
        partition.owners = {**partition.owners, path: owner}
        if owner.session:
            self._add_ephemeral(owner.session, path)

    def remove_owner(self, partition: KnownPartition, path: bytes) -> None:
        """Remove the owner at a path, if there is one."""
        owner = partition.owners.get(path)
        if owner is None:
            return
        partition.owners = {other: each for other, each in partition.owners.items() if other != path} or _NOBODY
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

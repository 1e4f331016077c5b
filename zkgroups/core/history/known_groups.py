"""The known registrations, offsets and owners of all groups at one moment of a history."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import Any, Final, TypeVar

from ..znodes.values import instance_of_owner
from .events import PastInstance, PastOwner

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

    # Registrations

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

    # Partitions

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

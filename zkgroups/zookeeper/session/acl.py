"""The access control lists of new nodes, one for each kind of node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from ...exceptions import InvalidOptionError
from .registry_context import KazooAcls

_LETTERS: Final = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of an access control list.

    - `scheme`, `id`: the users, as in ZooKeeper: ("world", "anyone"), ("sasl", "alice"), ("ip", "10.0.0.0/8"), ...
    - `permissions`: letters of `cdrwa`: create, delete, read, write, admin.

    >>> Acl.digest("alice", "secret", "cdrw").permissions
    'cdrw'
    """

    scheme: str
    id: str
    permissions: str = "cdrwa"

    def __post_init__(self) -> None:
        if not self.permissions or not set(self.permissions) <= _LETTERS.keys():
            raise InvalidOptionError("permissions", self.permissions, "it must consist of the letters cdrwa")

    @classmethod
    def digest(cls, user: str, password: str, permissions: str = "cdrwa") -> Acl:
        """Return an entry for the user with this name and password. ZooKeeper stores a hash of both."""
        return cls("digest", make_digest_acl_credential(user, password), permissions)


WORLD: Final = (Acl("world", "anyone"),)


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """The access control lists of new nodes, for `Registry.connect(acl=...)`.

    - `directories`: for the directories of a group.
    - `ephemerals`: for registrations and owners.
    - `offsets`: for committed offsets.

    All are open by default, as those of the old clients. The right to delete a node is a permission on its parent. ACLs
    do not protect an ephemeral node: any client that can connect can end its session.
    """

    directories: Sequence[Acl] = WORLD
    ephemerals: Sequence[Acl] = WORLD
    offsets: Sequence[Acl] = WORLD


def kazoo_acls(policy: AclPolicy) -> KazooAcls:
    """Return a policy in the form that kazoo accepts."""
    return KazooAcls(_to_kazoo(policy.directories), _to_kazoo(policy.ephemerals), _to_kazoo(policy.offsets))


def _to_kazoo(entries: Sequence[Acl]) -> tuple[Any, ...]:
    return tuple(ACL(sum(_LETTERS[p] for p in set(entry.permissions)), Id(entry.scheme, entry.id)) for entry in entries)

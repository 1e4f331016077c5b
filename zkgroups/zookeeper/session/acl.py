"""Which access control lists new nodes get, one for each kind of node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

from ...exceptions import InvalidOptionError

_LETTERS: Final = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry: who, and any of the letters `cdrwa` (create, delete, read, write, admin), as in ZooKeeper's shell.

    >>> Acl.digest("alice", "secret").scheme
    'digest'
    """

    scheme: str
    id: str
    permissions: str = "cdrwa"

    def __post_init__(self) -> None:
        if not self.permissions or not set(self.permissions) <= _LETTERS.keys():
            raise InvalidOptionError("permissions", self.permissions, "it must be letters out of cdrwa")

    @classmethod
    def digest(cls, user: str, password: str, permissions: str = "cdrwa") -> Acl:
        """For the one who authenticates by this name and password; what is stored is a hash of both."""
        return cls("digest", make_digest_acl_credential(user, password), permissions)


WORLD: Final = (Acl("world", "anyone"),)


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """The lists for new nodes: directories of a group, ephemerals (registrations and owners), and offsets.

    Open by default, as all the old clients write. ACLs do not protect an ephemeral from the end of its session, which
    anybody who can connect can bring about; and deleting is a permission on the parent.
    """

    directories: Sequence[Acl] = WORLD
    ephemerals: Sequence[Acl] = WORLD
    offsets: Sequence[Acl] = WORLD


class KazooAcls:
    """A policy in kazoo's terms."""

    __slots__ = ("directories", "ephemerals", "offsets")

    def __init__(self, policy: AclPolicy) -> None:
        self.directories = _to_kazoo(policy.directories)
        self.ephemerals = _to_kazoo(policy.ephemerals)
        self.offsets = _to_kazoo(policy.offsets)


def _to_kazoo(entries: Sequence[Acl]) -> tuple[Any, ...]:
    return tuple(ACL(sum(_LETTERS[p] for p in set(entry.permissions)), Id(entry.scheme, entry.id)) for entry in entries)

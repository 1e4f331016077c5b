"""The rights of the user `alice`, who owns nodes that other clients must not use."""

from __future__ import annotations

from typing import Any

from kazoo.security import make_digest_acl

from zkgroups import (
    Acl,
)

SECRET = "pass:word of alice"
ALICE = Acl.digest("alice", SECRET)


def only_alice(all: bool = True, **rights: bool) -> list[Any]:
    return [make_digest_acl("alice", SECRET, all=all, **rights)]


def may_world(**rights: bool) -> list[Any]:
    """All rights for alice, and some rights for all clients."""
    from kazoo.security import make_acl

    return [*only_alice(), make_acl("world", "anyone", **rights)]

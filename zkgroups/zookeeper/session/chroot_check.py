"""Check that the chroot has groups, and suggest other chroots that have some."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Exists, GetChildren

from ...core.znodes.paths import BROKER_TOPICS, CONSUMERS, parent
from ...deadline import Deadline
from ...exceptions import NoPermissionError, NoRegistryError, ZkgroupsException
from ..kazoo_compat import internals
from .session import Session

_BROKERS: Final = parent(BROKER_TOPICS)
_MOST: Final = 64
"""How many nodes to try as chroots, for a hint in the message."""
_SHOWN: Final = 5
_NOTHING_HERE: Final = "; check the chroot, or create the first group with `zkgroups groups create GROUP`"


def require_root(session: Session, deadline: Deadline) -> None:
    """Raise `NoRegistryError` if the chroot is missing, or has neither /consumers nor /brokers."""
    if session.exists(CONSUMERS, deadline=deadline) or session.exists(_BROKERS, deadline=deadline):
        return
    if not session.exists("/", deadline=deadline):
        raise no_chroot(session, deadline)
    chroot = f"chroot {session.chroot}" if session.chroot else "root (no chroot given)"
    hint = _hint(session, deadline) or _NOTHING_HERE
    raise NoRegistryError(f"the {chroot} of {_name(session)} contains neither /consumers nor /brokers{hint}")


def require_node(session: Session, path: str, deadline: Deadline) -> None:
    """Raise `NoRegistryError` if a node is missing that everything else is below."""
    if session.exists(path, deadline=deadline):
        return
    if not session.exists("/", deadline=deadline):
        raise no_chroot(session, deadline)
    chroot = f"below the chroot {session.chroot} of" if session.chroot else "in"
    raise NoRegistryError(f"{path} does not exist {chroot} {_name(session)}: check the path and the chroot")


def no_chroot(session: Session, deadline: Deadline) -> NoRegistryError:
    """Return the error for a chroot that is missing."""
    return NoRegistryError(f"{session.chroot} does not exist in {_name(session)}{_hint(session, deadline)}")


def _name(session: Session) -> str:
    return f"the ZooKeeper at {session.servers}"


def _hint(session: Session, deadline: Deadline) -> str:
    """Name chroots that have groups. Only the root, its children and the children of the chroot are tried."""
    chroots: list[str] = []
    with contextlib.suppress(ZkgroupsException, KazooException):
        below = [f"{root}/{name}" for root in (session.chroot, "") for name in _children(session, root, deadline)]
        tried = [path for path in dict.fromkeys(["", *below]) if path != session.chroot][:_MOST]
        for path in tried:  # those found before an error are still a help
            if _has_groups(session, path, deadline):
                chroots.append(path or "/")
    if not chroots:
        return ""
    return f"; groups are under {', '.join(chroots[:_SHOWN])}{' and others' if len(chroots) > _SHOWN else ''}"


def _has_groups(session: Session, chroot: str, deadline: Deadline) -> bool:
    try:
        return _read(session, Exists, f"{chroot}{CONSUMERS}", deadline) is not None
    except NoPermissionError:
        return False


def _children(session: Session, path: str, deadline: Deadline) -> list[str]:
    try:
        return sorted(_read(session, GetChildren, path or "/", deadline) or [])
    except NoPermissionError:
        return []


def _read(session: Session, request: Any, path: str, deadline: Deadline) -> Any:
    """Read a path without the chroot. kazoo's own calls would prepend it."""

    def send() -> Any:
        answer = session.client.handler.async_result()
        internals.send(session.client, request(path, None), answer)
        return answer

    return session.call(send, path, deadline)

"""Check that the chroot has groups, and suggest other chroots that have some."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Exists, GetChildren

from ...core.znodes.paths import BROKER_TOPICS, CONSUMERS, parent
from ...deadline import Deadline
from ...exceptions import NoRegistryError, ZkgroupsException
from .session import Session

_BROKERS: Final = parent(BROKER_TOPICS)
_MOST: Final = 64
"""How many nodes to try as chroots: this is only for a hint in a message."""
_SHOWN: Final = 5


def require_root(session: Session, deadline: Deadline) -> None:
    """Raise `NoRegistryError` where the chroot is missing, or has neither /consumers nor /brokers."""
    if session.exists(CONSUMERS, deadline=deadline) or session.exists(_BROKERS, deadline=deadline):
        return
    if not session.exists("/", deadline=deadline):
        raise no_chroot(session, deadline)
    where = f"under {session.chroot}" if session.chroot else "at the root, without a chroot,"
    hint = _hint(session, deadline) or ": is the chroot right?"
    raise NoRegistryError(f"there is neither /consumers nor /brokers {where} in {_name(session)}{hint}")


def no_chroot(session: Session, deadline: Deadline) -> NoRegistryError:
    """Return the error for a chroot that is missing."""
    return NoRegistryError(f"there is no {session.chroot} in {_name(session)}{_hint(session, deadline)}")


def _name(session: Session) -> str:
    return f"the ZooKeeper at {session.servers}"


def _hint(session: Session, deadline: Deadline) -> str:
    """Name the chroots that have groups, among those that are quick to check: the root, its children, and ours."""
    found: list[str] = []
    with contextlib.suppress(ZkgroupsException, KazooException):
        below = [f"{root}/{name}" for root in (session.chroot, "") for name in _names(session, root, deadline)]
        tried = [path for path in dict.fromkeys(["", *below]) if path != session.chroot][:_MOST]
        found = [path or "/" for path in tried if _ask(session, Exists, f"{path}{CONSUMERS}", deadline) is not None]
    if not found:
        return ""
    return f"; groups are under {', '.join(found[:_SHOWN])}{' and others' if len(found) > _SHOWN else ''}"


def _names(session: Session, path: str, deadline: Deadline) -> list[str]:
    return sorted(_ask(session, GetChildren, path or "/", deadline) or [])


def _ask(session: Session, request: Any, path: str, deadline: Deadline) -> Any:
    """Ask about a path of the whole ZooKeeper. kazoo's own calls put the chroot before it."""

    def ask() -> Any:
        answer = session.client.handler.async_result()
        session.client._call(request(path, None), answer)
        return answer

    return session.call(ask, path, deadline)

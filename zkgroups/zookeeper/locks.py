"""Locks on the targets of migrations, so that two plans never write to one target at the same time.

    /zkgroups/targets/<cluster>:<target>    ephemeral    the id of the plan that is writing there

The mark of a migration (`mark.py`) belongs to a source group, so it does not stop two plans that move different groups
to one target. A lock ends with the session of the process that holds it. The same plan may take it again, because a
killed Spark task may be retried before its session has expired.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from ..core.paths import TARGETS, target_lock
from ..exceptions import ConflictError, NoPermissionError
from .handle import Handle
from .mark import Outcomes, change
from .node import Node
from .transaction import Create, Delete, Operation

_log: Final = logging.getLogger("zkgroups.migration")


def take(handle: Handle, targets: Iterable[str], *, cluster: str | None, plan: str) -> Outcomes:
    """Lock these targets of a Kafka cluster. For each, return None, or an error that names the plan that holds it."""

    def decide(target: str, node: Node | None) -> Operation | None:
        if node is None:
            return Create(target_lock(cluster, target), plan.encode(), ephemeral=True, acl=handle.acls.ephemerals)
        if node.data != plan.encode():
            raise ConflictError(f"plan {node.data.decode(errors='replace')} is writing to {target!r}: try again later")
        return None

    names = list(dict.fromkeys(targets))
    try:
        handle.session.ensure(TARGETS, acl=handle.acls.directories, deadline=handle.deadline())
    except NoPermissionError as error:
        _log.warning("targets are not locked against other plans: %s", error)
        return dict.fromkeys(names)
    return change(handle, names, lambda target: target_lock(cluster, target), decide)


def release(handle: Handle, targets: Iterable[str], *, cluster: str | None, plan: str) -> None:
    """Unlock these targets, if this session has locked them for this plan."""

    def decide(_target: str, node: Node | None) -> Operation | None:
        ours = node is not None and node.session == handle.session.id and node.data == plan.encode()
        return Delete(node.path, node.version) if node is not None and ours else None

    change(handle, list(dict.fromkeys(targets)), lambda target: target_lock(cluster, target), decide)

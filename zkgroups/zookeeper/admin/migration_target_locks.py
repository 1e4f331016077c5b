"""Locks on the targets of migrations, so that two plans never write to one target at the same time.

    /zkgroups/targets/<cluster>:<target>    ephemeral    the id of the plan that is writing there; in a rollback with
                                                         " (rollback)" at the end

The mark of a migration (`migration_marks.py`) belongs to a source group, so it does not stop two plans that move
different groups to one target. A lock ends with the session of the process that holds it. The same plan may take it
again, because a killed Spark task may be retried before its session has expired. Then the new session replaces the node
with its own, and the old session has lost the lock. A node without a session has no holder, and any plan replaces it.

A rollback and another step of its plan do not take each other's locks: they write different offsets. If each took the
lock of the other, a target could keep only a part of its offsets.

If the connection is lost, a run may end without deleting its locks. They are noted with the session, and the next run
in this session may take them.

A process that was paused for longer than its session loses its locks without noticing. So it must look at them right
before and right after it writes (`MigrationTargetLocks.lost`): no broker refuses the write.

The locks are in the ZooKeeper of the source, under its chroot. Plans with another ZooKeeper or chroot do not see them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

from ...core.znodes.paths import TARGETS, target_lock
from ...exceptions import ConflictError, InvalidNameError, NoPermissionError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Create, Delete, Operation
from ..session.registry_context import RegistryContext
from ..session.session import Session
from .migration_marks import Outcomes, change

_log: Final = logging.getLogger("zkgroups.migration")

LOST: Final = "the lock of this target was lost, and another run may have written to it: run migrate verify"
"""For targets that were written without a lock."""


_LEFT_BEHIND: Final[WeakKeyDictionary[Session, set[tuple[str, bytes]]]] = WeakKeyDictionary()
"""The locks that may exist although their runs have ended, by session: their paths and contents."""


class MigrationTargetLocks:
    """The locks that one plan, or its rollback, takes in one session, on targets in one Kafka cluster."""

    def __init__(self, context: RegistryContext, *, cluster: str | None, plan: str, rollback: bool = False) -> None:
        self._context = context
        self._cluster = cluster
        self._holder = f"{plan} (rollback)".encode() if rollback else plan.encode()
        self._taken: dict[str, int | None] = {}
        """The taken locks by target, with the zxid that created each. None if it was lost at once."""

    def take(self, targets: Iterable[str]) -> Outcomes:
        """Lock these targets. For each, return None, or an error that names the plan that holds it."""
        names = list(dict.fromkeys(targets))
        acl = self._context.acls.directories
        try:
            self._context.session.ensure_path(TARGETS, acl=acl, deadline=self._context.deadline())
        except NoPermissionError as error:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            _log.warning("targets %s are not locked (%s): run no other plan that writes to them", shown, error)
            return dict.fromkeys(names)
        bad: Outcomes = {target: reason for target in names if (reason := self._bad_name(target)) is not None}
        good = [target for target in names if target not in bad]
        with self._left_behind_after_an_error(good):
            outcomes: Outcomes = bad | change(self._context, good, self._path, self._to_take, missing=True)
            taken = [target for target, error in outcomes.items() if error is None]
            self._taken |= self._own_locks(taken)
        return outcomes

    def _to_take(self, target: str, node: Node | None) -> list[Operation]:
        own = Create(self._path(target), self._holder, ephemeral=True, acl=self._context.acls.ephemerals)
        if node is None:
            return [own]
        if node.session and node.data != self._holder and not self._is_left_behind(node):
            raise ConflictError(f"plan {node.data.decode(errors='replace')} is writing to {target!r}: try again later")
        return [] if self._is_own(node) else [Delete(node.path, node.version), own]

    def lost(self, targets: Iterable[str]) -> list[str]:
        """Return the targets whose locks were taken and have been lost since."""
        names = [target for target in dict.fromkeys(targets) if target in self._taken]
        if not names:
            return []
        self._context.session.sync(deadline=self._context.deadline())
        now = self._own_locks(names)
        return [target for target in names if now[target] is None or now[target] != self._taken[target]]

    def release(self, targets: Iterable[str]) -> None:
        """Unlock these targets, if this session has locked them for this plan."""

        def decide(_target: str, node: Node | None) -> list[Operation]:
            return [Delete(node.path, node.version)] if node is not None and self._is_own(node) else []

        names = list(dict.fromkeys(targets))
        with self._left_behind_after_an_error(names):
            change(self._context, names, self._path, decide)

    @contextmanager
    def _left_behind_after_an_error(self, targets: Iterable[str]) -> Iterator[None]:
        """Note these locks if they cannot be taken or released: some may exist for as long as the session."""
        left = _LEFT_BEHIND.setdefault(self._context.session, set())
        locks = {(self._path(target), self._holder) for target in targets}
        try:
            yield
        except BaseException:
            left |= locks
            raise
        left -= locks

    def _is_left_behind(self, node: Node) -> bool:
        """Return whether an earlier run in this session, of any plan, could not delete this lock."""
        left = _LEFT_BEHIND.get(self._context.session, ())
        return node.session == self._context.session.id and (node.path, node.data) in left

    def _own_locks(self, targets: list[str]) -> dict[str, int | None]:
        """Return the zxid that created each lock. None if this session does not hold it for this plan."""
        nodes = bulk_read.nodes(self._context, map(self._path, targets))
        return {
            target: node.czxid if isinstance(node, Node) and self._is_own(node) else None
            for target, node in zip(targets, nodes, strict=True)
        }

    def _is_own(self, node: Node) -> bool:
        return node.data == self._holder and node.session == self._context.session.id

    def _bad_name(self, target: str) -> InvalidNameError | None:
        try:
            self._path(target)
        except InvalidNameError as error:
            return error
        return None

    def _path(self, target: str) -> str:
        return target_lock(self._cluster, target)

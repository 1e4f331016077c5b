"""Nodes of this session that are not in use: the reply was lost, they could not be deleted, or were overwritten.

They are ephemeral nodes under the id of an instance. Left alone, they would block a partition or the id for as long as
the session lives. So the instance remembers their paths and contents, and deletes them with its next request that finds
one in its way, with `release_all()` or with `deregister()`.

An overwritten node has contents that another client chose, but a higher version than the instance knows. Another
instance of this session never has such a node at the same path: its own nodes are new, and have version 0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core.znodes.values import ForbiddenNode
from ...exceptions import NoPermissionError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Check, Delete, Operation, TransactionFailed
from ..requests.transaction_batches import first_batch, try_batch
from ..session.errors import translate
from ..session.registry_context import RegistryContext


class LeftoverNodes:
    """The nodes that one instance may have left behind, by path, with the contents it wrote, and in which session.

    `registration` is the path of its registration.
    """

    def __init__(self, context: RegistryContext, registration: str) -> None:
        self._context = context
        self._registration = registration
        self._lock = threading.RLock()  # guards the fields below, and is never held during a call
        self._contents: dict[str, set[tuple[int, bytes]]] = {}
        self._versions: dict[str, tuple[int, int]] = {}  # of overwritten nodes, before that

    def after_fork(self) -> None:
        """Replace the lock in a fork: the thread that holds it may not exist there."""
        self._lock = threading.RLock()

    @property
    def any(self) -> bool:
        """True if there may be leftover nodes."""
        return bool(self._contents or self._versions)

    def remember(self, contents: Mapping[str, bytes], session_id: int) -> None:
        """Add nodes of this session, by path."""
        with self._lock:
            for path, data in contents.items():
                self._contents.setdefault(path, set()).add((session_id, data))

    def remember_overwritten(self, path: str, version: int, session_id: int) -> None:
        """Add a node of this session that another client has overwritten since it had this version."""
        with self._lock:
            self._versions[path] = session_id, version

    def discard(self, paths: Iterable[str]) -> None:
        """Remove nodes that are in use or deleted."""
        with self._lock:
            for path in paths:
                self._contents.pop(path, None)
                self._versions.pop(path, None)

    def discard_contents(self, path: str, data: bytes) -> None:
        """Remove the nodes at this path with these contents, because such a node is in use."""
        with self._lock:
            others = {left for left in self._contents.pop(path, ()) if left[1] != data}
            if others:
                self._contents[path] = others

    def clear(self) -> None:
        """Remove all nodes."""
        with self._lock:
            self._contents.clear()
            self._versions.clear()

    def is_overwritten(self, node: Node) -> bool:
        """Return whether another client has overwritten this node."""
        known = self._versions.get(node.path)
        return known is not None and node.session == known[0] and node.version > known[1]

    def _includes(self, node: Node) -> bool:
        return (node.session, node.data) in self._contents.get(node.path, ()) or self.is_overwritten(node)

    def delete_if_any_is(self, node: Node, session_id: int) -> bool:
        """Delete all leftover nodes of this session if this node is one of them. Return whether it is."""
        if node.session != session_id or not self._includes(node):
            return False
        self._delete_all(session_id)
        return True

    def delete_all(self) -> None:
        """Delete all leftover nodes. Without any of the current session, no request is sent."""
        session_id = self._context.session.id
        if session_id is not None and self._paths(session_id):
            self._delete_all(session_id)

    def _paths(self, session_id: int) -> list[str]:
        """Return the paths of nodes of this session, and forget those of other sessions, which have expired."""
        with self._lock:
            for path, known in list(self._contents.items()):
                self._contents[path] = {left for left in known if left[0] == session_id}
            self._contents = {path: known for path, known in self._contents.items() if known}
            self._versions = {path: known for path, known in self._versions.items() if known[0] == session_id}
            return list({**self._contents, **self._versions})

    def _delete_all(self, session_id: int) -> None:
        while paths := self._paths(session_id):
            # An earlier attempt to delete them may have succeeded, and another client may have claimed a partition.
            self._context.session.catch_up(deadline=self._context.deadline())
            # The registration is read first. An administrator who deletes an owner node rewrites it, so the check of
            # this version fails if another client may have created the owner node again.
            registration, *found = bulk_read.nodes(self._context, [self._registration, *paths])
            own = registration if isinstance(registration, Node) and registration.session == session_id else None
            check = [] if own is None else [Check(own.path, own.version)]
            if not self._delete([n for n in found if isinstance(n, Node) and self._includes(n)], session_id, check):
                continue
            forbidden = [node.path for node in found if isinstance(node, ForbiddenNode)]
            self.discard(set(paths) - set(forbidden))
            if forbidden:
                raise NoPermissionError(forbidden[0])
            return

    def _delete(self, nodes: list[Node], session_id: int, check: Sequence[Check]) -> bool:
        """Delete these nodes in as few requests as possible. Return False if a node has changed."""
        session, context = self._context.session, self._context
        while nodes:
            batch = first_batch(session, ([Delete(node.path, node.version)] for node in nodes), overhead=check)
            deletes: list[Operation] = [*check, *(delete for [delete] in batch)]
            transact = partial(session.transact, deletes, session_id=session_id, deadline=context.deadline())
            try:
                if try_batch(transact, batch):
                    del nodes[: len(batch)]
            except TransactionFailed as failure:
                if not isinstance(failure.error, BadVersionError | NoNodeError):
                    raise translate(failure.error, failure.operation.path) from failure.error
                return False
        return True

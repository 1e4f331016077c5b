"""Nodes of this session that are not in use: the reply was lost, they could not be deleted, or were overwritten.

They are ephemeral nodes under the id of an instance. Left alone, they would block a partition or the id for as long as
the session lives. So the instance remembers their paths and contents, and deletes them with its next request that finds
one in its way, with `release_all()` or with `deregister()`.

An overwritten node has contents that another client chose, but a higher version than the instance knows. Another
instance of this session never has such a node at the same path: its own nodes are new, and have version 0.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial

from ...core.znodes.values import ForbiddenNode
from ...exceptions import NoPermissionError
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Delete, TransactionFailed
from ..requests.transaction_batches import first_batch, try_batch
from ..session.registry_context import RegistryContext


class LeftoverNodes:
    """The nodes that one instance may have left behind, by path, with the contents it wrote."""

    def __init__(self, context: RegistryContext) -> None:
        self._context = context
        self._lock = threading.RLock()  # guards the fields below, and is never held during a call
        self._contents: dict[str, set[bytes]] = {}
        self._versions: dict[str, int] = {}  # of overwritten nodes, before that

    def after_fork(self) -> None:
        """Replace the lock in a fork: the thread that holds it may not exist there."""
        self._lock = threading.RLock()

    def remember(self, contents: Mapping[str, bytes]) -> None:
        """Add nodes, by path."""
        with self._lock:
            for path, data in contents.items():
                self._contents.setdefault(path, set()).add(data)

    def remember_overwritten(self, path: str, version: int) -> None:
        """Add a node that another client has overwritten since it had this version."""
        with self._lock:
            self._versions[path] = version

    def discard(self, paths: Iterable[str]) -> None:
        """Remove nodes that are in use or deleted."""
        with self._lock:
            for path in paths:
                self._contents.pop(path, None)
                self._versions.pop(path, None)

    def clear(self) -> None:
        """Remove all nodes."""
        with self._lock:
            self._contents.clear()
            self._versions.clear()

    def is_overwritten(self, node: Node, session_id: int) -> bool:
        """Return whether another client has overwritten this node of this session."""
        return node.session == session_id and node.version > self._versions.get(node.path, node.version)

    def _includes(self, node: Node, session_id: int) -> bool:
        known = node.session == session_id and node.data in self._contents.get(node.path, ())
        return known or self.is_overwritten(node, session_id)

    def delete_if_any_is(self, node: Node, session_id: int) -> bool:
        """Delete all leftover nodes of this session if this node is one of them. Return whether it is."""
        if not self._includes(node, session_id):
            return False
        self._delete_all(session_id)
        return True

    def delete_all(self) -> None:
        """Delete all leftover nodes. Without any, no request is sent."""
        if self._contents or self._versions:
            self._delete_all(self._context.session.require_id(self._context.deadline()))

    def _delete_all(self, session_id: int) -> None:
        paths = list({**self._contents, **self._versions})
        found = list(bulk_read.nodes(self._context, paths))
        changed = self._delete([n for n in found if isinstance(n, Node) and self._includes(n, session_id)], session_id)
        forbidden = [node.path for node in found if isinstance(node, ForbiddenNode)]
        self.discard(set(paths) - set(forbidden) - changed)
        if forbidden:
            raise NoPermissionError(forbidden[0])

    def _delete(self, nodes: list[Node], session_id: int) -> set[str]:
        """Delete these nodes in as few requests as possible. Return the paths of nodes that changed meanwhile."""
        session, context = self._context.session, self._context
        changed: set[str] = set()
        while nodes:
            batch = first_batch(session, ([Delete(node.path, node.version)] for node in nodes))
            deletes = [delete for [delete] in batch]
            transact = partial(session.transact, deletes, session_id=session_id, deadline=context.deadline())
            try:
                if try_batch(transact, batch):
                    del nodes[: len(batch)]
            except TransactionFailed as failure:
                changed.add(nodes.pop(failure.index).path)
        return changed

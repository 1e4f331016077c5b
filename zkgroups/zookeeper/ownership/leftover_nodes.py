"""Nodes that this session may have created without using them: the reply was lost, or they could not be deleted.

They are ephemeral nodes under the id of an instance. Left alone, they would block a partition or the id for as long as
the session lives. So the instance remembers their paths and contents, and deletes them with its next request that finds
one in its way, with `release_all()` or with `deregister()`.
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
        self._lock = threading.RLock()  # guards the field below, and is never held during a call
        self._contents: dict[str, set[bytes]] = {}

    def after_fork(self) -> None:
        """Replace the lock in a fork: the thread that holds it may not exist there."""
        self._lock = threading.RLock()

    def remember(self, contents: Mapping[str, bytes]) -> None:
        """Add nodes, by path."""
        with self._lock:
            for path, data in contents.items():
                self._contents.setdefault(path, set()).add(data)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove nodes that are in use or deleted."""
        with self._lock:
            for path in paths:
                self._contents.pop(path, None)

    def clear(self) -> None:
        """Remove all nodes."""
        with self._lock:
            self._contents.clear()

    def delete_if_any_is(self, node: Node, session_id: int) -> bool:
        """Delete all leftover nodes of this session if this node is one of them. Return whether it is."""
        if not self._includes(node, session_id):
            return False
        self._delete_all(session_id)
        return True

    def delete_all(self) -> None:
        """Delete all leftover nodes. Without any, no request is sent."""
        if self._contents:
            self._delete_all(self._context.session.require_id(self._context.deadline()))

    def _includes(self, node: Node, session_id: int) -> bool:
        return node.session == session_id and node.data in self._contents.get(node.path, ())

    def _delete_all(self, session_id: int) -> None:
        paths = list(self._contents)
        found = list(bulk_read.nodes(self._context, paths))
        self._delete([n for n in found if isinstance(n, Node) and self._includes(n, session_id)], session_id)
        forbidden = [node.path for node in found if isinstance(node, ForbiddenNode)]
        self.discard(set(paths) - set(forbidden))
        if forbidden:
            raise NoPermissionError(forbidden[0])

    def _delete(self, nodes: list[Node], session_id: int) -> None:
        """Delete these nodes in as few requests as possible, except missing nodes and nodes that changed."""
        session, context = self._context.session, self._context
        while nodes:
            batch = first_batch(session, ([Delete(node.path, node.version)] for node in nodes))
            deletes = [delete for [delete] in batch]
            transact = partial(session.transact, deletes, session_id=session_id, deadline=context.deadline())
            try:
                if try_batch(transact, batch):
                    del nodes[: len(batch)]
            except TransactionFailed as failure:
                del nodes[failure.index]

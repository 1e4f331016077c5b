"""What is put at the start of a transaction to keep the members of a group from harm: the assertion that nobody is
registered, or a push that makes everybody look again.

ZooKeeper cannot check that a node has no children; but it refuses to delete one that has. So a transaction that deletes
`ids` and recreates it, with the same data and access list, fails if anybody is registered at that very moment, and
changes nothing else. Where there is no `ids`, it is made and deleted again.
"""

from __future__ import annotations

from typing import Final

from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from ...core.znodes.paths import CONSUMERS, GroupPaths, join
from ...core.znodes.values import ForbiddenNode
from ...exceptions import GroupInUseError, NoPermissionError
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from ..session.errors import translate
from ..session.registry_context import RegistryContext

_HIDDEN: Final = ":x"
"""What a server shows instead of a hash to those who may not administer the node."""
_PROOF: Final = "zkgroups-repair"
"""The name of a node that is created and deleted in one transaction, so no client ever sees it."""

_CHANGED: Final = (BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError)


class NobodyRegistered:
    """The guard of one group; its constructor checks whether an instance is registered now.

    A persistent registration has no client behind it (`core/znodes/group_description.py`). `ids` cannot be deleted
    before its children.
    So the transaction deletes such registrations first, with everything below them, and recreates them at the end.
    Before that it creates a node below each of them. ZooKeeper refuses that below an ephemeral node, so the
    registration of a client that has come meanwhile is never deleted.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context
        self._operations: list[Operation] = []
        self.removals: list[Operation] = []
        """The operations that delete the persistent registrations, for a caller that deletes `ids` for good."""
        self.refresh()

    def operations(self) -> list[Operation]:
        """What to put at the start of a transaction."""
        return self._operations

    def handle_failure(self, failure: TransactionFailed) -> None:
        """One of the operations above has failed: somebody has registered, or `ids` has come or gone meanwhile."""
        path = failure.operation.path
        if isinstance(failure.error, NotEmptyError) and path == self._paths.ids:
            raise GroupInUseError(self._paths.group, self._registered()) from failure.error
        if not isinstance(failure.error, _CHANGED):
            raise translate(failure.error, path) from failure.error
        if isinstance(failure.error, NoNodeError) and path == self._paths.root:
            directories = self._context.acls.directories
            self._context.session.ensure_path(CONSUMERS, acl=directories, deadline=self._context.deadline())
        self.refresh()

    def _registered(self) -> list[str]:
        return sorted(self._context.session.children(self._paths.ids, deadline=self._context.deadline()) or [])

    def refresh(self) -> None:
        """Read the group again, and choose the operations that fit its current state."""
        dead = self._persistent(self._registered())
        deepest_first = reversed(dead)
        self.removals = [step for node in deepest_first for step in remove_persistent(node.path, node.version)]
        deadline = self._context.deadline()
        node = self._context.session.get(self._paths.ids, deadline=deadline)
        if node is not None:
            again = [self._anew(each) for each in (node, *dead)]
            self._operations = [*self.removals, Delete(self._paths.ids), *again]
        elif self._context.session.exists(self._paths.root, deadline=deadline):
            create = Create(self._paths.ids, acl=self._context.acls.directories)
            self._operations = [create, Delete(self._paths.ids)]
        else:  # no group, so nobody in it; whoever registers makes it first
            directories = self._context.acls.directories
            self._operations = [Create(self._paths.root, acl=directories), Delete(self._paths.root)]

    def _persistent(self, registered: list[str]) -> list[Node]:
        """Return the nodes of these ids and all nodes below them, parents before their children.

        `GroupInUseError` if any of them may be alive. An id with a slash in it is a node below another.
        """
        if not registered:
            return []
        dead = {
            each.id for each in group_reader.read_dead(self._context, [self._paths.group]).get(self._paths.group, ())
        }
        if alive := [id for id in registered if id not in dead]:
            raise GroupInUseError(self._paths.group, alive)
        found: list[Node] = []
        level = [join(self._paths.ids, id) for id in registered]
        while level:
            nodes = [self._of_no_session(node) for node in bulk_read.nodes(self._context, level) if node is not None]
            found += nodes
            level = self._below(nodes)
        return found  # the transaction fails if others have registered

    def _of_no_session(self, node: Node | ForbiddenNode) -> Node:
        if isinstance(node, ForbiddenNode):
            raise NoPermissionError(node.path)
        if node.session:
            raise GroupInUseError(self._paths.group, [node.path.removeprefix(f"{self._paths.ids}/")])
        return node

    def _below(self, nodes: list[Node]) -> list[str]:
        listed = list(bulk_read.children(self._context, (node.path for node in nodes)))
        for names in listed:
            if isinstance(names, ForbiddenNode):
                raise NoPermissionError(names.path)
        pairs = zip(nodes, listed, strict=True)
        return [join(node.path, name) for node, names in pairs if isinstance(names, list) for name in sorted(names)]

    def _anew(self, node: Node) -> Create:
        acl = self._context.session.acl(node.path, deadline=self._context.deadline())
        if any(entry.id.scheme == "digest" and entry.id.id.endswith(_HIDDEN) for entry in acl):
            raise NoPermissionError(node.path)  # recreating it would lock everybody out
        return Create(node.path, node.data, acl=acl)


def remove_persistent(path: str, version: int) -> list[Operation]:
    """Operations that delete a node and fail if it belongs to a session: ephemeral nodes cannot have children."""
    proof = join(path, _PROOF)
    return [Create(proof), Delete(proof), Delete(path, version)]


class RewriteRegistrations:
    """Operations that write every registration of a group anew, with the same bytes.

    Each instance of ours checks the version of its registration with whatever it does: so after this it first looks
    what is still its own, and what is committed. Members of other kinds take no notice.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context

    def operations(self) -> list[Operation]:
        """What to put at the start of a transaction: read anew each time, because each time moves the versions."""
        names = self._context.session.children(self._paths.ids, deadline=self._context.deadline()) or []
        nodes = bulk_read.nodes(self._context, [join(self._paths.ids, name) for name in sorted(names)])
        return [Set(node.path, node.data, node.version) for node in nodes if isinstance(node, Node)]

    def handle_failure(self, failure: TransactionFailed) -> None:
        """One of the operations above has failed: somebody has come or gone, or changed a registration, meanwhile."""
        if not isinstance(failure.error, NoNodeError | BadVersionError):
            raise translate(failure.error, failure.operation.path) from failure.error

    def refresh(self) -> None:
        """Nothing is kept that could be old."""


Guard = NobodyRegistered | RewriteRegistrations

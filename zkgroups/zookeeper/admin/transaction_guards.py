"""Guards: operations at the start of a transaction that protect the members of a group.

`NobodyRegistered` makes the transaction fail while an instance is registered. ZooKeeper cannot check that a node has no
children, but it refuses to delete a node with children. So the guard deletes `ids` and recreates it with the same data
and ACL. If `ids` does not exist, the guard creates and deletes it.

`RewriteRegistrations` makes all zkgroups members read their claims and offsets again.
"""

from __future__ import annotations

from typing import Final

from kazoo.exceptions import BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError

from ...core.znodes.paths import CONSUMERS, GroupPaths, join
from ...core.znodes.values import ForbiddenNode
from ...exceptions import GroupInUseError, NoPermissionError, OutcomeUnknownError
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from ..session.errors import translate
from ..session.session import RegistryContext
from . import migration_marks

# The clock of the server, which the times of all nodes come from. The clock of this machine may be wrong.


_NAME: Final = "zkgroups-clock"
"""The name of a node that is created and deleted in one transaction, so no client ever sees it."""

_ATTEMPTS: Final = 3


def server_time_ms(context: RegistryContext, directory: str) -> int:
    """Return the time of the server in milliseconds. Needs the permissions to create and delete in this directory.

    ZooKeeper has no request for it, but the answer to a write contains the time of that write.
    """
    path = join(directory, _NAME)
    for _ in range(_ATTEMPTS):
        try:
            results = context.session.transact(
                [Create(path), Set(path, b"", 0), Delete(path)], deadline=context.deadline()
            )
        except TransactionFailed as failure:
            raise translate(failure.error, path) from failure.error
        if results:  # otherwise the reply was lost
            return int(results[1].mtime)
    raise OutcomeUnknownError(f"the replies to writes in {directory} were lost: try again")


_HIDDEN: Final = ":x"
"""Shown instead of a password hash to clients without the admin permission."""
_PROOF: Final = "zkgroups-repair"
"""The name of a node that is created and deleted in one transaction, so no client ever sees it."""

_CHANGED: Final = (BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError)


class NobodyRegistered:
    """Makes a transaction fail while an instance is registered. The constructor raises an error if one is.

    With `unmarked`, it also fails with `GroupMigratedError` if the group has the mark of a migration.

    Persistent registrations have no client (`core/znodes/group_description.py`), but `ids` cannot be deleted before
    them. So the transaction deletes them first, with all nodes below them, and recreates them at the end. Before
    deleting one, it creates a node below it. ZooKeeper refuses that below an ephemeral node, so the registration of a
    client that has just started is never deleted.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext, *, unmarked: bool = False) -> None:
        self._paths = paths
        self._context = context
        self._unmarked = migration_marks.unmarked(paths, context) if unmarked else []
        self._operations: list[Operation] = []
        self.removals: list[Operation] = []
        """The operations that delete the persistent registrations, for a caller that deletes `ids` for good."""
        self.refresh()

    def operations(self) -> list[Operation]:
        """Return the operations for the start of a transaction."""
        return self._operations

    def handle_failure(self, failure: TransactionFailed) -> None:
        """Raise `GroupInUseError` if an instance has registered. If `ids` was created or deleted, prepare a retry."""
        path = failure.operation.path
        if path == self._paths.mark:
            migration_marks.refuse_marked(self._paths, self._context)
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
        """Read the group again, and choose the operations for its current state."""
        dead = self._persistent(self._registered())
        deepest_first = reversed(dead)
        self.removals = [step for node in deepest_first for step in remove_persistent(node.path, node.version)]
        deadline = self._context.deadline()
        node = self._context.session.get(self._paths.ids, deadline=deadline)
        if node is not None:
            recreations = [self._recreate(each) for each in (node, *dead)]
            self._operations = [*self._unmarked, *self.removals, Delete(self._paths.ids), *recreations]
        elif self._context.session.exists(self._paths.root, deadline=deadline):
            create = Create(self._paths.ids, acl=self._context.acls.directories)
            self._operations = [*self._unmarked, create, Delete(self._paths.ids)]
        else:  # the group is missing; a registration would create it
            directories = self._context.acls.directories
            self._operations = [Create(self._paths.root, acl=directories), Delete(self._paths.root)]

    def _persistent(self, registered: list[str]) -> list[Node]:
        """Return the nodes of these ids and all nodes below them, parents before their children.

        Raise `GroupInUseError` if one of them may be alive. An id that contains a slash is a node below another.
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
            nodes = [self._without_session(node) for node in bulk_read.nodes(self._context, level) if node is not None]
            found += nodes
            level = self._below(nodes)
        return found  # the transaction fails if others have registered

    def _without_session(self, node: Node | ForbiddenNode) -> Node:
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

    def _recreate(self, node: Node) -> Create:
        acl = self._context.session.acl(node.path, deadline=self._context.deadline())
        if any(entry.id.scheme == "digest" and entry.id.id.endswith(_HIDDEN) for entry in acl):
            raise NoPermissionError(node.path)  # with the masked hash, no client could use the node
        return Create(node.path, node.data, acl=acl)


def remove_persistent(path: str, version: int) -> list[Operation]:
    """Operations that delete a node and fail if it belongs to a session: ephemeral nodes cannot have children."""
    proof = join(path, _PROOF)
    return [Create(proof), Delete(proof), Delete(path, version)]


class RewriteRegistrations:
    """Rewrites every registration of a group with the same bytes.

    Every write of a zkgroups instance checks the version of its registration. So the instance first reads its claims
    and offsets again. Other clients do not notice.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext) -> None:
        self._paths = paths
        self._context = context

    def operations(self) -> list[Operation]:
        """Read the registrations, and return the operations for the start of a transaction."""
        names = self._context.session.children(self._paths.ids, deadline=self._context.deadline()) or []
        nodes = bulk_read.nodes(self._context, [join(self._paths.ids, name) for name in sorted(names)])
        return [Set(node.path, node.data, node.version) for node in nodes if isinstance(node, Node)]

    def handle_failure(self, failure: TransactionFailed) -> None:
        """Do nothing if a registration was deleted or changed: `operations` reads them again. Else raise the error."""
        if not isinstance(failure.error, NoNodeError | BadVersionError):
            raise translate(failure.error, failure.operation.path) from failure.error

    def refresh(self) -> None:
        """Do nothing: `operations` reads the registrations each time."""


Guard = NobodyRegistered | RewriteRegistrations

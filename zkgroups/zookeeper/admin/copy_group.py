"""Copy the offsets of a group to a new group.

A group that fits into one transaction is copied at once. A larger group gets its directory `ids` last. So a member that
joins earlier creates `ids` itself, and the copy detects it: this member would start without some offsets.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from kazoo.exceptions import NodeExistsError

from ...core.znodes.offset_codec import encode_offset
from ...core.znodes.paths import GroupPaths
from ...core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ...exceptions import ConflictError, GroupExistsError, GroupNotFoundError, NoPermissionError
from ..reading import group_reader
from ..requests.transaction import Create, Operation, TransactionFailed
from ..requests.transaction_batches import in_batches
from ..session.errors import translate
from ..session.registry_context import RegistryContext


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of `Consumergroup.copy`: the number of `offsets` written, and the nodes `left_out` as malformed."""

    offsets: int
    left_out: tuple[UnreadableNode, ...]


def copy_group(source: GroupPaths, target: GroupPaths, context: RegistryContext) -> Copied:
    """Copy the offsets to a new group. Copy nothing if the target exists, or if an offset node is forbidden."""
    if not context.session.exists(source.root, deadline=context.deadline()):
        raise GroupNotFoundError(source.group)
    found = list(group_reader.every_offset(context, [source.group]))
    for node in found:
        if isinstance(node, ForbiddenNode):
            raise NoPermissionError(node.path)
    offsets = [offset for offset in found if isinstance(offset, CommittedOffset)]
    directories = context.acls.directories
    topics = dict.fromkeys(offset.at.topic for offset in offsets)
    new = [target.root, target.offsets, *map(target.offset_topic, topics)]
    units: list[list[Operation]] = [[Create(path, acl=directories)] for path in new]
    units += [
        [Create(target.offset(offset.at), encode_offset(offset.offset), acl=context.acls.offsets)] for offset in offsets
    ]
    units += [[Create(path, acl=directories) for path in (target.ids, target.owners)]]
    in_batches(
        context.session, units, lambda batch: _create(target, [each for unit in batch for each in unit], context)
    )
    return Copied(len(offsets), tuple(node for node in found if isinstance(node, UnreadableNode)))


def _create(target: GroupPaths, operations: Sequence[Operation], context: RegistryContext) -> None:
    try:
        context.session.transact(operations, deadline=context.deadline())
    except TransactionFailed as failure:
        path = failure.operation.path
        if not isinstance(failure.error, NodeExistsError):
            raise translate(failure.error, path) from failure.error
        if path == target.root:
            raise GroupExistsError(target.group) from failure.error
        raise ConflictError(
            f"an instance joined group {target.group!r} before all offsets were copied: stop it, delete the group with "
            f"`zkgroups groups delete {shlex.quote(target.group)}`, and copy again"
        ) from failure.error

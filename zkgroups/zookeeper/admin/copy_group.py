"""Copy the offsets of a group to a new group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kazoo.exceptions import NodeExistsError

from ...core.znodes.offset_codec import encode_offset
from ...core.znodes.paths import GroupPaths
from ...core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ...exceptions import GroupExistsError, GroupNotFoundError, NoPermissionError
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
    _create_empty(target, context)
    topics = dict.fromkeys(offset.at.topic for offset in offsets)
    units: list[list[Operation]] = [
        [Create(target.offset_topic(topic), acl=context.acls.directories)] for topic in topics
    ]
    units += [
        [Create(target.offset(offset.at), encode_offset(offset.offset), acl=context.acls.offsets)] for offset in offsets
    ]
    in_batches(
        context.session, units, lambda batch: _transact([operation for unit in batch for operation in unit], context)
    )
    return Copied(len(offsets), tuple(node for node in found if isinstance(node, UnreadableNode)))


def _create_empty(target: GroupPaths, context: RegistryContext) -> None:
    directories = [target.root, target.ids, target.owners, target.offsets]
    creates = [Create(path, acl=context.acls.directories) for path in directories]
    try:
        context.session.transact(creates, deadline=context.deadline())
    except TransactionFailed as failure:
        if isinstance(failure.error, NodeExistsError):
            raise GroupExistsError(target.group) from failure.error
        raise translate(failure.error, failure.operation.path) from failure.error


def _transact(operations: Sequence[Operation], context: RegistryContext) -> None:
    try:
        context.session.transact(operations, deadline=context.deadline())
    except TransactionFailed as failure:
        raise translate(failure.error, failure.operation.path) from failure.error

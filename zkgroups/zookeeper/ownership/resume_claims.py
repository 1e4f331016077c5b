"""Find the owner nodes that this session already has: from an earlier process, or after a lost reply."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeGuard

from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode, Owner, UnreadableNode
from ...exceptions import AlreadyRegisteredError
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.node import Node
from .instance_ids_in_use import take_id
from .owner_node import OwnerNode, locked
from .ownership import Ownership
from .registration_fence import RegistrationVersion


def resume_claims(ownership: Ownership) -> bool:
    """Take over the registration of this id in this session, with its claims. Return False if there is none.

    Raise `AlreadyRegisteredError` if another object of this process uses the id: both would hold the same claims.
    """
    context, group = ownership.context, ownership.paths.group
    if not take_id(ownership):
        raise AlreadyRegisteredError(group, ownership.id, ownership.session.id or -1)
    if not ownership.fence.resume():
        return False
    ids = set(ownership.session.children(ownership.paths.ids, deadline=context.deadline()) or ())
    registration = ownership.fence.require()
    owners = (owner for _group, owner in group_reader.read_owners(context, [group]))
    find_owners(ownership, [o.at for o in owners if _is_own(o, ownership, registration, ids)], ids)
    return True


def find_owners(
    ownership: Ownership, partitions: Iterable[TopicPartition], ids: Collection[str]
) -> tuple[dict[TopicPartition, OwnerNode], dict[TopicPartition, Owner | UnreadableNode]]:
    """Read the owners of these and of all known partitions. Return the nodes of this instance, and the others.

    Owner nodes of this instance that it did not know become claims. `ids` are the registered ids: the text of an owner
    node is an id with or without the number of a stream, so it is ambiguous without them.
    """
    known = ownership.nodes()
    uncertain = [node for node in known.values() if node.uncertain]
    with locked(uncertain):  # releases in progress end first
        if uncertain:  # an old state would make a claim certain again that another client may have by now
            ownership.session.catch_up(deadline=ownership.context.deadline())
        own, others = _read_owners(ownership, partitions, ids, known)
        for node in uncertain:
            node.uncertain = own.get(node.at) is not node
        ownership.replace(known, own)
    ownership.fence.leftovers.discard(ownership.paths.owner(at) for at in own)
    return own, others


def _read_owners(
    ownership: Ownership,
    partitions: Iterable[TopicPartition],
    ids: Collection[str],
    known: Mapping[TopicPartition, OwnerNode],
) -> tuple[dict[TopicPartition, OwnerNode], dict[TopicPartition, Owner | UnreadableNode]]:
    registration = ownership.fence.require()
    asked = list({**dict.fromkeys(partitions), **dict.fromkeys(known)})
    own: dict[TopicPartition, OwnerNode] = {}
    others: dict[TopicPartition, Owner | UnreadableNode] = {}
    found = bulk_read.nodes(ownership.context, [ownership.paths.owner(at) for at in asked])
    for at, node in zip(asked, found, strict=True):
        if node is None:
            continue
        if isinstance(node, ForbiddenNode):
            others[at] = node
            continue
        owner = group_reader.owner(at.topic, str(at.partition), node)
        unchanged = _unchanged(known.get(at), node, registration)
        if unchanged is not None:  # the node was created here, however its text may be read
            own[at] = unchanged
        elif ownership.is_overwritten(node, known.get(at)):
            continue  # whatever it says now: claims that were made before are void
        elif _is_own(owner, ownership, registration, ids):
            own[at] = OwnerNode(at, registration.session_id, node.data, version=node.version)
        else:
            others[at] = owner
    return own, others


def _is_own(
    owner: Owner | UnreadableNode, ownership: Ownership, registration: RegistrationVersion, ids: Collection[str]
) -> TypeGuard[Owner]:
    if not isinstance(owner, Owner) or owner.session != registration.session_id:
        return False
    if owner.id in ids:  # it may be both the id of one instance, and that of another with the number of a stream
        return (owner.instance({*ids} - {owner.id}) or owner.id) == ownership.id
    return owner.instance(ids) == ownership.id


def _unchanged(known: OwnerNode | None, node: Node, registration: RegistrationVersion) -> OwnerNode | None:
    """Return the known owner node if the node was not recreated since."""
    if known is None or not known.session_id == node.session == registration.session_id or known.data != node.data:
        return None
    known.version = node.version
    return known

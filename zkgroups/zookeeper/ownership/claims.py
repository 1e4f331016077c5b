"""Owner nodes: create them, all or none, find those that this session already has, and delete them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeGuard

from kazoo.exceptions import NodeExistsError, NoNodeError

from ...core.znodes.topic_partition import TopicPartition
from ...core.znodes.values import ForbiddenNode, Owner, UnreadableNode
from ...deadline import Deadline
from ...exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    ClaimTimeout,
    NoPermissionError,
    NotConnectedError,
    ReadOnlyError,
    SessionLostError,
    TooLargeError,
    ZkgroupsException,
)
from ..reading import group_reader
from ..requests import bulk_read
from ..requests.node import Node
from ..requests.run_transaction import Batch, ensure_paths, first_batch, in_batches, try_batch
from ..requests.transaction import Check, Create, Delete, Operation, TransactionFailed
from ..session.errors import translate
from .ownership import OwnerNode, Ownership, locked, take_id
from .registration import RegistrationVersion

# Release partitions: delete owner nodes of this session, and no others (rule 2).


def release_partitions(ownership: Ownership, nodes: Sequence[OwnerNode]) -> None:
    """Delete the owner nodes that still belong to the instance, in as few transactions as the limit allows.

    First wait for commits in progress: once the owner node is deleted, they would look like the next owner's.
    """
    with locked(nodes):
        _release(ownership, nodes)


def _release(ownership: Ownership, nodes: Sequence[OwnerNode]) -> None:
    # A release with an unknown outcome may have succeeded, and another client may have claimed the partition since. And
    # without a registration, which an administrative release would rewrite, nothing fences this release.
    registration = ownership.fence.current
    is_fenced = registration is not None and bool(ownership.fence.check(registration))
    forbidden = ownership.forget_uncertain([node for node in nodes if node.uncertain or not is_fenced])
    while True:
        registration = ownership.fence.current  # before the nodes: a new one is adopted after lost nodes are forgotten
        left = [node for node in ownership.current_among(nodes) if node not in forbidden]
        if not left or registration is None:
            break
        try:
            _delete_batch(ownership, left, registration)
        except SessionLostError:
            ownership.forget(left)  # ZooKeeper has deleted them
        except TransactionFailed as failure:
            forbidden |= ownership.refresh(registration, failure)
    for node in forbidden & set(nodes):
        raise NoPermissionError(ownership.paths.owner(node.at))


def _delete_batch(ownership: Ownership, nodes: Sequence[OwnerNode], registration: RegistrationVersion) -> None:
    """Delete as many owner nodes as fit into one transaction."""
    check = ownership.fence.check(registration)
    units = ([Delete(ownership.paths.owner(node.at), node.version)] for node in nodes)
    batch = first_batch(ownership.session, units, overhead=check)
    deleted = nodes[: len(batch)]
    operations: list[Operation] = [*check, *(delete for [delete] in batch)]

    def transact() -> None:
        with _uncertain(deleted):
            ownership.fence.transact(operations, registration, then=partial(ownership.forget, deleted))

    try_batch(transact, batch)


@contextlib.contextmanager
def _uncertain(nodes: Sequence[OwnerNode]) -> Iterator[None]:
    """Do not count claims as held during their release: the next owner may claim them before the reply arrives.

    If the outcome is unknown, they can only be released again.
    """
    certain = [node for node in nodes if not node.uncertain]
    for node in nodes:
        node.uncertain = True
    try:
        yield
    except (TransactionFailed, NotConnectedError, ReadOnlyError, TooLargeError):  # nothing was changed
        for node in certain:
            node.uncertain = False
        raise


# Claim partitions: create owner nodes in the session of the registration, all or none of them.


def claim_partitions(
    ownership: Ownership, contents: Mapping[TopicPartition, bytes], *, timeout: float | None = None
) -> list[OwnerNode]:
    """Create owner nodes with these contents. With a timeout, wait until other owners have released the partitions."""
    deadline = Deadline.after("timeout", 0.0 if timeout is None else timeout)
    while True:
        try:
            return _claim_all(ownership, contents)
        except ClaimedByOtherError as error:
            if timeout is None:
                raise
            _wait_until_released(ownership, error, deadline)


def _claim_all(ownership: Ownership, contents: Mapping[TopicPartition, bytes]) -> list[OwnerNode]:
    ownership.fence.require()
    claimed: list[OwnerNode] = []
    resumed = [node for node in ownership.current_at(contents) if node.resumed and not node.uncertain]
    partitions = [at for at in contents if at not in {node.at for node in resumed}]
    units = [[_create(ownership, at, contents[at])] for at in partitions]

    def claim_next(batch: Batch[Create]) -> None:
        some = partitions[len(claimed) : len(claimed) + len(batch)]
        with ownership.registration_lock(), locked(ownership.known_at(some)):
            claimed.extend(_claim_batch(ownership, some, [create for [create] in batch]))

    try:
        in_batches(ownership.session, units, claim_next, overhead=[Check(ownership.fence.path)])
    except BaseException as error:
        _undo(ownership, claimed, error)
        raise
    for node in resumed:
        node.resumed = False
    return [*resumed, *claimed]


def _create(ownership: Ownership, at: TopicPartition, data: bytes) -> Create:
    return Create(ownership.paths.owner(at), data, True, ownership.context.acls.ephemerals)


def _claim_batch(
    ownership: Ownership, partitions: Sequence[TopicPartition], creates: Sequence[Create]
) -> list[OwnerNode]:
    while True:
        held = ownership.current_at(partitions)
        registration = ownership.fence.require()
        pairs = zip(partitions, creates, strict=True)
        nodes = [OwnerNode(at, registration.session_id, create.data) for at, create in pairs]
        try:
            operations: list[Operation] = [*ownership.fence.check(registration), *creates]
            ownership.fence.transact(operations, registration, then=partial(ownership.add, nodes, registration))
            seen = int(ownership.session.client.last_zxid)
            for node in nodes:
                node.claimed_zxid = seen
            return nodes
        except TransactionFailed as failure:
            _handle_failure(ownership, partitions, failure, registration)
        except BaseException:
            _keep(ownership, held)
            raise


def _keep(ownership: Ownership, held: Sequence[OwnerNode]) -> None:
    """After a claim with an unknown outcome, do not treat the nodes of known claims as leftovers.

    That includes claims whose release has an unknown outcome: releasing them again also deletes a node created here, if
    it has the same contents.
    """
    for node in ownership.current_among(held):
        ownership.fence.leftovers.discard_contents(ownership.paths.owner(node.at), node.data)


def _handle_failure(
    ownership: Ownership,
    partitions: Sequence[TopicPartition],
    failure: TransactionFailed,
    registration: RegistrationVersion,
) -> None:
    """Remove the cause of the failure so that the caller can retry, or raise it."""
    if isinstance(failure.operation, Check):
        ownership.refresh(registration, failure)
    elif isinstance(failure.error, NoNodeError):
        topics = (ownership.paths.owned_topic(at.topic) for at in partitions)
        ensure_paths(ownership.context, topics, session_id=registration.session_id)
    elif isinstance(failure.error, NodeExistsError):
        _refuse_claimed(ownership, partitions[failure.index - 1], failure.operation, registration)
    else:
        raise translate(failure.error, failure.operation.path) from failure.error


def _refuse_claimed(
    ownership: Ownership, at: TopicPartition, create: Operation, registration: RegistrationVersion
) -> None:
    """Raise an error that names the owner, unless it has released the partition, or its node was a leftover."""
    node = ownership.session.get(create.path, deadline=ownership.context.deadline())
    if node is None or ownership.fence.leftovers.delete_if_any_is(node, registration.session_id):
        return
    own = node.session == registration.session_id
    if own and (ownership.current_at([at]) or (isinstance(create, Create) and node.data == create.data)):
        raise AlreadyClaimedError(at)
    raise ClaimedByOtherError(at, group_reader.owner(at.topic, str(at.partition), node))


def _wait_until_released(ownership: Ownership, error: ClaimedByOtherError, deadline: Deadline) -> None:
    path, timeout = error.owner.path, ownership.context.timeout
    if deadline.passed or not ownership.session.wait_deleted(path, deadline=deadline, timeout=timeout):
        raise ClaimTimeout(error.at, error.owner, deadline.seconds) from error


def _undo(ownership: Ownership, nodes: Sequence[OwnerNode], error: BaseException) -> None:
    """After an error, release the partitions claimed so far. Those that cannot be released now become leftovers."""
    try:
        release_partitions(ownership, nodes)
    except ZkgroupsException as failure:
        error.add_note(
            f"{_leave_behind(ownership, nodes)} of {len(nodes)} partitions claimed before could not be released: "
            f"{failure}; the next claim_many(), release_all() or deregister() releases them"
        )
    except BaseException:
        _leave_behind(ownership, nodes)
        raise


def _leave_behind(ownership: Ownership, nodes: Sequence[OwnerNode]) -> int:
    """Forget these owner nodes, and remember them as leftovers. Return how many there are."""
    with locked(nodes):
        known = ownership.nodes()
        left = [node for node in nodes if known.get(node.at) is node]
        for node in left:
            ownership.fence.leftovers.remember({ownership.paths.owner(node.at): node.data}, node.session_id)
        ownership.forget(left)
    return len(left)


# Find the owner nodes that this session already has: from an earlier process, or after a lost reply.


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

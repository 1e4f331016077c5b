"""Claim partitions: create owner nodes in the session of the registration, all or none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from kazoo.exceptions import NodeExistsError, NoNodeError

from ...core.znodes.topic_partition import TopicPartition
from ...deadline import Deadline
from ...exceptions import AlreadyClaimedError, ClaimedByOtherError, ClaimTimeout, ZkgroupsException
from ..reading import group_reader
from ..requests.ensure_paths import ensure_paths
from ..requests.transaction import Check, Create, Operation, TransactionFailed
from ..requests.transaction_batches import Batch, in_batches
from ..session.errors import translate
from .owner_node import OwnerNode, locked
from .ownership import Ownership
from .registration_fence import RegistrationVersion
from .release_partitions import release_partitions


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
    """After a claim with an unknown outcome, do not count nodes as leftovers that belong to known claims.

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

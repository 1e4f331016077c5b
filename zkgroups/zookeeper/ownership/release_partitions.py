"""Release partitions: delete owner nodes of this session, and no others (rule 2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from ...exceptions import NoPermissionError, NotConnectedError, ReadOnlyError, SessionLostError, TooLargeError
from ..requests.transaction import Delete, Operation, TransactionFailed
from ..requests.transaction_batches import first_batch, try_batch
from .owner_node import OwnerNode, locked
from .ownership import Ownership
from .registration_fence import RegistrationVersion


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

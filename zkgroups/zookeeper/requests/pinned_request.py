"""A transaction that is carried out in one given session or not at all.

A `check` in a ZooKeeper transaction does not fence a zombie: it compares a data version, and every recreated node has
version 0. kazoo does not either: when the session has expired, it opens a new one by itself and sends the request
there. But kazoo serializes a request at the moment when it sends it, on the thread that owns the connection. Only that
thread can be certain in which session the server will read the bytes. `PinnedRequest` compares the session there, and
in any other session it sends a transaction that must fail.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.exceptions import ZookeeperError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat

from ...core.session_lifetime import session_hex
from ...deadline import Deadline, uptime
from ...exceptions import NoPermissionError, NotConnectedError, OutcomeUnknownError, TooLargeError
from ..kazoo_compat import internals
from ..kazoo_compat.safe_decoding import transaction_results
from .node import Node
from .transaction import (
    ENVELOPE_BYTES,
    MAX_REQUEST_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    Set,
    first_failure,
    last_write,
)

if TYPE_CHECKING:
    from ..session.session import Session


class PinnedRequest:
    """A transaction as kazoo sends it, but only in the session it is meant for, and only until it is withdrawn."""

    type = wire.Transaction.type

    def __init__(self, client: Any, session_id: int, operations: Sequence[Operation]) -> None:
        self._client = client
        self._session_id = session_id
        self._operations = operations
        self._payload = bytes(wire.Transaction([_on_the_wire(client.chroot, op) for op in operations]).serialize())
        if self.size > MAX_REQUEST_BYTES:
            raise TooLargeError(
                f"a transaction of {len(operations)} operations has {len(self._payload)} bytes, "
                f"but a server accepts at most {MAX_REQUEST_BYTES}",
                size=len(self._payload),
            )
        self._lock = threading.Lock()
        self._withdrawn = False
        self.sent = False
        self.sent_at = -math.inf
        self.refused = False
        self.zxid_before = client.last_zxid

    @property
    def size(self) -> int:
        """The size on the wire, in bytes."""
        return len(self._payload) + ENVELOPE_BYTES

    def serialize(self) -> bytes:
        """Called by kazoo's connection thread as it sends: the last moment at which the session can be compared."""
        with self._lock:
            if self._withdrawn or internals.session_id(self._client) != self._session_id:
                self.refused = True
                return _IMPOSSIBLE
            self.sent, self.sent_at = True, uptime()
            return self._payload

    def deserialize(self, answer: bytes, offset: int) -> list[Any]:
        """Called by kazoo. Raise ValueError for results that cannot belong to these operations."""
        results = transaction_results(answer, offset)
        if not self.refused:
            _check_results(self._operations, results)
        return results

    def withdraw(self) -> bool:
        """Make sure that it is never carried out. Return False if it was sent already."""
        with self._lock:
            self._withdrawn = True
            return not self.sent

    def __repr__(self) -> str:
        return f"PinnedRequest({len(self._payload)} bytes, session {session_hex(self._session_id)})"


_RESULTS: Final[dict[type[Operation], type]] = {Create: str, Set: ZnodeStat, Delete: bool, Check: bool}


def _check_results(operations: Sequence[Operation], results: Sequence[object]) -> None:
    if len(results) != len(operations):
        raise ValueError(f"{len(results)} results of {len(operations)} operations")
    done = [isinstance(result, _RESULTS[type(each)]) for each, result in zip(operations, results, strict=True)]
    failed = [isinstance(result, ZookeeperError) for result in results]
    if not (all(done) or (all(failed) and first_failure(operations, results) is not None)):
        raise ValueError("results that do not belong to the operations")


def _on_the_wire(chroot: str, operation: Operation) -> Any:
    path = absolute(chroot, operation.path)
    match operation:
        case Create():
            return wire.Create(path, operation.data, operation.acl, 1 if operation.ephemeral else 0)
        case Set():
            return wire.SetData(path, operation.data, operation.version)
        case Delete():
            return wire.Delete(path, operation.version)
        case Check():
            return wire.CheckVersion(path, operation.version)


def absolute(chroot: str, path: str) -> str:
    """Return the path with the chroot. kazoo's own function would also normalize names."""
    return (chroot + path).rstrip("/") or "/"


# The root always exists, and is never written 2^31-1 times.
_IMPOSSIBLE: Final = bytes(wire.Transaction([wire.CheckVersion("/", 2**31 - 1)]).serialize())


# Find out whether a transaction was carried out although its reply was lost (rule 3).
#
# The nodes it would have changed are read after a reconnect and a `sync`. A server that resumes a session rejects
# everything that still arrives over the old connection. So by then the lost request is either carried out or never
# will be. The nodes show which of the two, unless another client has changed them since: then the outcome is unknown.


CHECK_FIRST: Final = ": read the node before you repeat the write"
"""The end of a message about a write with an unknown outcome."""


class TransactionOutcome(Enum):
    """What the nodes show about a transaction whose reply was lost."""

    CARRIED_OUT = "carried out"
    NOT_CARRIED_OUT = "not carried out"
    UNKNOWN = "unknown"


def was_carried_out(
    session: Session, request: PinnedRequest, operations: Sequence[Operation], session_id: int, deadline: Deadline
) -> bool:
    """Return whether the request was carried out. Raise `OutcomeUnknownError` if the nodes do not show it.

    A transaction that only checks changes nothing, so it counts as not carried out, and can be repeated.
    """
    path = last_write(operations).path
    changes = final_changes(operations)
    if not changes:
        return False
    try:
        # The current server may lag behind the server that received the request.
        session.call(lambda: session.client.sync_async("/"), "/", deadline)
        nodes = session.get_all(list(changes), deadline=deadline)
    except NoPermissionError as error:
        raise OutcomeUnknownError(
            f"the reply to a write of {path} was lost, and you have no permission to read the node{CHECK_FIRST}"
        ) from error
    except NotConnectedError as error:
        raise OutcomeUnknownError(
            f"the connection was lost before the reply to a write of {path}, and was not restored in time{CHECK_FIRST}"
        ) from error
    outcome = outcome_of_all(list(changes.values()), nodes, session_id=session_id, zxid_before=request.zxid_before)
    if outcome is TransactionOutcome.UNKNOWN:
        raise OutcomeUnknownError(
            f"the reply to a write of {path} was lost, and the node has changed again since{CHECK_FIRST}"
        )
    return outcome is TransactionOutcome.CARRIED_OUT


class FinalChange(NamedTuple):
    """The last change of one node by a transaction, and the version that the node has after it."""

    operation: Create | Set | Delete
    version: int = 0


def final_changes(operations: Sequence[Operation]) -> dict[str, FinalChange]:
    """Return the last change of each path.

    A node that is created and then written counts as created with those data. A node that is created and then deleted
    is left out.
    """
    changes: dict[str, FinalChange] = {}
    for operation in operations:
        path = operation.path
        created = change.operation if (change := changes.get(path)) and isinstance(change.operation, Create) else None
        match operation:
            case Delete() if created:
                del changes[path]
            case Set():
                kept = replace(created, data=operation.data) if created else operation
                changes[path] = FinalChange(kept, operation.version + 1)
            case Create() | Delete():
                changes[path] = FinalChange(operation)
    return changes


def outcome_of_all(
    changes: Sequence[FinalChange], nodes: Sequence[Node | None], *, session_id: int, zxid_before: int
) -> TransactionOutcome:
    """Combine the outcomes of all changes of one transaction.

    If a node that existed before the request does not have its change, nothing was carried out. Otherwise all outcomes
    must agree, and all nodes must have been changed at the same zxid.
    """
    outcomes = set()
    zxids = set()
    for change, node in zip(changes, nodes, strict=True):
        outcome = outcome_of(change, node, session_id=session_id, zxid_before=zxid_before)
        if outcome is TransactionOutcome.NOT_CARRIED_OUT and node is not None and node.czxid <= zxid_before:
            return outcome
        outcomes.add(outcome)
        if node is not None and not isinstance(change.operation, Delete):
            zxids.add(node.czxid if isinstance(change.operation, Create) else node.mzxid)
    if outcomes == {TransactionOutcome.CARRIED_OUT} and len(zxids) > 1:
        return TransactionOutcome.UNKNOWN
    return outcomes.pop() if len(outcomes) == 1 else TransactionOutcome.UNKNOWN


def outcome_of(change: FinalChange, node: Node | None, *, session_id: int, zxid_before: int) -> TransactionOutcome:
    """Judge one change by its node, read after a `sync`.

    `zxid_before` is the last transaction that this client had seen when it sent the request. A node that existed then
    is older, and a node that the request created is newer.
    """
    operation, version = change
    existed = node is not None and node.czxid <= zxid_before
    match operation:
        case Create():  # a retry is harmless: it creates a deleted node again, and overwrites nothing
            carried_out = (
                node is not None
                and not existed
                and node.session == (session_id if operation.ephemeral else 0)
                and node.version >= version
                and node.data == operation.data
            )
        case Delete():
            carried_out = not existed
        case Set():
            if node is None or not existed:
                return TransactionOutcome.UNKNOWN
            if node.mzxid > zxid_before and node.version > version:
                return TransactionOutcome.UNKNOWN  # another client has written it since, perhaps after this request
            # Versions only rise, so this request would have written exactly this version.
            carried_out = node.mzxid > zxid_before and node.version == version and node.data == operation.data
    return TransactionOutcome.CARRIED_OUT if carried_out else TransactionOutcome.NOT_CARRIED_OUT

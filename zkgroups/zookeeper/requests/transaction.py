"""Transactions that are carried out in one given session or not at all, how large they are, and how one sees afterwards
whether they were carried out.

`check` in a ZooKeeper transaction compares a data version, and every recreated node has version 0; and kazoo opens a
new session by itself when the old one has ended. So neither tells a zombie from its successor. But kazoo serialises a
request at the moment it sends it, on the thread that owns the connection: there, and only there, is it certain in which
session the bytes will be read. `PinnedRequest` looks there, and in any session but its own it sends a transaction that
must fail.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeVar

from kazoo.exceptions import RolledBackError, RuntimeInconsistency, ZookeeperError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from ...core.znodes.session_ids import session_hex
from ...deadline import uptime
from ...exceptions import TooLargeError
from .node import Node

MAX_REQUEST_BYTES: Final = 1_048_575
"""jute.maxbuffer as servers come; over it the server drops the connection without a word, and a retry never ends."""

MAX_BATCH_BYTES: Final = 512 * 1024
MAX_BATCH_OPERATIONS: Final = 2_000
"""What is split into several transactions is split here: larger ones gain nothing and keep other clients waiting."""

SMALLEST_LIMIT: Final = 4 * 1024
"""No server is configured for less. So a connection lost during a smaller request was lost for another reason."""

_ENVELOPE_BYTES: Final = 32
_HEADER_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; fails if it is there."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    acl: tuple[ACL, ...] = field(default=tuple(OPEN_ACL_UNSAFE), repr=False)


@dataclass(frozen=True, slots=True)
class Set:
    """Write a node; fails if it is gone or its version has moved."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node; fails if it is gone, has children, or its version has moved."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless the node is there and, where a version is given, has that one."""

    path: str
    version: int = -1


Operation = Create | Set | Delete | Check
AnOperation = TypeVar("AnOperation", bound=Operation)


def size(operation: Operation) -> int:
    """The bytes that an operation adds to a request, without the chroot."""
    length = _HEADER_BYTES + 4 + len(operation.path.encode()) + 4
    match operation:
        case Create():
            acl = sum(12 + len(entry.id.scheme) + len(entry.id.id) for entry in operation.acl)
            return length + len(operation.data) + 4 + acl + 4
        case Set():
            return length + len(operation.data) + 4
    return length


def fits(operations: Iterable[Operation], *, chroot: str = "", limit: int = MAX_REQUEST_BYTES) -> bool:
    """Whether a server takes all of them in one request of at most `limit` bytes."""
    prefix = len(chroot.encode())
    return sum(size(operation) + prefix for operation in operations) + _ENVELOPE_BYTES <= limit


def batches(
    units: Iterable[Sequence[AnOperation]],
    *,
    overhead: Sequence[Operation] = (),
    chroot: str = "",
    limit: int = MAX_BATCH_BYTES,
) -> Iterator[list[Sequence[AnOperation]]]:
    """Group units of operations, none of them torn apart, into transactions of at most `limit` bytes where possible."""
    prefix = len(chroot.encode())

    def cost(unit: Sequence[Operation]) -> int:
        return sum(size(operation) + prefix for operation in unit)

    start = _ENVELOPE_BYTES + cost(overhead)
    batch: list[Sequence[AnOperation]] = []
    weight, count = start, 0
    for unit in units:
        if batch and (weight + cost(unit) > limit or count + len(unit) > MAX_BATCH_OPERATIONS):
            yield batch
            batch, weight, count = [], start, 0
        batch.append(unit)
        weight += cost(unit)
        count += len(unit)
    if batch:
        yield batch


class RequestLimit:
    """How large the requests of a session may be, as far as is known.

    A server with a small `jute.maxbuffer` drops the connection on a larger request, without an answer. So if the
    connection was lost twice during the same request, smaller ones are tried. The next session starts from the default.

    >>> limit = RequestLimit()
    >>> limit.lost_twice(40_000, session_id=1)
    >>> limit.bytes(1), limit.bytes(2) == MAX_BATCH_BYTES
    (20000, True)
    >>> limit.accepted(40_000, session_id=1)  # so it was lost for another reason
    >>> limit.bytes(1) == MAX_BATCH_BYTES
    True
    """

    def __init__(self) -> None:
        self._session_id: int | None = None
        self._bytes = MAX_BATCH_BYTES
        self._lost = 0

    def bytes(self, session_id: int | None) -> int:
        """The largest request to send in that session."""
        return self._bytes if session_id == self._session_id else MAX_BATCH_BYTES

    def most(self, session_id: int | None) -> int:
        """The largest request that the server may accept in that session, even if a smaller one works better."""
        return self._bytes if session_id == self._session_id else MAX_REQUEST_BYTES

    def lost_twice(self, size: int, *, session_id: int | None) -> None:
        """Learn from a request of this size that was sent twice, and lost the connection both times."""
        known = self.bytes(session_id)
        self._session_id, self._bytes, self._lost = session_id, max(min(known, size // 2), SMALLEST_LIMIT), size

    def accepted(self, size: int, *, session_id: int | None) -> None:
        """Learn from a request of this size that was answered."""
        if session_id == self._session_id and size > self._bytes:
            self._bytes = MAX_BATCH_BYTES if size >= self._lost else size


class PinnedRequest:
    """A transaction as kazoo sends it, but only in the session it is meant for, and only until it is withdrawn."""

    type = wire.Transaction.type

    def __init__(self, client: Any, session_id: int, operations: Sequence[Operation]) -> None:
        self._client = client
        self._session_id = session_id
        self._operations = operations
        self._payload = bytes(wire.Transaction([_on_the_wire(client.chroot, op) for op in operations]).serialize())
        if len(self._payload) + _ENVELOPE_BYTES > MAX_REQUEST_BYTES:
            raise TooLargeError(
                f"a transaction of {len(operations)} operations is {len(self._payload)} bytes, "
                f"and a server takes {MAX_REQUEST_BYTES}",
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
        """Its size on the wire, in bytes."""
        return len(self._payload) + _ENVELOPE_BYTES

    def serialize(self) -> bytes:
        """Called by kazoo's connection thread as it sends: the last moment at which the session can be compared."""
        with self._lock:
            if self._withdrawn or self._client._session_id != self._session_id:
                self.refused = True
                return _IMPOSSIBLE
            self.sent, self.sent_at = True, uptime()
            return self._payload

    def deserialize(self, answer: bytes, offset: int) -> list[Any]:
        """Called by kazoo. ValueError for results that cannot belong to these operations: the outcome is unknown."""
        results: list[Any] = wire.Transaction.deserialize(answer, offset)
        if not self.refused:
            _check_results(self._operations, results)
        return results

    def withdraw(self) -> bool:
        """Make sure that it is never carried out; False if it is too late for that."""
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
    if not (all(done) or (all(failed) and culprit(operations, results) is not None)):
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
    """The path as the server knows it; kazoo's own function would also rewrite names."""
    return (chroot + path).rstrip("/") or "/"


# The root is always there, and is never written 2^31-1 times.
_IMPOSSIBLE = bytes(wire.Transaction([wire.CheckVersion("/", 2**31 - 1)]).serialize())


class TransactionFailed(Exception):
    """Strictly private to this folder: the first operation that failed, so that the caller can say what it means."""

    def __init__(self, index: int, operation: Operation, error: Exception) -> None:
        super().__init__(f"operation {index}, {operation}: {type(error).__name__}")
        self.index = index
        self.operation = operation
        self.error = error


def culprit(operations: Sequence[Operation], results: Sequence[object]) -> TransactionFailed | None:
    """The failure that a server's answer tells of: before it all are rolled back, after it all are inconsistent."""
    for index, result in enumerate(results):
        if isinstance(result, ZookeeperError) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            return TransactionFailed(index, operations[index], result)
    return None


class Verdict(Enum):
    """What looking at the nodes tells about a transaction whose answer was lost."""

    CARRIED_OUT = "carried out"
    NOT_CARRIED_OUT = "not carried out"
    UNCLEAR = "unclear"


def telling(operations: Sequence[Operation]) -> Operation:
    """The operation by which to see what became of all: the last one that changes something."""
    return next(operation for operation in reversed(operations) if not isinstance(operation, Check))


def is_divisible(operations: Sequence[Operation]) -> bool:
    """Whether more than one of the operations changes something. If so, the caller may try smaller transactions."""
    return sum(not isinstance(operation, Check) for operation in operations) > 1


def changed(operations: Sequence[Operation]) -> dict[str, Operation]:
    """For each path the last operation that changes it. A node that is created and then written counts as created with
    those data; a node that is created and deleted again is left out."""
    found: dict[str, Operation] = {}
    for operation in operations:
        if isinstance(operation, Delete) and isinstance(found.get(operation.path), Create):
            del found[operation.path]
        elif isinstance(operation, Set) and isinstance(made := found.get(operation.path), Create):
            found[operation.path] = replace(made, data=operation.data)
        elif not isinstance(operation, Check):
            found[operation.path] = operation
    return found


def verdict_on_all(
    operations: Sequence[Operation], nodes: Sequence[Node | None], *, session_id: int, zxid_before: int
) -> Verdict:
    """All of them tell the same, or one that is untouched tells for certain; else it is unclear."""
    seen = [
        verdict(operation, found, session_id=session_id, zxid_before=zxid_before)
        for operation, found in zip(operations, nodes, strict=True)
    ]
    for operation, what in zip(operations, seen, strict=True):
        if what is Verdict.NOT_CARRIED_OUT and isinstance(operation, Set | Delete):
            return what
    return seen[0] if len(set(seen)) == 1 else Verdict.UNCLEAR


def verdict(operation: Operation, found: Node | None, *, session_id: int, zxid_before: int) -> Verdict:
    """Judge by what is there now, read after a `sync`, when nothing of the lost request can still be under way.

    `zxid_before` is the last thing this client had seen when it sent: any node it meant to change is older, and any
    node that the request made is younger.
    """
    match operation:
        case Create(ephemeral=True):
            mine = (
                found is not None
                and found.session == session_id
                and found.data == operation.data
                and found.czxid > zxid_before
            )
            return Verdict.CARRIED_OUT if mine else Verdict.NOT_CARRIED_OUT
        case Create():
            made = found is not None and found.czxid > zxid_before and found.data == operation.data
            return Verdict.CARRIED_OUT if made else Verdict.NOT_CARRIED_OUT
        case Delete():
            gone = found is None or found.czxid > zxid_before
            return Verdict.CARRIED_OUT if gone else Verdict.NOT_CARRIED_OUT
        case Set():
            return _verdict_on_set(operation, found, zxid_before)
    return Verdict.UNCLEAR


def _verdict_on_set(operation: Set, found: Node | None, zxid_before: int) -> Verdict:
    if found is None or found.czxid > zxid_before:
        return Verdict.UNCLEAR
    if found.version == operation.version:
        return Verdict.NOT_CARRIED_OUT
    ours = found.version == operation.version + 1 and found.mzxid > zxid_before and found.data == operation.data
    return Verdict.CARRIED_OUT if ours else Verdict.UNCLEAR


def stats(results: Sequence[object]) -> list[ZnodeStat]:
    """What the `Set` operations among the results say of the nodes they wrote, in order."""
    return [result for result in results if isinstance(result, ZnodeStat)]

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
from typing import Any, Final

from kazoo.exceptions import ZookeeperError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat

from ...core.znodes.session_ids import session_hex
from ...deadline import uptime
from ...exceptions import TooLargeError
from ..kazoo_compat import internals
from ..kazoo_compat.transaction_results import transaction_results
from .request_limit import MAX_REQUEST_BYTES
from .request_size import ENVELOPE_BYTES
from .transaction import Check, Create, Delete, Operation, Set, first_failure


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

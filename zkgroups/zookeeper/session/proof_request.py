"""The request that proves a session: a transaction that changes nothing, and how to read its answer."""

from __future__ import annotations

import struct
from typing import Final

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Transaction

from ..kazoo_compat.transaction_results import transaction_results

_FROM_THE_LEADER: Final = frozenset(error.code for error in (NoNodeError, NoAuthError, BadVersionError))
"""Errors that a leader returns only after it has found the session alive."""

_RESULT: Final = struct.Struct("!i?i")
_ERROR: Final = struct.Struct("!i")
_FAILED: Final = -1


class ProofRequest:
    """A transaction that changes nothing. ZooKeeper's answer proves that the session lives.

    No cheaper request is enough. A follower answers reads and pings by itself. `sync` needs the leader, but a leader
    answers it without asking its followers. A leader that is cut off goes on doing so for more than `syncLimit` ticks
    (3.1 s, measured with a limit of 3 s). By then the other servers may have elected a new leader, for example after a
    restart. A transaction waits for a majority, even if it only contains a check, and even if the check fails. In
    tests, a cut-off leader never answered one. It costs a record in the servers' logs, and takes 1 ms, as long as a
    commit.
    """

    type = Transaction.type
    deserialize = staticmethod(transaction_results)

    def serialize(self) -> bytes:
        """Return a check of the root, which always exists. Version -1 needs no more than permission to read it."""
        return _PAYLOAD

    def __repr__(self) -> str:
        return "ProofRequest()"


_PAYLOAD: Final = bytes(Transaction([CheckVersion("/", -1)]).serialize())


def is_proof(body: bytes, offset: int) -> bool:
    """Decide by the answer to a transaction whether the leader found the session alive.

    All results of a failed transaction are errors: 0 before the operation that failed, and then its error code.
    """
    while offset + _RESULT.size <= len(body):
        kind, done, _ = _RESULT.unpack_from(body, offset)
        if done:
            return False
        if kind != _FAILED:
            return True
        [error] = _ERROR.unpack_from(body, offset + _RESULT.size)
        if error:
            return error in _FROM_THE_LEADER
        offset += _RESULT.size + _ERROR.size
    return False

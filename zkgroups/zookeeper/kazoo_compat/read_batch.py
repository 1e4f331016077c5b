"""Many single reads as one request of kazoo.

kazoo sends one request and reads one answer in each turn of its loop. That takes longer than a server needs to answer.
So a batch is written to the socket at once. kazoo counts it as one request, but the server sees single reads, which
every release answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from kazoo.exceptions import EXCEPTIONS

_INT: Final = Struct(">i")
_HEAD: Final = Struct(">iii")
_ANSWER: Final = Struct(">ii8xi")
_ERROR_AT: Final = 12
_LAST_XID: Final = 2**31 - 1

HEADER_BYTES: Final = 16
"""The length of the header of an answer."""


class ReadBatch:
    """Reads of one type. The result is the undecoded answers, each with its header."""

    def __init__(self, request_type: int, bodies: Sequence[bytes]) -> None:
        self.type = request_type
        self._bodies = bodies
        self._answers: list[bytes] = []

    def frames(self, first_xid: int) -> bytes:
        """Encode the reads as they are sent."""
        self._answers = []
        parts: list[bytes] = []
        xid = first_xid
        for body in self._bodies:
            parts += (_HEAD.pack(len(body) + 2 * _INT.size, xid, self.type), body)
            xid = next_xid(xid)
        return b"".join(parts)

    def last_xid(self, first_xid: int) -> int:
        """Return the xid of the last read."""
        return (first_xid + len(self._bodies) - 2) % _LAST_XID + 1

    def add(self, answer: bytes) -> list[bytes] | None:
        """Add the next answer. Return all of them if it is the last."""
        self._answers.append(answer)
        return self._answers if len(self._answers) == len(self._bodies) else None

    def take(self, received: bytes, xid: int) -> tuple[int, int]:
        """Add the next answers without errors but the last one. Return the length of them, and the next xid.

        The first and the last one are left to kazoo's own way, which notes when a server answers.
        """
        position, missing = 0, len(self._bodies) - len(self._answers) - 1
        if not self._answers:
            return position, xid
        while missing > 0 and len(received) - position >= _ANSWER.size:
            length, found, error = _ANSWER.unpack_from(received, position)
            end = position + _INT.size + length
            if found != xid or error or length < HEADER_BYTES or end > len(received):
                break
            self._answers.append(received[position + _INT.size : end])
            position, xid, missing = end, next_xid(xid), missing - 1
        return position, xid


def next_xid(xid: int) -> int:
    """Return the number of the request after this one, as kazoo counts."""
    return xid % _LAST_XID + 1


def error_of(answer: bytes) -> int:
    """Return the error number in the header of an answer, or 0."""
    error: int = _INT.unpack_from(answer, _ERROR_AT)[0]
    return error


def exception_of(error: int) -> Exception:
    """Return the exception for an error number."""
    found: Exception = EXCEPTIONS[error]()
    return found


def send_batches(connection: Any) -> None:
    """Let kazoo's connection write a batch as the single reads in it."""
    submit = connection._submit

    def submit_all(request: Any, timeout: float, xid: int | None = None) -> Any:
        if not isinstance(request, ReadBatch) or xid is None:
            return submit(request, timeout, xid)
        connection._xid = request.last_xid(xid)
        return connection._write(request.frames(xid), timeout)

    connection._submit = submit_all

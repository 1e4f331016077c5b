"""Reads that were sent: many in one request, or one request for each. Both have an answer of the same form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kazoo.exceptions import NoAuthError, UnimplementedError

from ..kazoo_compat.read_batch import HEADER_BYTES, ReadBatch, error_of, exception_of
from ..kazoo_compat.request_queue import enqueue
from ..kazoo_compat.tcp_connection import Endpoints, endpoints
from ..session.errors import LOSSES
from ..session.session import Session
from . import multiread_support
from .multiread_format import DENIED, END, GONE, Kind, MultiRead, encode_error, encode_result, single_read


class SentTogether:
    """One request for many reads, which was sent."""

    def __init__(self, session: Session, questions: bytes) -> None:
        self._session = session
        self._connection: Endpoints | None = None  # the connection on which it was sent
        self._answer = session.client.handler.async_result()
        enqueue(session.client, [(MultiRead(questions, self._is_supported), self)])

    def _is_supported(self) -> bool:
        """Called by kazoo as it sends."""
        connection = endpoints(self._session.client)
        supported = multiread_support.is_supported(self._session, connection)
        self._connection = connection if supported else None
        return supported

    def set(self, answer: bytes) -> None:
        """Called by kazoo with the answer."""
        if self._connection is not None:
            multiread_support.note_answer(self._session, self._connection)
        self._answer.set(answer)

    def set_exception(self, error: BaseException) -> None:
        """Called by kazoo with the error. Note it at once, before another such request is sent."""
        if self._connection is not None and isinstance(error, UnimplementedError):
            multiread_support.note_unsupported(self._connection)
        elif self._connection is not None and isinstance(error, LOSSES):
            multiread_support.note_loss(self._session, self._connection)
        self._answer.set_exception(error)

    def get(self, timeout: float) -> bytes:
        """Wait for the answer, and raise kazoo's errors."""
        try:
            answer: bytes = self._answer.get(timeout=timeout)
        except NoAuthError as error:  # each of many reads has its own error, so another request was sent
            raise UnimplementedError from error
        if self._connection is None:
            raise UnimplementedError
        return answer


class SentOneByOne:
    """One request for each read. Together their answers have the form of one answer to many reads."""

    def __init__(self, session: Session, kind: Kind, paths: Iterable[bytes]) -> None:
        self._kind = kind
        self._answers = None
        if bodies := [single_read(path) for path in paths]:
            self._answers = session.client.handler.async_result()
            enqueue(session.client, [(ReadBatch(kind, bodies), self._answers)])

    def get(self, timeout: float) -> bytes:
        """Wait for the last answer, and raise kazoo's errors."""
        if self._answers is None:
            return END
        return b"".join([*map(self._encode, self._answers.get(timeout=timeout)), END])

    def _encode(self, answer: bytes) -> bytes:
        error = error_of(answer)
        if not error:
            return encode_result(self._kind, answer[HEADER_BYTES:])
        if error in (GONE, DENIED):
            return encode_error(error)
        raise exception_of(error)


Sent: TypeAlias = SentTogether | SentOneByOne

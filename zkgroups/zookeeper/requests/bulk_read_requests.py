"""Reads that were sent: many in one request, or one request for each. Both have an answer of the same form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError, UnimplementedError

from ..kazoo_compat.request_queue import enqueue
from ..kazoo_compat.safe_decoding import DamagedAnswer
from ..kazoo_compat.tcp_connection import Endpoints, endpoints
from ..session.errors import LOSSES
from ..session.session import Session
from . import multiread_support
from .multiread_format import END, Kind, MultiRead, Read, encode_error, encode_result


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
        self._earlier = _Answers()
        self._last = None
        requests = [Read(kind, path) for path in paths]
        if requests:
            self._last = session.client.handler.async_result()
            answers = [self._earlier] * (len(requests) - 1)
            enqueue(session.client, list(zip(requests, [*answers, self._last], strict=True)))

    def get(self, timeout: float) -> bytes:
        """Wait for the last answer, which arrives after all others, and raise kazoo's errors."""
        if self._last is None:
            return END
        try:
            last = self._last.get(timeout=timeout)
        except (NoNodeError, NoAuthError) as error:
            last = error
        except LOSSES:
            for damage in (each for each in self._earlier.answers if isinstance(each, DamagedAnswer)):
                raise damage from None  # the reason for the loss
            raise
        return b"".join([*map(self._encode, [*self._earlier.answers, last]), END])

    def _encode(self, answer: bytes | KazooException) -> bytes:
        if isinstance(answer, bytes):
            return encode_result(self._kind, answer)
        if isinstance(answer, NoNodeError | NoAuthError):
            return encode_error(answer.code)
        raise answer


class _Answers:
    """Collects answers from kazoo in order, without waking a thread for each."""

    def __init__(self) -> None:
        self.answers: list[bytes | KazooException] = []
        self.set = self.set_exception = self.answers.append


Sent: TypeAlias = SentTogether | SentOneByOne

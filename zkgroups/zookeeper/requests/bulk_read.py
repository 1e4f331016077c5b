"""Many reads at once: hundreds in each request, several requests under way, and answers in the order of the questions.

What is read are siblings, nodes below one directory, because that is what there is to read: the partitions of a topic,
the topics of a group. An answer stays as the bytes that came; what is made of it, objects or columns, is its reader's.

Memory is bounded by what is under way (`read_pace.py`), however many nodes there are. A node that is gone reads as
None, and
one that may not be read as a `ForbiddenNode`: neither stops the others. What a lost connection took with it
is asked for again.

Servers before ZooKeeper 3.6 do not know such requests, and do harm when they meet one. So it is found out before the
first (`multiread_support.py`), and there each node is asked for by itself, hundreds of requests under way together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionClosedError,
    KazooException,
    NoAuthError,
    NoNodeError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from ...core.znodes.values import ForbiddenNode
from ...deadline import Deadline
from ...exceptions import DamagedAnswerError
from ..kazoo_compat.corrections import hand_over
from ..session.errors import LOSSES, translate, translate_of_read
from ..session.registry_context import RegistryContext
from ..session.session import PIPELINE, Peer, Session
from . import multiread_support
from .multiread import DENIED, END, GONE, Kind, MultiRead, Read, Record, answered, failed, listings, operations, records
from .node import Node
from .read_pace import HANDFUL, MAX_REQUEST_BYTES, Pace
from .safe_decoding import DamagedAnswer
from .transaction import SMALLEST_LIMIT

K = TypeVar("K")


class Siblings(NamedTuple, Generic[K]):
    """Nodes below one directory that are to be read, and what the reader knows them by; none are passed on as such."""

    key: K
    directory: str
    names: Sequence[str]

    def path(self, name: str) -> str:
        """The path of one of them."""
        return f"{self.directory}/{name}"


class Block(Generic[K]):
    """What one request asks for: siblings, or the part of them that fits; and then its answer."""

    __slots__ = ("answer", "count", "length", "parts", "questions")

    def __init__(self) -> None:
        self.parts: list[Siblings[K]] = []
        self.questions: list[bytes] = []
        self.count = 0
        self.length = 0
        self.answer = b""

    def is_full(self, size: int, more: int, limit: int) -> bool:
        """Whether so many more bytes would exceed `limit`, or there are enough reads. An empty block is never full."""
        too_long = self.count > 0 and self.length + more > limit
        return too_long or max(self.count, len(self.parts)) >= size

    def add(self, siblings: Siblings[K], questions: bytes) -> None:
        """Ask for these, too."""
        self.parts.append(siblings)
        self.questions.append(questions)
        self.count += len(siblings.names)
        self.length += len(questions)

    def records(self) -> Iterator[Record | int]:
        """The nodes that were asked for, in their order; an error's number instead of one that could not be read."""
        return records(self.answer, self.count)


def read(context: RegistryContext, kind: Kind, asked: Iterable[Siblings[K]]) -> Iterator[Block[K]]:
    """Read the nodes, or the names below them; blocks come in the order in which it was asked."""
    return _Reading[K](context, kind).blocks(asked)


def nodes(context: RegistryContext, paths: Iterable[str]) -> Iterator[Node | ForbiddenNode | None]:
    """The nodes of all paths, in their order."""
    for block in read(context, Kind.NODE, _as_siblings(paths)):
        found = block.records()
        for siblings in block.parts:
            for name in siblings.names:
                record = next(found)
                path = siblings.path(name)
                yield failure(path, record) if isinstance(record, int) else Node(path, *record)


def children(context: RegistryContext, paths: Iterable[str]) -> Iterator[list[str] | ForbiddenNode | None]:
    """The names below all paths, in their order."""
    for _siblings, _name, names in below(context, _as_siblings(paths)):
        yield names


def below(
    context: RegistryContext, asked: Iterable[Siblings[K]]
) -> Iterator[tuple[Siblings[K], str, list[str] | ForbiddenNode | None]]:
    """Each node with the names below it; siblings that are none come by once, with an empty name."""
    for block in read(context, Kind.CHILDREN, asked):
        found = listings(block.answer, block.count)
        for siblings in block.parts:
            if not siblings.names:
                yield siblings, "", None
            for name in siblings.names:
                names = next(found)
                yield siblings, name, failure(siblings.path(name), names) if isinstance(names, int) else names


def failure(path: str, error: int) -> ForbiddenNode | None:
    """What the number of an error means: None for a node that is gone; what is no fact about the node is raised."""
    if error == GONE:
        return None
    if error == DENIED:
        return ForbiddenNode(path)
    if error not in EXCEPTIONS:
        raise DamagedAnswerError(f"{path} could not be read: no error has the number {error}")
    raise translate_of_read(EXCEPTIONS[error](), path)


class _Reading(Generic[K]):
    """One call of `read`."""

    def __init__(self, context: RegistryContext, kind: Kind) -> None:
        self._context = context
        self._kind = kind
        self._chroot = context.session.chroot
        self._pace = Pace()
        self._under_way: deque[tuple[Block[K], _Asked]] = deque()

    def blocks(self, asked: Iterable[Siblings[K]]) -> Iterator[Block[K]]:
        """Ask for as much as the pace allows before an answer is looked at."""
        for block in self._cut(asked):
            self._under_way.append((block, self._ask(block)))
            while len(self._under_way) >= self._pace.requests:
                yield self._finish()
        while self._under_way:
            yield self._finish()

    def _cut(self, asked: Iterable[Siblings[K]]) -> Iterator[Block[K]]:
        """Fill one block after the other; many siblings are spread over several, and none are a part all the same."""
        block = Block[K]()
        for siblings in asked:
            left = siblings.names
            while True:
                names, questions = self._fitting(siblings.directory, left[: max(1, self._pace.size - block.count)])
                if block.is_full(self._pace.size, len(questions), self._limit):
                    yield block
                    block = Block[K]()
                    continue
                whole = len(names) == len(siblings.names)
                block.add(siblings if whole else siblings._replace(names=names), questions)
                left = left[len(names) :]
                if not left:
                    break
        if block.parts:
            yield block

    def _fitting(self, directory: str, names: Sequence[str]) -> tuple[Sequence[str], bytes]:
        """As many of the names as one request holds, and the operations that read them."""
        path = self._absolute(directory)
        questions = operations(self._kind, path, names)
        while len(questions) > self._limit and len(names) > 1:
            names = names[: len(names) // 2]
            questions = operations(self._kind, path, names)
        return names, questions

    @property
    def _limit(self) -> int:
        """The largest size of one request, in bytes."""
        return min(MAX_REQUEST_BYTES, self._context.session.request_limit)

    def _absolute(self, path: str) -> bytes:
        return (self._chroot + path).encode()

    def _ask(self, block: Block[K]) -> _Asked:
        if block.count <= HANDFUL:
            return self._ask_one_by_one(block)
        together = multiread_support.knows_multiread(self._context.session, self._context.timeout)
        self._pace.together(together)
        return _Together(self._context.session, b"".join(block.questions)) if together else self._ask_one_by_one(block)

    def _ask_one_by_one(self, block: Block[K]) -> _Asked:
        return _OneByOne(self._context.session, self._kind, self._paths(block))

    def _finish(self) -> Block[K]:
        block, asked = self._under_way.popleft()
        deadline = self._context.deadline()
        try:
            block.answer = asked.get(timeout=deadline.remaining)
        except DamagedAnswer as error:
            raise translate(error, block.parts[0].directory) from error
        except LOSSES as error:
            block.answer = self._once_more(block, asked, error, deadline)
        except (UnimplementedError, ConnectionClosedError, SessionExpiredError):
            block.answer = self._again(block, deadline)
        except (KazooException, KazooTimeoutError) as error:
            raise translate_of_read(error, block.parts[0].directory) from error
        block.questions.clear()
        self._pace.answered(block.count, len(block.answer))
        return block

    def _once_more(self, block: Block[K], asked: _Asked, error: KazooException, deadline: Deadline) -> bytes:
        """The connection was lost. Repeat the request once, to find out if it is larger than the server accepts."""
        session = self._context.session
        if isinstance(asked, _Together) and SMALLEST_LIMIT < block.length <= self._limit:
            if not session.wait_connected(deadline):
                raise translate(error, block.parts[0].directory) from error
            session_id = session.id
            try:
                return _Together(session, b"".join(block.questions)).get(deadline.remaining)
            except DamagedAnswer as trouble:
                raise translate(trouble, block.parts[0].directory) from trouble
            except LOSSES:
                session.limit.lost_twice(block.length, session_id=session_id)
            except (UnimplementedError, ConnectionClosedError, SessionExpiredError):
                pass
            except (KazooException, KazooTimeoutError) as trouble:
                raise translate_of_read(trouble, block.parts[0].directory) from trouble
        return self._again(block, deadline)

    def _again(self, block: Block[K], deadline: Deadline) -> bytes:
        """The connection was lost with the question: ask patiently, and in the way that every server knows."""
        paths = iter(self._paths(block))
        answers: list[bytes] = []
        while some := list(islice(paths, PIPELINE)):
            ask = partial(_OneByOne, self._context.session, self._kind, some)
            answers.append(self._context.session.call(ask, block.parts[0].directory, deadline)[: -len(END)])
        return b"".join([*answers, END])

    def _paths(self, block: Block[K]) -> Iterator[bytes]:
        return (self._absolute(siblings.path(name)) for siblings in block.parts for name in siblings.names)


def _sent(session: Session, requests: Sequence[Any], noted: _Noted | None = None) -> Any:
    """Hand requests to kazoo's connection; what is returned will have the answer to the last, `noted` the others."""
    client = session.client
    last = client.handler.async_result()
    hand_over(client, [*((request, noted) for request in requests[:-1]), (requests[-1], last)])
    return last


class _Noted:
    """Takes answers from kazoo in their order, without waking anybody for each."""

    def __init__(self) -> None:
        self.answers: list[bytes | KazooException] = []
        self.set = self.set_exception = self.answers.append


class _Together:
    """One request for many reads, which is under way."""

    def __init__(self, session: Session, questions: bytes) -> None:
        self._session = session
        self._over: Peer | None = None  # the connection on which it was sent
        self._answer = session.client.handler.async_result()
        hand_over(session.client, [(MultiRead(questions, self._understood), self)])

    def _understood(self) -> bool:
        """Called by kazoo as it sends."""
        connection = multiread_support.connection_of(self._session)
        understood = multiread_support.understands(self._session, connection)
        self._over = connection if understood else None
        return understood

    def set(self, answer: bytes) -> None:
        """Called by kazoo with the answer."""
        if self._over is not None:
            multiread_support.answered(self._session, self._over)
        self._answer.set(answer)

    def set_exception(self, error: BaseException) -> None:
        """Called by kazoo with the error. Record it at once, before another such request is sent."""
        if self._over is not None and isinstance(error, UnimplementedError):
            multiread_support.refused(self._over)
        elif self._over is not None and isinstance(error, LOSSES):
            multiread_support.lost(self._session, self._over)
        self._answer.set_exception(error)

    def get(self, timeout: float) -> bytes:
        """Wait for the answer, and raise what went wrong as kazoo does."""
        try:
            answer: bytes = self._answer.get(timeout=timeout)
        except NoAuthError as error:  # many reads have an error each; this one is for another request
            raise UnimplementedError from error
        if self._over is None:
            raise UnimplementedError
        return answer


class _OneByOne:
    """The same reads, each a request of its own; together their answers look like the answer to one."""

    def __init__(self, session: Session, kind: Kind, paths: Iterable[bytes]) -> None:
        self._kind = kind
        self._noted = _Noted()
        requests = [Read(kind, path) for path in paths]
        self._last = _sent(session, requests, self._noted) if requests else None

    def get(self, timeout: float) -> bytes:
        """Wait for the last answer, which comes after all others, and raise what went wrong as kazoo does."""
        if self._last is None:
            return END
        try:
            last = self._last.get(timeout=timeout)
        except (NoNodeError, NoAuthError) as error:
            last = error
        except LOSSES:
            for damage in (each for each in self._noted.answers if isinstance(each, DamagedAnswer)):
                raise damage from None  # the reason for the loss
            raise
        return b"".join([*map(self._part, [*self._noted.answers, last]), END])

    def _part(self, answer: bytes | KazooException) -> bytes:
        if isinstance(answer, bytes):
            return answered(self._kind, answer)
        if isinstance(answer, NoNodeError | NoAuthError):
            return failed(answer.code)
        raise answer


_Asked: TypeAlias = _Together | _OneByOne


def _as_siblings(paths: Iterable[str]) -> Iterator[Siblings[None]]:
    for directory, together in groupby(paths, lambda path: path.rpartition("/")[0]):
        yield Siblings(None, directory, [path.rpartition("/")[2] for path in together])

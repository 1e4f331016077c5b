"""Read many nodes: hundreds in each request, several requests in flight, and answers in the order of the requests.

Nodes are read as siblings, which are children of one directory: the partitions of a topic, or the topics of a group. An
answer is kept as bytes. The caller decodes it into objects or columns.

The memory is limited by the requests in flight, regardless of the number of nodes. A missing node
reads as None, a forbidden one as `ForbiddenNode`. Neither affects other nodes. Reads that were lost with a connection
are repeated.

Servers before ZooKeeper 3.6 do not support such requests, and close the connection. So each server is probed before the
first one (`multiread.py`). On an old server each node is read by its own request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionClosedError,
    KazooException,
    NoAuthError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError

from ...core.znodes.values import ForbiddenNode
from ...deadline import Deadline
from ...exceptions import DamagedAnswerError
from ..kazoo_compat import internals
from ..kazoo_compat.requests import HEADER_BYTES, ReadBatch, enqueue, error_of, exception_of
from ..kazoo_compat.safe_decoding import DamagedAnswer
from ..session.errors import LOSSES, translate, translate_of_read
from ..session.session import PIPELINE, RegistryContext, Session
from . import multiread
from .multiread import (
    DENIED,
    END,
    GONE,
    Kind,
    MultiRead,
    PlainOffsets,
    Record,
    SentRequest,
    encode_error,
    encode_result,
    listings,
    operations,
    plain_offsets,
    records,
    single_read,
)
from .node import Node
from .transaction import SMALLEST_LIMIT

# How much to read at a time, so that reading is fast, but never takes more than fits into memory.
#
# An answer can be ten thousand times as long as its request, and its length is not known before. So the first request
# is sent alone and is small. Then the length of the last answer limits the number of reads in the next request.
#
#     reads in a request    64, then twice as many after each answer, at most 500, and at most an answer of 256 KiB
#     requests in flight    1 until the first answer, then 6
#
# Larger values gain nothing, and keep the server's other clients waiting, because it answers requests in order.
# Smaller values leave the server idle (`benchmarks/reads.py`, `benchmarks/neighbours.py`). If each node is read by
# its own request, the limit is 64 instead of 500.


FIRST: Final = 64
MOST: Final = 500
MOST_SINGLE: Final = 64
REQUESTS: Final = 6

FEW_READS: Final = 8
"""Up to this number, reads are sent one by one without probing the server for MultiRead."""

MAX_READ_REQUEST_BYTES: Final = 256 * 1024
"""The longest request for many reads. A server drops the connection on a request of 1 MiB."""

ANSWER_BYTES: Final = 256 * 1024
"""The intended maximum length of an answer."""


class BulkReadPace:
    """The size and number of the next requests, learned from the answers so far.

    >>> pace = BulkReadPace()
    >>> pace.size, pace.requests
    (64, 1)
    >>> pace.answered(64, 64 * 90)
    >>> pace.size, pace.requests
    (128, 6)
    >>> pace.answered(128, 128 * 20_000)
    >>> pace.size
    13
    """

    __slots__ = ("_most", "requests", "size")

    def __init__(self) -> None:
        self._most = MOST
        self.size = FIRST
        self.requests = 1

    def answered(self, reads: int, answer_bytes: int) -> None:
        """Learn from an answer."""
        if not reads:
            return
        fitting = ANSWER_BYTES * reads // max(answer_bytes, 1)
        self.size = max(1, min(2 * self.size, fitting, self._most))
        self.requests = REQUESTS

    def set_together(self, together: bool) -> None:
        """Set whether requests contain many reads from now on, or one read each."""
        self._most = MOST if together else MOST_SINGLE
        self.size = min(self.size, self._most)


# Reads that were sent: many in one request, or one request for each. Both have an answer of the same form.


class SentTogether(SentRequest):
    """One request for many reads, which was sent."""

    def __init__(self, session: Session, questions: bytes) -> None:
        super().__init__(session)
        enqueue(session.client, [(MultiRead(questions, self.is_supported), self)])

    def get(self, timeout: float) -> bytes:
        """Wait for the answer, and raise kazoo's errors."""
        try:
            answer: bytes = self.answer.get(timeout=timeout)
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


K = TypeVar("K")


class Siblings(NamedTuple, Generic[K]):
    """Nodes to read below one directory. `key` identifies them for the caller. `names` may be empty."""

    key: K
    directory: str
    names: Sequence[str]

    def path(self, name: str) -> str:
        """Return the path of one node."""
        return f"{self.directory}/{name}"


class Block(Generic[K]):
    """The nodes to read by one request, and its answer. Many siblings can be spread over several blocks."""

    __slots__ = ("answer", "count", "length", "parts", "questions")

    def __init__(self) -> None:
        self.parts: list[Siblings[K]] = []
        self.questions: list[bytes] = []
        self.count = 0
        self.length = 0
        self.answer = b""

    def is_full(self, size: int, more: int, limit: int) -> bool:
        """Return True if it has `size` reads, or if `more` bytes would exceed `limit`. An empty block is never full."""
        too_long = self.count > 0 and self.length + more > limit
        return too_long or max(self.count, len(self.parts)) >= size

    def add(self, siblings: Siblings[K], questions: bytes) -> None:
        """Add siblings, with the encoded reads of them."""
        self.parts.append(siblings)
        self.questions.append(questions)
        self.count += len(siblings.names)
        self.length += len(questions)

    def records(self) -> Iterator[Record | int]:
        """Decode the nodes, in order. A failed read gives the error code."""
        return records(self.answer, self.count)

    def plain_offsets(self) -> PlainOffsets | None:
        """Decode the nodes as offsets. None unless all of them exist and contain plain numbers."""
        return plain_offsets(self.answer, self.count)


def read(context: RegistryContext, kind: Kind, asked: Iterable[Siblings[K]]) -> Iterator[Block[K]]:
    """Read the nodes, or the names of their children. Yield the blocks in the order of `asked`."""
    return _BulkRead[K](context, kind).blocks(asked)


def nodes(context: RegistryContext, paths: Iterable[str]) -> Iterator[Node | ForbiddenNode | None]:
    """Yield the nodes of all paths, in order."""
    for block in read(context, Kind.NODE, _as_siblings(paths)):
        decoded = block.records()
        for siblings in block.parts:
            for name in siblings.names:
                record = next(decoded)
                path = siblings.path(name)
                yield failed_read(path, record) if isinstance(record, int) else Node(path, *record)


def children(context: RegistryContext, paths: Iterable[str]) -> Iterator[list[str] | ForbiddenNode | None]:
    """Yield the names of the children of all paths, in order."""
    for _siblings, _name, names in children_of(context, _as_siblings(paths)):
        yield names


def children_of(
    context: RegistryContext, asked: Iterable[Siblings[K]]
) -> Iterator[tuple[Siblings[K], str, list[str] | ForbiddenNode | None]]:
    """Yield each node with the names of its children. Siblings without names are yielded once, with an empty name."""
    for block in read(context, Kind.CHILDREN, asked):
        decoded = listings(block.answer, block.count)
        for siblings in block.parts:
            if not siblings.names:
                yield siblings, "", None
            for name in siblings.names:
                names = next(decoded)
                yield siblings, name, failed_read(siblings.path(name), names) if isinstance(names, int) else names


def failed_read(path: str, error: int) -> ForbiddenNode | None:
    """Return the value for an error code: None for a missing node. Raise errors that do not concern the node."""
    if error == GONE:
        return None
    if error == DENIED:
        return ForbiddenNode(path)
    if error not in EXCEPTIONS:
        raise DamagedAnswerError(f"could not read {path}: unknown error number {error}")
    raise translate_of_read(EXCEPTIONS[error](), path)


class _BulkRead(Generic[K]):
    """One call of `read`."""

    def __init__(self, context: RegistryContext, kind: Kind) -> None:
        self._context = context
        self._kind = kind
        self._chroot = context.session.chroot
        self._pace = BulkReadPace()
        self._in_flight: deque[tuple[Block[K], Sent]] = deque()

    def blocks(self, asked: Iterable[Siblings[K]]) -> Iterator[Block[K]]:
        """Send as many requests as the pace allows before waiting for the first answer."""
        for block in self._split(asked):
            self._in_flight.append((block, self._send(block)))
            while len(self._in_flight) >= self._pace.requests:
                yield self._finish()
        while self._in_flight:
            yield self._finish()

    def _split(self, asked: Iterable[Siblings[K]]) -> Iterator[Block[K]]:
        """Fill one block after the other. Siblings without names are part of a block, too."""
        block, limit = Block[K](), self._limit
        for siblings in asked:
            left = siblings.names
            while True:
                most = max(1, self._pace.size - block.count)
                names, questions = self._fitting(siblings.directory, left[:most], limit)
                if block.is_full(self._pace.size, len(questions), limit):
                    yield block
                    block, limit = Block[K](), self._limit
                    continue
                whole = len(names) == len(siblings.names)
                block.add(siblings if whole else siblings._replace(names=names), questions)
                left = left[len(names) :]
                if not left:
                    break
        if block.parts:
            yield block

    def _fitting(self, directory: str, names: Sequence[str], limit: int) -> tuple[Sequence[str], bytes]:
        """Return as many of the names as fit into one request, and the encoded reads of them."""
        path = self._absolute(directory)
        questions = operations(self._kind, path, names)
        while len(questions) > limit and len(names) > 1:
            names = names[: len(names) // 2]
            questions = operations(self._kind, path, names)
        return names, questions

    @property
    def _limit(self) -> int:
        """The maximum size of one request, in bytes."""
        return min(MAX_READ_REQUEST_BYTES, self._context.session.request_limit)

    def _absolute(self, path: str) -> bytes:
        return (self._chroot + path).encode()

    def _send(self, block: Block[K]) -> Sent:
        if block.count <= FEW_READS:
            return self._send_one_by_one(block)
        together = multiread.knows_multiread(self._context.session, self._context.timeout)
        self._pace.set_together(together)
        if not together:
            return self._send_one_by_one(block)
        return SentTogether(self._context.session, b"".join(block.questions))

    def _send_one_by_one(self, block: Block[K]) -> Sent:
        return SentOneByOne(self._context.session, self._kind, self._paths(block))

    def _finish(self) -> Block[K]:
        block, sent = self._in_flight.popleft()
        deadline = self._context.deadline()
        try:
            block.answer = internals.wait(sent.get, deadline)
        except DamagedAnswer as error:
            raise translate(error, block.parts[0].directory) from error
        except LOSSES as error:
            block.answer = self._after_loss(block, sent, error, deadline)
        except (UnimplementedError, ConnectionClosedError, SessionExpiredError):
            block.answer = self._repeat(block, deadline)
        except (KazooException, KazooTimeoutError) as error:
            raise translate_of_read(error, block.parts[0].directory) from error
        block.questions.clear()
        self._pace.answered(block.count, len(block.answer))
        return block

    def _after_loss(self, block: Block[K], sent: Sent, error: KazooException, deadline: Deadline) -> bytes:
        """Repeat the request once after a lost connection, to find out if it is larger than the server accepts."""
        session = self._context.session
        if isinstance(sent, SentTogether) and SMALLEST_LIMIT < block.length <= self._limit:
            if not session.wait_connected(deadline):
                raise translate(error, block.parts[0].directory) from error
            session_id = session.id
            try:
                return SentTogether(session, b"".join(block.questions)).get(deadline.remaining)
            except DamagedAnswer as damage:
                raise translate(damage, block.parts[0].directory) from damage
            except LOSSES:
                session.limit.lost_twice(block.length, session_id=session_id)
            except (UnimplementedError, ConnectionClosedError, SessionExpiredError):
                pass
            except (KazooException, KazooTimeoutError) as second_error:
                raise translate_of_read(second_error, block.parts[0].directory) from second_error
        return self._repeat(block, deadline)

    def _repeat(self, block: Block[K], deadline: Deadline) -> bytes:
        """Repeat the reads after a lost connection, by requests that every server supports."""
        paths = iter(self._paths(block))
        answers: list[bytes] = []
        while window := list(islice(paths, PIPELINE)):
            send = partial(SentOneByOne, self._context.session, self._kind, window)
            answers.append(self._context.session.call(send, block.parts[0].directory, deadline)[: -len(END)])
        return b"".join([*answers, END])

    def _paths(self, block: Block[K]) -> Iterator[bytes]:
        return (self._absolute(siblings.path(name)) for siblings in block.parts for name in siblings.names)


def _as_siblings(paths: Iterable[str]) -> Iterator[Siblings[None]]:
    for directory, together in groupby(paths, lambda path: path.rpartition("/")[0]):
        yield Siblings(None, directory, [path.rpartition("/")[2] for path in together])

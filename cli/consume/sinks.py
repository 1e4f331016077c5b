"""How messages are written: their format, and a pipe or file whose reader may be slow, or may have gone."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from zkgroups import ForbiddenNode, InstanceState, UnreadableNode
from zkgroups.deadline import Deadline, uptime
from zkgroups.exceptions import CommittedOutOfRangeError, MalformedNodeError, MemberClosedError, NoPermissionError

from ..shared.messages import printable
from ..shared.output import SCHEMA

if TYPE_CHECKING:
    from zkgroups import Consumer, TopicPartition


# How messages are written: raw lines, JSON lines, or a format such as `%t/%p %o %s\n`.
#
# A format has the letters of kcat, so that its users find what they know.


class Message(Protocol):
    """A message of confluent-kafka."""

    def topic(self) -> str | None:
        """The topic."""

    def partition(self) -> int | None:
        """The partition."""

    def offset(self) -> int | None:
        """The offset."""

    def timestamp(self) -> tuple[int, int]:
        """The kind of the time, 0 for none, and the milliseconds since 1970."""

    def key(self) -> Any:
        """The key, as bytes. None without one."""

    def value(self) -> Any:
        """The value, as bytes. None for the deletion of a key."""

    def headers(self) -> Any:
        """The headers as pairs of a name and bytes or None. None without any."""


Formatter: TypeAlias = Callable[[Message], bytes]


def raw_line(message: Message) -> bytes:
    """Return the value as it is, and a line break."""
    return (message.value() or b"") + b"\n"


def json_line(message: Message) -> bytes:
    """Return a JSON object on one line. Bytes that are not UTF-8 become an object with the field `base64`."""
    row = {
        "schema": SCHEMA,
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": _timestamp(message),
        "headers": [[name, _text(value)] for name, value in message.headers() or ()],
        "key": _text(message.key()),
        "value": _text(message.value()),
    }
    return json.dumps(row).encode() + b"\n"


def _text(data: bytes | None) -> str | Mapping[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _timestamp(message: Message) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds if kind else None


def parse_format(text: str) -> Formatter:
    """Return the formatter for a format. Raise ValueError for an unknown letter."""
    parts = [_part(found) for found in _PARTS.finditer(text)]

    def format_message(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return format_message


_PARTS: Final = re.compile(r"%(?P<letter>.?)|\\(?P<escape>x[0-9a-fA-F]{1,2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)


def _part(found: re.Match[str]) -> bytes | Formatter:
    """Return a part of the output: constant, or made from the message."""
    letter, escape = found["letter"], found["escape"]
    if letter is not None:
        if letter not in _LETTERS:
            raise ValueError(f"%{letter} is not one of {', '.join(f'%{each}' for each in _LETTERS)}")
        return _LETTERS[letter]
    if escape is not None:
        if escape.startswith("x") and len(escape) > 1:
            return bytes([int(escape[1:], 16)])
        if escape not in _ESCAPES:
            raise ValueError(rf"\{escape} is not one of \n, \r, \t, \0, \\ and \xNN")
        return _ESCAPES[escape]
    return found["text"].encode("utf-8", "surrogateescape")


def _number(number: int | None) -> bytes:
    return str(-1 if number is None else number).encode()


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(message: Message) -> bytes:
    pairs = message.headers() or ()
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in pairs)


_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

_LETTERS: Final[Mapping[str, bytes | Formatter]] = {
    "s": lambda message: message.value() or b"",
    "S": lambda message: _number(_length(message.value())),
    "R": lambda message: struct.pack(">i", _length(message.value())),
    "k": lambda message: message.key() or b"",
    "K": lambda message: _number(_length(message.key())),
    "h": _headers,
    "T": lambda message: _number(_timestamp(message)),
    "t": lambda message: (message.topic() or "").encode(),
    "p": lambda message: _number(message.partition()),
    "o": lambda message: _number(message.offset()),
    "%": b"%",
}


def for_terminal(formatter: Formatter) -> Formatter:
    """Escape invisible characters but line breaks and tabs: a message could change the terminal."""

    def format_message(message: Message) -> bytes:
        text = formatter(message).decode("utf-8", "backslashreplace")
        return re.sub(r"[^\n\t]+", lambda found: printable(found[0]), text).encode("utf-8", "backslashreplace")

    return format_message


# Write messages to a pipe or a file whose reader may be slow, may have gone, or may never read.


_WRITE_PACE: Final = 0.05
"""In seconds: how often to ask whether to stop, while the reader does not take the rest of a message."""

_MOMENT: Final = 0.1
"""In seconds: how long to go on with further messages. A rebalance waits for those that are under way."""


class ByteSink:
    """Writes to a descriptor. `stopped` is asked while its reader does not take the rest of a message.

    A pipe that can be written takes `PIPE_BUF` bytes at once and as a whole, so no write blocks, and no message up to
    that length is torn. The descriptor stays in blocking mode, because other processes may share it.
    """

    def __init__(self, descriptor: int, stopped: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._stopped = stopped
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, messages: Iterable[bytes]) -> int:
        """Write the messages that the reader takes within a moment. Return how many were written whole.

        None of the others has begun, unless `stopped` ended the write. Raise BrokenPipeError if the reader has gone.
        The messages are not made before the reader is ready.
        """
        if not self._is_ready(_MOMENT):
            return 0
        parts, moment = list(messages), Deadline(_MOMENT)
        data, ends = memoryview(b"".join(parts)), list(accumulate(map(len, parts)))
        count = begin = 0
        while count < len(ends):
            more = max(bisect_right(ends, begin + select.PIPE_BUF), count + 1)  # as many as a pipe takes as a whole
            if not (self._is_ready(moment.remaining) and self._write_whole(data[begin : ends[more - 1]])):
                break
            count, begin = more, ends[more - 1]
            if moment.passed:
                break
        return count

    def _write_whole(self, rest: memoryview) -> bool:
        """Write everything, after the reader was found ready. Return False if it was stopped before the end."""
        while rest := rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]:
            while not self._is_ready(_WRITE_PACE):
                if self._stopped():
                    return False
        return True

    def _is_ready(self, seconds: float) -> bool:
        """Wait until a write would not block. Also True if the reader has gone: the next write raises the error."""
        return bool(self._poll.poll(seconds * 1000))

    def check(self) -> None:
        """Raise BrokenPipeError if the reader has gone: the next message may be hours away."""
        for _descriptor, event in self._poll.poll(0):
            if event & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError


# Copy messages from a consumer to a sink, and finish those that were written.


_MOST: Final = 500
"""The most messages that are taken together. Those that the reader takes at once become finished together."""

_PACE: Final = 0.1
"""In seconds: how often to look for signals, errors and ends of logs while no messages come."""

_EMPTY: Final = 2.0
"""In seconds: a member that has held nothing for so long has no share. Before its first plan it holds nothing, too."""


@dataclass
class Copying:
    """Messages on their way from a consumer to a sink.

    - `recorded`: the signals that were received. The first one ends it.
    - `reader_ended`: returns True when the program that reads has ended.
    - `stands_still`: called once with each error of a partition that the user must repair. Others are read on.
    - `most`: how many messages to write at most.
    - `to_end`: end when each partition was read up to its end at some moment.
    """

    consumer: Consumer
    formatter: Formatter
    sink: ByteSink
    recorded: Sequence[int]
    reader_ended: Callable[[], bool]
    stands_still: Callable[[CommittedOutOfRangeError], object]
    most: int | None = None
    to_end: bool = False
    count: int = 0
    _empty_since: float | None = None
    _read: set[TopicPartition] = field(default_factory=set)
    _standing: dict[TopicPartition, CommittedOutOfRangeError] = field(default_factory=dict)

    def run(self) -> None:
        """Copy until the end. What was written is committed, or will be when the consumer leaves.

        The last messages before the end of the reader are not finished: it has probably not read them.
        """
        while not self._is_done():
            if self.reader_ended():
                return
            if self.recorded:
                self._finish()
                return
            messages = self.consumer.consume(self._next_count(), _PACE)  # finishes what was written before
            written = self.sink.write(map(self.formatter, messages))
            if written < len(messages):  # else a rebalance would wait for a slow reader
                self.consumer.give_back(len(messages) - written)
            self.count += written
            if written < _MOST:
                self._look()
        unreadable = self.consumer.stats().unreadable
        self.consumer.commit()
        if self.to_end:
            self._report_unread(unreadable.values())

    def _report_unread(self, unreadable: Iterable[UnreadableNode]) -> None:
        """Raise an error if a partition was not read to its end."""
        for error in self._standing.values():
            raise error
        for node in unreadable:
            raise NoPermissionError(node.path) if isinstance(node, ForbiddenNode) else MalformedNodeError(node)

    def _next_count(self) -> int:
        return _MOST if self.most is None else min(_MOST, self.most - self.count)

    def _is_done(self) -> bool:
        if self.most is not None and self.count >= self.most:
            return True
        return self.to_end and self._has_read_all()

    def _finish(self) -> None:
        """Let the consumer leave. Unlike `commit`, this does not wait for the end of a rebalance."""
        self.consumer.stop()
        with suppress(MemberClosedError):
            self.consumer.poll()  # what was written is finished

    def _look(self) -> None:
        """Note ends of logs, and partitions that stand still. Raise an error if the reader has gone."""
        self.sink.check()
        partitions = self.consumer.stats().partitions
        errors = {at: found.error for at, found in partitions.items()}
        standing = {at: error for at, error in errors.items() if isinstance(error, CommittedOutOfRangeError)}
        for at in standing.keys() - self._standing.keys():
            self.stands_still(standing[at])
        self._standing = standing
        self._read |= {at for at, found in partitions.items() if found.at_end}
        self._read &= partitions.keys()

    def _has_read_all(self) -> bool:
        """Return whether this member has read all that it should. Other members may hold the other partitions."""
        assignment, settled = self.consumer.assignment, self.consumer.stats().state is InstanceState.STABLE
        if not (settled and self._read | self._standing.keys() >= assignment):
            self._empty_since = None
            return False
        if assignment:
            return True
        self._empty_since = self._empty_since or uptime()
        return uptime() - self._empty_since >= _EMPTY

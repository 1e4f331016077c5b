"""Copy messages from a consumer to a sink, and finish those that were written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from zkgroups import ForbiddenNode, InstanceState, UnreadableNode
from zkgroups.deadline import uptime
from zkgroups.exceptions import (
    CommittedOutOfRangeError,
    MalformedNodeError,
    MemberClosedError,
    NoPermissionError,
)

from .byte_sink import ByteSink
from .message_format import Formatter

if TYPE_CHECKING:
    from zkgroups import Consumer, TopicPartition

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

"""The messages that the caller's loop has received, and how far each partition is finished.

`Consumer` says who finishes a message. Counting must cost next to nothing for each message: a batch only knows how many
of its messages were handed out. Offsets are worked out when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, length_hint, methodcaller
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ..consumer.events import Partitions
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import uptime
from .followed_member import known

if TYPE_CHECKING:
    from confluent_kafka import Message


_BRIEF: Final = 0.002
"""In seconds: how long the loop may take for messages that it cannot be asked to leave out any more."""

LARGEST_PART: Final = 650
"""The most messages that a loop is given at once. More new objects would make Python look for garbage each time."""

_NOTHING: Final[Iterator[Message]] = iter(())


class Position(Protocol):
    """A position of the client."""

    offset: int
    """The offset after the last message that was fetched; negative before the first one."""


Ends: TypeAlias = "tuple[Sequence[TopicPartition], Sequence[Position]]"
"""Partitions, and the position of each. Offsets are looked up when they are needed."""

_topic_of: Final = methodcaller("topic")
_partition_of: Final = methodcaller("partition")
_offset_of: Final = attrgetter("offset")
_message_offset: Final = methodcaller("offset")


@dataclass(slots=True, eq=False)
class Batch:
    """Messages that were fetched together.

    A loop receives *parts*, as iterators over lists: they cost next to nothing for each message. The thread of the loop
    gives a part without a lock: it first announces the part, and then looks at `cut`. Another thread first sets `cut`,
    and then looks at `handed`. So the messages of a part are either known to be under way, or not handed out.
    """

    messages: list[Message]
    given: int = 0
    """How many messages the loop has received, or will receive: the end of the part."""
    in_hand: int = 0
    """How many of the received messages, the last ones, are not finished."""
    cut: bool = False
    """True if no more messages may be given: ask for another batch."""
    ends: Ends | None = None
    """The positions of all partitions after these messages, if known. Looking at all messages takes longer."""
    part: list[Message] = field(default_factory=list)
    iterator: Iterator[Message] = _NOTHING

    def give(self, most: int) -> Iterator[Message] | None:
        """Give the loop the next messages. None if there are none, or if the batch was cut."""
        if self.given >= len(self.messages):
            return None
        self.part = self.messages[self.given : self.given + most]
        self.in_hand = 1
        self.iterator = iter(self.part)  # before `given`: `handed` may be too low for a moment, but never too high
        self.given += len(self.part)
        if self.cut:
            self.withdraw()
            return None
        return self.iterator

    @property
    def handed(self) -> int:
        """How many messages the loop has received."""
        given = self.given  # before the iterator, for the same reason
        return max(given - length_hint(self.iterator), 0)

    def withdraw(self) -> None:
        """Take the rest of the part back. Only for the thread of the loop."""
        if left := length_hint(self.iterator):
            self.given = max(self.given - left, 0)
            self.part.clear()  # ends the iterator that the loop has
        self.iterator = _NOTHING


class Pace:
    """How many messages to give a loop at once: one, or more if it needs no more than `_BRIEF` for them."""

    def __init__(self, largest: int = LARGEST_PART) -> None:
        self.size = 1
        self._largest = largest
        self._began = uptime()

    def begin(self) -> None:
        """Note that the loop begins with a part."""
        self._began = uptime()

    def end(self) -> None:
        """Note that the loop has asked for the next part, and begins with it."""
        now = uptime()
        self.size = min(2 * self.size, self._largest) if now - self._began < _BRIEF / 2 else max(self.size // 4, 1)
        self._began = now


class LoopDelivery:
    """Implements `Deliverer` for a loop. The caller holds the lock of `Reading`, except where noted in `Batch`.

    `paused` returns the partitions that the caller has paused. `positions` returns the positions of the client, see
    `Ends`; None if looking at all messages of a batch takes less time.
    """

    def __init__(self, paused: Callable[[], Partitions], positions: Callable[[], Ends | None] = lambda: None) -> None:
        self._paused = paused
        self.has_paused = False
        """True after the caller has paused a partition: until then, none is paused."""
        self._positions = positions
        self._batch: Batch = Batch([])
        self._known: dict[TopicPartition, int] = {}  # how far each is finished, without the current batch and `_newer`
        self._newer: Ends | None = None  # how far all are finished, without the current batch
        self._total: int | None = None  # the sum of the client's positions, if they are those after the current batch
        self._revoked: set[TopicPartition] = set()  # the rest of these is not handed out
        self._restarted: set[TopicPartition] = set()  # the current batch does not count for these
        self._aside: dict[TopicPartition, list[Message]] = {}  # fetched messages of paused partitions
        self._committed: dict[TopicPartition, int] = {}  # how far the caller has committed by itself
        self._count = 0

    # For `Reading`

    def assign(self, at: TopicPartition, position: int) -> None:
        """Begin a partition, or begin it again. Messages that were fetched before do not count."""
        self.forget([at])
        self._finished[at] = position

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more messages of these partitions."""
        gone = set(partitions)
        self._revoked |= gone
        for at in gone:
            self._aside.pop(at, None)
        self._batch.cut, self._total = True, None

    def wind_down(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no more messages of these partitions. None is finished before earlier ones."""
        self.revoke(partitions)

    def is_busy(self, partitions: Partitions) -> bool:
        """True while the loop has messages of these partitions in hand."""
        batch = self._batch
        under_way = map(known, batch.messages[max(batch.handed - batch.in_hand, 0) : batch.given])
        return any(at in partitions and at not in self._restarted for at in under_way)

    def positions(self, partitions: Partitions) -> Mapping[TopicPartition, int]:
        """Return the offset after the last finished message of each partition."""
        return self._after(partitions, self._batch.handed - self._batch.in_hand)

    def give_up(self, partitions: Partitions) -> None:
        """Do nothing: the body of a loop cannot be interrupted."""

    def received(self, at: TopicPartition) -> int | None:
        """Return the offset after the last message that was put, handed out or not."""
        if aside := self._aside.get(at):
            return (aside[-1].offset() or 0) + 1
        return self._after(frozenset({at}), len(self._batch.messages)).get(at)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions."""
        gone = set(partitions)
        self._restarted |= gone
        for at in gone:
            self._finished.pop(at, None)
            self._aside.pop(at, None)
            self._committed.pop(at, None)
        self._batch.cut, self._total = True, None

    # For the loop

    def finish(self) -> None:
        """Note that everything that was handed out is finished."""
        self._batch.withdraw()
        self._batch.in_hand = 0

    def keep(self) -> None:
        """Note that the caller asks for more messages, but has not finished those in hand."""
        self._batch.withdraw()

    def put_back(self) -> None:
        """Note that the messages in hand are not finished. They come again, except those that the caller committed."""
        batch = self._batch
        batch.withdraw()
        begin = max(batch.given - batch.in_hand, 0)
        hand = batch.messages[begin : batch.given]
        again = [message for message in hand if not self._is_committed(message)]
        if len(again) < len(hand):
            batch.messages[begin : batch.given] = [*filter(self._is_committed, hand), *again]
        batch.in_hand = len(again)
        self.give_back(len(again))

    def _is_committed(self, message: Message) -> bool:
        return (message.offset() or 0) < self._committed.get(known(message), 0)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that the caller has committed these offsets: it has finished the messages before them."""
        handed = self.handed_out(frozenset(offsets))
        self._committed |= {at: min(offset, offsets[at]) for at, offset in handed.items()}

    def give_back(self, count: int) -> bool:
        """Note that the last messages in hand were not processed. They are handed out again, before all others.

        Return False, and change nothing, if fewer messages are in hand.
        """
        batch = self._batch
        batch.withdraw()
        if count > batch.in_hand:
            return False
        batch.given -= count
        batch.in_hand -= count
        batch.cut = batch.cut or self.has_paused or bool(self._revoked)  # then some do not come again now
        return True

    def put(self, messages: list[Message]) -> None:
        """Add messages, in the order of the log for each partition."""
        if self._batch.messages or self._batch.cut or self.has_paused:
            self._renew(self._sorted_out(self._rest()) + messages)
        else:
            self._batch = Batch(messages)
        self._batch.ends = self._proved(len(messages))

    def next_batch(self) -> Batch | None:
        """Return the batch to hand out from; None if more messages must be fetched."""
        batch = self._batch
        if batch.cut:
            self._renew(self._sorted_out(self._rest()))
        elif batch.messages and batch.given >= len(batch.messages):  # free them before others are fetched
            self._begin(self._settle(batch), [])
        return self._batch if self._batch.given < len(self._batch.messages) else None

    def handed_out(self, partitions: Partitions) -> Mapping[TopicPartition, int]:
        """Return the offset after the last message of each partition that was handed out, finished or not."""
        return self._after(partitions, self._batch.handed)

    def cut(self, *, withdraw: bool) -> None:
        """Let the loop ask for another batch: at once with `withdraw`, only for its own thread; otherwise soon."""
        self._batch.cut = True
        if withdraw:
            self._batch.withdraw()

    @property
    def count(self) -> int:
        """How many messages were handed out."""
        return self._count + self._batch.handed

    @property
    def _finished(self) -> dict[TopicPartition, int]:
        """How far each partition is finished, without the current batch."""
        if self._newer is not None:
            places, positions = self._newer
            for at, position in zip(places, positions, strict=True):
                if at in self._known and position.offset >= 0:
                    self._known[at] = position.offset
            self._newer = None
        return self._known

    def _proved(self, new: int) -> Ends | None:
        """Return the positions of the client if they are those after the current batch. Otherwise None.

        If they were for the last batch, they are again if they have moved by as many steps as messages have come. A
        step has at most one message, so messages that were put aside or dropped, and gaps in the log, make the steps
        more than the messages. After those, compare the positions with the messages.
        """
        if (found := self._positions()) is None:
            return None
        total = sum(map(_offset_of, found[1]))
        proved = self._total is not None and total - self._total == new
        self._total = total if proved or self._agrees(found) else None
        return found if self._total is not None else None

    def _agrees(self, found: Ends) -> bool:
        """Return whether these are the positions after the current batch. Before its first message, one is negative."""
        positions = {at: position.offset for at, position in zip(*found, strict=True)}
        after = self._after(frozenset(self._finished), len(self._batch.messages))
        return all(at in positions and (positions[at] == offset or positions[at] < 0) for at, offset in after.items())

    def _after(self, partitions: Partitions, count: int) -> dict[TopicPartition, int]:
        """Return the positions after the first messages of the current batch."""
        finished = self._finished
        found = {at: finished[at] for at in partitions & finished.keys()}
        for at, offset in _ends(self._batch.messages[: max(count, 0)]):
            if at in found and at not in self._restarted:
                found[at] = offset
        return found

    def _settle(self, batch: Batch) -> list[Message]:
        """Count what is finished of a batch that is replaced. Return the messages in hand."""
        done = max(batch.given - batch.in_hand, 0)
        if batch.ends is not None and done == len(batch.messages) and not self._restarted:
            self._newer = batch.ends
        elif done:
            finished = self._finished
            for at, offset in _ends(batch.messages[:done]):
                if at in finished and at not in self._restarted:
                    finished[at] = offset
        self._count += done
        return batch.messages[done : batch.given]

    def _begin(self, hand: list[Message], messages: list[Message]) -> None:
        """Begin a batch with these messages, of which the first ones are in hand."""
        self._batch = Batch(hand + messages, len(hand), len(hand))

    def _rest(self) -> list[Message]:
        return self._batch.messages[self._batch.given :]

    def _sorted_out(self, rest: list[Message]) -> list[Message]:
        """Leave out the fetched messages of partitions that were revoked or have begun again."""
        without = self._revoked | self._restarted
        return [message for message in rest if known(message) not in without] if without else rest

    def _renew(self, messages: list[Message]) -> None:
        """Replace the batch. Messages of paused partitions are put aside, and come back after the pause."""
        hand = [message for message in self._settle(self._batch) if known(message) not in self._restarted]
        self._revoked &= set(map(known, hand))  # the loop may give them back
        self._restarted.clear()
        paused = self._paused()
        if paused or self._aside:
            self._total = None
            messages = sorted(chain(*self._aside.values(), messages), key=_message_offset)  # some were put back
            self._aside.clear()
            messages = [message for message in messages if not self._put_aside(message, paused)]
        self._begin(hand, messages)

    def _put_aside(self, message: Message, paused: Partitions) -> bool:
        at = known(message)
        if at in paused:
            self._aside.setdefault(at, []).append(message)
        return at in paused


def _ends(messages: list[Message]) -> Iterable[tuple[TopicPartition, int]]:
    """Return the offset after the last message of each partition. Runs in C: a batch is long."""
    places = zip(map(_topic_of, messages), map(_partition_of, messages), strict=True)
    last = dict(zip(places, messages, strict=True))
    return [(known(message), (message.offset() or 0) + 1) for message in last.values()]

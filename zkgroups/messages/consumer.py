"""A consumer of messages: it shares the partitions of its topics with the other members, and reads its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from ..consumer.options import SharedOptions, Topics, takes
from ..core.delivery import Order
from ..core.znodes.codecs import check_offset
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, MemberClosedError
from ..zookeeper.group import Consumergroup
from .broker_offsets import OffsetsIn, SideName, offset_options
from .fetcher import Pause, client_settings, confluent
from .followed_member import place
from .handlers import HandlerLoop
from .loop_delivery import LARGEST_PART, Batch, LoopDelivery, Pace
from .reading import SLICE, ConsumerStats, PartitionStats, Reading
from .runs import DeadLetter, Handler, HandlerOptions

if TYPE_CHECKING:
    from confluent_kafka import Message

MOST_FETCHED: Final = 500
"""The most messages that `consume` returns by default."""

FOREVER: Final = float(threading.TIMEOUT_MAX)


class Loop:
    """One iteration over the messages."""

    iterator: Callable[[], object]
    """A weak reference. An iterator vanishes when its loop is left."""


class Consumer:
    """A consumer of messages. It is a `Member` that also fetches its partitions, with confluent-kafka.

        with Registry.connect("zk1:2181/kafka") as registry:
            with Consumer(registry.group("billing"), ["orders"], kafka="kafka1:9092") as consumer:
                signal.signal(signal.SIGTERM, lambda *_: consumer.stop())  # ends the loop
                for message in consumer:
                    process(message.topic(), message.partition(), message.value())

    Messages are `confluent_kafka.Message` objects without an error. The order in a partition is kept.

    Delivery is at least once. A message is *finished* when the loop that received it asks for the next one. A loop that
    is left, by an exception or by `break`, has not finished its message: the next loop receives it again. The messages
    that `poll` or `consume` returned are finished by the next `poll` or `consume`. In the body of a loop, they are
    finished together with its message.

    Every `auto_commit_every` seconds, and before partitions are released, the consumer commits up to the last finished
    message of each partition, never further. `commit` says that the messages received so far are finished. With
    `auto_commit_every=None`, only `commit` commits.

    If a rebalance takes partitions away, their fetched messages are dropped. The consumer waits for `release_timeout`
    until the body of the loop has finished its message, commits and releases. A later commit of a slower body is
    refused. The consumer goes on with the partitions that it keeps. A body may take as long as it likes: the session
    lives on another thread. `max_idle` sets a limit.

    One thread at a time may read. `stop` is safe in a signal handler; a program that wants to drain at SIGTERM needs
    the line above. `poll` and `consume` raise `MemberClosedError` after that; the loop ends.

    - `kafka`: the address of the brokers, or a mapping with settings of confluent-kafka, for example for TLS.
    - `auto_commit_every`: how often to commit what is finished, in seconds.
    - `commits`: with False, no offset is ever written, and `commit` does nothing. The consumer is still a member, so
      other members do not receive its partitions meanwhile.
    - `offsets`: where offsets are committed: "zookeeper", "kafka" or "both". The group stays in ZooKeeper. With "both",
      a commit goes to ZooKeeper first, and then to the brokers.
    - `truth`: with "both", the side that is read: "zookeeper" or "kafka". The other side has a copy. The consumer
      reports offsets that differ with `on_event` (`EventKind.DIFFER`), and in the log, with both numbers. An offset
      never goes back on either side.
    - `initial`: with "zookeeper", a partition without an offset on the brokers begins at that in ZooKeeper, which is
      copied. Only if offsets are read from the brokers.
    - `start_at`: where to begin a partition without a committed offset: "earliest" or "latest".
    - `out_of_range`: where to begin if the offset is outside of the log, because the topic was recreated or messages
      were deleted unread: "earliest", "latest" or "error". With "error", the partition stands still.
    - A partition that cannot be read, for this or another reason, does not stop the others. The consumer tries again,
      with pauses up to 30 s. It reports the error with `on_event` (`EventKind.FAILED`), in the log and in `stats`.
    - `max_idle`: release everything and leave if the loop does not ask for messages for this long, because its body
      hangs. The message in hand is not committed. The consumer joins again when the loop asks. With `run`, the limit is
      for the time in which no handler returns. None means no limit.
    - All other options are those of `Member`, but not `leaves_on_move`: a consumer moves with its group. `on_revoked`
      is called when the messages under way have finished.
    """

    @takes(SharedOptions)
    def __init__(
        self,
        group: Consumergroup,
        topics: Topics = (),
        *,
        kafka: str | Mapping[str, Any],
        auto_commit_every: float | None = 5.0,
        commits: bool = True,
        offsets: OffsetsIn = "zookeeper",
        truth: SideName | None = None,
        initial: Literal["zookeeper"] | None = None,
        **options: Unpack[SharedOptions],
    ) -> None:
        confluent()
        self._automatic = commits and auto_commit_every is not None
        self._delivery = LoopDelivery(
            lambda: self._reading.paused(Pause.USER), lambda: self._reading.positions_of_client()
        )
        self._reading = Reading(
            group,
            topics,
            settings=client_settings(kafka),
            deliverer=self._delivery,
            automatic=self._automatic,
            commits=commits,
            offsets=offset_options(offsets, truth, initial),
            auto_commit_every=auto_commit_every,
            await_callback=self._await_callback,
            **options,
        )
        self.group = group
        self.id = self._reading.member.id
        self._reader = 0  # the thread that reads
        self._receiver: Loop | None = None  # the loop that has the messages in hand; None after a call
        self._stopping = False

    _await_callback: Callable[[Any], object] | None = None
    """Waits for the result of a callback that is a coroutine function. `zkgroups.aio` overrides it."""

    def start(self) -> Self:
        """Join the group. The `with` block does it, and so does the first call that reads."""
        self._reading.start()
        return self

    def stop(self, *, leave: bool = True) -> None:
        """Ask the consumer to leave, without waiting. The loop ends after the message in hand; it is committed.

        Safe in a signal handler.
        """
        self._stopping = True
        # Without the lock, which the interrupted call may hold.
        self._delivery.cut(withdraw=self._reads_here)
        self._reading.member.stop(leave=leave)

    def close(self, *, leave: bool = True) -> None:
        """Commit what is finished, release everything and leave the group.

        A message in hand is not finished: call `commit` first if it is. With `leave=False` the registration and the
        claims stay, for a process that resumes the session: see `Registry.close`.
        """
        if self._reads_here and not self._reading.forked:
            self._put_back()
        self._reading.close(leave=leave)

    def _put_back(self) -> None:
        with self._reading.changed:
            self._delivery.put_back()
            self._reading.changed.notify_all()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until the consumer has left. Errors of the member are raised: iterate again to go on.

        A new loop begins with the messages that are not finished.
        """
        loop = Loop()
        parts = self._parts(loop)
        loop.iterator = weakref.ref(parts)
        return chain.from_iterable(parts)

    def _parts(self, loop: Loop) -> Iterator[Iterator[Message]]:
        """Yield parts of batches."""
        self._reading.check_process()
        pace = Pace()
        while True:
            try:
                batch = self._load(Deadline(FOREVER), LARGEST_PART, loop)
            except MemberClosedError:
                return
            pace.begin()
            while batch is not None and self._may_give(loop) and (part := batch.give(pace.size)) is not None:
                yield part
                pace.end()
            batch = part = None  # free its messages before others are fetched

    def _may_give(self, loop: Loop) -> bool:
        """True while this loop, and no other code, has the messages in hand, and the claims are certain."""
        return self._receiver is loop and self._reading.alive

    def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None after the timeout. The messages that calls have returned are finished."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, count: int = MOST_FETCHED, timeout: float | None = None) -> list[Message]:
        """Return up to `count` messages, as soon as there is one. Return an empty list after the timeout.

        The messages that earlier calls have returned are finished, but not in the body of a loop. After an error, call
        `give_back` first.
        """
        check_count(count)
        deadline = read_deadline(timeout)
        while (batch := self._load(deadline)) is not None:
            if found := self._hand_out(batch, count):
                return found
        return []

    def give_back(self, count: int) -> None:
        """Give back the last `count` of the messages received: they were not processed.

        The next call that reads returns them again, or drops those of partitions that were taken away meanwhile. The
        messages received before them are finished then, as usual. So a loop that is slow, or that must end, need not
        finish all that `consume` has returned. Raise `InvalidOptionError` if fewer messages are in hand.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidOptionError("count", count, "it must be a whole number, 0 or more")
        self._reading.check_process()
        with self._reading.changed:
            if not self._delivery.give_back(count):
                raise InvalidOptionError("count", count, "fewer messages are in hand")
            if self._reading.is_revoking:
                self._reading.changed.notify_all()

    def _hand_out(self, batch: Batch, count: int) -> list[Message]:
        """Return up to `count` messages; none if the batch was cut."""
        with self._reading.changed:
            kept = batch.in_hand
            found = list(batch.give(count) or ())
            batch.in_hand = kept + len(found)
            return found

    def _load(self, deadline: Deadline, most: int = MOST_FETCHED, loop: Loop | None = None) -> Batch | None:
        """Finish what was handed out. Return a batch that has messages, or None after the deadline."""
        self._reader = threading.get_ident()
        return self._fetch(deadline, left=self._ask(loop), most=most)

    def _ask(self, loop: Loop | None, *, same_task: bool = True) -> bool:
        """Note that a loop, or a call, asks for more. Only the receiver of messages can finish them.

        Return True if there are fetched messages.
        """
        self._reading.check_process()
        if not self._reading.delivers_to(self._delivery):
            self._reading.deliver_to(self._delivery, automatic=self._automatic)  # after a `run` that has raised
        with self._reading.lock:
            receiver = self._receiver
            if same_task and loop is None and receiver is not None and receiver.iterator() is not None:
                self._delivery.keep()  # a call in the body of the loop
            else:
                if same_task and receiver is loop:
                    self._delivery.finish()
                else:
                    self._delivery.put_back()
                self._receiver = loop
            left = self._delivery.next_batch() is not None
            if self._reading.is_revoking:
                self._reading.changed.notify_all()
        return left

    def _fetch(self, deadline: Deadline, *, left: bool, most: int = MOST_FETCHED) -> Batch | None:
        """Return a batch that has messages, or None after the deadline."""
        reading, delivery = self._reading, self._delivery
        if left:
            reading.follow()  # it may have been revoked, or a seek may have made it void
        while True:
            reading.asked()
            with reading.lock:  # also if nothing was fetched: messages that were put aside may have come back
                batch = delivery.next_batch() if not self._stopping and reading.alive else None
            if batch is not None:
                return batch
            if not reading.step(most, min(SLICE, deadline.remaining), delivery.put) and deadline.passed:
                return None

    def run(
        self,
        handler: Handler,
        *,
        workers: int = 1,
        order: Order | str = Order.PARTITION,
        window: int = 1_000,
        attempts: int = 3,
        first_delay: float = 0.5,
        longest_delay: float = 30.0,
        then: Literal["stop", "park"] | DeadLetter = "stop",
    ) -> None:
        """Call `handler(message)` for each message, until the consumer is stopped. Commit what is finished.

        A function is called by threads. A coroutine function runs as tasks in an event loop on another thread. A
        message is finished when the handler returns. The position of the first unfinished message of each partition is
        committed, every `auto_commit_every` seconds and before the partition is released.

        - `workers`: how many messages are handled at the same time.
        - `order`: which messages wait for each other: all of a partition ("partition"), those with the same key
          ("key"), or none ("none").
        - `window`: the most messages of one partition from the first unfinished one to the last fetched one. While it
          is full, the partition is not fetched.
        - `attempts`: how often a message is handled at most, if the handler raises an error.
        - `first_delay`, `longest_delay`: the pause before the second attempt, in seconds. Each pause is twice as long
          as the one before, up to the longest.
        - `then`: what happens after the last attempt. "stop": raise `HandlerFailedError` when all messages under way
          have ended; another `run` begins at the first unfinished message. "park": the message stays behind, and all
          messages that must wait for it, until `seek` or a restart. `DeadLetter(topic)`: the message is written to that
          topic. The consumer moves on when all in-sync replicas have it.

        If a rebalance takes a partition away, the consumer waits for its handlers for `release_timeout`. Then a
        coroutine is cancelled. A function goes on, but counts for nothing: the next owner handles its message again.
        With the orders "key" and "none", a message may be finished before an earlier one. So that it is not handled
        again, the earlier ones are handled first, for at most half of `release_timeout`.
        A handler may call `stop`, but not `close`. `SystemExit` in a handler ends `run`, too.
        """
        options = HandlerOptions(
            workers=workers,
            order=order,
            window=window,
            attempts=attempts,
            first_delay=first_delay,
            longest_delay=longest_delay,
            then=then,
        )
        self._reading.check_process()
        self._reader = threading.get_ident()
        self._put_back()
        HandlerLoop(self._reading, handler, options).run()

    def commit(self, message: Message | None = None) -> None:
        """Commit now: everything received so far, or the messages of one partition up to `message`.

        In the body of a loop this includes the message in hand. A thread that does not read, for example in
        `on_revoked`, commits only what the loop has finished. During a rebalance it waits until the partitions that
        this consumer keeps can be committed. Partitions that were taken away are left out. With a `message` of such a
        partition it raises `NotClaimedError`, and nothing is changed. Other errors are those of `Generation.commit`.

        While `run` calls handlers, only `commit()` is allowed. It commits the position of the first unfinished message
        of each partition.
        """
        in_hand = self._reads_here
        self._commit(message, lambda: in_hand)

    def _commit(self, message: Message | None, in_hand: Callable[[], bool], *, waits: bool = True) -> None:
        """Commit. If `in_hand` returns True, commit the messages in hand, too."""
        self._reading.check_process()
        if not self._reading.delivers_to(self._delivery):
            if message is not None:
                reason = (
                    "while `run` calls handlers, others before it may be unfinished: call commit() without a message"
                )
                raise InvalidOptionError("message", message, reason)
            self._reading.commit(self._reading.finished, waits=waits)
            return
        if message is None:
            self._note_committed(self._reading.commit(lambda: self._received(in_hand()), waits=waits))
            return
        at, offset = place(message), message.offset()
        if at is None or offset is None:
            raise InvalidOptionError("message", message, "it must be a message of this consumer")
        self._note_committed(self._reading.commit(lambda: {at: offset + 1}, strict=True, waits=waits))

    def _note_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._reading.changed:
            self._delivery.committed(offsets)

    def _received(self, in_hand: bool) -> Mapping[TopicPartition, int]:
        known = self._delivery.handed_out if in_hand else self._delivery.positions
        return known(self._reading.committable)

    def position(self, at: TopicPartition) -> int | None:
        """Return the offset of the next message that is handed out; None while that is not known yet.

        While `run` calls handlers, this is the first unfinished message.

        Raise `NotClaimedError` if the partition is not held.
        """
        self._reading.check_held(check_at(at))
        return self._position(at)

    def _position(self, at: TopicPartition) -> int | None:
        with self._reading.changed:
            if (sought := self._reading.sought(at)) is not None:
                return sought
            if not self._reading.delivers_to(self._delivery):
                return self._reading.positions().get(at)
            return self._reading.past_controls(at, self._delivery.handed_out(frozenset({at})).get(at))

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Go on at another offset in a partition.

        It does not move the committed offset back: a commit waits until the loop has passed it again. What was finished
        before is committed, up to `offset`: messages from there on come again. To move a whole group, stop its members
        and use `group.offsets.set`.
        """
        self._reading.seek(check_at(at), check_offset(offset))
        self._cut()

    def lag(self, at: TopicPartition) -> int | None:
        """Return how many messages are in the log after `position`, as of the last fetch; None if it is not known."""
        self._reading.check_held(check_at(at))
        return self._lag(at)

    def _lag(self, at: TopicPartition) -> int | None:
        position, end = self._position(at), self._reading.log_end(at)
        return None if position is None or end is None else max(end - position, 0)

    def _at_end(self, at: TopicPartition) -> bool:
        if self._lag(at) == 0:
            return True
        with self._reading.changed:
            position = self._position(at)
            return position is not None and self._reading.has_received_all(at, position)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._reading.held

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out no messages of these partitions until `resume`. They stay paused while this consumer keeps them."""
        for at in partitions:
            self._reading.check_held(check_at(at))
        self._delivery.has_paused = True
        self._reading.pause(partitions, Pause.USER)
        self._cut()

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out messages of these partitions again."""
        for at in partitions:
            self._reading.check_held(check_at(at))
        self._reading.resume(partitions, Pause.USER)
        self._cut()

    def _cut(self) -> None:
        with self._reading.changed:
            self._delivery.cut(withdraw=self._reads_here)

    @property
    def _reads_here(self) -> bool:
        """True for the thread that reads."""
        return self._reader == threading.get_ident()

    def stats(self) -> ConsumerStats:
        """Return what this consumer is doing now. Sends no request."""
        self._reading.check_process()
        held, errors, paused = self._reading.held, self._reading.errors, self._reading.paused(Pause.USER)
        with self._reading.changed:
            count = self._delivery.count
        partitions = {
            at: PartitionStats(self._position(at), self._lag(at), self._at_end(at), at in paused, errors.get(at))
            for at in sorted(held)
        }
        handlers = self._reading.handler_stats
        return ConsumerStats(
            self._reading.member.state,
            count,
            partitions,
            self._reading.member.stats,
            handlers() if handlers is not None else None,
            self._reading.unreadable,
        )

    def __repr__(self) -> str:
        member = self._reading.member
        return (
            f"<Consumer {member.id!r} of group {self.group.name!r}, {member.state}, {len(self.assignment)} partitions>"
        )


def check_count(count: object) -> None:
    """Raise `InvalidOptionError` unless it is a number of messages to receive."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidOptionError("count", count, "it must be a whole number above 0")


def read_deadline(timeout: float | None) -> Deadline:
    """Return the deadline of a call that reads."""
    return Deadline(FOREVER) if timeout is None else Deadline.after("timeout", timeout)

"""Test the handler of a consumer without a broker.

    from zkgroups.testing import HandlerHarness

    def test_an_order_without_an_amount_is_parked():
        harness = HandlerHarness(handle, order="key", workers=4, attempts=3, then="park")
        harness.send("orders", b"17.50", key=b"anna")
        harness.send("orders", b"", key=b"ben")
        outcome = harness.run()
        assert outcome.parked == {TopicPartition("orders", 0): [1]}
        assert outcome.committed == {TopicPartition("orders", 0): 1}

The workers, the order, the attempts and the commits are those of `Consumer.run`. Only the pauses before other attempts
pass at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from zkgroups import TopicPartition
from zkgroups.messages.fetcher import confluent
from zkgroups.messages.handlers import HandlerRunner
from zkgroups.messages.runs import Handler, HandlerOptions, Letter, is_coroutine_function

if TYPE_CHECKING:
    from confluent_kafka import Message

_CREATE_TIME: Final = 1


@dataclass(slots=True)
class HandlerOutcome:
    """The result of one `run` of a harness.

    - `handled`: the messages for which the handler has returned, in that order.
    - `failures`: the message and the error of each attempt that failed, in that order.
    - `pauses`: the pauses before other attempts, in seconds.
    - `committed`: for each partition, the offset that a consumer would have committed: the next message to read.
    - `parked`: the offsets of the messages that would stay behind, with `then="park"`.
    - `dead_letters`: the messages that would be written to another topic, with `then=DeadLetter(topic)`.
    - `error`: the error that `Consumer.run` would raise, or None.
    """

    handled: list[Message] = field(default_factory=list)
    failures: list[tuple[Message, BaseException]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    parked: dict[TopicPartition, list[int]] = field(default_factory=dict)
    dead_letters: list[Letter] = field(default_factory=list)
    error: BaseException | None = None


class _Letters:
    """Writes dead letters to a list."""

    def __init__(self, found: list[Letter]) -> None:
        self._found = found

    def write(self, letter: Letter, written: Callable[[Exception | None], None]) -> None:
        self._found.append(letter)
        written(None)

    def close(self) -> None:
        """Do nothing."""


class HandlerHarness:
    """Feeds messages to a handler. The options are those of `Consumer.run`.

    - `timeout`: how long the handler may take for all messages, in seconds.
    """

    def __init__(self, handler: Handler, *, timeout: float = 60.0, **options: Any) -> None:
        self._handler = handler
        self._options = HandlerOptions(**options)
        self._timeout = timeout
        self._logs: dict[TopicPartition, list[Message]] = {}
        self._committed: dict[TopicPartition, int] = {}

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int = 0,
        headers: Iterable[tuple[str, bytes]] = (),
        timestamp_ms: int = 0,
    ) -> Message:
        """Append a message to a partition, and return it."""
        log = self._logs.setdefault(TopicPartition(topic, partition), [])
        message: Message = confluent().Message(
            topic=topic,
            partition=partition,
            offset=len(log),
            key=key,
            value=value,
            headers=list(headers),
            timestamp=(_CREATE_TIME, timestamp_ms),
        )
        log.append(message)
        return message

    def run(self) -> HandlerOutcome:
        """Handle all messages from the committed offsets on, until only failed messages are left.

        Another call is a restart: it begins at the offsets that were committed.
        """
        return _Run(self._handler, self._options, self._timeout, self._logs, self._committed).outcome


class _Run:
    """One run of a harness."""

    def __init__(
        self,
        handler: Handler,
        options: HandlerOptions,
        timeout: float,
        logs: dict[TopicPartition, list[Message]],
        committed: dict[TopicPartition, int],
    ) -> None:
        self.outcome = HandlerOutcome()
        self._options = options
        self._timeout = timeout
        self._now = 0.0
        self._lock = threading.Lock()
        self._handler: Any = handler
        noted: Any = self._await if is_coroutine_function(handler) else self._call
        self._runner = HandlerRunner(
            noted, options, _Letters(self.outcome.dead_letters), clock=lambda: self._now, name="harness"
        )
        self._runs = self._runner.runs
        self._full: set[TopicPartition] = set()
        self._left = {at: log[committed.get(at, 0) :] for at, log in logs.items()}
        for at in logs:
            self._runs.assign(at, committed.get(at, 0))
        self._runner.start()
        try:
            self._handle_all()
            self._runs.drain(self._timeout)
            committed.update(self._runs.positions())
            self.outcome.committed = dict(committed)
            self.outcome.parked = self._runs.parked()
        finally:
            self._runner.close()

    def _handle_all(self) -> None:
        while self._feed() or self._pass_pause():
            if not self._runs.wait_until_idle(self._timeout):
                raise TimeoutError(f"the handler has not returned for {self._timeout:g} s")
            try:
                self._runs.check()
            except BaseException as error:  # including the SystemExit of a handler
                self.outcome.error = error
                return

    def _feed(self) -> bool:
        """Add messages to partitions that have room. Return False if there were none."""
        fed = False
        self._full = {at for at in self._full if not self._runs.has_room(at)}
        for at, left in self._left.items():
            while left and at not in self._full:
                if self._runs.add(at, left[: self._options.fetched]):
                    self._full.add(at)
                del left[: self._options.fetched]
                fed = True
        return fed

    def _pass_pause(self) -> bool:
        """Let the time of the next attempt come. Return False if no message waits for one."""
        with self._runs.lock:
            pause = self._runs.pause
        if pause is None:
            return False
        self.outcome.pauses.append(pause)
        self._now += pause
        self._runner.look_at_clock()
        return True

    # The handler

    def _call(self, message: Message) -> object:
        try:
            result = self._handler(message)
        except BaseException as error:
            self._note(message, error)
            raise
        self._note(message, None)
        return result

    async def _await(self, message: Message) -> None:
        try:
            await self._handler(message)
        except BaseException as error:
            self._note(message, error)
            raise
        self._note(message, None)

    def _note(self, message: Message, error: BaseException | None) -> None:
        with self._lock:
            if error is None:
                self.outcome.handled.append(message)
            else:
                self.outcome.failures.append((message, error))

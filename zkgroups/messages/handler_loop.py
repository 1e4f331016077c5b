"""The body of `Consumer.run`: fetch messages, pass them to the workers, and fetch no more where too many wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import uptime
from ..exceptions import MemberClosedError
from .dead_letters import DeadLetterWriter
from .fetcher import Pause
from .handler_options import DeadLetter, Handler, HandlerOptions
from .handler_runner import HandlerRunner
from .reading import Reading

if TYPE_CHECKING:
    from confluent_kafka import Message

LOOK: Final = 0.2
"""In seconds: how soon the loop notices that a handler has failed, while no messages come."""

SLICE: Final = 0.02
"""In seconds: how soon the loop fetches other partitions again, while some are paused."""

PATIENCE: Final = 0.1
"""In seconds: how long to wait for workers before a full partition is paused."""


def run_handler(reading: Reading, handler: Handler, options: HandlerOptions) -> None:
    """Call the handler for each message until the consumer is closed. Raise the error that stops it."""
    _Loop(reading, handler, options).run()


class _Loop:
    """One call of `Consumer.run`.

    A pause is not free: the client drops what it has fetched in advance, and fetches it again. So the loop first waits
    a moment. If the workers are slow, it pauses the partition, and serves the others meanwhile.
    """

    def __init__(self, reading: Reading, handler: Handler, options: HandlerOptions) -> None:
        group = reading.member.group.name
        letters = None
        if isinstance(options.then, DeadLetter):
            letters = DeadLetterWriter(reading.client_settings, options.then.topic, group)
        self._room = threading.Condition(reading.lock)
        self._runner = HandlerRunner(
            handler,
            options,
            letters,
            lock=reading.lock,
            changed=reading.changed,
            told_of_room=self._room.notify_all,
            alive=lambda: reading.alive,
            name=group,
        )
        self._reading = reading
        self._options = options
        self._full: set[TopicPartition] = set()
        self._paused_since: dict[TopicPartition, float] = {}
        self._slow: set[TopicPartition] = set()

    def run(self) -> None:
        """Fetch until the consumer is closed, or a handler stops it."""
        self._reading.start()
        self._reading.deliver_to(self._runner.runs, automatic=True)
        self._reading.handler_stats = self._runner.runs.stats
        self._runner.start()
        try:
            while True:
                self._runner.runs.check()
                self._fetch()
                self._pause_full()
                self._resume_with_room()
        except MemberClosedError:
            self._runner.runs.check()
        finally:
            self._runner.runs.drain(self._reading.release_timeout)
            with suppress(MemberClosedError):
                self._reading.resume(self._paused_since, Pause.FULL)
            self._runner.close()

    def _fetch(self) -> None:
        found = self._reading.fetch(self._options.fetched, 0.0 if self._paused_since else LOOK, self._take)
        if not found and self._paused_since:
            with self._reading.lock:
                self._room.wait_for(lambda: any(map(self._runner.runs.has_room, self._paused_since)), SLICE)

    def _take(self, messages: list[Message]) -> None:
        """Pass messages to the workers. The reading calls this with its lock held."""
        for at, of_it in by_partition(messages):
            if self._runner.runs.add(at, of_it):
                self._full.add(at)

    def _pause_full(self) -> None:
        """Wait a moment while partitions are full, then pause them."""
        if not self._full:
            return
        with self._reading.lock:
            self._room.wait_for(self._is_worth_fetching, PATIENCE)
            full = {at for at in self._full if not self._runner.runs.has_room(at)}
        self._full.clear()
        self._reading.pause(full, Pause.FULL)
        self._slow |= full
        self._paused_since |= dict.fromkeys(full, uptime())

    def _is_worth_fetching(self) -> bool:
        return all(at in self._slow or self._runner.runs.has_room(at) for at in self._full)

    def _resume_with_room(self) -> None:
        room = [at for at in self._paused_since if self._runner.runs.has_room(at)]
        if room:
            self._reading.resume(room, Pause.FULL)
        for at in room:
            if uptime() - self._paused_since.pop(at) < PATIENCE:
                self._slow.discard(at)


def by_partition(messages: list[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
    """Return the messages of each partition, in the order of the log. A partition may come several times."""
    begin, topic, partition = 0, messages[0].topic(), messages[0].partition()
    for number, message in enumerate(messages):
        if message.partition() != partition or message.topic() != topic:
            yield TopicPartition(topic or "", partition or 0), messages[begin:number]
            begin, topic, partition = number, message.topic(), message.partition()
    yield TopicPartition(topic or "", partition or 0), messages[begin:]

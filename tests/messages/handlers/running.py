"""A runner without a broker: messages, dead letters that wait for their confirmation, a clock that jumps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Message

from zkgroups import TopicPartition
from zkgroups.messages.handlers import HandlerRunner
from zkgroups.messages.runs import DeadLetter, Handler, HandlerOptions, Letter, Runs

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
FAILED = DeadLetter("orders-failed")

LONG = 60.0
"""In seconds: the longest wait for another thread or process."""


def messages(*offsets: int, at: TopicPartition = AT, key: bytes | None = None) -> list[Message]:
    value = b"an order"
    return [
        Message(topic=at.topic, partition=at.partition, offset=offset, key=key, value=value, timestamp=(1, 1_700))
        for offset in offsets
    ]


def add_keys(runs: Runs, *keys: bytes) -> None:
    """Add a message with each key, all before any is handled."""
    with runs.lock:
        for offset, key in enumerate(keys):
            runs.add(AT, messages(offset, key=key))


class LateLetters:
    """Dead letters that are confirmed when the test says so."""

    def __init__(self) -> None:
        self.sent: list[Letter] = []
        self.closed = False
        self._written: list[Callable[[Exception | None], None]] = []

    def write(self, letter: Letter, written: Callable[[Exception | None], None]) -> None:
        self._written.append(written)
        self.sent.append(letter)

    def confirm(self, error: Exception | None = None) -> None:
        """Confirm the next letter, or refuse it."""
        self._written.pop(0)(error)

    def close(self) -> None:
        self.closed = True


class Clock:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def running(handler: Handler, letters: LateLetters | None = None, **options: Any) -> Iterator[HandlerRunner]:
    """A runner that has begun both partitions at offset 0."""
    told_of_room = options.pop("told_of_room", lambda: None)
    clock, alive = options.pop("clock", time.monotonic), options.pop("alive", lambda: True)
    runner = HandlerRunner(
        handler, HandlerOptions(**options), letters, clock=clock, told_of_room=told_of_room, alive=alive
    )
    for at in (AT, OTHER):
        runner.runs.assign(at, 0)
    runner.start()
    try:
        yield runner
    finally:
        runner.close()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def idle(runner: HandlerRunner) -> None:
    """Wait until only failed messages are left."""
    assert runner.runs.wait_until_idle(LONG)


class Blocking:
    """A handler that does not return until the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self._may_return = threading.Event()

    def __call__(self, _message: Message) -> None:
        self.begun += 1
        assert self._may_return.wait(LONG)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Let all handlers return at the end."""
        try:
            yield
        finally:
            self.let_return()

    def let_return(self) -> None:
        self._may_return.set()

"""Dead letters: messages that no attempt could handle, written to another topic.

Key, value and headers stay as they are. These headers are added, as text:

    zkgroups.topic, zkgroups.partition, zkgroups.offset   where the message came from
    zkgroups.timestamp                                    its time there, in ms, if it had one
    zkgroups.group                                        the group that could not handle it
    zkgroups.attempts                                     how often it was tried
    zkgroups.error                                        the last error

The producer is idempotent and waits for all in-sync replicas (`acks=all`), so brokers must be Kafka 0.11 or later. It
retries as long as it takes. If the process is killed before the message is committed, the next consumer handles the
message again and may write another letter, with the same origin in its headers.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .fetcher import CLIENT_LOG, Outage, confluent
from .runs import Letter

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

log = logging.getLogger("zkgroups.consumer")

Headers: TypeAlias = list[tuple[str, str | bytes | None]]
Written: TypeAlias = Callable[[Exception | None], None]

SETTINGS: Final = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": 0,  # retry for ever: a letter that has timed out may be written, and would be written again
}

_NO_TIMESTAMP: Final = 0
_LONGEST_ERROR: Final = 1_000
_POLL: Final = 0.05


def headers(letter: Letter, group: str) -> Headers:
    """Return the headers of a dead letter: those of its message, then where it came from and why."""
    kind, timestamp = letter.message.timestamp()
    origin = {
        "topic": letter.at.topic,
        "partition": letter.at.partition,
        "offset": letter.offset,
        "timestamp": None if kind == _NO_TIMESTAMP else timestamp,
        "group": group,
        "attempts": letter.attempts,
        "error": _shown(letter.error),
    }
    added: Headers = [
        (f"zkgroups.{name}", str(value).encode(errors="backslashreplace"))
        for name, value in origin.items()
        if value is not None
    ]
    return [*(letter.message.headers() or ()), *added]


def _shown(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()[:_LONGEST_ERROR]


class DeadLetterWriter:
    """Writes dead letters to one topic, on a thread that starts with the first letter.

    - `settings`: how to reach the brokers.
    - `group`: the group of the consumer.
    """

    def __init__(self, settings: Mapping[str, Any], topic: str, group: str) -> None:
        self._settings = {"logger": CLIENT_LOG, "error_cb": self._failed, **settings, **SETTINGS}
        self._outage = Outage()
        self._topic = topic
        self._group = group
        self._letters: SimpleQueue[tuple[Letter, Written] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._producer: Producer | None = None
        self._sent: dict[int, Written] = {}  # letters without a report
        self._numbers = count()

    def write(self, letter: Letter, written: Written) -> None:
        """Write a letter. Call `written` when all in-sync replicas have it, or with the error if it is refused."""
        self._letters.put((letter, written))
        with self._lock:
            if self._thread is None:
                name = f"zkgroups-dead-letters-{self._group}"
                self._thread = threading.Thread(target=self._drive, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Give up letters that are not written."""
        self._closed = True
        self._letters.put(None)
        with self._lock:
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(1.0)

    # On the thread

    def _drive(self) -> None:
        while (found := self._next()) is not None:
            letter, written = found
            try:
                self._produce(letter, written)
            except Exception as error:  # the settings are wrong, the letter is too large, or the client has given up
                written(error)
                kafka = confluent()
                if isinstance(error, kafka.KafkaException) and error.args[0].code() == kafka.KafkaError._FATAL:
                    self._give_up(error)
        if self._producer is not None:
            self._producer.purge()

    def _next(self) -> tuple[Letter, Written] | None:
        """Wait for the next letter. Meanwhile, receive the reports of the client."""
        while self._sent and not self._closed:
            try:
                return self._letters.get_nowait()
            except Empty:
                self._receive()
        return self._letters.get()

    def _receive(self) -> None:
        try:
            if self._producer is not None:
                self._producer.poll(_POLL)
        except confluent().KafkaException as error:  # the client gives up, for example because a broker is too old
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Refuse all letters without a report. The next letter gets a new client."""
        self._producer = None
        sent, self._sent = self._sent, {}
        for written in sent.values():
            written(error)

    def _produce(self, letter: Letter, written: Written) -> None:
        message, number = letter.message, next(self._numbers)
        told = partial(self._tell, number)
        while not self._closed:
            if self._producer is None:
                self._producer = confluent().Producer(self._settings)
            try:
                self._producer.produce(
                    self._topic, message.value(), message.key(), headers=headers(letter, self._group), on_delivery=told
                )
            except BufferError:  # too many letters wait for the brokers
                self._receive()
            else:
                self._sent[number] = written
                return

    def _failed(self, error: KafkaError) -> None:
        if self._outage.failed(error):
            text = "dead letters of group %r cannot be written to %r now, trying again: %s"
            log.warning(text, self._group, self._topic, error.str())

    def _tell(self, number: int, error: KafkaError | None, _message: Message) -> None:
        self._outage.ended(answered=error is None)
        written = self._sent.pop(number, None)
        if written is not None and not self._closed:
            written(None if error is None else confluent().KafkaException(error))

"""A zkgroups member that reads the messages of its partitions from a real broker, in a thread or in a process.

    with Reader(broker.zookeeper, broker.address, "billing", "a", {"orders": 1}) as reader:
        ...

`ReaderProcess` runs in a process, which can be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Partition

from zkgroups import Generation, Member, MemberEvent, Registry, StartAt, TopicPartition
from zkgroups.exceptions import GenerationEndedError, NotClaimedError, SessionLostError
from zkgroups.testing import ChildProcess

from .scala import Message, message_of

ROOT = Path(__file__).parents[2]

# In seconds.
SESSION = 20.0
SHORT_SESSION = 10.0
"""Of a reader that is killed or suspended: others wait until its session expires."""
_COMMIT_EVERY = 0.2
_POLL = 0.05
_LEAVING = 60.0


class Reader:
    """One member, which commits the messages that it has read, and the last of them at the end of a generation."""

    def __init__(
        self,
        zookeeper: str,
        broker: str,
        group: str,
        id: str,
        topics: Mapping[str, int],
        *,
        pause: float = 0.0,
        session_timeout: float = SESSION,
        show: Callable[[Message], object] | None = None,
        **options: Any,
    ) -> None:
        self.id = id
        self.messages: list[Message] = []
        self.events: list[MemberEvent] = []
        self.registry: Registry
        self.member: Member
        self._zookeeper, self._broker, self._group = zookeeper, broker, group
        self._topics, self._options = topics, options
        self._pause = pause
        self._session_timeout = session_timeout
        self._show = show
        self._stack = contextlib.ExitStack()
        self._leaving = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"reader-{id}")

    def start(self) -> Self:
        """Connect, and join the group."""
        self.registry = self._stack.enter_context(
            Registry.connect(self._zookeeper, session_timeout=self._session_timeout)
        )
        options: dict[str, Any] = {"id": self.id, "join_backoff": 0.2, "on_event": self.events.append} | self._options
        self.member = Member(self.registry.group(self._group), self._topics, **options)
        self._thread.start()
        return self

    def ask_to_stop(self) -> None:
        """May be called from a signal handler."""
        self.member.stop()

    def join(self) -> None:
        """Wait until it has left. Raise the error that it met."""
        self._thread.join()
        self._stack.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Leave the group. Further calls do nothing."""
        self._leaving.set()
        self.ask_to_stop()
        self._thread.join(_LEAVING)
        assert not self._thread.is_alive(), f"{self.id} does not leave: {self.events[-5:]}"
        self.join()

    def _run(self) -> None:
        try:
            with self.member:
                for generation in self.member.generations():
                    generation.start(self._work)
                    generation.wait()
        except BaseException as error:
            self._error = error

    def _work(self, generation: Generation) -> None:
        config = {"bootstrap.servers": self._broker, "group.id": "no-group", "enable.auto.commit": False}
        consumer = Consumer(config | {"fetch.wait.max.ms": 20, "log_level": 0})
        with contextlib.closing(consumer):
            consumer.assign([_position(at, start) for at, start in generation.partitions.items()])
            committed = time.monotonic()
            while generation.active:
                self._take(generation, consumer)
                if time.monotonic() - committed > _COMMIT_EVERY:
                    committed = time.monotonic()
                    _commit(generation)
            self._leaving.wait(self._pause)  # work that some readers must finish first
            _commit(generation)

    def _take(self, generation: Generation, consumer: Consumer) -> None:
        found = consumer.poll(_POLL)
        if found is None or found.error():
            return
        message = _message(found)
        self.messages.append(message)
        if self._show is not None:
            self._show(message)
        generation.mark(message.at, message.offset + 1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Reader {self.id}>"


def _message(found: Any) -> Message:
    return Message(TopicPartition(found.topic(), found.partition()), found.offset(), found.value().decode())


def _position(at: TopicPartition, start: int | StartAt) -> Partition:
    return Partition(at.topic, at.partition, OFFSET_BEGINNING if isinstance(start, StartAt) else start)


def _commit(generation: Generation) -> None:
    with contextlib.suppress(GenerationEndedError, NotClaimedError, SessionLostError):
        generation.commit()


class ReaderProcess:
    """A `Reader` in a process."""

    def __init__(self, zookeeper: str, broker: str, group: str, id: str, topics: Mapping[str, int]) -> None:
        self.id = id
        self._command = [sys.executable, "-m", __name__, zookeeper, broker, group, id, json.dumps(topics)]
        self._folder = Path(tempfile.mkdtemp(prefix="zkgroups-reader-"))
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        """The running process."""
        if self._process is None:
            raise RuntimeError("start the reader first")
        return self._process

    @property
    def messages(self) -> list[Message]:
        """The messages that it has read, in order."""
        lines = self.process.log.read_text(errors="replace").splitlines(keepends=True)
        return [message_of(line[:-1]) for line in lines if line.startswith("read ") and line.endswith("\n")]

    def log_tail(self) -> str:
        """The last lines of its output."""
        return self.process.tail()

    def start(self) -> Self:
        """Start it, and return before it has joined."""
        log = self._folder / "reader.log"
        self._process = ChildProcess(self._command, log=log, scratch=self._folder, directory=ROOT)
        return self

    def kill(self) -> None:
        """Kill the process. Its registration stays until the session expires."""
        self.process.kill()

    def suspend(self) -> None:
        """Suspend the process, as a very long pause would."""
        self.process.suspend()

    def resume(self) -> None:
        """Resume the process."""
        self.process.resume()

    def stop(self) -> None:
        """Ask it to end. It leaves the group and returns."""
        if not self.process.running:
            return
        os.kill(self.process.pid, signal.SIGTERM)
        assert self.process.wait(_LEAVING) == 0, self.log_tail()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<ReaderProcess {self.id}>"


def _show(message: Message) -> None:
    print("read", message.at.topic, message.at.partition, message.offset, message.text, flush=True)


def main(zookeeper: str, broker: str, group: str, id: str, topics: str) -> None:
    """Take part until SIGTERM."""
    reader = Reader(zookeeper, broker, group, id, json.loads(topics), session_timeout=SHORT_SESSION, show=_show).start()
    signal.signal(signal.SIGTERM, lambda *_: reader.ask_to_stop())
    reader.join()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A consumer in its own process, which writes dead letters and kills itself at a step of the life of the first one.

    python -m tests.messages.brokers.dying '{"zookeeper": ..., "kafka": ..., "topic": ..., "dead": ..., ...}'

A message with the value `bad` fails. The session file lets the next process go on at once. It prints `up` when it
has partitions. SIGTERM ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Final

from confluent_kafka import Message

from zkgroups import CommittedOffset, Consumer, Consumergroup, DeadLetter, EventKind, MemberEvent, Registry
from zkgroups.messages import dead_letters, runs

BAD: Final = b"bad"

STEPS: Final = ("last attempt", "before the write", "after the write", "before the commit", "after the commit")
"""Between two of them is every step: the handler fails; the letter is sent; the broker confirms it; the consumer notes
that; the offset is committed."""

_noted: list[int] = []
"""The offsets of the dead letters that have been noted."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def arm(step: str) -> None:
    """Let the process die at a step."""
    if step in ("before the write", "after the write"):
        write = dead_letters.DeadLetterWriter.write

        def dying_write(self: Any, letter: Any, written: Any) -> None:
            if step == "before the write":
                die()
            write(self, letter, lambda error: die() if error is None else written(error))

        dead_letters.DeadLetterWriter.write = dying_write  # type: ignore[method-assign]
    noted = runs.Runs._written

    def note(self: Any, letter: Any, lane: Any, error: Any) -> None:
        with self.lock:  # otherwise another thread may commit in between
            noted(self, letter, lane, error)
            _noted.append(letter.offset)
            if step == "before the commit":
                die()

    runs.Runs._written = note  # type: ignore[method-assign]


def has_committed_a_letter(group: Consumergroup) -> bool:
    """Look into ZooKeeper: when a letter is noted, a commit of an earlier message may be under way."""
    committed = [found.offset for found in group.offsets if isinstance(found, CommittedOffset)]
    return any(offset > noted for offset in committed for noted in [*_noted])


def main(zookeeper: str, kafka: str, topic: str, dead: str, group: str, session: str, step: str) -> None:
    attempts: list[int] = []

    def handle(message: Message) -> None:
        if message.value() == BAD:
            attempts.append(message.offset() or 0)
            if step == "last attempt" and len(attempts) == 2:
                die()
            raise ValueError("a bad order")

    def tell(event: MemberEvent) -> None:
        if event.kind is EventKind.ASSIGNED:
            print("up", flush=True)
        if event.kind is EventKind.COMMITTED and step == "after the commit" and has_committed_a_letter(place):
            die()

    arm(step)
    with Registry.connect(zookeeper, session_file=session) as registry:
        place = registry.group(group)
        consumer = Consumer(place, [topic], kafka=kafka, id="me", auto_commit_every=0.2, on_event=tell)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        with consumer:
            consumer.run(handle, workers=4, order="key", attempts=2, first_delay=0.01, then=DeadLetter(dead))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

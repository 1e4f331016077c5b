"""A consumer in its own process, which kills itself at a step of the life of a dead letter.

    python -m tests.messages.handlers.dying --zookeeper ... --kafka ... --topic orders --dead orders-failed
        --log FILE --session FILE --up FILE [--kill STEP]

A message with the value `bad` fails. Each message that is handled is a line of the log: key, offset and partition. The
session file lets the next process go on at once. `up` is created with the first partitions. SIGTERM ends the process.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
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


def arm(step: str | None) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("zookeeper", "kafka", "topic", "dead", "group"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--session", required=True)
    parser.add_argument("--up", required=True, type=Path)
    parser.add_argument("--kill", choices=STEPS)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    attempts: dict[tuple[Any, Any], int] = {}

    def handle(message: Message) -> None:
        if message.value() == BAD:
            place = (message.partition(), message.offset())
            attempts[place] = attempts.get(place, 0) + 1
            if given.kill == "last attempt" and attempts[place] == 2:
                die()
            raise ValueError("a bad order")
        os.write(log, f"{(message.key() or b'').decode()} {message.offset()} {message.partition()}\n".encode())

    def tell(event: MemberEvent) -> None:
        if event.kind is EventKind.ASSIGNED:
            given.up.touch()
        if event.kind is EventKind.COMMITTED and given.kill == "after the commit" and has_committed_a_letter(group):
            die()

    arm(given.kill)
    with Registry.connect(given.zookeeper, session_file=given.session) as registry:
        group = registry.group(given.group)
        consumer = Consumer(group, [given.topic], kafka=given.kafka, id="me", auto_commit_every=0.2, on_event=tell)
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        with consumer:
            consumer.run(
                handle,
                workers=given.workers,
                order="key",
                window=20,
                attempts=2,
                first_delay=0.01,
                then=DeadLetter(given.dead),
            )


if __name__ == "__main__":
    main()

"""One member in its own process, which works through a simulated log and records its actions.

    python -m tests.consumer.worker --hosts ... --group ... --topics orders,refunds --log FILE --id ID

Each message takes a moment. Offsets are committed every few messages, and at the end of a generation. SIGTERM closes
the member. `history.py` explains the records and their order.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from zkgroups import Generation, Member, Registry, TopicPartition
from zkgroups.exceptions import UnavailableError, ZkgroupsException

from .history import LATE, Event, Kind, clock

WORK: Final = 0.002
"""In seconds: how long a message takes."""
PAUSE: Final = 0.02
"""In seconds: how soon each partition has another message."""
COMMIT_EVERY: Final = 5
"""In rounds, each with a message of each partition."""


class Worker:
    """A member, its work on its generations, and its records: one `write` for each line, which survives a kill."""

    def __init__(self, registry: Registry, chosen: argparse.Namespace) -> None:
        self._registry = registry
        self._file = os.open(chosen.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._credentials = chosen.log.with_suffix(".session")
        self._id, self._run = chosen.id, f"{chosen.id}#{os.getpid()}"
        self._generations = 0
        self.member = Member(
            registry.group(chosen.group),
            chosen.topics.split(","),
            id=chosen.id,
            assignors=chosen.assignors.split(","),
            release_timeout=5.0,
            reconcile_every=chosen.reconcile_every,
            auto_commit_every=chosen.auto_commit_every,
            on_assigned=lambda partitions: self._note_all(Kind.ASSIGNED, partitions),
            on_revoked=lambda partitions: self._note_all(Kind.REVOKED, partitions),
            on_lost=lambda partitions: self._note_all(Kind.LOST, partitions),
        )

    def _note(self, kind: Kind, at: TopicPartition | None = None, **more: Any) -> None:
        """Record an event, with the current time."""
        event = Event(kind, clock(), self._run, self._id, "" if at is None else str(at), **more)
        os.write(self._file, (event.line() + "\n").encode())

    def _note_all(self, kind: Kind, partitions: Iterable[TopicPartition]) -> None:
        for at in sorted(partitions):
            self._note(kind, at, generation=self._generations)

    def run(self) -> None:
        """Take part until SIGTERM."""
        self._note(Kind.UP)
        try:
            with self.member:
                for generation in self.member.generations():
                    self._begin(generation)
                    generation.wait()
            self._note(Kind.DOWN)
        except UnavailableError as error:  # it did leave: the connection may be broken
            self._note(Kind.DOWN, error=f"{type(error).__name__}: {error}")
        except BaseException:
            self._note(Kind.FAILED, error=traceback.format_exc())
            raise

    def _begin(self, generation: Generation) -> None:
        self._generations += 1
        number, session = self._generations, self._registry.session_id
        with suppress(UnavailableError):  # for the process that expires the session; the file is never half written
            part = self._credentials.with_suffix(".part")
            part.write_text(self._registry.credentials().dump())
            part.rename(self._credentials)
        following = {at: start if isinstance(start, int) else 0 for at, start in generation.partitions.items()}
        for at, offset in following.items():
            self._note(Kind.BEGUN, at, offset=offset, session=session, generation=number, number=generation.number)
        generation.start(lambda generation: self._work(generation, number, following))

    def _work(self, generation: Generation, number: int, following: dict[TopicPartition, int]) -> None:
        """Process one message of each partition in turn, while the generation lasts."""
        committed, rounds = dict(following), 0
        try:
            while all(self._process(generation, number, at, following) for at in following):
                rounds += 1
                if rounds % COMMIT_EVERY == 0 and not self._commit(generation, number, following, committed):
                    return
                generation.wait(PAUSE)
            self._commit(generation, number, following, committed)
        except BaseException:
            self._note(Kind.FAILED, error=traceback.format_exc())
            raise

    def _process(
        self, generation: Generation, number: int, at: TopicPartition, following: dict[TopicPartition, int]
    ) -> bool:
        since = clock()
        if not generation.active:
            return False
        sure = clock()
        time.sleep(WORK)
        self._note(Kind.PROCESSED, at, offset=following[at], since=since, sure=sure, generation=number)
        following[at] += 1
        return True

    def _commit(
        self,
        generation: Generation,
        number: int,
        following: dict[TopicPartition, int],
        committed: dict[TopicPartition, int],
    ) -> bool:
        """Whether it makes sense to continue."""
        offsets = {at: offset for at, offset in following.items() if offset != committed[at]}
        error = ""
        try:
            for at, offset in offsets.items():
                generation.mark(at, offset)
            generation.commit()
            committed.update(offsets)
        except ZkgroupsException as raised:
            error = f"{type(raised).__name__}: {raised}"
        for at, offset in offsets.items():
            self._note(Kind.REFUSED if error else Kind.COMMITTED, at, offset=offset, error=error, generation=number)
        return error.partition(":")[0] not in LATE


def main() -> None:
    """Take part in a group."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    for name in ("--hosts", "--group", "--topics", "--id"):
        parser.add_argument(name, required=True)
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--session-timeout", type=float, default=4.0)
    parser.add_argument("--assignors", default="range,roundrobin,sticky")
    parser.add_argument("--reconcile-every", type=float, default=5.0)
    parser.add_argument("--auto-commit-every", type=float)
    chosen = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Registry.connect(chosen.hosts, session_timeout=chosen.session_timeout, timeout=30.0) as registry:
        worker = Worker(registry, chosen)
        signal.signal(signal.SIGTERM, lambda *_: worker.member.stop())
        if not stop.is_set():
            worker.run()


if __name__ == "__main__":
    main()

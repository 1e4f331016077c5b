"""One member in its own process, which works through a simulated log and records its actions.

    python -m tests.consumer.worker --hosts ... --group ... --topics orders,refunds:2 --log FILE

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
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from zkgroups import Generation, Member, Registry, TopicPartition
from zkgroups.exceptions import UnavailableError, ZkgroupsException

from .history import LATE, Event, Kind, clock

WORK: Final = 0.002
"""In seconds: how long a message takes."""
PAUSE: Final = 0.02
"""In seconds: how soon each partition has another message."""

_RUNS = count(1)


class Diary:
    """The records of a process: one `write` for each line, which survives a kill."""

    def __init__(self, file: Path, member: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._member = member
        self.run = f"{member}#{os.getpid()}.{next(_RUNS)}"

    def note(self, kind: Kind, at: TopicPartition | None = None, **more: Any) -> None:
        """Record an event, with the current time."""
        about = "" if at is None else str(at)
        event = Event(kind, clock(), self.run, self._member, about, **more)
        os.write(self._file, (event.line() + "\n").encode())


class Worker:
    """A member, and its work on its generations."""

    def __init__(self, registry: Registry, options: argparse.Namespace) -> None:
        self._registry = registry
        self._credentials = options.log.with_suffix(".session")
        self._diary = Diary(options.log, options.id)
        self._commit_every = options.commit_every
        self._generations = 0
        self.member = Member(
            registry.group(options.group),
            options.topics,
            id=options.id,
            assignors=options.assignors,
            release_timeout=options.release_timeout,
            reconcile_every=options.reconcile_every,
            auto_commit_every=options.auto_commit_every,
            on_assigned=lambda partitions: self._told(Kind.ASSIGNED, partitions),
            on_revoked=lambda partitions: self._told(Kind.REVOKED, partitions),
            on_lost=lambda partitions: self._told(Kind.LOST, partitions),
        )

    def run(self) -> None:
        """Take part until SIGTERM."""
        self._diary.note(Kind.UP)
        try:
            with self.member:
                for generation in self.member.generations():
                    self._begin(generation)
                    generation.wait()
            self._diary.note(Kind.DOWN)
        except UnavailableError as error:  # it did leave: the connection may be broken
            self._diary.note(Kind.DOWN, error=f"{type(error).__name__}: {error}")
        except BaseException:
            self._diary.note(Kind.FAILED, error=traceback.format_exc())
            raise

    def _told(self, kind: Kind, partitions: Iterable[TopicPartition]) -> None:
        for at in sorted(partitions):
            self._diary.note(kind, at, generation=self._generations)

    def _begin(self, generation: Generation) -> None:
        self._generations += 1
        self._keep_credentials()
        more: dict[str, Any] = {"generation": self._generations, "number": generation.number}
        for at, start in generation.partitions.items():
            offset = start if isinstance(start, int) else 0
            self._diary.note(Kind.BEGUN, at, offset=offset, session=self._registry.session_id, **more)
        generation.start(_Round(self._diary, self._generations, self._commit_every).work)

    def _keep_credentials(self) -> None:
        """For the process that expires the session. The file is never half written."""
        try:
            text = self._registry.credentials().dump()
        except UnavailableError:
            return
        part = self._credentials.with_suffix(".part")
        part.write_text(text)
        part.rename(self._credentials)


class _Round:
    """The work of one generation."""

    def __init__(self, diary: Diary, generation: int, commit_every: int) -> None:
        self._diary = diary
        self._ordinal = generation
        self._commit_every = commit_every

    def work(self, generation: Generation) -> None:
        """Process one message of each partition in turn, while the generation lasts."""
        try:
            self._work(generation)
        except BaseException:
            self._diary.note(Kind.FAILED, error=traceback.format_exc())
            raise

    def _work(self, generation: Generation) -> None:
        following = {at: start if isinstance(start, int) else 0 for at, start in generation.partitions.items()}
        committed = dict(following)
        rounds = 0
        while all(self._process(generation, at, following) for at in following):
            rounds += 1
            if rounds % self._commit_every == 0 and not self._commit(generation, following, committed):
                return
            generation.wait(PAUSE)
        self._commit(generation, following, committed)

    def _process(self, generation: Generation, at: TopicPartition, following: dict[TopicPartition, int]) -> bool:
        since = clock()
        if not generation.active:
            return False
        sure = clock()
        time.sleep(WORK)
        offset = following[at]
        self._diary.note(Kind.PROCESSED, at, offset=offset, since=since, sure=sure, generation=self._ordinal)
        following[at] = offset + 1
        return True

    def _commit(
        self, generation: Generation, following: dict[TopicPartition, int], committed: dict[TopicPartition, int]
    ) -> bool:
        """Whether it makes sense to continue."""
        offsets = {at: offset for at, offset in following.items() if offset != committed[at]}
        try:
            for at, offset in offsets.items():
                generation.mark(at, offset)
            generation.commit()
        except ZkgroupsException as error:
            self._note_all(Kind.REFUSED, offsets, error=f"{type(error).__name__}: {error}")
            return type(error).__name__ not in LATE
        self._note_all(Kind.COMMITTED, offsets)
        committed.update(offsets)
        return True

    def _note_all(self, kind: Kind, offsets: dict[TopicPartition, int], error: str = "") -> None:
        for at, offset in offsets.items():
            self._diary.note(kind, at, offset=offset, error=error, generation=self._ordinal)


def _topics(text: str) -> dict[str, int]:
    named = (entry.partition(":") for entry in text.split(","))
    return {topic: int(streams or 1) for topic, _, streams in named}


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topics", required=True, type=_topics, help="names, each with :streams where not 1")
    parser.add_argument("--log", required=True, type=Path)
    parser.add_argument("--id", required=True)
    parser.add_argument("--session-timeout", type=float, default=4.0)
    parser.add_argument("--assignors", type=lambda text: text.split(","), default=["range", "roundrobin", "sticky"])
    parser.add_argument("--reconcile-every", type=float, default=5.0)
    parser.add_argument("--release-timeout", type=float, default=5.0)
    parser.add_argument("--commit-every", type=int, default=5, help="rounds")
    parser.add_argument("--auto-commit-every", type=float)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Take part in a group."""
    warnings.simplefilter("ignore")
    chosen = options(arguments)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Registry.connect(chosen.hosts, session_timeout=chosen.session_timeout, timeout=30.0) as registry:
        worker = Worker(registry, chosen)
        signal.signal(signal.SIGTERM, lambda *_: worker.member.stop())
        if not stop.is_set():
            worker.run()


if __name__ == "__main__":
    main()

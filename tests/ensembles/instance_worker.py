"""An instance in its own process, which claims one free partition after the other, and works on each for a moment.

    python -m tests.ensembles.instance_worker --hosts ... --group ... --topics orders:2 --log FILE --id ID

The records are those of `tests/consumer/worker.py`. Each claim counts as a generation. SIGTERM ends the process.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from itertools import cycle
from typing import Final

from tests.consumer.history import Kind, clock
from tests.consumer.worker import WORK, Diary, options
from zkgroups import Claim, Registry, TopicPartition
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimTimeout,
    NotClaimedError,
    NotRegisteredError,
    UnavailableError,
    ZkgroupsException,
)

LASTS: Final = 1.0
"""In seconds: how long a claim lasts at least, if it is not lost."""
PAUSE: Final = 0.02
COMMIT_EVERY: Final = 0.1
WAIT: Final = 0.5
"""In seconds: how long an instance waits for a partition."""
PARTITIONS: Final = 4
EXPECTED: Final = (
    AlreadyRegisteredError,
    ClaimTimeout,
    NotClaimedError,
    NotRegisteredError,
    UnavailableError,
)
"""Errors of instances whose session may have ended, or whose server does not answer."""


class InstanceWorker:
    """An instance and its records."""

    def __init__(self, registry: Registry, chosen: argparse.Namespace) -> None:
        self._diary = Diary(chosen.log, chosen.id)
        self._topics = list(chosen.topics)
        self._commit_every = chosen.auto_commit_every or COMMIT_EVERY
        self._lasts = max(LASTS, self._commit_every)
        self._me = registry.group(chosen.group).instance(chosen.id)
        partitions = [TopicPartition(topic, number) for topic in chosen.topics for number in range(PARTITIONS)]
        self._next = cycle(random.Random(chosen.id).sample(partitions, len(partitions)))
        self._turns = self._following = 0
        self._done = threading.Event()
        self._is_committing = False
        self.stop = threading.Event()

    def run(self) -> None:
        """Claim and work until SIGTERM."""
        self._diary.note(Kind.UP)
        try:
            while not self.stop.is_set():
                self._turn()
            self._me.deregister()
            self._diary.note(Kind.DOWN)
        except UnavailableError as error:
            self._diary.note(Kind.DOWN, error=f"{type(error).__name__}: {error}")
        except BaseException:
            self._diary.note(Kind.FAILED, error=traceback.format_exc())
            raise

    def _turn(self) -> None:
        try:
            if not self._me.registered:
                self._me.register(self._topics, timeout=WAIT)
            self._work(self._claimed(next(self._next)))
        except EXPECTED as error:
            print(type(error).__name__, error, file=sys.stderr)
            self.stop.wait(0.05)

    def _claimed(self, at: TopicPartition) -> Claim:
        """A claim that could not be released, or that was not held for a moment, is released first."""
        try:
            return self._me.claim(at, timeout=WAIT)
        except AlreadyClaimedError:
            self._me.release_all()
            return self._me.claim(at, timeout=WAIT)

    def _work(self, claim: Claim) -> None:
        """Process messages, also while a commit waits for its answer: only `held` says when to stop."""
        found = claim.fetch()
        start = self._following = 0 if found is None else found.offset
        self._turns += 1
        self._diary.note(Kind.BEGUN, claim.at, offset=start, session=claim.session_id, generation=self._turns)
        self._done.clear()
        committer = threading.Thread(target=self._commit_often, args=(claim, start))
        committer.start()
        end = clock() + self._lasts
        while self._process(claim) and ((clock() < end and not self.stop.is_set()) or self._is_committing):
            time.sleep(PAUSE)
        self._done.set()
        committer.join()
        if claim.held:
            self._commit(claim, self._following)
        if claim.held:
            self._diary.note(Kind.REVOKED, claim.at, generation=self._turns)
            claim.release()
        else:
            self._diary.note(Kind.LOST, claim.at, generation=self._turns)

    def _commit_often(self, claim: Claim, committed: int) -> None:
        while not self._done.wait(self._commit_every):
            if (offset := self._following) > committed:
                self._is_committing = True
                self._commit(claim, offset)
                committed, self._is_committing = offset, False

    def _process(self, claim: Claim) -> bool:
        since = clock()
        if not claim.held:
            return False
        sure = clock()
        time.sleep(WORK)
        about = {"offset": self._following, "generation": self._turns}
        self._diary.note(Kind.PROCESSED, claim.at, since=since, sure=sure, **about)
        self._following += 1
        return True

    def _commit(self, claim: Claim, offset: int) -> None:
        about = {"offset": offset, "generation": self._turns}
        self._diary.note(Kind.COMMITTING, claim.at, **about)
        try:
            claim.commit(offset)
        except ZkgroupsException as error:
            self._diary.note(Kind.REFUSED, claim.at, error=f"{type(error).__name__}: {error}", **about)
            return
        self._diary.note(Kind.COMMITTED, claim.at, **about)


def main(arguments: Sequence[str] | None = None) -> None:
    """Take part in a group."""
    warnings.simplefilter("ignore")
    chosen = options(arguments)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Registry.connect(chosen.hosts, session_timeout=chosen.session_timeout, timeout=30.0) as registry:
        worker = InstanceWorker(registry, chosen)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
        if not stop.is_set():
            worker.run()


if __name__ == "__main__":
    main()

"""Processes that handle messages, and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Message

from ...docs.guides import ROOT
from ...seeds import seeds
from .dying import BAD, STEPS
from .running import LONG, wait_until
from .topics import Topic


class Process:
    """`dying.py` in its own process."""

    def __init__(self, topic: Topic, folder: Path, *arguments: str) -> None:
        self.log = folder / "handled"
        command = [sys.executable, "-m", "tests.messages.handlers.dying"]
        command += ["--zookeeper", topic.broker.zookeeper, "--kafka", topic.broker.address, "--topic", topic.name]
        command += ["--dead", topic.dead, "--group", topic.group.name, "--log", str(self.log)]
        command += ["--session", str(folder / "session"), *arguments]
        self._up = folder / "up"
        self._up.unlink(missing_ok=True)
        command += ["--up", str(self._up)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def is_up(self) -> bool:
        """True if the process has partitions, and has not ended."""
        assert self.process.poll() is None
        return self._up.exists()

    def handled(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def has_handled_more(process: Process, count: int, topic: Topic) -> bool:
    return len(process.handled()) > count or topic.is_finished()


def origins(letters: list[Message]) -> Counter[tuple[int, int]]:
    """How many letters each message has."""
    found: Counter[tuple[int, int]] = Counter()
    for letter in letters:
        headers = dict(letter.headers() or ())
        found[int(headers["zkgroups.partition"]), int(headers["zkgroups.offset"])] += 1
    return found


def finish(topic: Topic, folder: Path) -> None:
    """Handle the rest in another process, and end it with SIGTERM."""
    with Process(topic, folder) as last:
        wait_until(lambda: last.is_up and topic.is_finished())
        last.process.send_signal(signal.SIGTERM)
        assert last.process.wait(LONG) == 0
    assert topic.is_finished()


@pytest.mark.parametrize("step", STEPS)
def test_no_dead_letter_is_lost_when_the_process_is_killed(
    make_topic: Callable[[int], Topic], step: str, tmp_path: Path
) -> None:
    """The killed process had one letter at most. Another process writes it again unless it was committed."""
    topic = make_topic(1)
    for value in (b"good", BAD, b"good"):
        topic.send(value, key=b"anna")
    topic.flush()
    with Process(topic, tmp_path, "--kill", step) as killed:
        assert killed.process.wait(LONG) == -signal.SIGKILL
    finish(topic, tmp_path)

    twice = step in ("after the write", "before the commit")
    assert origins(topic.letters()) == {(0, 1): 2 if twice else 1}


def test_processes_that_are_killed_at_any_time_lose_nothing_and_repeat_nothing_below_the_committed_offsets(
    make_topic: Callable[[int], Topic], tmp_path: Path
) -> None:
    topic, random, kills = make_topic(2), Random(seeds(1)[0]), 4
    sent: dict[tuple[int, int], bool] = {}  # whether it is bad
    for number in range(1000):
        partition, bad = number % 2, random.random() < 0.1
        topic.send(BAD if bad else b"good", key=b"%d" % random.randrange(20), partition=partition)
        sent[partition, number // 2] = bad
    topic.flush()
    most = dict.fromkeys(sent, 1)  # how often each may be handled, or written as a dead letter
    for number in range(kills):
        with Process(topic, tmp_path) as killed:
            wait_until(partial(has_handled_more, killed, len(killed.handled()), topic))
            time.sleep(random.random() * 0.1 * number)
        committed = topic.committed()
        for partition, offset in sent:
            most[partition, offset] += offset >= committed.get(partition, 0)
    finish(topic, tmp_path)

    lines = [line.split() for line in (tmp_path / "handled").read_text().splitlines()]
    handled = Counter((int(partition), int(offset)) for _key, offset, partition in lines)
    letters = origins(topic.letters())
    assert set(letters) == {place for place, bad in sent.items() if bad}
    assert set(handled) == {place for place, bad in sent.items() if not bad}
    assert all(count <= most[place] for place, count in (handled + letters).items())
    for lane in {(key, partition) for key, _offset, partition in lines}:
        first_times = list(dict.fromkeys(int(offset) for key, offset, at in lines if (key, at) == lane))
        assert first_times == sorted(first_times)

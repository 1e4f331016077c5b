"""Messages are handled in order, by threads and by tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Hashable
from random import Random
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.core.delivery import Order
from zkgroups.testing import HandlerHarness

from .running import AT, FAILED


class Recorder:
    """A handler that fails now and then, and notes which messages of a lane were handled at the same time."""

    def __init__(self, order: Order, seed: int) -> None:
        self._order = order
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._now: Counter[Hashable] = Counter()
        self.together: Counter[Hashable] = Counter()
        self.handled: defaultdict[Hashable, list[int]] = defaultdict(list)

    def lane(self, message: Message) -> Hashable:
        at = TopicPartition(message.topic() or "", message.partition() or 0)
        return self._order.lane(at, message.offset() or 0, message.key())

    def begin(self, message: Message) -> int:
        with self._lock:
            lane = self.lane(message)
            self._now[lane] += 1
            self.together[lane] = max(self.together[lane], self._now[lane])
            return self._random.randrange(4)

    def end(self, message: Message) -> None:
        with self._lock:
            self._now[self.lane(message)] -= 1
            if self._random.random() < 0.2:
                raise ValueError("try again")
            self.handled[self.lane(message)].append(message.offset() or 0)

    def with_thread(self, message: Message) -> None:
        for _ in range(self.begin(message)):
            time.sleep(0)
        self.end(message)

    async def with_task(self, message: Message) -> None:
        for _ in range(self.begin(message)):
            await asyncio.sleep(0)
        self.end(message)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(Order), st.booleans(), st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**32))
def test_messages_of_a_lane_are_handled_one_after_the_other_in_the_order_of_the_log(
    order: Order, with_tasks: bool, workers: int, window: int, seed: int
) -> None:
    random = Random(seed)
    recorder = Recorder(order, seed)
    handler: Any = recorder.with_task if with_tasks else recorder.with_thread
    harness = HandlerHarness(handler, order=order, workers=workers, window=window, attempts=2, then=FAILED)
    sent = [
        harness.send("orders", b"", partition=random.randrange(2), key=random.choice((None, b"anna", b"ben", b"cleo")))
        for _ in range(100)
    ]
    outcome = harness.run()

    assert outcome.error is None
    assert set(recorder.together.values()) == {1}
    assert all(offsets == sorted(set(offsets)) for offsets in recorder.handled.values())
    dead = [letter.message for letter in outcome.dead_letters]
    assert Counter(map(id, sent)) == Counter(map(id, outcome.handled)) + Counter(map(id, dead))
    counts = Counter(message.partition() for message in sent)
    assert outcome.committed == {TopicPartition("orders", partition): counts[partition] for partition in counts}


@pytest.mark.parametrize("with_tasks", [False, True])
def test_workers_handle_other_keys_at_the_same_time(with_tasks: bool) -> None:
    """Each handler waits until both are under way."""
    both = threading.Barrier(2, timeout=60)

    async def with_task(_message: Message) -> None:
        await asyncio.to_thread(both.wait)

    def with_thread(_message: Message) -> None:
        both.wait()

    handler: Any = with_task if with_tasks else with_thread
    harness = HandlerHarness(handler, order="key", workers=2, attempts=1)
    harness.send("orders", b"", key=b"anna")
    harness.send("orders", b"", key=b"ben")

    assert harness.run().committed == {AT: 2}


def test_a_restart_begins_at_the_committed_offset() -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.offset() or 0)
        if seen == [0, 1]:
            raise ValueError("not the first time")

    harness = HandlerHarness(handle, attempts=1)
    for _ in range(3):
        harness.send("orders", b"")

    assert harness.run().committed == {AT: 1}
    assert harness.run().committed == {AT: 3}
    assert seen == [0, 1, 1, 2]

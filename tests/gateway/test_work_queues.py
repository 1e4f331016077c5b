"""Work of one group is carried out in order, that of different groups at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.simulation.machine import Machine
from tests.waiting import LONGEST
from zkgroups.gateway.zookeeper_storage.elections import WorkQueues


@pytest.fixture(autouse=True, params=range(3))
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Threads that may be preempted whenever they take a lock."""
    with Machine(request.param, preemption=0.3).installed("zkgroups") as machine:
        yield machine


def test_tasks_of_one_key_keep_their_order() -> None:
    queues = WorkQueues("test", 4)
    done: list[tuple[str, int]] = []
    for number in range(200):
        for key in "ab":
            assert queues.put(key, lambda key=key, number=number: done.append((key, number)))  # type: ignore[misc]
    queues.close(LONGEST)
    for key in "ab":
        assert [number for each, number in done if each == key] == list(range(200))


def test_a_task_that_waits_does_not_delay_other_keys() -> None:
    queues, enough, done = WorkQueues("test", 2), threading.Event(), threading.Event()
    queues.put("slow", lambda: enough.wait(LONGEST))
    queues.put("quick", done.set)
    assert done.wait(LONGEST)
    enough.set()
    queues.close(LONGEST)


def test_a_task_that_fails_does_not_end_its_queue(caplog: pytest.LogCaptureFixture) -> None:
    queues, done = WorkQueues("test", 1), threading.Event()
    queues.put("a", lambda: 1 / 0)
    queues.put("a", done.set)
    assert done.wait(LONGEST)
    queues.close(LONGEST)
    assert "unexpected error in the storage of the gateway" in caplog.text


def test_closed_queues_finish_their_tasks_and_take_no_others() -> None:
    queues, started, enough, done = WorkQueues("test", 1), threading.Event(), threading.Event(), threading.Event()
    queues.put("a", started.set)
    queues.put("a", lambda: enough.wait(LONGEST))
    queues.put("a", done.set)
    assert started.wait(LONGEST)
    closing = threading.Thread(target=lambda: queues.close(LONGEST))
    closing.start()
    while queues.put("b", lambda: None):
        time.sleep(0.1)
    enough.set()
    closing.join(LONGEST)
    assert done.is_set()
    assert not queues.put("a", lambda: None)


def test_closing_waits_for_all_threads_together_no_longer_than_its_timeout() -> None:
    """While ZooKeeper does not answer, each group of a gateway that ends waits for it."""
    queues, enough, timeout = WorkQueues("test", 40), threading.Event(), 10.0
    for key in range(40):
        queues.put(key, lambda: enough.wait(LONGEST))
    began = time.monotonic()
    queues.close(timeout)
    assert time.monotonic() - began < 2 * timeout
    enough.set()

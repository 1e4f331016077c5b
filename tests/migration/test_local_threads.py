"""One function in several threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import count
from threading import Barrier

import pytest

from zkgroups.migration.engines.local_threads import map_in_threads

TOGETHER = 30.0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_item_is_processed_once(threads: int) -> None:
    assert sorted(map_in_threads(lambda items: (-item for item in items), range(1000), threads)) == [*range(-999, 1)]


def test_threads_work_at_the_same_time() -> None:
    met = Barrier(3)

    def work(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            met.wait(TOGETHER)
            yield item

    assert sorted(map_in_threads(work, range(9), 3)) == [*range(9)]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_ends_the_work_after_the_items_that_have_begun(threads: int) -> None:
    begun: list[int] = []
    finished: list[int] = []

    def work(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            begun.append(item)
            if item == 5:
                raise ValueError(item)
            finished.append(item)
            yield item

    with pytest.raises(ValueError, match="5"):
        deque(map_in_threads(work, count(), threads), maxlen=0)
    assert {*begun} - {*finished} == {5}


def test_an_error_in_the_items_ends_all_threads() -> None:
    def items() -> Iterator[int]:
        yield from range(10)
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        list(map_in_threads(lambda those: those, items(), 3))


def test_a_consumer_that_stops_ends_the_work() -> None:
    processed = []

    def work(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            processed.append(item)
            yield item

    results = map_in_threads(work, count(), 3)
    assert next(results) in range(3)
    results.close()
    assert processed


def test_an_error_of_the_consumer_ends_the_work_at_once() -> None:
    """As when a report cannot be written, or after Ctrl-C: no group is begun afterwards."""

    def consume() -> None:
        for _result in (each for each in map_in_threads(lambda items: items, count(), 3)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zkgroups-migration")]

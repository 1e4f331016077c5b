"""Call one function in several threads, because one can compute while others wait for servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(function: Callable[[Iterator[T]], Iterator[R]], items: Iterable[T], threads: int) -> Iterator[R]:
    """Call the function once per thread, and yield all results. Each call gets some of the items.

    After an error or an interrupt, each thread finishes the items that it has.
    """
    if threads == 1:
        yield from function(iter(items))
        return
    shared = _SharedIterator(items)
    results: SimpleQueue[R | None] = SimpleQueue()

    def work() -> None:
        try:
            for result in function(shared):
                results.put(result)
        except BaseException:
            shared.end()
            raise
        finally:
            results.put(None)

    with ThreadPoolExecutor(threads, "zkgroups-migration") as pool:
        working = [pool.submit(work) for _ in range(threads)]
        try:
            for _ in working:
                yield from iter(results.get, None)
        finally:
            shared.end()
    for each in working:
        each.result()


class _SharedIterator(Generic[T]):
    """An iterator that several threads can use."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._lock = Lock()

    def end(self) -> None:
        """Yield no more items."""
        with self._lock:
            self._items = iter(())

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            return next(self._items)

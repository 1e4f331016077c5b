"""Run tasks on a few threads: tasks of one key in order, tasks of different keys at the same time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue

from ...deadline import Deadline

log = logging.getLogger("zkgroups.gateway")

Task = Callable[[], object]


class WorkQueues:
    """One queue for each key that has tasks, and threads that carry them out. A task should handle its own errors."""

    def __init__(self, name: str, threads: int) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[Task]] = {}
        self._ready: SimpleQueue[Hashable] = SimpleQueue()
        """The keys whose first task can be carried out. None ends a thread."""
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"zkgroups-gateway-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, key: Hashable, task: Task) -> bool:
        """Add a task to the queue of a key. The key must not be None. Return False if the queues are closed."""
        with self._lock:
            if self._closed:
                return False
            if (queue := self._queues.get(key)) is not None:
                queue.append(task)
                return True
            self._queues[key] = deque([task])
        self._ready.put(key)
        return True

    def close(self, timeout: float) -> None:
        """Finish the tasks that were added before, and end the threads. Wait no longer than the timeout."""
        with self._lock:
            self._closed = True
            idle = not self._queues
        if idle:
            self._end()
        deadline = Deadline(timeout)
        for thread in self._threads:
            thread.join(deadline.remaining)

    def _end(self) -> None:
        for _ in self._threads:
            self._ready.put(None)

    def _run(self) -> None:
        while (key := self._ready.get()) is not None:
            with self._lock:
                task = self._queues[key].popleft()
            try:
                task()
            except Exception:
                log.exception("unexpected error in the storage of the gateway")
            self._next(key)

    def _next(self, key: Hashable) -> None:
        """Let any thread carry out the next task of this key."""
        with self._lock:
            more = bool(self._queues[key])
            if not more:
                del self._queues[key]
            finished = self._closed and not self._queues
        if more:
            self._ready.put(key)
        elif finished:
            self._end()

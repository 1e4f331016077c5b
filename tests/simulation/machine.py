"""A machine with simulated threads and a simulated clock. A seed decides which thread goes on.

Code under test uses `threading`, `queue` and `time` as always. `Machine.installed` replaces what these names mean:

- Only one thread runs at a time. It goes on until it waits for something, or, at random, until it takes a lock.
- Nothing takes time but waiting. If all threads wait, the clock moves to the next moment at which one is to wake up.
- Conditions, events, semaphores and queues are Python's own. They are made of locks, and the locks are simulated.

The threads are threads of the system, each with a lock that lets it run, so that frames, thread identities and local
values are real.

A process is a name that threads inherit from the thread that starts them. Threads of a stalled process do not run.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any, Self

import pytest

STARTED_AT = 1_800_000_000.0
"""The wall clock when a machine starts, in seconds."""


class DeadlockError(AssertionError):
    """All threads wait, and nothing will wake any of them."""


class _Killed(BaseException):
    """Ends a thread at the end of the simulation."""


class _Task:
    """One simulated thread."""

    def __init__(self, name: str, process: str) -> None:
        self.name, self.process = name, process
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.waits = 0  # counts the waits, so that a late timer does not end a later one
        self.thread: Any = None
        self.ident = 0


class Machine:
    """Simulated threads and a clock. The thread that makes the machine is the first of them."""

    def __init__(self, seed: int = 0, *, preemption: float = 0.0) -> None:
        self.random = Random(seed)
        self.preemption = preemption
        """How often a thread that takes a lock lets others run first, from 0 to 1."""
        self.now = 1000.0
        """Seconds since the machine was started, as `time.monotonic` returns them."""
        self.wall = STARTED_AT - self.now
        """What the wall clock is ahead of `now`. A test may change it."""
        self.slept = 0.0
        """How long the machine has slept, as only `CLOCK_BOOTTIME` knows. A test may change it."""
        self.switches = 0
        self._current = _Task("main", "test")
        self._current.ident = _thread.get_ident()
        self._current.thread = threading.current_thread()
        self._tasks = {self._current.ident: self._current}
        self._main = self._current
        self._ready: list[_Task] = []
        self._stalled: dict[str, list[_Task]] = {}
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.has_ended = False
        self._failure: BaseException | None = None

    # The clock

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call a function at a moment, on any thread. It must not wait."""
        heapq.heappush(self._timers, (when, next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function after some seconds, on any thread. It must not wait."""
        self.at(self.now + seconds, call)

    def sleep(self, seconds: float) -> None:
        """Let the others run for `seconds`."""
        self.wait([], self.now + max(seconds, 0.0))

    def until(self, condition: Callable[[], object], seconds: float = 60.0, step: float = 0.01) -> None:
        """Let the others run until a condition holds. Fail if it does not within `seconds`."""
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"not within {seconds:g} simulated seconds"
            self.sleep(step)

    # Threads

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is one of this machine."""
        return _thread.get_ident() in self._tasks

    @contextlib.contextmanager
    def process(self, name: str) -> Iterator[None]:
        """Count the calling thread, and threads that it starts, as parts of this process."""
        task, before = self._current, self._current.process
        task.process = name
        try:
            yield
        finally:
            task.process = before

    @property
    def current_process(self) -> str:
        """The process of the thread that runs."""
        return self._current.process

    def stall(self, process: str) -> None:
        """Suspend all other threads of a process until `resume`."""
        self._stalled.setdefault(process, [])

    @property
    def stalled(self) -> list[str]:
        """The stalled processes."""
        return list(self._stalled)

    def resume(self, process: str) -> None:
        """Let the threads of a stalled process run again."""
        self._ready += self._stalled.pop(process, [])

    def wait(self, waiting: list[Any], until: float | None) -> bool:
        """Let others run until `wake` takes the calling thread from `waiting`. Return False if the time has passed."""
        task = self._current
        task.waits += 1
        number, woken = task.waits, True
        waiting.append(task)

        def time_out() -> None:
            nonlocal woken
            if task.waits == number and task in waiting:
                woken = False
                waiting.remove(task)
                self._ready.append(task)

        if until is not None:
            self.at(until, time_out)
        try:
            self._switch(task)
        finally:
            task.waits += 1
        return woken

    def wake(self, waiting: list[Any]) -> None:
        """Let one of the waiting threads run."""
        if waiting:
            self._ready.append(waiting.pop(self.random.randrange(len(waiting))))

    def may_switch(self) -> None:
        """Let another thread run first, at random."""
        if self._ready and not self.has_ended and self.random.random() < self.preemption:
            self._ready.append(self._current)
            self._switch(self._current)

    def start(self, name: str, run: Callable[[], object], thread: Any) -> int:
        """Start a thread. It runs when its turn comes. Return its identity."""
        task = _Task(name, self._current.process)
        task.thread = thread
        started = _thread.allocate_lock()
        started.acquire()

        trace = threading.gettrace()

        def body() -> None:
            sys.settrace(trace)  # as for Python's own threads: `make mutate` must know which lines a test runs
            task.ident = _thread.get_ident()
            self._tasks[task.ident] = task
            started.release()
            try:
                task.turn.acquire()
                if not self.has_ended:
                    run()
            except _Killed:
                pass
            except BaseException as error:
                if not self.has_ended:  # at the end, locks are no longer what they were
                    traceback.print_exc()
                    self._failure = self._failure or error
            finally:
                del self._tasks[task.ident]
                self._switch(None)

        _thread.start_new_thread(body, ())
        started.acquire()
        self._ready.append(task)
        return task.ident

    @property
    def current_thread(self) -> Any:
        """The object of the thread that runs."""
        return self._current.thread

    def _switch(self, task: _Task | None) -> None:
        """Run another thread. `task` is the one that waits from now on; None if it has ended."""
        if self.has_ended and task is not None and task is not self._main:
            raise _Killed
        following = self._next()
        if following is task:
            return
        self.switches += 1
        self._current = following
        following.turn.release()
        if task is None:
            return
        task.turn.acquire()
        if self.has_ended and task is not self._main:
            raise _Killed
        if self._failure is not None and task is self._main:
            failure, self._failure = self._failure, None
            raise failure

    def _next(self) -> _Task:
        while not self.has_ended:
            while self._ready:
                task = self._ready.pop(self.random.randrange(len(self._ready)) if len(self._ready) > 1 else 0)
                if task.process not in self._stalled or task is self._main:
                    return task
                self._stalled[task.process].append(task)
            if not self._timers:
                self._failure = self._failure or DeadlockError(self._stacks())
                return self._main
            when, _, call = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            call()
        return self._main

    def _stacks(self) -> str:
        frames = sys._current_frames()
        parts = ["all threads wait for each other"]
        for ident, task in list(self._tasks.items()):
            parts.append(f"\n{task.name}:\n" + "".join(traceback.format_stack(frames[ident])[-6:]))
        return "".join(parts)

    def end(self) -> None:
        """End all threads."""
        self.has_ended = True
        for task in [each for each in self._tasks.values() if each is not self._main]:
            self._current = task
            task.turn.release()
            self._main.turn.acquire()
        self._current = self._main

    # Python's modules

    @contextlib.contextmanager
    def installed(self, *packages: str) -> Iterator[Self]:
        """Let `threading`, `queue` and `time` use this machine, and the names that modules of `packages` import."""
        with pytest.MonkeyPatch.context() as patch:
            self._install(patch, packages)
            try:
                yield self
            finally:
                self.end()

    def _install(self, patch: pytest.MonkeyPatch, packages: tuple[str, ...]) -> None:
        replaced: list[tuple[Any, Any]] = []

        def replace(module: ModuleType, name: str, new: Any) -> None:
            if (old := getattr(module, name, None)) is not None:
                replaced.append((old, new))
                patch.setattr(module, name, new)

        def clock(name: str, simulated: Callable[..., Any]) -> None:
            real = getattr(time, name)
            replace(time, name, lambda *arguments: (simulated if self.is_mine else real)(*arguments))

        clock("monotonic", lambda: self.now)
        clock("perf_counter", lambda: self.now)
        clock("clock_gettime", lambda which: self.now + self.slept * (which == getattr(time, "CLOCK_BOOTTIME", None)))
        clock("time", lambda: self.now + self.wall)
        clock("time_ns", lambda: int((self.now + self.wall) * 1e9))
        clock("monotonic_ns", lambda: int(self.now * 1e9))
        clock("sleep", self.sleep)
        real_lock, real_current = threading.Lock, threading.current_thread
        machine = self

        def lock() -> Any:
            return Lock(machine) if machine.is_mine else real_lock()

        real_rlock = threading.RLock
        python_rlock = threading._PyRLock  # type: ignore[attr-defined]
        replace(threading, "Lock", lock)
        patch.setattr(threading, "_allocate_lock", lock)
        replace(threading, "RLock", lambda: python_rlock() if machine.is_mine else real_rlock())
        replace(threading, "Thread", type("Thread", (Thread,), {"machine": machine}))
        replace(threading, "current_thread", lambda: machine.current_thread if machine.is_mine else real_current())
        replace(queue, "SimpleQueue", queue._PySimpleQueue)  # type: ignore[attr-defined]
        patch.setattr(queue, "time", time.monotonic)
        patch.setattr(threading, "_time", time.monotonic)
        for module in [each for name, each in sys.modules.items() if name.partition(".")[0] in packages]:
            for name, value in list(vars(module).items()):
                for old, new in replaced:
                    if value is old:
                        patch.setattr(module, name, new)
                if isinstance(value, _REAL_LOCKS):
                    patch.setattr(module, name, python_rlock() if isinstance(value, _REAL_LOCKS[1]) else Lock(machine))


_REAL_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class Lock:
    """A lock of simulated threads. Everything else that waits in Python is made of such locks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_held = False
        self._waiting: list[Any] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Return False if it was not free in time."""
        machine = self._machine
        machine.may_switch()
        if not self._is_held:
            self._is_held = True
            return True
        if not blocking:
            return False
        until = machine.now + timeout if timeout >= 0 else None
        while self._is_held:
            if not machine.wait(self._waiting, until):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        """Let the next thread take it."""
        if not self._is_held and not self._machine.has_ended:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        self._machine.wake(self._waiting)

    def locked(self) -> bool:
        """Whether a thread has it."""
        return self._is_held

    def _at_fork_reinit(self) -> None:
        self._is_held = False
        self._waiting.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


class Thread:
    """Stands for `threading.Thread`."""

    machine: Machine
    _numbers = itertools.count(1)

    def __init__(
        self,
        group: None = None,  # noqa: ARG002 -- as in Python's class
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or f"Thread-{next(self._numbers)}"
        self.daemon = bool(daemon)
        self.ident: int | None = None
        self._call = target, args, kwargs or {}
        self._end: threading.Event = threading.Event()

    def start(self) -> None:
        """Start it."""
        self.ident = self.machine.start(self.name, self._run, self)

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self._end.set()

    def run(self) -> None:
        """Call the target."""
        target, arguments, options = self._call
        if target is not None:
            target(*arguments, **options)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._end.wait(timeout)

    def is_alive(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.ident is not None and not self._end.is_set()

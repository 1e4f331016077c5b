"""The handlers of `Consumer.run`: the threads or tasks that call them, and the loop that gives them messages."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline, uptime
from ..exceptions import InvalidOptionError, MemberClosedError
from .dead_letters import DeadLetterWriter
from .fetcher import Pause
from .reading import Reading
from .runs import DeadLetter, Fatal, Handler, HandlerOptions, LetterWriter, Run, Runs, is_coroutine_function

if TYPE_CHECKING:
    from confluent_kafka import Message


# Threads that call a handler which is a function.


class ThreadWorkers:
    """A number of daemon threads. A handler that never returns keeps its thread, and nothing else."""

    def __init__(self, handler: Callable[[Message], object], count: int, runs: Runs, name: str) -> None:
        self._handler = handler
        self._runs = runs
        self._ready = threading.Condition(runs.lock)
        self._idle = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"zkgroups-handler-{name}-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Let idle threads look for messages. The caller holds the lock."""
        if self._idle:
            self._ready.notify(self._idle if self._runs.closed else min(self._idle, self._runs.ready))

    def look_at_clock(self) -> None:
        """Let an idle thread compare the time with that of the next attempt. The caller holds the lock."""
        self._ready.notify()

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: a thread cannot be interrupted."""

    def join(self, timeout: float) -> None:
        """Wait for the threads. Those whose handlers do not return go on."""
        deadline = Deadline(timeout)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(deadline.remaining)

    def _work(self) -> None:
        run = self._first()
        while run is not None:
            run = self._next(run, self._handle(run))

    def _handle(self, run: Run) -> BaseException | None:
        handler, run.begun = self._handler, True
        try:
            for _offset, message in run.messages:  # `for message in run` does the same, and takes longer
                if run.cancelled:
                    break
                if (result := handler(message)) is not None:
                    _check_result(handler, result)
                run.done += 1
        except BaseException as error:  # including SystemExit, which ends the consumer
            return error
        return None

    def _first(self) -> Run | None:
        with self._runs.lock:
            return self._wait()

    def _next(self, run: Run, error: BaseException | None) -> Run | None:
        with self._runs.lock:
            self._runs.end(run, error)
            if error is not None:
                self.look_at_clock()  # this worker may be busy when the pause is over
            return self._wait()

    def _wait(self) -> Run | None:
        """Wait for messages. None when the runs are closed. The caller holds the lock."""
        while (run := self._runs.take()) is None:
            if self._runs.closed:
                return None
            self._idle += 1
            self._ready.wait(self._runs.pause)
            self._idle -= 1
        self.wake()  # another lane may have become ready
        return run


def _check_result(handler: object, result: object) -> None:
    """Stop if a function has returned a coroutine, which would never run."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        reason = "it returned a coroutine that would never run: pass the coroutine function itself (async def)"
        raise Fatal(InvalidOptionError("handler", handler, reason))


# Tasks that call a handler which is a coroutine function.


class AsyncWorkers:
    """At most `count` tasks, in one event loop on a daemon thread."""

    def __init__(self, handler: Callable[[Message], Awaitable[object]], count: int, runs: Runs, name: str) -> None:
        self._handler = handler
        self._count = count
        self._runs = runs
        self._thread = threading.Thread(target=self._drive, name=f"zkgroups-handler-{name}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[asyncio.Task[None], Run | None] = {}  # with the run that has not ended
        self._over = asyncio.Event()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the loop."""
        self._loop = asyncio.new_event_loop()  # here, so that `wake` can use it at once
        self._thread.start()

    def wake(self) -> None:
        """Let the loop look for messages. The caller holds the lock."""
        if not self._woken:
            self._woken = self._tell(self._fill)

    def look_at_clock(self) -> None:
        """Let the loop compare the time with that of the next attempt. The caller holds the lock."""
        self.wake()

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel the tasks that work on these partitions, if these were taken away."""
        self._tell(self._cancel, frozenset(partitions))

    def join(self, timeout: float) -> None:
        """Cancel all tasks, and wait for them."""
        self._tell(self._over.set)
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout)

    def _tell(self, call: Callable[..., object], *arguments: object) -> bool:
        """Return False if the loop has not started, or has ended."""
        if self._loop is None:
            return False
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(call, *arguments)
            return True
        return False

    # In the loop

    def _drive(self) -> None:
        loop = self._loop
        assert loop is not None, "`start` has created it"
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._main())  # then it cancels all tasks, and waits for them

    async def _main(self) -> None:
        self._fill()
        await self._over.wait()

    def _fill(self) -> None:
        """Start tasks while there are messages."""
        loop = asyncio.get_running_loop()
        with self._runs.lock:
            self._woken = False
            while len(self._tasks) < self._count and (run := self._runs.take()) is not None:
                task = loop.create_task(self._work(run))
                self._tasks[task] = run
                task.add_done_callback(self._ended)
            pause = self._runs.pause
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pause is not None and len(self._tasks) < self._count:  # otherwise, the next task that ends calls this
            self._timer = loop.call_later(pause, self._fill)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if (run := self._tasks.pop(task)) is not None:  # the task was cancelled before it began
            with self._runs.lock:
                self._runs.end(run, None)
        if not self._over.is_set():
            self._fill()

    def _cancel(self, partitions: frozenset[TopicPartition]) -> None:
        for task, run in self._tasks.items():
            if run is not None and run.cancelled and run.lane.at in partitions:
                task.cancel("the partition was taken away")

    async def _work(self, run: Run) -> None:
        task = asyncio.current_task()
        while task is not None:
            error = await self._handle(run, task)
            with self._runs.lock:
                self._tasks[task] = None
                self._runs.end(run, error)
                if error is not None or task.cancelling() or (following := self._runs.take()) is None:
                    return
            self._tasks[task] = run = following

    async def _handle(self, run: Run, task: asyncio.Task[None]) -> BaseException | None:
        handler = self._handler
        try:
            await asyncio.sleep(0)  # a handler that never waits would keep the loop
            for message in run:
                await handler(message)
        except asyncio.CancelledError as error:
            return None if task.cancelling() else error
        except BaseException as error:  # including SystemExit, which ends the consumer
            return error
        return None


# The messages that wait for a handler, and the workers that call it. No broker is needed.


LAST_WAIT: Final = 0.5
"""How long to wait at the end for workers, in seconds. Their partitions have been drained before."""


class HandlerRunner:
    """Calls a handler for the messages of `runs`, between `start` and `close`.

    - `handler`: a function, called by threads, or a coroutine function, called by tasks.
    - `letters`: where to write dead letters. Needed if `options.then` is a `DeadLetter`. The runner closes it.
    - `lock`, `changed`, `told_of_room`, `alive`: see `Runs`.
    - `clock`: returns seconds.
    """

    def __init__(
        self,
        handler: Handler,
        options: HandlerOptions,
        letters: LetterWriter | None = None,
        *,
        clock: Callable[[], float] = uptime,
        lock: Any = None,
        changed: threading.Condition | None = None,
        told_of_room: Callable[[], object] = lambda: None,
        alive: Callable[[], bool] = lambda: True,
        name: str = "",
    ) -> None:
        lock = lock or threading.RLock()
        changed = changed or threading.Condition(lock)
        self.runs = Runs(
            options, letters, clock=clock, lock=lock, changed=changed, told_of_room=told_of_room, alive=alive
        )
        chosen: Any = AsyncWorkers if is_coroutine_function(handler) else ThreadWorkers
        self._workers: AsyncWorkers | ThreadWorkers = chosen(handler, options.workers, self.runs, name)
        self._letters = letters
        self.runs.wake_workers = self._workers.wake
        self.runs.cancel_workers = self._workers.cancel

    def start(self) -> Self:
        """Start the workers."""
        self._workers.start()
        return self

    def close(self) -> None:
        """Begin no more messages, and end the workers. Drain the runs before, so that handlers can finish."""
        self.runs.close()
        self._workers.join(LAST_WAIT)
        if self._letters is not None:
            self._letters.close()

    def look_at_clock(self) -> None:
        """Begin the messages whose pause is over. Needed only if `clock` has jumped."""
        with self.runs.lock:
            self._workers.look_at_clock()


# The body of `Consumer.run`: fetch messages, pass them to the workers, and fetch no more where too many wait.


LOOK: Final = 0.2
"""In seconds: how soon the loop notices that a handler has failed, while no messages come."""

SLICE: Final = 0.02
"""In seconds: how soon the loop fetches other partitions again, while some are paused."""

PATIENCE: Final = 0.1
"""In seconds: how long to wait for workers before a full partition is paused."""


class HandlerLoop:
    """One call of `Consumer.run`.

    A pause is not free: the client drops what it has fetched in advance, and fetches it again. So the loop first waits
    a moment. If the workers are slow, it pauses the partition, and serves the others meanwhile.
    """

    def __init__(self, reading: Reading, handler: Handler, options: HandlerOptions) -> None:
        group = reading.member.group.name
        letters = None
        if isinstance(options.then, DeadLetter):
            letters = DeadLetterWriter(reading.client_settings, options.then.topic, group)
        self._room = threading.Condition(reading.lock)
        self._runner = HandlerRunner(
            handler,
            options,
            letters,
            lock=reading.lock,
            changed=reading.changed,
            told_of_room=self._room.notify_all,
            alive=lambda: reading.alive,
            name=group,
        )
        self._reading = reading
        self._options = options
        self._full: set[TopicPartition] = set()
        self._paused_since: dict[TopicPartition, float] = {}
        self._slow: set[TopicPartition] = set()

    def run(self) -> None:
        """Fetch until the consumer is closed, or a handler stops it."""
        self._reading.start()
        self._reading.deliver_to(self._runner.runs, automatic=True)
        self._reading.handler_stats = self._runner.runs.stats
        self._runner.start()
        try:
            while True:
                self._runner.runs.check()
                if not self._runner.runs.under_way:
                    self._reading.asked()
                self._fetch()
                self._pause_full()
                self._resume_with_room()
        except MemberClosedError:
            self._runner.runs.check()
        finally:
            self._runner.runs.drain(self._reading.release_timeout)
            with suppress(MemberClosedError):
                self._reading.resume(self._paused_since, Pause.FULL)
            self._runner.close()

    def _fetch(self) -> None:
        found = self._reading.fetch(self._options.fetched, 0.0 if self._paused_since else LOOK, self._take)
        if not found and self._paused_since:
            with self._reading.lock:
                self._room.wait_for(lambda: any(map(self._runner.runs.has_room, self._paused_since)), SLICE)

    def _take(self, messages: list[Message]) -> None:
        """Pass messages to the workers. The reading calls this with its lock held."""
        for at, of_it in by_partition(messages):
            if self._runner.runs.add(at, of_it):
                self._full.add(at)

    def _pause_full(self) -> None:
        """Wait a moment while partitions are full, then pause them."""
        if not self._full:
            return
        with self._reading.lock:
            has_room = self._runner.runs.has_room
            self._room.wait_for(lambda: all(at in self._slow or has_room(at) for at in self._full), PATIENCE)
            full = {at for at in self._full if not self._runner.runs.has_room(at)}
        self._full.clear()
        self._reading.pause(full, Pause.FULL)
        self._slow |= full
        self._paused_since |= dict.fromkeys(full, uptime())

    def _resume_with_room(self) -> None:
        room = [at for at in self._paused_since if self._runner.runs.has_room(at)]
        if room:
            self._reading.resume(room, Pause.FULL)
        for at in room:
            if uptime() - self._paused_since.pop(at) < PATIENCE:
                self._slow.discard(at)


def by_partition(messages: list[Message]) -> Iterator[tuple[TopicPartition, list[Message]]]:
    """Return the messages of each partition, in the order of the log. A partition may come several times."""
    begin, topic, partition = 0, messages[0].topic(), messages[0].partition()
    for number, message in enumerate(messages):
        if message.partition() != partition or message.topic() != topic:
            yield TopicPartition(topic or "", partition or 0), messages[begin:number]
            begin, topic, partition = number, message.topic(), message.partition()
    yield TopicPartition(topic or "", partition or 0), messages[begin:]

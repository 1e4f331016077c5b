"""Event loops and connections on a simulated machine: `asyncio`, and blocking sockets, without a real second.

    with simulated() as network:
        asyncio.run(main())                  # sleeps and timeouts pass at once; servers and clients meet in memory

Each event loop runs on a thread of the machine. `Network.installed` lets `asyncio` make such loops, and `socket` such
connections. A connection has the limits of a real one: each end reads at its own pace, and has a buffer of
`Network.window` bytes in each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import itertools
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import pytest

from .machine import Machine
from .world import World

T = TypeVar("T")
HOST = "127.0.0.1"
_FIRST_PORT = 20_000
_MOST_READ = 1 << 18


class Network:
    """The listeners and the connections of a machine."""

    def __init__(self, machine: Machine, *, latency: float = 0.0005, window: int = 1 << 16) -> None:
        self.machine, self.latency, self.window = machine, latency, window
        self.listeners: dict[int, tuple[str, Callable[[End], None]]] = {}
        self.ends: list[End] = []
        self._ports = itertools.count(_FIRST_PORT)

    def free_port(self) -> int:
        """A port that nobody uses."""
        return next(each for each in self._ports if each not in self.listeners)

    def listen(self, port: int, accept: Callable[[End], None]) -> int:
        """Accept connections at a port, or at a free one if it is 0."""
        port = port or self.free_port()
        if port in self.listeners:
            raise OSError(98, "Address already in use")
        self.listeners[port] = self.machine.current_process, accept
        return port

    def connect(self, port: int) -> End:
        """Connect to a port. The accepting side hears of it on no thread, and must not wait."""
        if port not in self.listeners:
            raise ConnectionRefusedError(111, "Connection refused")
        process, accept = self.listeners[port]
        near, far = End(self, self.machine.current_process, port), End(self, process, port)
        near.peer, far.peer = far, near
        self.machine.after(self.latency, lambda: accept(far))
        return near

    def drop(self, process: str) -> None:
        """Break all connections of a process. Both ends notice."""
        for end in [each for each in self.ends if each.process == process]:
            end.reset()
            end.break_off()

    def kill(self, process: str) -> None:
        """End a process at once."""
        self.machine.stall(process)
        for port in [port for port, (each, _) in self.listeners.items() if each == process]:
            del self.listeners[port]
        for end in [each for each in self.ends if each.process == process]:
            end.reset()

    @contextlib.contextmanager
    def installed(self) -> Iterator[Self]:
        """Let `asyncio` and `socket` use this network."""

        def connect(address: tuple[str, int], timeout: float | None = None, **_more: Any) -> Socket:
            return Socket(self.connect(address[1]), timeout)

        with pytest.MonkeyPatch.context() as patch:
            for module in (asyncio, asyncio.events):
                patch.setattr(module, "new_event_loop", lambda: Loop(self))
            patch.setattr(socket, "create_connection", connect)
            yield self


@contextlib.contextmanager
def simulated(seed: int = 0, **options: Any) -> Iterator[Network]:
    """A machine with a network, for tests that need no ZooKeeper."""
    machine = Machine(seed)
    with machine.installed("zkgroups"), Network(machine, **options).installed() as network:
        yield network


class End:
    """One end of a connection. `on_change` is called when it can read or send more, on no thread."""

    peer: End

    def __init__(self, network: Network, process: str, port: int) -> None:
        self.network, self.process, self.port = network, process, port
        self.inbox = bytearray()
        self.has_ended = self.is_reset = self.is_closed = False
        self.on_change: Callable[[], None] = lambda: None
        self._in_flight = 0  # sent, and not yet read by the other side
        self._arrives = 0.0
        network.ends.append(self)

    @property
    def room(self) -> int:
        """How many bytes can be sent."""
        return self.network.window - self._in_flight

    @property
    def is_readable(self) -> bool:
        """Whether there are bytes, or the end."""
        return bool(self.inbox) or self.has_ended or self.is_reset

    def _later(self, call: Callable[[], None]) -> None:
        machine = self.network.machine
        self._arrives = max(self._arrives, machine.now + self.network.latency * machine.random.uniform(0.5, 1.5))
        machine.at(self._arrives, call)

    def send(self, data: bytes) -> int:
        """Send as much as there is room for. Return how much that was."""
        if self.is_reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        sent = bytes(data[: self.room])
        self._in_flight += len(sent)
        if sent:
            self._later(lambda: self.peer._receive(sent))
        return len(sent)

    def _receive(self, data: bytes) -> None:
        if self.is_closed:
            self._later(self.peer.break_off)
            return
        self.inbox += data
        self.on_change()

    def take(self, most: int) -> bytes:
        """Take bytes that have arrived."""
        found = bytes(self.inbox[:most])
        del self.inbox[:most]
        self._later(lambda: self.peer._give_room(len(found)))
        return found

    def _give_room(self, count: int) -> None:
        self._in_flight -= count
        self.on_change()

    def end(self) -> None:
        """Send nothing any more."""
        self._later(self.peer._receive_end)

    def _receive_end(self) -> None:
        self.has_ended = True
        self.on_change()

    def close(self) -> None:
        """Close this end. Bytes that were sent still arrive."""
        if not self.is_closed:
            self.is_closed = True
            self._later(self.peer.break_off if self.inbox else self.peer._receive_end)
            if self in self.network.ends:
                self.network.ends.remove(self)

    def reset(self) -> None:
        """Close this end. The other one gets an error."""
        self.inbox.clear()
        if not self.is_closed:
            self.is_closed = True
            self._later(self.peer.break_off)
            if self in self.network.ends:
                self.network.ends.remove(self)

    def break_off(self) -> None:
        """The other side has reset the connection."""
        self.is_reset = True
        self.inbox.clear()
        self.on_change()


class Socket:
    """A blocking socket of a simulated thread."""

    def __init__(self, end: End, timeout: float | None) -> None:
        self._end, self._timeout = end, timeout
        self._waiting: list[Any] = []
        end.on_change = self._wake

    def _wake(self) -> None:
        self._end.network.machine.wake(self._waiting)

    def _wait(self, condition: Callable[[], object]) -> None:
        machine = self._end.network.machine
        until = None if self._timeout is None else machine.now + self._timeout
        while not condition():
            if not machine.wait(self._waiting, until):
                raise TimeoutError("timed out")

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_arguments: int) -> None:
        """The simulation has buffers of its own."""

    def send(self, data: Any) -> int:
        self._wait(lambda: self._end.room or self._end.is_reset)
        return self._end.send(data)

    def sendall(self, data: Any) -> None:
        left = memoryview(data)
        while left:
            left = left[self.send(left) :]

    def recv(self, most: int) -> bytes:
        self._wait(lambda: self._end.is_readable)
        if self._end.is_reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        return self._end.take(most)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self))

    def shutdown(self, _how: int) -> None:
        self._end.end()

    def close(self) -> None:
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Raw(io.RawIOBase):
    def __init__(self, found: Socket) -> None:
        self._socket = found

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._socket.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Transport(asyncio.Transport):
    """A connection of an event loop."""

    def __init__(self, loop: Loop, end: End, protocol: Any) -> None:
        super().__init__({"peername": (HOST, end.port), "sockname": (HOST, end.port)})
        self._loop, self._end, self._protocol = loop, end, protocol
        self._buffer = bytearray()
        self._high, self._low = 1 << 16, 1 << 14
        self._closing = self._paused = self._is_full = self._has_eof = self._sends_eof = self._is_lost = False
        end.on_change = lambda: loop.call_from_outside(self._work)
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._work)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._work)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: Any) -> None:
        if not self._is_lost:
            self._buffer += data
            self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._sends_eof = True
        self._flush()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._flush()

    def abort(self) -> None:
        self._lose(None)

    def _work(self) -> None:
        """Send and receive what is possible."""
        if self._is_lost:
            return
        if self._end.is_reset:
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
            return
        self._flush()
        if self._paused or self._closing or self._has_eof:
            return
        if self._end.inbox:
            self._protocol.data_received(self._end.take(_MOST_READ))
            self._loop.call_soon(self._work)
        elif self._end.has_ended:
            self._has_eof = True
            if not self._protocol.eof_received():
                self.close()

    def _flush(self) -> None:
        if self._buffer and not self._end.is_reset:
            del self._buffer[: self._end.send(self._buffer)]
        if len(self._buffer) > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()
        elif len(self._buffer) <= self._low and self._is_full:
            self._is_full = False
            self._protocol.resume_writing()
        if self._buffer:
            return
        if self._sends_eof:
            self._sends_eof = False
            self._end.end()
        if self._closing and not self._is_lost:
            self._is_lost = True
            self._end.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._closing = True
            self._buffer.clear()
            self._end.reset()
            self._loop.call_soon(self._protocol.connection_lost, error)


class Server:
    """A listener of an event loop."""

    def __init__(self, network: Network, port: int) -> None:
        self._network, self._port = network, port
        self.sockets = [SimpleNamespace(getsockname=lambda: (HOST, port), setsockopt=lambda *_: None)]

    def close(self) -> None:
        self._network.listeners.pop(self._port, None)

    async def wait_closed(self) -> None:
        """It is closed at once."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()


class Loop(asyncio.BaseEventLoop):
    """An event loop on a thread of the machine."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network, self._machine = network, network.machine
        self._waiting: list[Any] = []
        self._is_woken = False
        self._selector = self

    def time(self) -> float:
        return self._machine.now

    # What the base class needs

    def select(self, timeout: float | None) -> list[Any]:
        """Let other threads run until something is to be done."""
        if not self._is_woken and timeout != 0:
            self._machine.wait(self._waiting, None if timeout is None else self._machine.now + timeout)
        else:
            self._machine.may_switch()
        self._is_woken = False
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none: all comes by `call_soon_threadsafe`."""

    def _write_to_self(self) -> None:
        self._is_woken = True
        self._machine.wake(self._waiting)

    def call_from_outside(self, call: Callable[[], None]) -> None:
        """Call soon, unless the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self.call_soon_threadsafe(call)

    # What asyncio offers

    def run_in_executor(self, _executor: Any, call: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[override]
        found = self.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            if not found.done():
                if error is None:
                    found.set_result(result)
                else:
                    found.set_exception(error)

        def run() -> None:
            result, failure = None, None
            try:
                result = call(*arguments)
            except BaseException as error:
                failure = error
            self.call_from_outside(lambda: finish(result, failure))

        threading.Thread(target=run, name="executor", daemon=True).start()
        return found

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: str, port: int, **_options: Any
    ) -> Any:
        await asyncio.sleep(self._network.latency)
        infos = [(0, 0, 0, "", (host, port))]
        if not host.replace(".", "").isdigit():
            infos = socket.getaddrinfo(host, port)  # type: ignore[assignment]
        reasons: list[OSError] = []
        for *_, (address, number) in infos:
            try:
                if address != HOST:
                    raise ConnectionRefusedError(111, "Connection refused")
                protocol = protocol_factory()
                transport = Transport(self, self._network.connect(number), protocol)
                await asyncio.sleep(0)  # the protocol hears of its connection first
                return transport, protocol
            except OSError as error:
                reasons.append(error)
        raise reasons[0]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, _host: str, port: int, **_options: Any
    ) -> Any:
        def accept(end: End) -> None:
            self.call_from_outside(lambda: Transport(self, end, protocol_factory()))

        return Server(self._network, self._network.listen(port, accept))


def run_in_a_loop(world: World, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=lambda: Loop(Network(world.machine))) as runner:
        return runner.run(coroutine)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own. It may ask for the fixture `world`, as for any other."""
    given = inspect.signature(test)

    @wraps(test)
    def run(*arguments: Any, world: World, **fixtures: Any) -> None:
        run_in_a_loop(world, test(*arguments, **fixtures, **({"world": world} if "world" in given.parameters else {})))

    also = [] if "world" in given.parameters else [inspect.Parameter("world", inspect.Parameter.KEYWORD_ONLY)]
    run.__signature__ = given.replace(parameters=[*given.parameters.values(), *also])  # type: ignore[attr-defined]
    return run

"""A gateway on a thread or in a process of its own, and raw connections to it."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from tests.cli.running import TIMEOUT, started
from tests.waiting import LONGEST, eventually, stands_still
from zkgroups.coordinator import AssignmentBy, CoordinatorConfig
from zkgroups.gateway import Gateway, GatewaySettings, GroupRouting, Limits, NodePorts
from zkgroups.gateway.gateway import StorageFactory
from zkgroups.gateway.groups.coordinator_host import MemoryGroupStorage
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Runner
from zkgroups.kafka.wire.errors import Address
from zkgroups.testing import KafkaBroker, local_server

QUICK = CoordinatorConfig(assignment_by=AssignmentBy.COORDINATOR, initial_rebalance_delay=0.2, min_session_timeout=1.0)

T = TypeVar("T")


class RunningGateway:
    """A gateway, its address, and a way to run coroutines beside it."""

    def __init__(self, gateway: Gateway, runner: Runner) -> None:
        self.gateway = gateway
        self._runner = runner
        self.bootstrap = str(gateway.address)

    def run(self, use: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(use)

    def connect(self, node: Address | None = None) -> RawClient:
        return RawClient(node or self.gateway.address)


@contextmanager
def running(
    bootstrap: str,
    *,
    config: CoordinatorConfig = QUICK,
    storage: StorageFactory = MemoryGroupStorage,
    brokers: int = 1,
    pattern: str | None = None,
    read_only: bool = False,
    limits: Limits | None = None,
    numbers: Sequence[int] | None = None,
    **more: Any,
) -> Iterator[RunningGateway]:
    """Run a gateway in front of so many brokers, with these port numbers or free ones."""
    with contextlib.nullcontext(numbers) if numbers else reserved(brokers + 1) as numbers:
        settings = GatewaySettings(
            Address(local_server.HOST, numbers[0]),
            NodePorts(min(numbers[1:]), max(numbers[1:])),
            bootstrap,
            routing=GroupRouting(pattern),
            read_only=read_only,
            limits=limits or Limits(),
        )
        gateway = Gateway(replace(settings, **more), config, storage)
        runner = Runner()
        try:
            runner.run(gateway.__aenter__())
            try:
                yield RunningGateway(gateway, runner)
            finally:
                runner.run(gateway.__aexit__())
        finally:
            runner.close()


@contextmanager
def reserved(count: int) -> Iterator[list[int]]:
    """Reserve a port for the gateway, and a range of ports for its brokers, which may be free for a while."""
    with contextlib.ExitStack() as stack:
        while True:
            found = local_server.reserve()
            stack.callback(found.release)
            numbers = [found.number, *range(found.number + 2, found.number + 1 + count)]
            guards = [local_server._bind(each + 1) for each in numbers[1::2] if each + 1 not in numbers]
            for guard in filter(None, guards):
                stack.callback(guard.close)
            if all(map(local_server.is_free, numbers)) and None not in guards:
                yield numbers
                return


class RawClient:
    """A connection that sends and receives frames."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=LONGEST)
        self._stream = self.socket.makefile("rb")

    def send(self, message: Any, version: int, id: int = 1, *, client: str = "raw") -> None:
        self.socket.sendall(codec.encode(message, version, id, client))

    def frame(self) -> bytes:
        """The next frame without its length; empty at the end of the connection."""
        size = self._stream.read(4)
        return self._stream.read(struct.unpack(">i", size)[0]) if size else b""

    def answer(self, key: int, version: int) -> Any:
        return codec.decode_answer(key, version, self.frame())

    def ask(self, message: Any, version: int, id: int = 1) -> Any:
        self.send(message, version, id)
        return self.answer(message.API_KEY, version)

    @property
    def ended(self) -> bool:
        """Wait for the end of the connection. False if there are more bytes."""
        try:
            return not self._stream.read(1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self._stream.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def produce(topic: str, partition: int, *, acks: int, id: int, records: bytes = b"") -> bytes:
    """The frame of a Produce request in version 3."""
    name = topic.encode()
    body = struct.pack(">hhih", 0, 3, id, 1) + b"p" + struct.pack(">hhi", -1, acks, 10_000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(records)) + records
    return struct.pack(">i", len(body)) + body


SESSION = 10
"""In seconds. Others wait for the end of a gateway that is killed; a machine that stands still must not end one."""


class GatewayProcess:
    """A gateway with ports of its own, which it keeps when it is started again."""

    def __init__(
        self, broker: KafkaBroker, numbers: Sequence[int], stack: ExitStack, *, session_timeout: float = SESSION
    ) -> None:
        self._broker = broker
        self._stack = stack
        self._session_timeout = session_timeout
        self.port, self.broker_port = numbers
        self.address = f"{local_server.HOST}:{self.port}"
        self.process: subprocess.Popen[str] | None = None
        self.all: list[subprocess.Popen[str]] = []
        """The processes that were started, one after the other."""

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it. `wait_ready` waits until it listens."""
        listen = ("--listen", self.address, "--broker-ports", f"{self.broker_port}-{self.broker_port}")
        where = ("-b", self._broker.address, "-z", self._broker.zookeeper)
        session = ("--session-timeout", str(self._session_timeout))
        self.process = self._stack.enter_context(started("gateway", *listen, *where, *session))
        self.all.append(self.process)

    def wait_ready(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.address

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            pid = self.process.pid
            assert eventually(lambda: stands_still(pid))

    def end(self) -> None:
        """Terminate it, as an administrator does."""
        assert self.process is not None
        self.send(signal.SIGTERM)
        self.process.communicate(timeout=TIMEOUT)

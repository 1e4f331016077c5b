"""A gateway as a process, which can be killed, suspended and started again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack

from tests.cli.running import TIMEOUT, started
from tests.testing.waiting import eventually, stands_still
from zkgroups.testing import KafkaBroker, ports

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
        self.address = f"{ports.HOST}:{self.port}"
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

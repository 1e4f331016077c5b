"""A command that runs while claims are held, and never longer: a supervisor runs it, which is a process of its own.

See `supervisor.py` for who does what. On this side signals are noted while the command runs, and not raised: nothing
may come in between the end of the command and the end of the claims.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import click

from zkgroups.exceptions import ZkgroupsException

from .supervisor import adopt_orphans, kill_descendants, processes

_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_PACE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: with which exit code, 128 + n for signal n, and whether that was its own doing."""

    code: int
    by_itself: bool


class Child:
    """A command that runs until it ends or the claim does; leaving the `with` block ends it, and waits until it has.

    `until` is when the claim is no longer certain without another word of a server: see `extend`. `grace` is how long
    the command has between SIGTERM and SIGKILL.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, grace: float, until: float) -> None:
        self._arguments = [str(grace), repr(until), str(os.getpgrp()), *command]
        self._environment = dict(environment)
        self._until = until
        self._unread = b""
        self._group: int | None = None
        self._ended: Ended | None = None

    def __enter__(self) -> Self:
        orders, self._orders = os.pipe()
        self._told, told = os.pipe()
        adopt_orphans()  # should the supervisor be killed, whom it has started comes to us
        os.set_blocking(self._orders, False)  # a supervisor that is suspended reads nothing
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(orders), str(told), *self._arguments],
                pass_fds=(orders, told),
                process_group=0,  # what a terminal sends to all in the foreground is not for it
                env=self._environment,
            )
        finally:
            os.close(orders)
            os.close(told)
        return self

    def extend(self, until: float) -> None:
        """The claim is certain for longer."""
        if until > self._until:
            self._until = until
            self._order(f"until {until!r}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it the signal, and SIGKILL after the grace time."""
        self._order(f"stop {number}")

    def _order(self, line: str) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, f"{line}\n".encode())

    def ended(self, patience: float = 0.0) -> Ended | None:
        """How it ended; None while any of it is left."""
        if self._ended is None and select.select([self._told], [], [], patience)[0]:
            self._hear(os.read(self._told, 65536))
        return self._ended

    def wait(self) -> Ended:
        """Wait until nothing of it is left, however long that takes: what cannot be killed keeps its claim."""
        while (ended := self.ended(_PACE)) is None:
            self._guardian.send_signal(signal.SIGCONT)
        return ended

    def _hear(self, data: bytes) -> None:
        if not data:
            self._bury()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            what, rest = line.decode().split(maxsplit=1)
            if what == "started":
                self._group = int(rest)
            elif what == "failed":
                self._ended = Ended(127, by_itself=True)
                raise click.UsageError(f"the command cannot be started: {rest}", click.get_current_context())
            else:
                code, by_whom = rest.split()
                self._ended = Ended(int(code), by_itself=by_whom == "itself")

    def _bury(self) -> None:
        """The supervisor was killed: kill everything that it has started. The guardian does the same meanwhile."""
        while self._group is not None and _kill_group(self._group):
            with contextlib.suppress(ChildProcessError):  # in a container they may be ours now
                os.waitpid(-self._group, os.WNOHANG)
            time.sleep(_PACE / 10)
        kill_descendants()
        self._guardian.wait()
        self._ended = Ended(128 + signal.SIGKILL, by_itself=False)
        raise ZkgroupsException("the process that supervised the command was killed, and the command with it")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended is None:
            self.stop()
            self.wait()
        os.close(self._orders)
        os.close(self._told)
        self._guardian.wait()


def _kill_group(group: int) -> bool:
    """False if there is nobody in it any more, but zombies that nobody reaps, as in some containers."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    members = [state for state, _parent, of in processes().values() if of == group]
    return not members or any(state != "Z" for state in members)

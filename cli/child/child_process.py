"""Run a command while claims are held, never longer. The command is the child of a supervisor, a separate process.

A command without claims runs until it ends by itself, or is stopped.

`supervisor.py` explains the processes. This process records signals while the command runs, instead of raising them:
nothing may interrupt it between the end of the command and the release of the claims.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
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
from zkgroups.zookeeper.zookeeper_source import SECRET_VARIABLES

from ..main import users_umask
from ..shared.global_options import Command
from ..shared.parameter_types import usage_error
from .supervisor import adopt_orphans, kill_descendants, processes, ready

# The command line of another program after `--`.


_COMMAND: Final = "zkgroups.command"


class WithCommand(Command):
    """A command that accepts the command line of another program after `--`: see `command_of`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split off the command after `--`. A leading `--` only introduces names that begin with a dash."""
        if "--" in args[1:]:
            end = args.index("--", 1)
            args, command = args[:end], args[end + 1 :]
            if not command:
                raise click.UsageError("the command after -- is missing", ctx)
            if shutil.which(command[0]) is None:
                raise usage_error(f"command {command[0]!r} was not found in PATH")
            ctx.meta[_COMMAND] = command
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the command."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ...]"]


def command_of(ctx: click.Context) -> list[str] | None:
    """Return the command after `--`; None without one."""
    return ctx.meta.get(_COMMAND)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program, without zkgroups' own passwords: it may be untrusted."""
    return {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES} | dict(more)


_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_PACE: Final = 0.2


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code of a command, 128 + n for signal n, and whether it ended by itself."""

    code: int
    by_itself: bool


class Child:
    """A command that runs until it ends or the claim does. Leaving the `with` block stops it and waits for its end.

    The claim is certain until `until`; see `extend`. `grace` is the time between SIGTERM and SIGKILL. `stdin` is the
    descriptor of its input, by default that of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace: float,
        until: float = math.inf,
        stdin: int | None = None,
    ) -> None:
        self._arguments = [str(grace), repr(until), str(os.getpgrp()), *command]
        self._environment = dict(environment)
        self._until = until
        self._stdin = stdin
        self._unread = b""
        self._group: int | None = None
        self._result: CommandResult | None = None

    def __enter__(self) -> Self:
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        adopt_orphans()  # if the supervisor is killed, its children become ours
        os.set_blocking(self._orders, False)  # a supervisor that is suspended reads nothing
        try:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(orders), str(reports), *self._arguments],
                stdin=self._stdin,
                pass_fds=(orders, reports),
                process_group=0,  # a terminal sends Ctrl-C to its whole foreground group
                env=self._environment,
                umask=users_umask(),
            )
        finally:
            os.close(orders)
            os.close(reports)
        return self

    def extend(self, until: float) -> None:
        """Tell the supervisor that the claim is certain for longer."""
        if until > self._until:
            self._until = until
            self._order(f"until {until!r}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send the command this signal, and SIGKILL after the grace time."""
        self._order(f"stop {number}")

    def _order(self, line: str) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, f"{line}\n".encode())

    def result(self, timeout: float = 0.0) -> CommandResult | None:
        """Return the result, or None while the command or any process that it has started is running."""
        if self._result is None and ready([self._reports], timeout):
            self._read_reports(os.read(self._reports, 65536))
        return self._result

    def wait(self) -> CommandResult:
        """Wait for the end of all its processes, without a time limit: a process that survives keeps the claim."""
        while (result := self.result(_PACE)) is None:
            self._guardian.send_signal(signal.SIGCONT)
        return result

    def _read_reports(self, data: bytes) -> None:
        if not data:
            self._kill_all()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            kind, rest = line.decode().split(maxsplit=1)
            if kind == "started":
                self._group = int(rest)
            elif kind == "failed":
                self._result = CommandResult(127, by_itself=True)
                raise usage_error(f"the command could not be started: {rest}")
            else:
                code, stopped_by = rest.split()
                self._result = CommandResult(int(code), by_itself=stopped_by == "itself")

    def _kill_all(self) -> None:
        """Kill all processes of a supervisor that was killed. The guardian does the same meanwhile."""
        while self._group is not None and _kill_group(self._group):
            with contextlib.suppress(ChildProcessError):  # in a container they may be our children now
                os.waitpid(-self._group, os.WNOHANG)
            time.sleep(_PACE / 10)
        kill_descendants()
        self._guardian.wait()
        self._result = CommandResult(128 + signal.SIGKILL, by_itself=False)
        raise ZkgroupsException(
            "the process that supervises the command was killed, and so was the command: run it again"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._result is None:
            self.stop()
            self.wait()
        os.close(self._orders)
        os.close(self._reports)
        self._guardian.wait()


def _kill_group(group: int) -> bool:
    """Kill a process group. Return False if it is empty, or has only zombies that nobody reaps."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    members = [state for state, _parent, of in processes().values() if of == group]
    return not members or any(state != "Z" for state in members)

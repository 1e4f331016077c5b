"""A command whose input is a pipe of messages. `cli/child` supervises it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from zkgroups.deadline import Deadline

from ..child.child_process import Child, CommandResult
from ..child.command_line import environment

_PACE: Final = 0.1
"""In seconds: how often to look for a signal while the command is running."""


class CommandInput:
    """Runs a command in a `with` block, which must end with `wait`. After an error the command is stopped.

    `recorded` has the signals that were received. `grace` is the time for the command to end after a signal, and again
    the time between SIGTERM and SIGKILL.
    """

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], *, grace: float, recorded: Sequence[int]
    ) -> None:
        self._reader, self.descriptor = os.pipe()
        self._child = Child(command, environment(variables), grace=grace, stdin=self._reader)
        self._grace = grace
        self._recorded = recorded
        self._open = True

    @property
    def ended(self) -> bool:
        """True if the command has ended. Raise an error if it could not be started."""
        return self._child.result() is not None

    def wait(self) -> CommandResult:
        """Close the pipe, and wait until the command has ended. After a signal, stop it when the grace time is over."""
        self._close()
        deadline: Deadline | None = None
        while (result := self._child.result(_PACE)) is None:
            if self._recorded and deadline is None:
                deadline = Deadline(self._grace)
            if deadline is not None and deadline.passed:
                self._child.stop(self._recorded[0])
                return self._child.wait()
        return result

    def _close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.descriptor)

    def __enter__(self) -> Self:
        try:
            self._child.__enter__()
        finally:
            os.close(self._reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._child.__exit__(kind, error, trace)

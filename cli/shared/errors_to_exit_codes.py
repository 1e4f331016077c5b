"""Turn errors into messages and exit codes. No other module does this."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from zkgroups.exceptions import (
    AccessError,
    ClaimTimeout,
    ConflictError,
    DamagedDataError,
    DamagedFileError,
    InterruptedDeleteError,
    InvalidInputError,
    MalformedNodeError,
    NotFoundError,
    OffsetWouldGoBackError,
    RefusedError,
    UnavailableError,
    ZkgroupsException,
)

from .exit_codes import ExitCode
from .messages import complain
from .signals import Terminated

CODES: Final[tuple[tuple[type[BaseException], ExitCode], ...]] = (
    (InterruptedDeleteError, ExitCode.PARTIAL),  # the only RefusedError after a change
    (InvalidInputError, ExitCode.USAGE),
    (NotFoundError, ExitCode.NOT_FOUND),
    (RefusedError, ExitCode.REFUSED),
    (ConflictError, ExitCode.CONFLICT),
    (AccessError, ExitCode.AUTH),
    (UnavailableError, ExitCode.UNAVAILABLE),
    (ClaimTimeout, ExitCode.TIMED_OUT),
    (MalformedNodeError, ExitCode.FINDINGS),
    (DamagedDataError, ExitCode.FINDINGS),
    (DamagedFileError, ExitCode.FINDINGS),
    (click.UsageError, ExitCode.USAGE),
    (click.Abort, ExitCode.INTERRUPTED),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (Terminated, ExitCode.TERMINATED),
)
"""The first match counts."""


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error."""
    return next((code for kind, code in CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


def report(error: BaseException, *, verbose: int) -> ExitCode:
    """Print an error on stderr, with its traceback for -vv, and return the exit code."""
    if verbose > 1:
        complain("".join(traceback.format_exception(error)).rstrip())
    else:
        complain(sentence(error))
    return exit_code(error)


def sentence(error: BaseException) -> str:
    """Return the message for an error."""
    match error:
        case click.UsageError():
            return _usage_sentence(error)
        case click.ClickException():
            return error.format_message()
        case KeyboardInterrupt() | click.Abort():
            return "interrupted"
        case Terminated():
            return "terminated"
        case OffsetWouldGoBackError():
            values, cure = (error.group, error.at, error.committed, error.offset), "--backward allows it"
            return str(OffsetWouldGoBackError(*values, cure=cure, also=error.also))
        case ZkgroupsException():
            return "; ".join([str(error), *getattr(error, "__notes__", ())])
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
        case _:
            return f"unexpected {type(error).__name__}: {error} (-vv shows the traceback)"


def _usage_sentence(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "zkgroups"
    return f"{error.format_message()}\nTry '{path} --help'."


@contextmanager
def partly(text: str) -> Iterator[None]:
    """Print this text if the block is interrupted by a signal or a lost connection."""
    try:
        yield
    except (UnavailableError, KeyboardInterrupt, Terminated):
        complain(text)
        raise


class Tally:
    """Count the results of several steps, and `tell` the errors. A failed step does not stop the others."""

    def __init__(self, tell: Callable[[str], object] = complain) -> None:
        self._tell = tell
        self._done = 0
        self._first_error: ZkgroupsException | None = None
        self._printed: set[str] = set()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run one step. Count its error, and print it unless the same text was printed before.

        Raise only a lost connection, because all other steps would fail, too.
        """
        try:
            yield
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            self.missed(error, sentence(error))
        else:
            self._done += 1

    def _print_once(self, text: str) -> None:
        """Print a text once. Several groups may fail for the same reason, e.g. a forbidden topic."""
        if text not in self._printed:
            self._printed.add(text)
            self._tell(text)

    @property
    def all_done(self) -> bool:
        """Return whether no step has failed so far."""
        return self._first_error is None

    def failed(self, error: ZkgroupsException) -> None:
        """Count and print the error of a step."""
        with self.attempt():
            raise error

    def missed(self, error: ZkgroupsException, text: str) -> None:
        """Count the error of a step that the others do not need, and print this text about it."""
        self._print_once(text)
        self._first_error = self._first_error or error

    def finish(self) -> None:
        """End the command if a step failed: with the code of the first error, or PARTIAL if other steps succeeded."""
        if self._first_error is not None:
            raise click.exceptions.Exit(ExitCode.PARTIAL if self._done else exit_code(self._first_error))

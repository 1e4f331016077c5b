"""The one place where errors become exit codes and sentences."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
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
    (InterruptedDeleteError, ExitCode.PARTIAL),  # the one RefusedError that has changed something
    (InvalidInputError, ExitCode.USAGE),
    (NotFoundError, ExitCode.NOT_FOUND),
    (RefusedError, ExitCode.REFUSED),
    (ConflictError, ExitCode.CONFLICT),
    (AccessError, ExitCode.AUTH),
    (UnavailableError, ExitCode.UNAVAILABLE),
    (ClaimTimeout, ExitCode.WAITED_IN_VAIN),
    (MalformedNodeError, ExitCode.FINDINGS),
    (DamagedDataError, ExitCode.FINDINGS),
    (DamagedFileError, ExitCode.FINDINGS),
    (click.UsageError, ExitCode.USAGE),
    (click.Abort, ExitCode.INTERRUPTED),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (Terminated, ExitCode.TERMINATED),
)
"""The first that fits counts."""


def exit_code(error: BaseException) -> ExitCode:
    """The code that a command ends with on this error."""
    return next((code for kind, code in CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


def report(error: BaseException, *, verbose: int) -> ExitCode:
    """Say on stderr what happened, with its traceback if wanted, and return the exit code."""
    if verbose > 1:
        complain("".join(traceback.format_exception(error)).rstrip())
    else:
        complain(sentence(error))
    return exit_code(error)


def sentence(error: BaseException) -> str:
    """What happened, for people."""
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
            return f"{error}: --backward allows it"
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
    """Say this where it ends in the middle, by a signal or with the connection."""
    try:
        yield
    except (UnavailableError, KeyboardInterrupt, Terminated):
        complain(text)
        raise


class Tally:
    """What became of several things of which one may fail without stopping the others."""

    def __init__(self) -> None:
        self._done = 0
        self._first_error: ZkgroupsException | None = None
        self._said: set[str] = set()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One of them. Its error is counted, and printed unless the same was printed before.

        Only a lost connection is raised, because it stops all others, too.
        """
        try:
            yield
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            self._complain(sentence(error))
            self._first_error = self._first_error or error
        else:
            self._done += 1

    def _complain(self, text: str) -> None:
        """Several groups may fail for the same reason, e.g. a topic that is hidden."""
        if text not in self._said:
            self._said.add(text)
            complain(text)

    @property
    def all_done(self) -> bool:
        """Whether none of them has failed so far."""
        return self._first_error is None

    def failed(self, error: ZkgroupsException) -> None:
        """Say and count what went wrong with one of them."""
        with self.attempt():
            raise error

    def finish(self) -> None:
        """End the command: with the code of the first error where nothing was done, as partly done where some was."""
        if self._first_error is not None:
            raise click.exceptions.Exit(ExitCode.PARTIAL if self._done else exit_code(self._first_error))

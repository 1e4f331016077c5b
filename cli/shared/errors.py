"""Turn errors into messages and exit codes. No other module does this."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import click

from zkgroups.exceptions import (
    AccessError,
    ClaimTimeout,
    ConflictError,
    DamagedDataError,
    DamagedFileError,
    GroupNotFoundError,
    InterruptedDeleteError,
    InvalidInputError,
    MalformedNodeError,
    MissingDependencyError,
    NoPermissionError,
    NotFoundError,
    NotRegisteredError,
    OffsetWouldGoBackError,
    RefusedError,
    UnavailableError,
    ZkgroupsException,
)

from .messages import complain, say
from .options import ExitCode, Options
from .output import Output, Row, Table, wait_while_read
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
    (MissingDependencyError, ExitCode.USAGE),
    (click.UsageError, ExitCode.USAGE),
    (click.Abort, ExitCode.INTERRUPTED),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (Terminated, ExitCode.TERMINATED),
)
"""The first match counts."""


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code for an error."""
    if missing_extra(error) is not None:
        return ExitCode.USAGE
    return next((code for kind, code in CODES if isinstance(error, kind)), ExitCode.UNEXPECTED)


_EXTRAS: Final = {
    "confluent_kafka": "consumer",
    "docker": "testing",
    "kafka": "kafka",
    "matplotlib": "plot",
    "py4j": "spark",
    "pyarrow": "snapshots",
    "pyspark": "spark",
    "starlette": "serve",
    "uvicorn": "serve",
}
"""The extra that installs a module."""


def missing_extra(error: BaseException) -> str | None:
    """Return the extra that is not installed, if the error is due to that."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return _EXTRAS.get((name or "").partition(".")[0])


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
            path = error.ctx.command_path if error.ctx else "zkgroups"
            return f"{_usage_message(error)}\nTry '{path} --help'."
        case click.ClickException():
            return error.format_message()
        case KeyboardInterrupt() | click.Abort():
            return "interrupted"
        case Terminated():
            return "terminated"
        case OffsetWouldGoBackError():
            values, cure = (error.group, error.at, error.committed, error.offset), "--backward allows it"
            return str(OffsetWouldGoBackError(*values, cure=cure, also=error.also))
        case NotRegisteredError():
            listing = f"`zkgroups members list {shlex.quote(error.group)}`"
            return f"group {error.group!r} has no instance {error.instance!r}: {listing} shows them"
        case ZkgroupsException():
            return "; ".join([str(error), *getattr(error, "__notes__", ())])
        case ModuleNotFoundError(name=str(name)) if extra := missing_extra(error):
            return f"this command needs {name.partition('.')[0]}; from the checkout: pip install '.[{extra}]'"
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
        case _:
            return f"unexpected {type(error).__name__}: {error} (-vv shows the traceback)"


def _usage_message(error: click.UsageError) -> str:
    match error:
        case click.MissingParameter(param=click.Parameter(type=click.Choice(choices=choices)) as parameter):
            return f"{_name(parameter)} is missing: {' or '.join(map(str, choices))}"
        case click.MissingParameter(param=click.Parameter() as parameter):
            return f"{_name(parameter)} is missing"
        case click.NoSuchOption(possibilities=possibilities) if possibilities:
            # The dashes, which all have, would make short names similar.
            close = [
                f"--{name}" for name in similar(error.option_name.strip("-"), (n.strip("-") for n in possibilities))
            ]
            error = click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx)
    return error.format_message()


def _name(parameter: click.Parameter) -> str:
    """Return the name of an option, or of an argument, as the help shows it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or str(parameter.name).upper()).strip("[].")


def similar(name: str, names: Iterable[str]) -> list[str]:
    """Return the most similar name, or none if all differ much."""
    from difflib import get_close_matches  # only errors need it

    return get_close_matches(name, names, n=1, cutoff=0.75)


REGISTRY: Final = "zkgroups.registry"
"""The key in the context for a function that lists the groups of the open registry."""


def add_hint(error: BaseException) -> None:
    """Add a probable cause to the error of a connected command: a mistyped group, or a wrong digest password."""
    context = click.get_current_context(silent=True)
    if context is None or hasattr(error, "__notes__"):
        return
    options = context.find_object(Options)
    if isinstance(error, GroupNotFoundError):
        with suppress(ZkgroupsException):
            for name in similar(error.group, context.meta.get(REGISTRY, list)()):
                error.add_note(f"did you mean {name!r}?")
    elif isinstance(error, NoPermissionError) and options and options.digest_user and error.path.startswith("/"):
        error.add_note(
            f"you gave the digest user {options.digest_user!r}; ZooKeeper does not check digest passwords, so the "
            "password may be wrong"
        )


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
    def attempt(self, group: str | None = None) -> Iterator[None]:
        """Run one step. Count its error, and print it unless the same text was printed before.

        An error that does not name its `group` gets the name in front. Raise only a lost connection, because all other
        steps would fail, too.
        """
        try:
            yield
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            add_hint(error)
            text = sentence(error)
            self.missed(error, text if group is None or repr(group) in text else f"group {group!r}: {text}")
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

    def failed(self, error: ZkgroupsException, group: str | None = None) -> None:
        """Count and print the error of a step."""
        with self.attempt(group):
            raise error

    def missed(self, error: ZkgroupsException, text: str) -> None:
        """Count the error of a step that the others do not need, and print this text about it."""
        self._print_once(text)
        self._first_error = self._first_error or error

    def finish(self) -> None:
        """End the command if a step failed: with the code of the first error, or PARTIAL if other steps succeeded."""
        if self._first_error is not None:
            raise click.exceptions.Exit(ExitCode.PARTIAL if self._done else exit_code(self._first_error))


def or_say(options: Options, rows: Iterable[Row], tally: Tally, nothing: str) -> Iterator[Row]:
    """Yield the rows. If everything was read and there are none, say so."""
    row = None
    for row in rows:
        yield row
    if row is None and tally.all_done:
        say(options, nothing)


def watch(
    output: Output,
    table: Table,
    read: Callable[[Tally, Tally], Sequence[Row]],
    interval: float,
    *,
    always: bool = False,
    check: Callable[[], object] = lambda: None,
) -> NoReturn:
    """Print the rows and the errors whenever they have changed, or after each read if `always`.

    It ends if a group cannot be shown, if `check` raises an error, or with a signal. `read` counts groups in one tally,
    and the brokers in another.
    """
    shown: tuple[Sequence[Row], list[str]] | None = None
    while True:
        errors: list[str] = []
        tally = Tally(errors.append)
        rows = read(tally, Tally(errors.append))
        if always or (rows, errors) != shown:
            output.separate(first=shown is None)
            output.write(table, rows)
            for error in errors:  # after the screen was cleared
                complain(error)
            shown = rows, errors
        tally.finish()
        check()
        wait_while_read(interval)

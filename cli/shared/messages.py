"""Messages on stderr: results, errors, warnings, and the log of libraries."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Final

import click

from .escape import printable

if TYPE_CHECKING:
    import logging

    from .options import Options

_LONGEST_WAIT: Final = 1.0
"""How long to wait for the reader of a full pipe, in seconds."""


def say(options: Options, text: str) -> None:
    """Print a message, except with `--quiet`."""
    if not options.quiet:
        _write(text)


def say_in_time(options: Options, text: str) -> None:
    """Print a message as `say` does, but leave it out if stderr is a full pipe that nobody reads.

    For commands that must go on: a write to a full pipe waits for its reader, however long that takes.
    """
    if stderr_is_writable():
        say(options, text)


def complain(text: str) -> None:
    """Print an error or a warning, also with `--quiet`."""
    _write(f"zkgroups: {text}")


def set_up_logging(options: Options) -> None:
    """Show the log and the warnings of libraries according to `-v`.

    kazoo logs every attempt to connect as a warning, and prints a traceback when its connection is refused. Without
    `-v` both are hidden, because the error of the command contains the reason.
    """
    import logging  # `zkgroups --help` does not need it, and it takes a tenth of its time

    if options.verbose:
        from .log_handler import show_log

        show_log()
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    if options.verbose < 2:
        threading.excepthook = lambda _: None
    warnings.showwarning = lambda message, *_: say(options, f"zkgroups: {message}")


def show_warnings(options: Options, logger: logging.Logger) -> None:
    """Show the warnings of a server without `-v` too, and also with `--quiet`, because it keeps running.

    A warning is left out if stderr is a full pipe, because the server must go on.
    """
    import logging  # see `set_up_logging`

    if options.verbose:
        return

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if stderr_is_writable(0):
                complain(record.getMessage())

    logger.addHandler(Shown(logging.WARNING))


def stderr_is_writable(seconds: float = _LONGEST_WAIT) -> bool:
    """Wait until a few lines can be written to stderr without waiting. Return False after this time."""
    watched = select.poll()
    with contextlib.suppress(OSError):  # stderr is not a file
        if sys.stderr is not None:
            watched.register(sys.stderr.fileno(), select.POLLOUT)
            return bool(watched.poll(seconds * 1000))
    return True


def _write(text: str) -> None:
    # stderr may be closed.
    with contextlib.suppress(OSError):
        click.echo("\n".join(map(printable, text.split("\n"))), err=True)

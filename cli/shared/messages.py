"""Everything that goes to stderr: what a command says beside its data, errors, and what libraries log."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import TYPE_CHECKING

import click

from .escape import printable

if TYPE_CHECKING:
    from .options import Options

_LOG_FORMAT = "zkgroups: %(levelname)s %(name)s: %(message)s"


def say(options: Options, text: str) -> None:
    """Tell the user what was done; `--quiet` leaves it out."""
    if not options.quiet:
        _write(text)


def complain(text: str) -> None:
    """Tell the user what went wrong, always."""
    _write(f"zkgroups: {text}")


def set_up_logging(options: Options) -> None:
    """Let libraries talk as much as `-v` asks for.

    kazoo logs every attempt to connect as a warning, and its connection thread ends with a traceback when it is turned
    away; the same is said in one sentence by the error that the command ends with.
    """
    import logging  # takes a tenth of the time that `zkgroups --help` may take, and that needs none

    if options.verbose:
        logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT)  # below that kazoo logs passwords
    else:
        logging.basicConfig(handlers=[logging.NullHandler()])
    if options.verbose < 2:
        threading.excepthook = lambda _: None
    warnings.showwarning = lambda message, *_: say(options, f"zkgroups: {message}")


def _write(text: str) -> None:
    # Who has closed stderr does not want to hear, least of all that it is closed.
    with contextlib.suppress(OSError):
        click.echo("\n".join(map(printable, text.split("\n"))), err=True)

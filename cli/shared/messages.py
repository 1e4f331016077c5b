"""Messages on stderr: results, errors, warnings, and the log of libraries."""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from .options import Options

if TYPE_CHECKING:
    from rich.progress import Progress


# Escape untrusted text for a terminal.
#
# Names and data in ZooKeeper may be hostile. An escape sequence could move the cursor or hide a line, and a letter
# that changes the writing direction could make one name look like another.


def printable(text: str) -> str:
    r"""Return the text with invisible characters as escapes.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")


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
        pass

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


# The log of libraries on stderr, which `-v` shows.


_LOG_FORMAT: Final = "zkgroups: %(levelname)s %(name)s: %(message)s"


def show_log() -> None:
    """Show the log, from INFO. Below that, kazoo logs passwords."""
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, handlers=[PatientHandler()])


class PatientHandler(logging.StreamHandler[TextIO]):
    """Leaves out lines while stderr is a full pipe that nobody reads.

    All threads log, including the threads that keep sessions alive and release claims. They must not wait for a
    reader.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. Only the first line that does not fit waits, for a second."""
        if not (stderr_is_writable(0) if self._left_out else stderr_is_writable()):
            self._left_out += 1
            return
        if self._left_out:
            complain(f"{self._left_out} lines of the log were left out, because nobody read stderr")
            self._left_out = 0
        super().emit(record)


# Progress on stderr. It is shown only on a terminal, and not with `--quiet` or `--verbose`.


ShowText = Callable[[str], None]
T = TypeVar("T")

SHOWN_AFTER: Final = 2.0
"""Show a count only after this many seconds."""


def counted(options: Options, things: Iterable[T], what: str) -> Iterator[T]:
    """Yield the same items. If that takes long, show on a terminal how many there were so far."""
    if is_hidden(options):
        yield from things
        return
    bars: list[tuple[Progress, Any]] = []
    # Use a signal, because even the first item may take long.
    usual = signal.signal(signal.SIGALRM, lambda *_: bars.append(_count(what)))
    signal.setitimer(signal.ITIMER_REAL, SHOWN_AFTER)
    try:
        for number, thing in enumerate(things, 1):
            for bar, task in bars:
                bar.update(task, completed=number)
            yield thing
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        for bar, _task in bars:
            bar.stop()


def _count(what: str) -> tuple[Progress, Any]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    bar = Progress(
        SpinnerColumn(),
        "{task.completed} {task.description}",
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar, bar.add_task(what, total=None)


@contextmanager
def progress(
    options: Options, steps: int, share_done: Callable[[], float], amount: int | None = None
) -> Iterator[ShowText]:
    """Show a progress bar of several steps. Call the result with the name of each step when it begins.

    `share_done` returns the finished share of the current step. It is called periodically from another thread. With
    `amount`, the number of offsets in the first step, the bar also shows the speed and the time left.
    """
    if is_hidden(options):
        yield lambda _step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.progress_bar import ProgressBar

    begun = 0
    since = 0.0

    class Bar(BarColumn):
        """Asks how far it is whenever it is drawn."""

        def render(self, task: Task) -> ProgressBar:
            task.completed = max(task.completed, begun - 1 + share_done()) if begun else 0
            if amount is not None and begun == 1:
                task.fields["pace"] = pace(task.completed, amount, time.monotonic() - since)
            return super().render(task)

    columns = (TextColumn("{task.description}"), Bar(), TextColumn("{task.fields[pace]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("starting", total=steps, pace="")

        def told(step: str) -> None:
            nonlocal begun, since
            begun, since = begun + 1, time.monotonic()
            bar.update(shown, description=step, pace="")

        yield told


def pace(share: float, amount: int, seconds: float) -> str:
    """Format the progress, the speed and the time left after a share of some offsets took some seconds.

    >>> pace(0.25, 100_000, 5.0), pace(0.0, 100_000, 5.0)
    ('25,000 of 100,000 offsets, 5,000/s, 0:00:15 left', '0 of 100,000 offsets')
    """
    done = min(1.0, share) * amount
    if not done or not seconds:
        return f"{done:,.0f} of {amount:,} offsets"
    left = timedelta(seconds=round((amount - done) * seconds / done))
    return f"{done:,.0f} of {amount:,} offsets, {done / seconds:,.0f}/s, {left} left"


@contextmanager
def status_line(options: Options) -> Iterator[ShowText]:
    """Show one line on a terminal. Call the result to change its text."""
    if is_hidden(options):
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("starting", total=None)
        yield lambda text: bar.update(shown, description=text)


def is_hidden(options: Options) -> bool:
    """Return whether progress is hidden: not on a terminal, with --quiet, or between the log lines of --verbose."""
    return bool(options.quiet or options.verbose or sys.stderr is None or not sys.stderr.isatty())

"""Progress on stderr. It is shown only on a terminal, and not with `--quiet` or `--verbose`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .options import Options

if TYPE_CHECKING:
    from rich.progress import Progress

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

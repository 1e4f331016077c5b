"""A progress bar on stderr, for what takes long; only on a terminal, and with neither `--quiet` nor `--verbose`."""

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

Told = Callable[[str], None]
T = TypeVar("T")

PATIENCE: Final = 2.0
"""In seconds: what is done sooner needs no bar."""


def counted(options: Options, things: Iterable[T], what: str) -> Iterator[T]:
    """The same things; if they take long, how many there were so far is shown on a terminal."""
    if unseen(options):
        yield from things
        return
    bars: list[tuple[Progress, Any]] = []
    # A signal, because the first of them may take long, too.
    usual = signal.signal(signal.SIGALRM, lambda *_: bars.append(_count(what)))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
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
) -> Iterator[Told]:
    """A bar of so many steps: what is returned is told the name of each as it begins.

    `share_done` says how much of the present one is done; it is called now and then, from another thread. Where the
    first step goes through an `amount` of offsets that is known, it is shown how many a second, and how long it takes.
    """
    if unseen(options):
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
    """How far, how fast and how long yet, when a share of so many offsets has taken so long.

    >>> pace(0.25, 100_000, 5.0), pace(0.0, 100_000, 5.0)
    ('25,000 of 100,000 offsets, 5,000/s, 0:00:15 left', '0 of 100,000 offsets')
    """
    done = min(1.0, share) * amount
    if not done or not seconds:
        return f"{done:,.0f} of {amount:,} offsets"
    left = timedelta(seconds=round((amount - done) * seconds / done))
    return f"{done:,.0f} of {amount:,} offsets, {done / seconds:,.0f}/s, {left} left"


@contextmanager
def status_line(options: Options) -> Iterator[Told]:
    """One line on a terminal, which says what it is told until it is told something else."""
    if unseen(options):
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("starting", total=None)
        yield lambda text: bar.update(shown, description=text)


def unseen(options: Options) -> bool:
    """Whether nobody looks, or there is something else to see."""
    return bool(options.quiet or options.verbose or sys.stderr is None or not sys.stderr.isatty())

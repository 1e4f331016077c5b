"""A progress bar on stderr, for what takes long; only on a terminal, and with neither `--quiet` nor `--verbose`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .options import Options

Told = Callable[[str], None]


@contextmanager
def progress(options: Options, steps: int, share_done: Callable[[], float]) -> Iterator[Told]:
    """A bar of so many steps: what is returned is told the name of each as it begins.

    `share_done` says how much of the present one is done; it is called now and then, from another thread.
    """
    if options.quiet or options.verbose or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.progress_bar import ProgressBar

    begun = 0

    class Bar(BarColumn):
        """Asks how far it is whenever it is drawn."""

        def render(self, task: Task) -> ProgressBar:
            task.completed = max(task.completed, begun - 1 + share_done()) if begun else 0
            return super().render(task)

    columns = (TextColumn("{task.description}"), Bar(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("starting", total=steps)

        def told(step: str) -> None:
            nonlocal begun
            begun += 1
            bar.update(shown, description=step)

        yield told

"""Members in their own processes, on an ensemble that other users share. `history.py` judges them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tests.consumer import journal
from tests.consumer.history import Kind, Violation, judge
from tests.consumer.nemesis import Scene
from zkgroups.core.history.events import HistoryEvent
from zkgroups.testing import ZooKeeperEnsemble

from .faults import Route


class Members(Scene):
    """Members of one group, half of them on each route."""

    def __init__(
        self, directory: Path, ensemble: ZooKeeperEnsemble, routes: Sequence[Route], number: int, **options: Any
    ) -> None:
        super().__init__(directory, members=number, **options)
        self._ensemble = ensemble
        self._routes = list(islice(cycle(routes), number))

    def calm(self, bound: float) -> None:
        """Note that all faults are over, and wait until the group works again."""
        self.note(Kind.CALM)
        self.settle(bound)

    def violations(self, bound: float) -> list[Violation]:
        """Return what is wrong, after the end."""
        return judge(self.history(), bound=bound)

    def summary(self) -> str:
        """Numbers of the run."""
        history = self.history()
        counted = {kind: sum(1 for _ in history.of(kind)) for kind in Kind}
        told = ", ".join(f"{number} {kind}" for kind, number in counted.items() if number)
        return f"{self.group_name}: {told}; {sum(1 for _ in history.commits)} commits"

    def _serve(self, _stack: ExitStack) -> str:
        return self._ensemble.address

    def _way(self, number: int, _stack: ExitStack) -> Route:
        return self._routes[number]

    @staticmethod
    def _hosts(address: str) -> str:
        return address

    def _journal(self) -> list[HistoryEvent]:
        return journal.accepted((node.data_dir for node in self._ensemble.nodes), self.group.name)

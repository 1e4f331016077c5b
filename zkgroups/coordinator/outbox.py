"""State that all groups of a coordinator share: the current time, the collected actions, deadlines and open work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from .actions import Action, Incident, ReportCommit, ReportIncident, SendAnswer, StartWork
from .config import CoordinatorConfig
from .deadlines import DeadlineKey, DeadlineKind, Deadlines
from .storage.work import Result, Work
from .values.answers import Answer


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Work without a result."""

    work: Work
    finish: Callable[[Result], None]


class Outbox:
    """Collects the actions of the current event, in order."""

    def __init__(self, config: CoordinatorConfig, new_id: Callable[[], str]) -> None:
        self.config = config
        self.new_id = new_id
        """Returns a unique text for a member id."""
        self.time = 0.0
        self.deadlines: Deadlines[DeadlineKey] = Deadlines()
        self.open_work: dict[int, OpenWork] = {}
        self._actions: list[Action] = []
        self._work_ids = count(1)

    def take_actions(self) -> list[Action]:
        """Return the actions that were collected, and forget them."""
        actions, self._actions = self._actions, []
        return actions

    def answer(self, request_id: int, answer: Answer) -> None:
        self._actions.append(SendAnswer(request_id, answer))

    def report(self, incident: Incident, group: str, *members: str) -> None:
        self._actions.append(ReportIncident(incident, group, members))

    def report_commit(self, commit: ReportCommit) -> None:
        if self.config.report_commits and commit.offsets:
            self._actions.append(commit)

    def start(self, work: Work, finish: Callable[[Result], None], *, timeout: float | None = None) -> None:
        """Start work. `finish` receives its result, or a failure after the timeout, exactly once."""
        work_id = next(self._work_ids)
        self.open_work[work_id] = OpenWork(work, finish)
        limit = self.config.storage_timeout if timeout is None else timeout
        self.deadlines.set(DeadlineKey(DeadlineKind.WORK, owner=work_id), self.time + limit)
        self._actions.append(StartWork(work_id, work))

    def finish(self, work_id: int, result: Result) -> None:
        """Pass a result to the code that waits for it. Ignore the result of work that has finished already."""
        if (open_work := self.open_work.pop(work_id, None)) is not None:
            self.deadlines.cancel(DeadlineKey(DeadlineKind.WORK, owner=work_id))
            open_work.finish(result)

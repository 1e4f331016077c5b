"""Call the callbacks of the user, and log the events of a member. An error in a callback never stops the member."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ..core.znodes.topic_partition import TopicPartition
from .events import EventKind, MemberEvent
from .options import Options

log = logging.getLogger("zkgroups.member")

Partitions = frozenset[TopicPartition]

_LEVELS: Final = {
    EventKind.COMMITTED: logging.DEBUG,
    EventKind.LOST: logging.WARNING,
    EventKind.STUCK: logging.WARNING,
    EventKind.MISSING: logging.WARNING,
    EventKind.FOREIGN: logging.WARNING,
    EventKind.MALFORMED: logging.WARNING,
    EventKind.BACK: logging.WARNING,
    EventKind.DIFFER: logging.WARNING,
    EventKind.RESET: logging.WARNING,
    EventKind.IDLE: logging.WARNING,
}
"""The log level of each event; INFO for all others."""

_PHRASES: Final = {
    EventKind.JOINED: "joined",
    EventKind.ASSIGNED: "was assigned",
    EventKind.REVOKED: "released",
    EventKind.LOST: "lost",
    EventKind.WAITING: "waits for partitions",
    EventKind.STUCK: "is still waiting",
    EventKind.CONFLICT: "could not claim partitions",
    EventKind.COMMITTED: "committed offsets of",
    EventKind.MISSING: "waits for topics",
    EventKind.FOREIGN: "shares with other clients",
    EventKind.MALFORMED: "ignores unreadable nodes",
    EventKind.BACK: "finds that committed offsets went back",
    EventKind.DIFFER: "finds offsets that differ",
    EventKind.RESET: "moved its start in",
    EventKind.IDLE: "is idle and releases",
    EventKind.MOVED: "follows its group and is now",
    EventKind.LEFT: "left",
}

_NAMED_IN_DETAIL: Final = (EventKind.WAITING, EventKind.STUCK, EventKind.CONFLICT, EventKind.BACK, EventKind.DIFFER)
"""Their details already name the partitions, each with its holder or its offsets."""

_ERRORS_IN_A_ROW: Final = 16
"""How many different errors of one step are logged as warnings until it works again."""

_SHOWN: Final = 20
"""How many partitions a log line names."""


def _shown(at: Partitions) -> str:
    more = f" and {len(at) - _SHOWN} more" if len(at) > _SHOWN else ""
    return ", ".join(map(str, sorted(at)[:_SHOWN])) + more


class Callbacks:
    """Reports the events of one member, on its own thread; commits are reported on the thread that commits."""

    def __init__(
        self, name: str, options: Options, number: Callable[[], int], await_callback: Callable[[Any], object]
    ) -> None:
        self._name = name
        self._options = options
        self._number = number
        self._await = await_callback
        self._noted: dict[EventKind, str] = {}
        self._failing: dict[str, set[str]] = {}

    def event(self, kind: EventKind, at: Partitions = frozenset(), detail: str = "") -> None:
        """Log an event once, and call `on_event` with it and the number of the current plan."""
        self._log(_LEVELS.get(kind, logging.INFO), kind, at, detail)
        self._pass_on(kind, at, detail)

    def failed(self, what: str, error: Exception, at: Partitions = frozenset(), *, trace: bool = False) -> bool:
        """Report a failed step, e.g. "commit". Each error is one warning until the step has `worked` again.

        Return whether it was a warning.
        """
        known, text = self._failing.setdefault(what, set()), str(error)
        level = logging.DEBUG if text in known or len(known) >= _ERRORS_IN_A_ROW else logging.WARNING
        known.add(text)
        log.log(level, "member %s could not %s: %s", self._name, what, text, exc_info=error if trace else None)
        self._pass_on(EventKind.FAILED, at, text)
        return level == logging.WARNING

    def worked(self, what: str) -> None:
        """Record that a step works again: its next failure is a warning."""
        self._failing.pop(what, None)

    def _log(self, level: int, kind: EventKind, at: Partitions, detail: str) -> None:
        named = detail and kind in _NAMED_IN_DETAIL
        text = (f" {_shown(at)}" if at and not named else "") + (f": {detail}" if detail else "")
        log.log(level, "member %s %s%s", self._name, _PHRASES[kind], text)

    def _pass_on(self, kind: EventKind, at: Partitions, detail: str) -> None:
        if self._options.on_event is not None:
            self.call(self._options.on_event, MemberEvent(kind, at, self._number(), detail))

    def notes(self, notes: Mapping[EventKind, str]) -> None:
        """Report each oddity of the group once."""
        for kind in (EventKind.MISSING, EventKind.MALFORMED, EventKind.FOREIGN, EventKind.DIFFER):
            note = notes.get(kind, "")
            if note and self._noted.get(kind) != note:
                self.event(kind, detail=note)
            self._noted[kind] = note

    def call(self, callback: Callable[[Any], Awaitable[None] | None] | None, argument: object) -> None:
        """Run a callback. Log any error that it raises, and go on."""
        if callback is None:
            return
        try:
            result = callback(argument)
            if inspect.isawaitable(result):
                self._await(result)
        except KeyboardInterrupt:
            raise
        except BaseException:  # including SystemExit and a cancelled coroutine: the member goes on
            log.exception("a callback of member %s failed, called with %s", self._name, argument)

"""What a member tells: events, callbacks, and the log. Nothing that goes wrong in a callback stops the member."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..core.model import TopicPartition
from .events import EventKind, MemberEvent
from .options import Options

log = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]


class Telling:
    """Tells of one member, on the member's own thread but for what is committed elsewhere."""

    def __init__(self, name: str, options: Options, number: Callable[[], int]) -> None:
        self._name = name
        self._options = options
        self._number = number
        self._noted: dict[EventKind, str] = {}

    def event(self, kind: EventKind, at: Partitions = frozenset(), detail: str = "") -> None:
        """Something has happened, with the number of the plan that is followed."""
        log.log(
            logging.DEBUG if kind is EventKind.COMMITTED else logging.INFO,
            "%s %s: %s %s",
            self._name,
            kind,
            ", ".join(map(str, sorted(at)[:20])),
            detail,
        )
        if self._options.on_event is not None:
            self.call(self._options.on_event, MemberEvent(kind, at, self._number(), detail))

    def notes(self, notes: Mapping[EventKind, str]) -> None:
        """What an operator should know about the group; the same is told once."""
        for kind in (EventKind.MISSING, EventKind.MALFORMED, EventKind.FOREIGN):
            note = notes.get(kind, "")
            if note and self._noted.get(kind) != note:
                log.warning("%s: %s: %s", self._name, kind, note)
                self.event(kind, detail=note)
            self._noted[kind] = note

    def call(self, callback: Callable[[Any], Awaitable[None] | None] | None, argument: object) -> None:
        """Call back; an error is logged, and stops nothing."""
        if callback is None:
            return
        try:
            result = callback(argument)
            if inspect.isawaitable(result):
                self._run(result)
        except KeyboardInterrupt:
            raise
        except BaseException:  # also SystemExit, or that a coroutine was cancelled: the member goes on
            log.exception("a callback of %s failed, called with %s", self._name, argument)

    def _run(self, awaitable: Awaitable[None]) -> None:
        if self._options.run is not None:
            self._options.run(awaitable)
            return
        import asyncio  # takes as long as all the rest, and few need it

        async def wait() -> None:
            await awaitable

        asyncio.run(wait())

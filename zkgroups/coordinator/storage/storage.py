"""The interface between a coordinator and its storage."""

from __future__ import annotations

from typing import Protocol

from .work import Result, Work


class Storage(Protocol):
    """Keeps generations and offsets."""

    def start(self, work_id: int, work: Work, /) -> Result | None:
        """Start work, and return its result, or None if the result comes later as a `WorkFinished` event.

        It must not block. Work for one group is carried out in the order in which it was started.
        """

    def let_leave(self) -> bool:
        """Let all members commit and leave, because the coordinator ends. Return whether none is left. Call it again.

        It must not block. Members that join from now on wait until the coordinator has ended.
        """

    def may_be_lost(self, group: str, /) -> bool:
        """True if another coordinator may have taken over this group since it was loaded. It must not block."""

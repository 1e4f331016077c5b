"""The rules of a proxy: what to do with each frame. No sockets here.

A fault counts requests over all connections, from the moment it is armed. A fault on a reply waits for the reply to
the counted request, so replies to earlier requests do not matter. Later requests of the client are held back, so that
the counted request is the last one the server receives.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from enum import Enum, auto
from typing import Literal

from .frames import Frame, Xid

Direction = Literal["requests", "replies"]
DIRECTIONS: tuple[Direction, ...] = ("requests", "replies")


class Verdict(Enum):
    """What happens to a frame, from harmless to severe."""

    PASS = auto()
    PASS_AS_LAST = auto()  # no later request may follow it
    PASS_AND_CUT = auto()
    IGNORE = auto()  # drop it; the connection stays usable
    LOSE = auto()  # drop it; requests and replies no longer match from here on
    CUT = auto()  # once the requests before it are answered


class Moment(Enum):
    """When an armed fault cuts the connection."""

    BEFORE_REQUEST = auto()
    BEFORE_REPLY = auto()
    AFTER_REPLY = auto()


class Fault:
    """A fault that cuts one connection once, at the n-th request that it counts."""

    def __init__(self, moment: Moment, n: int) -> None:
        if n < 1:
            raise ValueError(f"requests are counted from 1, not {n}")
        self._moment = moment
        self._remaining = n
        self._awaited: tuple[Hashable, int] | None = None
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        """True once its frame has come. The cut follows at once."""
        return self._fired.is_set()

    def wait(self, timeout: float = 10.0) -> bool:
        """Wait until it has fired. Return False after `timeout` seconds."""
        return self._fired.wait(timeout)

    def _on_request(self, link: Hashable, xid: int) -> Verdict:
        if self._remaining == 0:
            return Verdict.PASS
        self._remaining -= 1
        if self._remaining > 0:
            return Verdict.PASS
        if self._moment is Moment.BEFORE_REQUEST:
            self._fired.set()
            return Verdict.CUT
        self._awaited = (link, xid)
        return Verdict.PASS_AS_LAST

    def _on_reply(self, link: Hashable, xid: int) -> Verdict:
        if self._awaited != (link, xid):
            return Verdict.PASS
        self._awaited = None
        self._fired.set()
        return Verdict.CUT if self._moment is Moment.BEFORE_REPLY else Verdict.PASS_AND_CUT

    def _on_closed(self, link: Hashable) -> None:
        if self._awaited is not None and self._awaited[0] == link:
            # The reply will never come, so count the next request instead.
            self._awaited = None
            self._remaining = 1


class Faults:
    """All rules in force, and the counts of frames."""

    def __init__(self) -> None:
        self.requests = 0
        self.replies = 0
        self.by_type: Counter[int] = Counter()
        self.clear()

    def clear(self) -> None:
        """Remove all rules. The counts stay."""
        self.refusing = False
        self.swallowing_watch_events = False
        self.holding = False
        self.dropping: set[Direction] = set()
        self.delays: dict[Direction, float] = dict.fromkeys(DIRECTIONS, 0.0)
        self._armed: list[Fault] = []

    def arm(self, moment: Moment, n: int) -> Fault:
        """Arm a fault: count requests from now on."""
        fault = Fault(moment, n)
        self._armed.append(fault)
        return fault

    def on_request(self, link: Hashable, frame: Frame) -> Verdict:
        """Decide what happens to a frame from the client."""
        if frame.ordinary:
            self.requests += 1
            self.by_type[frame.op or 0] += 1
        return self._judge("requests", link, frame)

    def on_reply(self, link: Hashable, frame: Frame) -> Verdict:
        """Decide what happens to a frame from the server."""
        if frame.ordinary:
            self.replies += 1
        if frame.xid == Xid.WATCH_EVENT and self.swallowing_watch_events:
            return Verdict.IGNORE
        return self._judge("replies", link, frame)

    def on_closed(self, link: Hashable) -> None:
        """Forget the replies that a closed connection still owed."""
        for fault in self._armed:
            fault._on_closed(link)

    def _judge(self, direction: Direction, link: Hashable, frame: Frame) -> Verdict:
        if direction in self.dropping:
            return Verdict.LOSE
        if frame.xid is None or not frame.ordinary:
            return Verdict.PASS
        ask = Fault._on_request if direction == "requests" else Fault._on_reply
        verdicts = [ask(fault, link, frame.xid) for fault in self._armed]
        return max(verdicts, key=lambda verdict: verdict.value, default=Verdict.PASS)

"""Search the time of the message at an offset. Brokers only tell the first message at or after a time.

The messages need not be in the order of their times. The result is the newest time up to the message, which is what
brokers search by: for times in order it is the time of the message itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FIRST_STEP_MS: Final = 1_000
_GROWTH: Final = 4
_PRECISION_MS: Final = 1_000


@dataclass(slots=True)
class MessageTimeSearch:
    """The search for one offset, in milliseconds since 1970. Ask for `question`, and give the answer to `receive`.

    The first question finds out whether the log has times at all. The next ones go back from now in growing steps, as
    most groups are only a little behind. Then the remaining range is halved until it is within a second, or a hundredth
    of the age. A message whose time is in the future counts as one of now.

    >>> search = MessageTimeSearch(offset=7, now_ms=100_000)
    >>> while not search.ended:  # message n was written at n * 10 s
    ...     first = -(-search.question // 10_000)
    ...     search.receive(first, first * 10_000)
    >>> search.found
    70000
    """

    offset: int
    now_ms: int
    question: int = 0
    found: int | None = None
    """A time that the message does not precede. The result, once the search has ended; None if there are no times."""
    ended: bool = False
    _after: int | None = None
    """A time that the message precedes; None before one is known."""
    _step: int | None = _FIRST_STEP_MS
    """How far to go back from now. None when the range is being halved."""

    def receive(self, offset: int | None, time_ms: int) -> None:
        """Take the first message at or after `question`, None if there is none. Then ask the next question."""
        if offset is not None and offset <= self.offset:
            self._step = self._step if self.question == 0 else None
            self.found = max(self.question, min(time_ms, self.now_ms))
            self.ended = offset == self.offset
        elif self.found is None:
            self.ended = True  # no message up to this one has a time
        else:
            self._after = self.question
        if self.found is not None and not self.ended:
            self._ask_next(self.found, self.now_ms + 1 if self._after is None else self._after)

    def _ask_next(self, found: int, after: int) -> None:
        self.ended = after - found <= max(_PRECISION_MS, (self.now_ms - found) // 100)
        self.question = (found + after) // 2
        if self._step is not None and found < self.now_ms - self._step < after:
            self.question = self.now_ms - self._step
            self._step *= _GROWTH

"""What to do with a message whose handler has failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...input_errors import InvalidOptionError

_LONGEST_DELAY = 3_600.0


class LastResort(StrEnum):
    """What happens to a message after its last attempt."""

    STOP = "stop"
    """The error ends the consumer. Nothing past the message is committed."""
    PARK = "park"
    """The lane of the message stands still, and other lanes go on. Nothing past the message is committed."""
    DEAD_LETTER = "dead_letter"
    """The message is written to another topic. When the broker has confirmed that, the lane goes on."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How often a message is handled again, after which pauses, and what happens then.

    - `attempts`: how often a message is handled at most.
    - `first_delay`: the pause after the first failure, in seconds. Each pause is twice as long as the one before.
    - `longest_delay`: no pause is longer.
    - `then`: what happens after the last attempt.
    """

    attempts: int = 3
    first_delay: float = 0.5
    longest_delay: float = 30.0
    then: LastResort = LastResort.STOP

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidOptionError("attempts", self.attempts, "it must be at least 1")
        if not 0 <= self.first_delay <= self.longest_delay <= _LONGEST_DELAY:
            reason = f"it must be between 0 and longest_delay, which may be at most {_LONGEST_DELAY:g} s"
            raise InvalidOptionError("first_delay", self.first_delay, reason)

    def delay(self, failures: int) -> float | None:
        """Return the pause after so many failures of one message. None if it was the last attempt.

        >>> [FailurePolicy(attempts=4).delay(failures) for failures in (1, 2, 3, 4)]
        [0.5, 1.0, 2.0, None]
        """
        if failures >= self.attempts:
            return None
        doublings = min(failures - 1, 64)
        return float(min(self.first_delay * 2**doublings, self.longest_delay))

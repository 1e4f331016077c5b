"""Failed steps of a rebalance: when to retry them, and which errors the caller gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..core.rebalance.actions import (
    ClaimPartitions,
    DeregisterInstance,
    ReadGroup,
    RebalanceRequest,
    RegisterInstance,
    ReleasePartitions,
    StopGeneration,
)
from ..exceptions import NotClaimedError, NotRegisteredError, OutcomeUnknownError
from .callbacks import Callbacks
from .events import MemberStats
from .options import Options

FIRST_BACKOFF: Final = 0.05
"""The first pause before a retry, in seconds. It doubles with each failure in a row, up to `join_backoff`."""

MENDED_BY_LOOKING: Final = (NotClaimedError, NotRegisteredError, OutcomeUnknownError)
"""Errors that the caller need not see, because the next look at the group resolves them."""

_STEPS: Final = {
    RegisterInstance: "register",
    ReadGroup: "read its group and plan",
    ClaimPartitions: "claim partitions",
    StopGeneration: "stop its workers",
    ReleasePartitions: "release partitions",
    DeregisterInstance: "leave",
}
"""The steps that may fail, as the log names them."""


def is_retriable(error: Exception) -> bool:
    """Return whether the member can retry soon after this error."""
    return isinstance(error, MENDED_BY_LOOKING) or getattr(error, "retriable", False) is True


@dataclass(slots=True)
class StepFailure:
    """The error of a failed step. The caller gets it once, unless the step has succeeded in the meantime."""

    step: type[RebalanceRequest]
    error: Exception
    over: bool = False


class StepFailures:
    """Counts the failures of one member, logs them, and hands out errors that a retry alone does not resolve."""

    def __init__(
        self,
        options: Options,
        stats: MemberStats,
        callbacks: Callbacks,
        hand_out: Callable[[StepFailure], object],
    ) -> None:
        self._options = options
        self._stats = stats
        self._callbacks = callbacks
        self._hand_out = hand_out
        self._in_a_row = 0
        self._handed_out: StepFailure | None = None

    def pause(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row, in seconds."""
        return min(FIRST_BACKOFF * 2.0 ** min(failures - 1, 16), self._options.join_backoff)

    def worked(self, step: RebalanceRequest) -> None:
        """Note that a step has succeeded."""
        self._in_a_row = 0
        self._callbacks.worked(_STEPS[type(step)])
        if self._handed_out is not None and self._handed_out.step is type(step):
            self._handed_out.over = True

    def failed(self, step: RebalanceRequest, error: Exception, *, retriable: bool, trace: bool) -> float:
        """Note that a step has failed. Return how long to wait before the retry, in seconds.

        The pause is short if the error is retriable. Otherwise it is `join_backoff`, and the caller gets the error.
        """
        self._stats.failures += 1
        self._in_a_row += 1
        self._callbacks.failed(_STEPS[type(step)], error, trace=trace)
        if retriable:
            return self.pause(self._in_a_row)
        self.report(type(step), error)
        return self._options.join_backoff

    def report(self, step: type[RebalanceRequest], error: Exception) -> None:
        """Hand out the error, unless the caller has not received the last one yet: then replace it."""
        if self._handed_out is not None and not self._handed_out.over:
            self._handed_out.step, self._handed_out.error = step, error
            return
        self._handed_out = StepFailure(step, error)
        self._hand_out(self._handed_out)

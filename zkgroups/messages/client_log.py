"""What confluent-kafka says while brokers are down: many times a second that it cannot connect.

Its log goes to `zkgroups.librdkafka` at level DEBUG. Callers report its errors, each kind only now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..deadline import uptime

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_AGAIN: Final = 30.0
"""In seconds: when an error of the same kind is reported again."""

_SILENCE: Final = 60.0
"""In seconds: without an error for so long, the brokers can be reached again. The client connects more often."""

_SERVED: Final = frozenset({"error_cb", "logger", "stats_cb", "statistics.interval.ms", "throttle_cb"})
"""Settings that queue something for calls of `poll`."""

_CRITICAL: Final = 2
"""The level of syslog."""


class _ClientLog(logging.LoggerAdapter[logging.Logger]):
    """Demotes what is not critical to DEBUG: confluent-kafka logs each failed connection as an error."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(level if level >= logging.CRITICAL else logging.DEBUG, msg, *args, **kwargs)


CLIENT_LOG: Final = _ClientLog(logging.getLogger("zkgroups.librdkafka"), None)
"""The `logger` of clients that are polled. The user's settings may have another one."""


def unserved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a client that nobody polls: errors and log lines in its queue would fill the memory.

    It writes its log to stderr, from `log_level` 2 (critical) on.
    """
    return {"log_level": _CRITICAL, **{name: value for name, value in settings.items() if name not in _SERVED}}


class Outage:
    """Whether a client cannot reach brokers, and which of its errors are worth a report."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._due: dict[int, float] = {}  # by the codes of errors

    @property
    def begun(self) -> bool:
        """True while brokers cannot be reached, as far as known."""
        return self._last is not None

    def failed(self, error: KafkaError) -> bool:
        """Note an error. Return whether to report it: the first of its kind, or the first for some time."""
        self._last = now = uptime()
        if now < self._due.get(error.code(), now):
            return False
        self._due[error.code()] = now + _AGAIN
        return True

    def ended(self, *, answered: bool) -> bool:
        """Return True once when brokers can be reached again: one has answered, or errors have stopped for long."""
        if self._last is None or not (answered or uptime() > self._last + _SILENCE):
            return False
        self._last = None
        self._due.clear()
        return True

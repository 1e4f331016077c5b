"""kazoo's log, without passwords and without repeated warnings."""

from __future__ import annotations

import logging
from typing import Final

from kazoo.protocol.serialization import SASL, Auth
from kazoo.protocol.states import KazooState

MAX_REMEMBERED: Final = 64
"""How many different warnings a log remembers, at most."""


class ConnectionLog(logging.Logger):
    """kazoo's log without passwords and repeated warnings, passed on to its usual logger.

    Without a connection kazoo tries again every second, and logs each failure. Here the same warning is logged once
    until there is a connection. Python prints warnings on stderr if no logging is configured.
    """

    def __init__(self) -> None:
        super().__init__("kazoo.client")
        self.parent = self._usual = logging.getLogger("kazoo.client")
        self._logged: set[str] = set()

    def on_state(self, state: str) -> None:
        """Log all warnings again after a new connection."""
        if state == KazooState.CONNECTED:
            self._logged.clear()

    def handle(self, record: logging.LogRecord) -> None:
        """Pass the record on, without passwords; drop a warning that was logged since the last connection."""
        if isinstance(record.args, tuple):
            record.args = tuple("(a login)" if isinstance(arg, Auth | SASL) else arg for arg in record.args)
        record.msg, record.args = record.getMessage(), None  # the arguments can hold an error, and its open socket
        if record.levelno < logging.WARNING or self._is_new(record.msg):
            super().handle(record)

    def _is_new(self, warning: str) -> bool:
        if warning in self._logged:
            return False
        if len(self._logged) >= MAX_REMEMBERED:
            self._logged.clear()
        self._logged.add(warning)
        return True

    def isEnabledFor(self, level: int) -> bool:
        """Follow the level of the usual logger. Below DEBUG, kazoo logs the password of the session."""
        return level >= logging.DEBUG and not self.disabled and self._usual.isEnabledFor(level)


class SilentLog(logging.Logger):
    """The log of a connection whose failures are expected."""

    def __init__(self) -> None:
        super().__init__("kazoo.client", logging.CRITICAL + 1)
        self.disabled = True

"""The log of libraries on stderr, which `-v` shows."""

from __future__ import annotations

import logging
from typing import Final, TextIO

from .messages import complain, stderr_is_writable

_LOG_FORMAT: Final = "zkgroups: %(levelname)s %(name)s: %(message)s"


def show_log() -> None:
    """Show the log, from INFO. Below that, kazoo logs passwords."""
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, handlers=[PatientHandler()])


class PatientHandler(logging.StreamHandler[TextIO]):
    """Leaves out lines while stderr is a full pipe that nobody reads.

    All threads log, including the threads that keep sessions alive and release claims. They must not wait for a
    reader.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. Only the first line that does not fit waits, for a second."""
        if not (stderr_is_writable(0) if self._left_out else stderr_is_writable()):
            self._left_out += 1
            return
        if self._left_out:
            complain(f"{self._left_out} lines of the log were left out, because nobody read stderr")
            self._left_out = 0
        super().emit(record)

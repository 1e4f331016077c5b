"""The exit codes and their meanings. No other module contains them as numbers."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code. `zkgroups --help` prints its `meaning`."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """Create an integer with a meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "done"
    UNEXPECTED = 1, "unexpected error; -vv shows the traceback"
    USAGE = 2, "usage error, e.g. an invalid name"
    NOT_FOUND = 3, "not found"
    REFUSED = 4, "refused: live instances, an unexpected state, or possible loss of data"
    CONFLICT = 5, "conflict: claimed by another instance, or changed meanwhile"
    AUTH = 6, "authentication failed, or permission missing"
    UNAVAILABLE = 7, "no connection, session expired, or outcome unknown"
    TIMED_OUT = 8, "timed out waiting for a partition"
    PARTIAL = 9, "partly done: some steps failed"
    FINDINGS = 10, "a check found a problem, or the requested znode is unreadable"
    INTERRUPTED = 130, "interrupted by Ctrl-C; claims were released"
    TERMINATED = 143, "terminated by SIGTERM; claims were released"

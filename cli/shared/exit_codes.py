"""The exit codes, each with what it means. Nothing else in the command spells one as a number."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run ended; `meaning` is what `zkgroups --help` says."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        """An integer that carries a sentence."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "done"
    UNEXPECTED = 1, "unexpected; -vv shows the traceback"
    USAGE = 2, "wrong usage, bad names included"
    NOT_FOUND = 3, "not found"
    REFUSED = 4, "refused: live instances, a guard that failed, or something would be lost"
    CONFLICT = 5, "conflict: claimed by another, or changed meanwhile"
    AUTH = 6, "not authenticated, or no permission"
    UNAVAILABLE = 7, "no connection, session lost, or outcome unknown"
    WAITED_IN_VAIN = 8, "waited in vain"
    PARTIAL = 9, "partly done"
    FINDINGS = 10, "a check found something, or the znode asked for cannot be read"
    INTERRUPTED = 130, "ended by Ctrl-C, after letting go"
    TERMINATED = 143, "ended by SIGTERM, after letting go"

"""Add up the rows that tasks have written."""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from ...core.migration.tally import Tally


class TallySum(Protocol):
    """A sum of tallies, which can be sent to workers. The tallies of a failed task do not count."""

    def add(self, tally: Tally, /) -> None:
        """Add the rows of some groups."""

    @property
    def value(self) -> Tally:
        """The sum."""


class LocalTallySum:
    """The sum in this process."""

    def __init__(self) -> None:
        self.value = Tally()
        self._lock = Lock()

    def add(self, tally: Tally, /) -> None:
        with self._lock:
            self.value += tally


class TallyAddition:
    """How Spark adds tallies: its `AccumulatorParam`. It is here because workers do not import `zkgroups.spark`."""

    def zero(self, _value: Tally) -> Tally:
        """Return the neutral element."""
        return Tally()

    def addInPlace(self, one: Tally, other: Tally) -> Tally:
        """Return the sum."""
        return one + other

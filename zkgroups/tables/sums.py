"""Sums of what tasks have counted: in this process, or with an accumulator of Spark."""

from __future__ import annotations

from threading import Lock
from typing import Generic, Protocol, Self, TypeVar


class Addable(Protocol):
    """A value that can be added. Without arguments, its class returns zero."""

    def __init__(self) -> None: ...

    def __add__(self, other: Self, /) -> Self: ...


T = TypeVar("T", bound=Addable)


class TaskSum(Protocol[T]):
    """A sum, which can be sent to workers. What a failed task has added does not count."""

    def add(self, number: T, /) -> None:
        """Add a part."""

    @property
    def value(self) -> T:
        """The sum."""


class LocalSum(Generic[T]):
    """The sum in this process."""

    def __init__(self, zero: T) -> None:
        self.value = zero
        self._lock = Lock()

    def add(self, number: T, /) -> None:
        with self._lock:
            self.value += number


class Addition(Generic[T]):
    """How Spark adds: its `AccumulatorParam`. It is here because workers do not import `zkgroups.spark`."""

    def zero(self, value: T) -> T:
        """Return the neutral element."""
        return type(value)()

    def addInPlace(self, one: T, other: T) -> T:
        """Return the sum."""
        return one + other

"""Rows that are stored as columns. Of millions of rows, most are never needed as named tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Columns(Sequence[T], Generic[T]):
    """Rows, which are named tuples. A column is loaded, and a row is created, only when it is used.

    >>> from typing import NamedTuple
    >>> class Row(NamedTuple):
    ...     topic: str
    ...     offset: int
    >>> rows = Columns(Row, 3, {"topic": ["orders"] * 3, "offset": [5, 6, 7]}.__getitem__)
    >>> rows[1:].column("offset"), rows[2]
    ([6, 7], Row(topic='orders', offset=7))
    """

    __slots__ = ("_columns", "_count", "_load", "_rows", "kind")

    def __init__(self, kind: type[T], count: int, load: Callable[[str], Sequence[Any]]) -> None:
        self.kind = kind
        self._count = count
        self._load = load
        self._columns: dict[str, Sequence[Any]] = {}
        self._rows: list[T] | None = None

    @classmethod
    def joined(cls, kind: type[T], parts: Sequence[Sequence[T]]) -> Self:
        """Join several sequences of rows."""

        def load(name: str) -> Sequence[Any]:
            return [*chain.from_iterable(column(part, name) for part in parts)]

        return cls(kind, sum(map(len, parts)), load)

    def column(self, name: str) -> Sequence[Any]:
        """Return the values of one field."""
        if name not in self._columns:
            self._columns[name] = self._load(name)
        return self._columns[name]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all columns."""
        return self.kind._fields  # type: ignore[attr-defined,no-any-return]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> T | Self:
        if isinstance(index, slice):
            count = len(range(*index.indices(self._count)))
            return type(self)(self.kind, count, lambda name: self.column(name)[index])
        return tuple.__new__(self.kind, (self.column(name)[index] for name in self.fields))  # type: ignore[type-var]

    def __iter__(self) -> Iterator[T]:
        if self._rows is None:
            values = zip(*map(self.column, self.fields), strict=True)
            self._rows = [*map(tuple.__new__, repeat(self.kind), values)]  # type: ignore[arg-type]
        return iter(self._rows)


def grouped(rows: Sequence[T], key: str) -> dict[Any, Sequence[T]]:
    """Group rows by the values of one field, keeping their order."""
    found: dict[Any, Sequence[T]] = {}
    start = 0
    for value, together in groupby(column(rows, key)):
        stop = start + len(list(together))
        found[value] = [*found[value], *rows[start:stop]] if value in found else rows[start:stop]
        start = stop
    return found


def column(rows: Sequence[Any], name: str) -> Sequence[Any]:
    """Return the values of one field of these rows."""
    return rows.column(name) if isinstance(rows, Columns) else [*map(attrgetter(name), rows)]

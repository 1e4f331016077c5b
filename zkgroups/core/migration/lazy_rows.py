"""Rows of one kind, kept as columns: thousands are added at once, and each is made when somebody looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Rows(Generic[T]):
    """Rows of a dataclass.

    >>> from zkgroups.core.migration.apply_rules import SourceSeen
    >>> rows = Rows(SourceSeen)
    >>> rows.extend(2, {"instances": [(), ("a",)], "offsets": {}, "unreadable": ""})
    >>> [row.instances for row in rows], rows.columns["unreadable"]
    ([(), ('a',)], ['', ''])
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._count = 0
        self.columns: dict[str, list[Any]] = {name: [] for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]

    @classmethod
    def of(cls, kind: type[T], rows: Iterable[T]) -> Self:
        """Rows that there are already."""
        made = cls(kind)
        for row in rows:
            made.add(row)
        return made

    def add(self, row: T) -> None:
        """One more."""
        self._count += 1
        for name, column in self.columns.items():
            column.append(getattr(row, name))

    def extend(self, count: int, values: Mapping[str, Any]) -> None:
        """So many more: of each field a list of values, or one that all have."""
        self._count += count
        for name, column in self.columns.items():
            value = values[name]
            column += value if isinstance(value, list) else [value] * count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        names = list(self.columns)
        return (self._kind(**dict(zip(names, each, strict=True))) for each in zip(*self.columns.values(), strict=True))


class Slice(Sequence[T], Generic[T]):
    """Some rows that stand together, out of the columns of many; each is made when somebody looks at it."""

    def __init__(self, kind: type[T], columns: Mapping[str, Sequence[Any]], start: int, stop: int) -> None:
        self._kind = kind
        self._columns = columns
        self._start, self._stop = start, stop

    def column(self, name: str) -> list[Any]:
        """One field of all rows."""
        return list(self._columns[name][self._start : self._stop])

    def first(self, name: str) -> Any:
        """One field of the first row."""
        return self._columns[name][self._start]

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        numbers = range(self._start, self._stop)[at]
        return self._row(numbers) if isinstance(numbers, int) else [self._row(number) for number in numbers]

    def _row(self, number: int) -> T:
        names: Iterable[str] = self._kind.__dataclass_fields__  # type: ignore[attr-defined]
        return self._kind(**{name: self._columns[name][number] for name in names})

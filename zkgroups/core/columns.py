"""Creating millions of named tuples from columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, repeat
from typing import Any, TypeVar

T = TypeVar("T")


def from_columns(kind: type[T], count: int, columns: Mapping[str, Iterable[Any]]) -> list[T]:
    """Create `count` named tuples. `columns` has the values of each field; nothing checks them.

    A column may be longer: `repeat(None)` sets a field of all values to None. This is faster than to create one value
    after the other.
    """
    values = zip(*(columns[name] for name in kind._fields), strict=False)  # type: ignore[attr-defined]
    return [*map(tuple.__new__, repeat(kind), islice(values, count))]  # type: ignore[arg-type]

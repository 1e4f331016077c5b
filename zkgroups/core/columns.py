"""Creating millions of values of a frozen dataclass from columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import repeat
from typing import Any, TypeVar

T = TypeVar("T")


def from_columns(kind: type[T], count: int, columns: Mapping[str, Iterable[Any]]) -> list[T]:
    """Create `count` values of a dataclass with slots. `columns` has the values of each field; nothing checks them.

    A column may be longer: `repeat(None)` sets a field of all values to None. This is faster than to create one value
    after the other.
    """
    made = [*map(object.__new__, repeat(kind, count))]
    for field in fields(kind):  # type: ignore[arg-type]
        deque(map(vars(kind)[field.name].__set__, made, columns[field.name]), maxlen=0)
    return made

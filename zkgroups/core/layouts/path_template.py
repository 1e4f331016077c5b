"""Paths with fields, such as `/kafkastorm/{group}/{topic}/partition_{partition}`.

A template says which nodes hold offsets. Readers follow it from its root, segment by segment. The names that match a
segment lead on, and set its fields. All other names are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from ...input_errors import InvalidNameError, InvalidOptionError
from ..znodes.names import check_name, parse_partition


class Field(StrEnum):
    """The fields of a path. TRANSACTION is only for Trident."""

    GROUP = "group"
    TOPIC = "topic"
    PARTITION = "partition"
    TRANSACTION = "transaction"


Fields = Mapping[Field, str]
"""The values of the fields of one path."""

_PATTERNS: Final = {Field.GROUP: ".+", Field.TOPIC: ".+", Field.PARTITION: "[0-9]+", Field.TRANSACTION: "[0-9]{1,18}"}
_FIELD: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Segment:
    """One name of a path: a literal name, or a pattern with fields.

    >>> Segment.parse("partition_{partition}").match("partition_12")
    {<Field.PARTITION: 'partition'>: '12'}
    """

    text: str
    fields: tuple[Field, ...]
    _pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name with fields in braces. Raise ValueError with the reason if it is invalid."""
        literals = _FIELD.split(text)[::2]
        fields = tuple(map(_field, _FIELD.findall(text)))
        if any(mark in literal for literal in literals for mark in "{}"):
            raise ValueError(f"{text!r} has a brace without its counterpart")
        if "" in literals[1:-1]:
            raise ValueError(f"{text!r} has two fields without a text between them")
        if len({*fields}) < len(fields):
            raise ValueError(f"{text!r} has a field twice")
        if {Field.GROUP, Field.TOPIC} <= {*fields}:
            raise ValueError(f"{text!r} has a group and a topic, so it does not say where one ends")
        pattern = "".join(
            re.escape(literal) + (f"(?P<{name}>{_PATTERNS[name]})" if name else "")
            for literal, name in zip(literals, [*fields, None], strict=True)
        )
        try:
            check_name("name", _FIELD.sub("0", text))
        except InvalidNameError as error:
            raise ValueError(str(error)) from error
        return cls(text, fields, re.compile(pattern, re.DOTALL))

    @property
    def is_literal(self) -> bool:
        """True for a name without fields."""
        return not self.fields

    @property
    def is_partition(self) -> bool:
        """True if the whole name is the number of a partition."""
        return self.text == "{partition}"

    def match(self, name: str) -> Fields | None:
        """Return the fields of a name; None if it does not match."""
        found = self._pattern.fullmatch(name)
        if found is None or (Field.PARTITION in self.fields and parse_partition(found[Field.PARTITION]) is None):
            return None
        return {each: found[each] for each in self.fields}

    def fill(self, fields: Fields) -> str | None:
        """Return the only name that matches with these fields; None if more fields are needed."""
        if not all(each in fields for each in self.fields):
            return None
        return _FIELD.sub(lambda found: fields[Field(found[1])], self.text)


def _field(name: str) -> Field:
    if name not in (Field.GROUP, Field.TOPIC, Field.PARTITION, Field.TRANSACTION):
        raise ValueError(f"{{{name}}} is not a field: use {{group}}, {{topic}} and {{partition}}")
    return Field(name)


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A path with fields. One segment may be `optional`: paths with it and without it match.

    >>> template = PathTemplate.parse("/storm/{group}/{topic}/partition_{partition}", optional=Field.TOPIC)
    >>> {str(name): value for name, value in template.match("/storm/spout/partition_3").items()}
    {'group': 'spout', 'partition': '3'}
    >>> template.match("/storm/spout/orders/partition_3")[Field.TOPIC], template.match("/storm/spout/orders")
    ('orders', None)
    """

    segments: tuple[Segment, ...]
    optional: int | None = None
    root: str = field(init=False)
    """The path above the first field, `/` if there is none."""

    def __post_init__(self) -> None:
        literal = [segment.text for segment in self.segments[: self._literals]]
        object.__setattr__(self, "root", "/" + "/".join(literal))

    @classmethod
    def parse(cls, text: str, *, optional: Field | None = None) -> Self:
        """Parse a path. `optional` is the field whose segment may be missing."""
        if not text.startswith("/"):
            raise InvalidOptionError("layout", text, "a path must begin with a slash")
        try:
            segments = tuple(Segment.parse(name) for name in text.strip("/").split("/")) if text.strip("/") else ()
        except ValueError as error:
            raise InvalidOptionError("layout", text, str(error)) from error
        fields = [each for segment in segments for each in segment.fields]
        if len(fields) > len({*fields}):
            raise InvalidOptionError("layout", text, "each field may occur only once")
        places = [number for number, segment in enumerate(segments) if optional in segment.fields]
        return cls(segments, places[0] if places else None)

    @property
    def fields(self) -> frozenset[Field]:
        """The fields of all segments."""
        return frozenset(each for segment in self.segments for each in segment.fields)

    @property
    def start(self) -> int:
        """The position below the root."""
        return self._literals

    @property
    def _literals(self) -> int:
        return next((n for n, segment in enumerate(self.segments) if not segment.is_literal), len(self.segments))

    def is_end(self, position: int) -> bool:
        """Return whether a path of this many segments is complete."""
        return position == len(self.segments) or (position == self.optional == len(self.segments) - 1)

    def choices(self, position: int) -> tuple[tuple[Segment, int], ...]:
        """Return the segments that may follow, each with the position after it. The first that matches counts."""
        found = [] if position >= len(self.segments) else [(self.segments[position], position + 1)]
        if position == self.optional and position + 1 < len(self.segments):
            found.insert(0, (self.segments[position + 1], position + 2))
        return tuple(found)

    def step(self, position: int, name: str) -> tuple[int, Fields] | None:
        """Follow a name from a position. Return the next position and the fields of the name."""
        for segment, following in self.choices(position):
            if (fields := segment.match(name)) is not None:
                return following, fields
        return None

    def locate(self, path: str) -> tuple[int, Fields] | None:
        """Return the position and the fields of a path that leads to a complete one, or is one; otherwise None."""
        position, fields = 0, dict[Field, str]()
        for name in path.strip("/").split("/") if path.strip("/") else ():
            if (step := self.step(position, name)) is None:
                return None
            position = step[0]
            fields |= step[1]
        return position, fields

    def match(self, path: str) -> Fields | None:
        """Return the fields of a complete path; None for other paths."""
        found = self.locate(path)
        return found[1] if found is not None and self.is_end(found[0]) else None


def check_root(layout: str, text: str, *, fields: frozenset[Field] = frozenset()) -> str:
    """Return the root of a layout without a slash at its end, or raise InvalidOptionError. It may have these fields."""
    template = PathTemplate.parse(text)
    if unexpected := template.fields - fields:
        raise InvalidOptionError("layout", f"{layout}:{text}", f"its path must not have {{{min(unexpected)}}}")
    return "/" + "/".join(segment.text for segment in template.segments)

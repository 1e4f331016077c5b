"""What all layouts have in common: the paths that they read, and the step from nodes to offsets.

A layout never claims partitions: it is only for reading offsets, and for moving them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, Self

from ...input_errors import InvalidNameError, InvalidOptionError
from ..times import from_ms
from ..znodes.codecs import MAX_OFFSET, MISNAMED, DecodingError
from ..znodes.paths import parent
from ..znodes.topic_partition import TopicPartition, check_name, parse_partition
from ..znodes.values import CommittedOffset, ForbiddenNode, MalformedNode, UnreadableNode

# Paths with fields, such as `/kafkastorm/{group}/{topic}/partition_{partition}`.
#
# A template says which nodes hold offsets. Readers follow it from its root, segment by segment. The names that match
# a segment lead on, and set its fields. All other names are ignored.


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


# The meaning of a stored number: the next message to read, or the last one that was processed.
#
# Kafka and zkgroups store the next message. Some systems store the last processed one, which is one less. This module
# is the only place that adds or subtracts the one.


class Stored(StrEnum):
    """The meanings of a stored number.

    - next: the next message to read
    - last: the last processed message
    - from: the first message of the last batch of a Spark job. The job starts there again, and so reads the batch twice
    - until: the message after the last batch of a Spark job
    """

    NEXT = "next"
    LAST = "last"
    FROM = "from"
    UNTIL = "until"


def next_message(number: int, stored: Stored) -> int:
    """Return the next message to read. Raise DecodingError if it is not a valid offset.

    >>> [next_message(41, stored) for stored in Stored]
    [41, 42, 41, 41]
    """
    if number < 0:
        raise DecodingError("negative")
    offset = number + 1 if stored is Stored.LAST else number
    if offset > MAX_OFFSET:
        raise DecodingError("larger than 2^63-1")
    return offset


def stored_number(offset: int, stored: Stored) -> int | None:
    """Return the number to store for the next message to read; None if no valid number means that.

    >>> stored_number(42, Stored.LAST), stored_number(42, Stored.NEXT), stored_number(0, Stored.LAST)
    (41, 42, None)
    """
    number = offset - 1 if stored is Stored.LAST else offset
    return number if number >= 0 else None


class LayoutNode(NamedTuple):
    """A node that a layout reads, or a forbidden directory above such nodes.

    - `template`: the number of the template in `Layout.templates` that led to it.
    - `fields`: the fields of its path, as far as the path goes.
    - `zxid`, `created_ms`, `modified_ms`, `version`: from its stat. The zxid is that of its last write.
    - `is_misnamed`: True if its name should be a partition, and is none.
    - `forbidden`: why it could not be read.
    """

    template: int
    fields: Fields
    path: str
    data: bytes = b""
    zxid: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    version: int = 0
    is_misnamed: bool = False
    forbidden: ForbiddenNode | None = None


class LayoutOffset(NamedTuple):
    """An offset of a group, or an unreadable node in its place.

    - `topic`, `partition`: as far as they are known.
    - `node`: the node that holds it; None if it is forbidden.
    """

    group: str
    topic: str | None
    partition: int | None
    found: CommittedOffset | UnreadableNode
    node: LayoutNode | None


class OffsetPlace(NamedTuple):
    """The group, topic and partition that the path of a node names, as far as it does.

    - `name`: the last name of the path, if the node should hold an offset; empty for a directory.
    - `is_misnamed`: True if that name should be a partition, and is none.
    """

    group: str
    topic: str | None = None
    partition: int | None = None
    name: str = ""
    is_misnamed: bool = False

    @property
    def at(self) -> TopicPartition | None:
        """The partition, if topic and number are known."""
        if self.topic is None or self.partition is None:
            return None
        try:
            return TopicPartition(self.topic, self.partition)
        except InvalidNameError:
            return None


class Layout(ABC):
    """Where a system keeps offsets, and how to read them.

    - `text`: the layout as users write it. `parse_layout` understands it.
    - `location`: the part of the text that says where, without the format of values.
    - `templates`: the paths of its nodes. The first leads to the offsets.
    - `stored`: what the stored numbers are.
    - `has_registrations`: True if its groups have members and owners below `/consumers`, as legacy groups do. Otherwise
      nothing shows whether a client still writes the offsets.
    - `own_group`: the name of the only group, if paths do not contain one: the last name of the root.
    """

    has_registrations: ClassVar[bool] = False

    def __init__(self, text: str, location: str, templates: Sequence[PathTemplate], stored: Stored) -> None:
        self.text = text
        self.location = location
        self.templates = tuple(templates)
        self.stored = stored
        has_group = Field.GROUP in templates[0].fields
        self.own_group = None if has_group else templates[0].root.rpartition("/")[2]

    @property
    def root(self) -> str:
        """The directory above all nodes."""
        return self.templates[0].root

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Layout {self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @abstractmethod
    def offsets(self, group: str, nodes: Sequence[LayoutNode]) -> Iterator[LayoutOffset]:
        """Yield the offsets of one group from all of its nodes, in any order."""

    def group_of(self, fields: Fields) -> str | None:
        """Return the group of a node; None for a directory above the groups."""
        return fields.get(Field.GROUP, self.own_group)

    def place(self, path: str) -> OffsetPlace | None:
        """Return what a path says about an offset; None if it does not belong to a group of this layout."""
        name = path.rpartition("/")[2]
        for template in self.templates:
            if (found := template.locate(path)) is not None:
                position, fields = found
                is_misnamed = False
            elif (found := template.locate(parent(path))) is not None and is_misnamed_in(template, found[0], name):
                position, fields = found
                is_misnamed = True
            else:
                continue
            if (group := self.group_of(fields)) is not None:
                shown = name if is_misnamed or template.is_end(position) else ""
                return OffsetPlace(group, fields.get(Field.TOPIC), partition_of(fields), shown, is_misnamed)
        return None


def is_misnamed_in(template: PathTemplate, position: int, name: str) -> bool:
    """Return whether a name below a directory should be the number of a partition, and is none."""
    choices = template.choices(position)
    return len(choices) == 1 and choices[0][0].is_partition and parse_partition(name) is None


def partition_of(fields: Fields) -> int | None:
    """Return the number of the partition in a path, if the path goes that far."""
    text = fields.get(Field.PARTITION)
    return None if text is None else parse_partition(text)


class OneOffsetPerNode(Layout):
    """A layout whose nodes hold one offset each.

    If two nodes of a group hold an offset of the same partition, the node that was written last counts, because its
    writer is still at work. An offset can be written back, because nothing else depends on the node.
    """

    @abstractmethod
    def decode(self, fields: Fields, data: bytes) -> tuple[str, int]:
        """Return the topic and the next message to read. Raise DecodingError if the data does not contain them."""

    @abstractmethod
    def rewritten(self, data: bytes, offset: int) -> bytes:
        """Return the data of a node with another offset, and all else unchanged. Raise DecodingError if impossible."""

    def offsets(self, group: str, nodes: Sequence[LayoutNode]) -> Iterator[LayoutOffset]:
        """Yield an offset for each partition."""
        return latest(self._offset(group, node) for node in nodes)

    def _offset(self, group: str, node: LayoutNode) -> LayoutOffset:
        topic, partition = node.fields.get(Field.TOPIC), partition_of(node.fields)
        if node.forbidden is not None:
            return LayoutOffset(group, topic, partition, node.forbidden, None)
        try:
            if node.is_misnamed or partition is None:
                raise DecodingError(MISNAMED)
            topic, offset = self.decode(node.fields, node.data)
            return committed(group, topic, partition, offset, node)
        except DecodingError as reason:
            return malformed(group, topic, partition, node, str(reason))


def committed(group: str, topic: str, partition: int, offset: int, node: LayoutNode) -> LayoutOffset:
    """Return an offset that a node holds. Raise DecodingError if the name of the topic is invalid."""
    try:
        at = TopicPartition(topic, partition)
    except InvalidNameError as error:
        raise DecodingError(str(error)) from error
    times = from_ms(node.modified_ms), from_ms(node.created_ms)
    return LayoutOffset(
        group, topic, partition, CommittedOffset(group, at, offset, node.version, *times, node.zxid), node
    )


def malformed(group: str, topic: str | None, partition: int | None, node: LayoutNode, reason: str) -> LayoutOffset:
    """Return a malformed node in the place of an offset."""
    found = MalformedNode(node.path, node.data, reason, version=node.version)
    return LayoutOffset(group, topic, partition, found, node)


def latest(offsets: Iterable[LayoutOffset]) -> Iterator[LayoutOffset]:
    """Yield one offset for each partition, that of the node which was written last."""
    known: dict[tuple[str, int], LayoutOffset] = {}
    for each in offsets:
        if each.topic is None or each.partition is None or each.node is None:
            yield each
            continue
        key = each.topic, each.partition
        before = known.get(key)
        if before is None or before.node is None or before.node.zxid < each.node.zxid:
            known[key] = each
    yield from known.values()


def in_order(offsets: Iterable[LayoutOffset]) -> list[LayoutOffset]:
    """Sort the offsets of a group by topic and partition. Unknown ones come first."""
    return sorted(offsets, key=_place)


def _place(found: LayoutOffset) -> tuple[str, int, str]:
    path = found.found.path if isinstance(found.found, UnreadableNode) else ""
    return found.topic or "", -1 if found.partition is None else found.partition, path

"""What all layouts have in common: the paths that they read, and the step from nodes to offsets.

A layout never claims partitions: it is only for reading offsets, and for moving them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from ...input_errors import InvalidNameError
from ..times import from_ms
from ..znodes.decoding import DecodingError
from ..znodes.names import parse_partition
from ..znodes.paths import parent
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset, ForbiddenNode, MalformedNode, UnreadableNode
from .path_template import Field, Fields, PathTemplate
from .stored_number import Stored


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
                raise DecodingError("its name is not a partition")
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

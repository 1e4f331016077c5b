"""Read the offsets of any layout, and find out which layouts a tree has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from ...core.layouts.detection import DetectedLayout, SampledNode, detect
from ...core.layouts.layout import (
    Field,
    Fields,
    Layout,
    LayoutNode,
    LayoutOffset,
    PathTemplate,
    Segment,
    in_order,
    is_misnamed_in,
)
from ...core.layouts.legacy import DIRECTORY
from ...core.znodes.group_description import GroupView
from ...core.znodes.paths import BROKER_TOPICS, CONSUMERS, Part
from ...core.znodes.values import CommittedOffset, ForbiddenNode, UnreadableNode
from ...exceptions import NoPermissionError
from ..requests import bulk_read
from ..requests.node import Node
from ..session.session import RegistryContext
from . import group_reader
from .group_reader import GROUPS_AT_ONCE, MAX_GROUPS_AT_ONCE
from .tree_walk import TopicFilter, all_topics

# Read the offsets of any layout: follow its path templates from the root, with one bulk read for each level.
#
# The nodes of some groups are in memory at a time, because a layout may need several nodes for one offset. The layout
# `legacy` has a faster reader of its own (`group_reader.py`), which needs no more memory for larger groups.


def groups_of(context: RegistryContext, layout: Layout) -> list[str]:
    """Return the names of all groups of a layout, sorted."""
    template = layout.templates[0]
    if layout.own_group is not None:
        return [layout.own_group] if context.session.exists(layout.root, deadline=context.deadline()) else []
    level = [_root(template)]
    while level and Field.GROUP not in level[0].fields:
        level = list(_below(context, template, level, None, _refuse))
    return sorted({place.fields[Field.GROUP] for place in _with_next_directory(context, template, level)})


def read_offsets(
    context: RegistryContext, layout: Layout, groups: Iterable[str], wanted: TopicFilter = all_topics
) -> Iterator[tuple[str, list[LayoutOffset]]]:
    """Yield the offsets of each of these groups, sorted by topic and partition. Groups without any have an empty list.

    A node that cannot be read or decoded does not affect other nodes.
    """
    remaining = iter(groups)
    count = GROUPS_AT_ONCE
    while names := list(islice(remaining, count)):
        nodes: dict[str, list[LayoutNode]] = {name: [] for name in names}
        # The nodes of offsets last. So they are at least as new as the nodes that say which of them count, and an
        # offset that changes meanwhile gets a later zxid than is seen here.
        for number in reversed(range(len(layout.templates))):
            for node in _nodes(context, layout, number, nodes.keys(), wanted):
                nodes[layout.group_of(node.fields) or ""].append(node)
        for name in names:
            yield name, offsets_of(layout, name, nodes[name], wanted)
        count = min(2 * count, MAX_GROUPS_AT_ONCE)


def read_groups(context: RegistryContext, layout: Layout, groups: Sequence[str]) -> Iterator[GroupView]:
    """Read these groups, in order, with the offsets of a layout. A layout without registrations has only offsets."""
    views = (
        group_reader.read_groups(context, groups, with_offsets=False)
        if layout.has_registrations
        else map(GroupView, groups)
    )
    for view, (_group, offsets) in zip(views, read_offsets(context, layout, groups), strict=True):
        found = [each.found for each in offsets]
        yield replace(
            view,
            exists=view.exists if layout.has_registrations else bool(found),
            offsets=tuple(each for each in found if isinstance(each, CommittedOffset)),
            unreadable=(*view.unreadable, *(each for each in found if isinstance(each, UnreadableNode))),
        )


def offsets_of(layout: Layout, group: str, nodes: Sequence[LayoutNode], wanted: TopicFilter) -> list[LayoutOffset]:
    """Return the wanted offsets of a group, sorted."""
    return in_order(each for each in layout.offsets(group, nodes) if wanted(group, each.topic or ""))


# Following a template


class _Place(NamedTuple):
    """A path that leads to nodes of a layout, or is one of them."""

    path: str
    position: int
    fields: Fields
    is_misnamed: bool = False


def _root(template: PathTemplate) -> _Place:
    return _Place(template.root, template.start, {})


def _nodes(
    context: RegistryContext, layout: Layout, number: int, groups: Collection[str], wanted: TopicFilter
) -> Iterator[LayoutNode]:
    """Yield all nodes of these groups that a template leads to, and the forbidden directories above such nodes."""
    template = layout.templates[number]
    forbidden: list[LayoutNode] = []

    def note(place: _Place, node: ForbiddenNode) -> None:
        if layout.group_of(place.fields) is None:
            raise NoPermissionError(node.path)
        forbidden.append(LayoutNode(number, place.fields, node.path, forbidden=node))

    def is_wanted(place: _Place) -> bool:
        group, topic = layout.group_of(place.fields), place.fields.get(Field.TOPIC)
        if group is None:
            return True
        return group in groups and (topic is None or wanted(group, topic))

    level = [place for place in [_root(template)] if is_wanted(place)]
    ends: list[_Place] = []
    while level:
        ends += (place for place in level if template.is_end(place.position) or place.is_misnamed)
        level = [place for place in _below(context, template, level, groups, note) if is_wanted(place)]
    yield from forbidden
    for place, node in zip(ends, bulk_read.nodes(context, (place.path for place in ends)), strict=True):
        if node is not None:
            yield _layout_node(number, place, node)


def _layout_node(number: int, place: _Place, node: Node | ForbiddenNode) -> LayoutNode:
    if isinstance(node, ForbiddenNode):
        return LayoutNode(number, place.fields, place.path, forbidden=node)
    times = node.created_ms, node.modified_ms
    return LayoutNode(
        number, place.fields, place.path, node.data, node.mzxid, *times, node.version, is_misnamed=place.is_misnamed
    )


def _below(
    context: RegistryContext,
    template: PathTemplate,
    level: Sequence[_Place],
    groups: Collection[str] | None,
    on_forbidden: Callable[[_Place, ForbiddenNode], None],
) -> Iterator[_Place]:
    """Yield the places one name below. Names that are known from the template or from `groups` are not listed."""
    to_list: list[_Place] = []
    for place in level:
        if place.is_misnamed or not (choices := template.choices(place.position)):
            continue
        names = _known_names(choices[0][0], groups) if len(choices) == 1 else None
        if names is None:
            to_list.append(place)
        else:
            yield from _steps(template, place, names)
    for place, found in zip(to_list, list_children(context, [place.path for place in to_list]), strict=True):
        if isinstance(found, ForbiddenNode):
            on_forbidden(place, found)
        else:
            yield from _steps(template, place, sorted(found or ()))


def list_children(context: RegistryContext, paths: Sequence[str]) -> Iterator[list[str] | ForbiddenNode | None]:
    """Yield the names of the children of all paths, in order. Unlike others, the root has no name to read it by."""
    if list(paths) == ["/"]:
        yield context.session.children("/", deadline=context.deadline())
    else:
        yield from bulk_read.children(context, paths)


def _known_names(segment: Segment, groups: Collection[str] | None) -> list[str] | None:
    """Return the names that match a segment; None if only ZooKeeper knows them."""
    if segment.is_literal:
        return [segment.text]
    if groups is None or segment.fields != (Field.GROUP,):
        return None
    return [name for group in groups if (name := segment.fill({Field.GROUP: group})) is not None]


def _steps(template: PathTemplate, place: _Place, names: Iterable[str]) -> Iterator[_Place]:
    directory = "" if place.path == "/" else place.path
    for name in names:
        if (step := template.step(place.position, name)) is not None:
            yield _Place(f"{directory}/{name}", step[0], {**place.fields, **step[1]})
        elif is_misnamed_in(template, place.position, name):
            yield _Place(f"{directory}/{name}", place.position, place.fields, is_misnamed=True)


def _with_next_directory(context: RegistryContext, template: PathTemplate, level: Sequence[_Place]) -> Iterator[_Place]:
    """Leave out groups without the directory that the template names below them. Such groups have no offsets here."""
    following = template.choices(level[0].position) if level else ()
    if len(following) != 1 or not following[0][0].is_literal:
        yield from level
        return
    for place, names in zip(level, bulk_read.children(context, (place.path for place in level)), strict=True):
        if isinstance(names, ForbiddenNode) or following[0][0].text in (names or ()):
            yield place


def _refuse(_place: _Place, node: ForbiddenNode) -> None:
    raise NoPermissionError(node.path)


# Look at a part of a tree, and find out which layouts it has.
#
# Only some children of each directory are read, spread over all of them, and only so many nodes in total. So a tree
# of any size takes a few seconds. The layouts found are then read, up to a limit, to count their groups and offsets.


MOST_NODES: Final = 20_000
"""The number of nodes to look at."""
MOST_OFFSETS: Final = 10_000
"""The number of offsets of one layout to count."""

_SAMPLE: Final = 24
"""The number of children of one directory to look at."""
_DEPTH: Final = 10
_ALWAYS: Final = frozenset({CONSUMERS.strip("/"), Part.OFFSETS.value, DIRECTORY, "user"})
"""Names that lead to offsets, and so belong to each sample."""
_NEVER: Final = frozenset({"zookeeper", "zkgroups"})
_OF_BROKERS: Final = frozenset(
    {"admin", "brokers", "cluster", "config", "controller", "controller_epoch", "feature", "isr_change_notification"}
    | {"kafka-acl", "kafka-acl-changes", "kafka-acl-extended", "kafka-acl-extended-changes", "latest_producer_id_block"}
    | {"log_dir_event_notification", "delegation_token"}
)
"""Kafka's own directories, beside `brokers`."""


@dataclass(frozen=True, slots=True)
class LayoutFound:
    """A layout in a tree, and how much it holds.

    - `detected`: the layout, and the options to use.
    - `groups`: the number of its groups.
    - `offsets`, `unreadable`: the numbers of its offsets, and of nodes that cannot be read as offsets.
    - `is_complete`: False if there are more offsets than were counted.
    """

    detected: DetectedLayout
    groups: int
    offsets: int
    unreadable: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Detection:
    """The layouts in a tree. `nodes` is how many nodes were looked at, `is_complete` whether these were all."""

    layouts: tuple[LayoutFound, ...]
    nodes: int
    is_complete: bool


def detect_layouts(context: RegistryContext, root: str, *, most_nodes: int = MOST_NODES) -> Detection:
    """Look at the tree below a node."""
    sample = _Sample(context, most_nodes)
    nodes = list(sample.read(root.rstrip("/") or "/"))
    [topics] = bulk_read.children(context, [BROKER_TOPICS])
    detected = detect(nodes, frozenset(topics) if isinstance(topics, list) else ())
    found = tuple(_counted(context, each) for each in detected)
    return Detection(found, sample.seen, sample.is_complete)


def _counted(context: RegistryContext, detected: DetectedLayout) -> LayoutFound:
    groups = groups_of(context, detected.layout)
    offsets = unreadable = 0
    for _group, found in read_offsets(context, detected.layout, groups):
        good = sum(isinstance(each.found, CommittedOffset) for each in found)
        offsets, unreadable = offsets + good, unreadable + len(found) - good
        if offsets + unreadable >= MOST_OFFSETS:
            return LayoutFound(detected, len(groups), offsets, unreadable, is_complete=False)
    return LayoutFound(detected, len(groups), offsets, unreadable, is_complete=True)


class _Sample:
    """Reads a part of a tree, level by level."""

    def __init__(self, context: RegistryContext, most: int) -> None:
        self._context = context
        self._most = most
        self.seen = 0
        self.is_complete = True

    def read(self, root: str) -> Iterator[SampledNode]:
        """Yield the chosen nodes that have data."""
        level = [root]
        for _ in range(_DEPTH):
            level = self._within_limit(level)
            self.seen += len(level)
            below = [path for path in level if path != "/"]
            for path, node in zip(below, bulk_read.nodes(self._context, below), strict=True):
                if isinstance(node, Node) and node.data:
                    yield SampledNode(path, node.data)
            listed = zip(level, list_children(self._context, level), strict=True)
            chosen = ((path, self._some(names)) for path, names in listed if isinstance(names, list))
            level = [f"{path.rstrip('/')}/{name}" for path, names in chosen for name in names]
            if not level:
                return
        self.is_complete = False

    def _within_limit(self, level: list[str]) -> list[str]:
        left = self._most - self.seen
        if len(level) > left:
            self.is_complete = False
        return _spread(level, left)

    def _some(self, names: list[str]) -> Sequence[str]:
        """Choose some of the children of a directory."""
        hidden = _NEVER | (_OF_BROKERS if "brokers" in names else frozenset())
        left = sorted(name for name in names if name not in hidden)
        chosen = _spread(left, _SAMPLE)
        if len(chosen) < len(left):
            self.is_complete = False
        return list(dict.fromkeys([*chosen, *(name for name in left if name in _ALWAYS)]))


def _spread(items: list[str], count: int) -> list[str]:
    """Return `count` items, evenly spread."""
    if len(items) <= count:
        return items
    return [items[number * len(items) // count] for number in range(max(0, count))]

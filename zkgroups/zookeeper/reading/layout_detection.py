"""Look at a part of a tree, and find out which layouts it has.

Only some children of each directory are read, spread over all of them, and only so many nodes in total. So a tree of
any size takes a few seconds. The layouts found are then read, up to a limit, to count their groups and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...core.layouts.detection import DetectedLayout, SampledNode, detect
from ...core.layouts.kafka_1_1_0 import DIRECTORY
from ...core.znodes.paths import BROKER_TOPICS, CONSUMERS, Part
from ...core.znodes.values import CommittedOffset
from ..requests import bulk_read
from ..requests.node import Node
from ..session.registry_context import RegistryContext
from . import layout_reader

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
    groups = layout_reader.groups_of(context, detected.layout)
    offsets = unreadable = 0
    for _group, found in layout_reader.read_offsets(context, detected.layout, groups):
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
            listed = zip(level, layout_reader.list_children(self._context, level), strict=True)
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
    """Return so many items, evenly spread."""
    if len(items) <= count:
        return items
    return [items[number * len(items) // count] for number in range(max(0, count))]

"""Read the committed offsets of several groups in bulk, filtered by topic and partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.znodes.offset_codec import decode_offset_path
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import GroupNotFoundError

from ..shared.arguments import ChosenPartitions, is_chosen
from ..shared.errors_to_exit_codes import Tally
from ..shared.options import Options
from ..shared.progress import counted


@dataclass(frozen=True, slots=True)
class OffsetNodePath:
    """The path of a node at or below `offsets`, split up. `name` is None for a node above the partitions."""

    group: str
    topic: str | None
    name: str | None

    @classmethod
    def of(cls, node: UnreadableNode) -> OffsetNodePath:
        """Split the path of a node that cannot be read."""
        names = [*node.path.split("/")[2:], None, None, None]
        return cls(str(names[0]), names[2], names[3])

    @property
    def at(self) -> TopicPartition | None:
        """The partition; None if the name is not a partition number."""
        return None if self.topic is None or self.name is None else decode_offset_path(self.topic, self.name)


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group. `others` has the nodes with invalid partition names, and the forbidden nodes."""

    group: str
    offsets: dict[TopicPartition, CurrentOffset] = field(default_factory=dict)
    others: list[UnreadableNode] = field(default_factory=list)

    @property
    def has_forbidden_nodes(self) -> bool:
        """True if there may be offsets that this client has no permission to read."""
        return any(isinstance(node, ForbiddenNode) for node in self.others)


def read_offsets(
    options: Options, registry: Registry, groups: Collection[str], topics: ChosenPartitions | None = None
) -> Iterator[CommittedOffset | UnreadableNode]:
    """Yield the chosen offsets of these groups while they are read. Unreadable nodes are yielded in their place."""
    found = registry.offsets(groups)
    return (each for each in counted(options, found, "offsets") if _is_chosen(each, topics))


def _is_chosen(found: CommittedOffset | UnreadableNode, topics: ChosenPartitions | None) -> bool:
    if topics is None:
        return True
    if isinstance(found, CommittedOffset):
        return is_chosen(found.at, topics)
    path = OffsetNodePath.of(found)
    if path.at is not None:
        return is_chosen(path.at, topics)
    # A forbidden node above the partitions may hide chosen offsets. A node with an invalid name hides none, so it is
    # chosen only with its whole topic.
    return path.topic is None or (path.topic in topics and (path.name is None or topics[path.topic] is None))


def read_offsets_by_group(
    options: Options, registry: Registry, groups: Collection[str], topics: ChosenPartitions | None = None
) -> dict[str, GroupOffsets]:
    """Return the chosen offsets of each of these groups, in order. A group without any has an empty entry."""
    by_group = {name: GroupOffsets(name) for name in groups}
    for found in read_offsets(options, registry, groups, topics):
        if isinstance(found, CommittedOffset):
            by_group[found.group].offsets[found.at] = found
            continue
        path = OffsetNodePath.of(found)
        if path.at is None or isinstance(found, ForbiddenNode):
            by_group[path.group].others.append(found)
        else:
            by_group[path.group].offsets[path.at] = found
    return by_group


def existing_groups(registry: Registry, groups: Iterable[GroupOffsets], tally: Tally) -> list[GroupOffsets]:
    """Return the groups that exist, and report the others as errors."""
    existing = []
    for each in groups:
        if each.offsets or each.others or registry.group(each.group).exists():
            existing.append(each)
        else:
            tally.failed(GroupNotFoundError(each.group))
    return existing

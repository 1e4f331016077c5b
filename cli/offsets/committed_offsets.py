"""What is committed in several groups, read in bulk and chosen by topic and partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.offsets.reset import Found
from zkgroups.core.znodes.offset_codec import decode_offset_path
from zkgroups.exceptions import GroupNotFoundError

from ..shared.arguments import Partitions, is_chosen
from ..shared.errors import Tally
from ..shared.options import Options
from ..shared.progress import counted


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node under `offsets` is, as far as its path says it; `name` is None above the partitions."""

    group: str
    topic: str | None
    name: str | None

    @property
    def at(self) -> TopicPartition | None:
        """The partition that it means, None if it means none."""
        return None if self.topic is None or self.name is None else decode_offset_path(self.topic, self.name)


def place(node: UnreadableNode) -> Place:
    """Where a node is that holds no offset, or may not be read."""
    names = [*node.path.split("/")[2:], None, None, None]
    return Place(str(names[0]), names[2], names[3])


@dataclass(slots=True)
class Committed:
    """The offsets of one group, and what is there beside them: nodes whose names are no partitions, and hidden ones."""

    group: str
    offsets: dict[TopicPartition, Found] = field(default_factory=dict)
    others: list[UnreadableNode] = field(default_factory=list)

    @property
    def hides(self) -> bool:
        """Whether there may be offsets that we may not read."""
        return any(isinstance(node, ForbiddenNode) for node in self.others)


def read_chosen(
    options: Options, registry: Registry, groups: Collection[str], topics: Partitions | None = None
) -> Iterator[CommittedOffset | UnreadableNode]:
    """Every offset of these groups that is chosen, as it comes, with what is none in its place."""
    found = registry.offsets(groups)
    return (each for each in counted(options, found, "offsets") if _is_chosen(each, topics))


def _is_chosen(found: CommittedOffset | UnreadableNode, topics: Partitions | None) -> bool:
    if topics is None:
        return True
    if isinstance(found, CommittedOffset):
        return is_chosen(found.at, topics)
    where = place(found)
    if where.at is not None:
        return is_chosen(where.at, topics)
    # What hides a topic, or all of them, hides what is chosen; another name is another partition.
    return where.topic is None or (where.topic in topics and (where.name is None or topics[where.topic] is None))


def read_committed(
    options: Options, registry: Registry, groups: Collection[str], topics: Partitions | None = None
) -> dict[str, Committed]:
    """The same group by group, in their order, also for a group that has nothing."""
    committed = {name: Committed(name) for name in groups}
    for found in read_chosen(options, registry, groups, topics):
        if isinstance(found, CommittedOffset):
            committed[found.group].offsets[found.at] = found
            continue
        where = place(found)
        if where.at is None or isinstance(found, ForbiddenNode):
            committed[where.group].others.append(found)
        else:
            committed[where.group].offsets[where.at] = found
    return committed


def leave_out_missing(registry: Registry, committed: Iterable[Committed], tally: Tally) -> list[Committed]:
    """The groups that are there; each of the others is an error, and stops none."""
    there = []
    for each in committed:
        if each.offsets or each.others or registry.group(each.group).exists():
            there.append(each)
        else:
            tally.failed(GroupNotFoundError(each.group))
    return there

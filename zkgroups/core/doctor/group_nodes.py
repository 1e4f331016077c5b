"""All znodes of one group that the doctor's checks need, as one value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ..layouts.layout import LayoutOffset
from ..znodes.group_description import GroupDescription, GroupView, describe
from ..znodes.paths import MIGRATION, GroupPaths, Part, join
from ..znodes.states import InstanceState
from ..znodes.values import Dialect, ForbiddenNode, MalformedNode, Registration, UnreadableNode


@dataclass(frozen=True, slots=True)
class Directory:
    """A node of a group that has children: the root, `ids`, `owners`, `offsets`, or the node of a topic."""

    path: str
    names: tuple[str, ...] = ()
    data: bytes = b""
    version: int = 0


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """All znodes of one group that the checks need.

    `nested` has the leaves that have children, with the names of these. `open_to_all` has the directories that every
    client may change. `topics` has all topics of Kafka; None if they are not in this ZooKeeper, or are forbidden.
    `singular` has the offsets that brokers of Kafka 1.1.0 have committed to another directory.
    """

    view: GroupView
    directories: tuple[Directory, ...] = ()
    nested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    open_to_all: tuple[str, ...] = ()
    topics: Collection[str] | None = None
    singular: tuple[LayoutOffset, ...] = ()
    now_ms: int = 0
    stale_ms: int = 0
    description: GroupDescription = field(init=False)
    paths: GroupPaths = field(init=False)
    kept: frozenset[str] = field(init=False)
    """The instances whose registrations no repair deletes. Only a registration is deleted that has no client behind it
    and no children, and that is readable: a repair needs permissions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "description", describe(self.view))
        object.__setattr__(self, "paths", GroupPaths(self.view.group))
        object.__setattr__(self, "kept", frozenset(each.id for each in self.view.instances) - self._removable())

    def _removable(self) -> set[str]:
        dead = (each.id for each in self.view.dead if not isinstance(each.registration, ForbiddenNode))
        return {id for id in dead if join(self.paths.ids, id) not in self.nested}

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.view.group

    @property
    def has_only_directories(self) -> bool:
        """True if the group has no registrations, owners or offsets, not even recently created nodes."""
        upper = {self.paths.root, self.paths.owners, self.paths.offsets}
        has_new = any(directory.names for directory in self.directories if directory.path not in upper)
        marked = any(MIGRATION in found.names for found in self.directories if found.path == self.paths.root)
        known = self.view.instances or self.view.offsets or self.view.unreadable or self.singular
        return self.is_quiet and not (known or has_new or marked)

    @property
    def is_quiet(self) -> bool:
        """True if the group certainly has no live instance and no owner. Forbidden nodes make this uncertain."""
        return not (
            self.view.living
            or self.view.owners
            or self.has_forbidden_nodes(Part.IDS)
            or self.has_forbidden_nodes(Part.OWNERS)
        )

    def has_forbidden_nodes(self, part: Part) -> bool:
        """True if a node in this part of the group is forbidden, so that nodes that seem to be missing may exist."""
        return any(is_in(node.path, join(self.paths.root, part)) for node in self.view.hidden)

    def malformed(self, part: Part) -> Iterator[MalformedNode]:
        """Return the malformed nodes in a part of the group."""
        directory = join(self.paths.root, part)
        return (
            node for node in self.view.unreadable if isinstance(node, MalformedNode) and is_in(node.path, directory)
        )

    def registrations(self) -> Iterator[tuple[str, Registration]]:
        """Yield the readable registrations, each with the path of its node."""
        for node in self.view.instances:
            if isinstance(node.registration, Registration):
                yield join(self.paths.ids, node.id), node.registration

    def dialects(self) -> set[Dialect]:
        """Return the kinds of clients that wrote registrations."""
        return {registration.dialect for _path, registration in self.registrations()}

    def is_missing(self, topic: str) -> bool:
        """True if Kafka certainly does not have the topic."""
        return self.topics is not None and topic not in self.topics


def is_in(path: str, directory: str) -> bool:
    """True if the path is the directory or a node below it."""
    return path == directory or path.startswith(directory + "/")


# Decide whether a group is in use, from its description.


def in_use(group: GroupDescription) -> bool:
    """True if a registered instance may be alive, or if the group has any owner node."""
    alive = any(instance.state is not InstanceState.DEAD for instance in group.instances)
    return alive or any(partition.owners for partition in group.partitions)


def unreadable_nodes(group: GroupDescription) -> tuple[UnreadableNode, ...]:
    """Return the nodes below the group that cannot be read, and so cannot be exported."""
    root = GroupPaths(group.group).root
    return tuple(node for node in group.unreadable if f"{node.path}/".startswith(f"{root}/"))

"""Everything of one group that is looked at when it is examined, as one value that the checks can ask."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ..znodes.describe_group import describe
from ..znodes.group_description import GroupDescription
from ..znodes.group_view import GroupView
from ..znodes.paths import MIGRATION, GroupPaths, Part, join
from ..znodes.values import Dialect, MalformedNode, Registration


@dataclass(frozen=True, slots=True)
class Directory:
    """A node of a group that others stand below: the group's root, `ids`, `owners`, `offsets`, and those of topics."""

    path: str
    names: tuple[str, ...] = ()
    data: bytes = b""
    version: int = 0


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """Everything of one group that the checks look at.

    `nested` has the names below nodes that should have none, `open_to_all` the directories that everybody may change.
    `topics` are all that Kafka has registered, None where it registers none in this ZooKeeper, or we may not see them.
    """

    view: GroupView
    directories: tuple[Directory, ...] = ()
    nested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    open_to_all: tuple[str, ...] = ()
    topics: Collection[str] | None = None
    now_ms: int = 0
    stale_ms: int = 0
    description: GroupDescription = field(init=False)
    paths: GroupPaths = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "description", describe(self.view))
        object.__setattr__(self, "paths", GroupPaths(self.view.group))

    @property
    def group(self) -> str:
        """Its name."""
        return self.view.group

    @property
    def is_litter(self) -> bool:
        """Whether the group is nothing but directories; a node that has just come is only seen by its name."""
        upper = {self.paths.root, self.paths.owners, self.paths.offsets}
        has_come = any(directory.names for directory in self.directories if directory.path not in upper)
        marked = any(MIGRATION in found.names for found in self.directories if found.path == self.paths.root)
        something = self.view.instances or self.view.offsets or self.view.unreadable
        return self.is_quiet and not (something or has_come or marked)

    @property
    def is_quiet(self) -> bool:
        """True if no registered instance may be alive and there are no owners, as far as permissions show."""
        return not (self.view.living or self.view.owners or self.hides(Part.IDS) or self.hides(Part.OWNERS))

    def hides(self, part: Part) -> bool:
        """Whether something in this part may not be read, so that what is missing there may be there."""
        return any(is_in(node.path, join(self.paths.root, part)) for node in self.view.hidden)

    def malformed(self, part: Part) -> Iterator[MalformedNode]:
        """The malformed nodes in a part of the group."""
        directory = join(self.paths.root, part)
        return (
            node for node in self.view.unreadable if isinstance(node, MalformedNode) and is_in(node.path, directory)
        )

    def registrations(self) -> Iterator[tuple[str, Registration]]:
        """The registrations that can be read, each with the path of its node."""
        for node in self.view.instances:
            if isinstance(node.registration, Registration):
                yield join(self.paths.ids, node.id), node.registration

    def dialects(self) -> set[Dialect]:
        """Which clients have written registrations here."""
        return {registration.dialect for _path, registration in self.registrations()}

    def is_gone(self, topic: str) -> bool:
        """Whether it is certain that Kafka has not registered the topic."""
        return self.topics is not None and topic not in self.topics


def is_in(path: str, directory: str) -> bool:
    """Whether it is the directory or something below."""
    return path == directory or path.startswith(directory + "/")

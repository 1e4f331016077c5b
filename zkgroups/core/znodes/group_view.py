"""The znodes of one group, read in one pass, and which of its instances cannot be alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ..times import from_ms
from .migration_mark import Mark
from .paths import GroupPaths
from .values import CommittedOffset, ForbiddenNode, Owner, ReadRegistration, UnreadableNode


@dataclass(frozen=True, slots=True)
class RegisteredInstance:
    """An instance that is registered in a group, by any client.

    - `id`: the id of the instance.
    - `session`: the id of the session that the registration belongs to; 0 if it belongs to no session.
    - `registration`: its subscription: a `Registration`, or an `UnevaluableRegistration`, `MalformedNode` or
      `ForbiddenNode`.
    - `registered_ms`: when it registered, in milliseconds since 1970; `registered_at` is the same as a datetime.
    - `version`: the version of the registration's znode.
    """

    id: str
    session: int
    registration: ReadRegistration
    registered_ms: int = 0
    version: int = 0

    @property
    def registered_at(self) -> datetime | None:
        """When the instance registered, as a datetime in UTC. None if unknown."""
        return from_ms(self.registered_ms)

    @property
    def persistent(self) -> bool:
        """True if its node belongs to no session, so that ZooKeeper never deletes it automatically."""
        found = self.registration
        return found.persistent if isinstance(found, ForbiddenNode) else self.session == 0


def dead_instances(
    instances: Iterable[RegisteredInstance], owners: Iterable[Owner | UnreadableNode]
) -> tuple[RegisteredInstance, ...]:
    """Return the instances that cannot be alive: registered without a session, and named by no owner node.

    An owner node belongs to a session, so a client that has one is alive, however it registered. An owner node that
    cannot be read may belong to any instance: then no instance is certainly dead.
    """
    suspects = {instance.id: instance for instance in instances if instance.persistent}
    if not suspects:
        return ()
    for owner in owners:
        if isinstance(owner, Owner):
            suspects.pop(owner.instance(suspects) or "", None)
        elif isinstance(owner, ForbiddenNode) or owner.session:
            return ()
    return tuple(suspects.values())


@dataclass(frozen=True, slots=True)
class GroupView:
    """The znodes of one group, read in one pass. `partitions` has the topics that are registered in Kafka."""

    group: str
    exists: bool = True
    instances: tuple[RegisteredInstance, ...] = ()
    owners: tuple[Owner, ...] = ()
    offsets: tuple[CommittedOffset, ...] = ()
    unreadable: tuple[UnreadableNode, ...] = ()
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    mark: Mark | UnreadableNode | None = None
    """The migration mark: the group is being migrated, or was."""

    @property
    def dead(self) -> tuple[RegisteredInstance, ...]:
        """The instances that cannot be alive."""
        below = GroupPaths(self.group).owners
        return dead_instances(self.instances, (*self.owners, *(n for n in self.unreadable if n.path.startswith(below))))

    @property
    def living(self) -> tuple[RegisteredInstance, ...]:
        """The instances that may be alive."""
        dead = self.dead
        return tuple(each for each in self.instances if each not in dead) if dead else self.instances

    @property
    def hidden(self) -> tuple[ForbiddenNode, ...]:
        """The forbidden nodes whose contents could change the states: not the registrations of dead instances."""
        forbidden = [node for node in self.unreadable if isinstance(node, ForbiddenNode)]
        dead = [instance.registration for instance in self.dead] if forbidden else []
        return tuple(node for node in forbidden if node not in dead)

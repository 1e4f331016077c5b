"""All groups of a coordinator. A group is loaded from the storage before its first request is processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .group.events import GroupDropped
from .group.group import Group
from .outbox import Outbox
from .rules.expiry import schedule_cleanup
from .rules.transitions import TRANSITIONS
from .storage.work import GroupLoaded, LoadGroup, Result, WorkFailed
from .values.kafka_errors import KafkaError

Then = Callable[[Group], None]
Refuse = Callable[[KafkaError], None]


class GroupsInMemory:
    """The groups that are loaded, and the requests that wait until a group is loaded."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._groups: dict[str, Group] = {}
        self._waiting: dict[str, list[tuple[Then, Refuse]]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(tuple(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> Group | None:
        """Return a group; None if it is not loaded."""
        return self._groups.get(name)

    def use(self, name: str, then: Then, refuse: Refuse) -> None:
        """Call `then` with the group, now or when it is loaded, or `refuse` with an error if it cannot be loaded.

        A group that the storage does not know has `exists=False`. It is removed again, unless `then` creates it.
        """
        if (group := self._groups.get(name)) is not None:
            then(group)
        elif name in self._waiting:
            self._waiting[name].append((then, refuse))
        else:
            self._waiting[name] = [(then, refuse)]
            self._outbox.start(LoadGroup(name), lambda result: self._loaded(name, result))

    def keep(self, group: Group) -> None:
        """Keep a group from now on, until it is deleted or expires."""
        if not group.exists:
            group.exists = True
            schedule_cleanup(group)

    def drop(self, group: Group, error: KafkaError) -> None:
        """Remove a group from memory. Its parked requests get the error."""
        group.receive(GroupDropped(error))
        del self._groups[group.name]

    def _loaded(self, name: str, result: Result) -> None:
        waiting = self._waiting.pop(name)
        if not isinstance(result, GroupLoaded):
            error = result.error if isinstance(result, WorkFailed) else KafkaError.COORDINATOR_NOT_AVAILABLE
            for _then, refuse in waiting:
                refuse(error)
            return
        group = Group(name, self._outbox, TRANSITIONS, result.generation, result.protocol_type)
        self._groups[name] = group
        if result.exists:
            self.keep(group)
        for then, refuse in waiting:
            if self._groups.get(name) is group:
                then(group)
            else:  # an earlier request has deleted the group
                self.use(name, then, refuse)
        if not group.exists and self._groups.get(name) is group:
            del self._groups[name]
